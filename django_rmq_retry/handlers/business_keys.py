"""Business keys: the names by which operators find a message, from a handler's ``keys=``."""

from collections.abc import Sequence
from itertools import islice

from django_rmq_retry import forks
from django_rmq_retry.errors import UndecodableBody
from django_rmq_retry.handlers.subscription import Subscription
from django_rmq_retry.messages.codecs import decoded
from django_rmq_retry.messages.message import Delivery
from django_rmq_retry.messages.texts import short

MOST_KEYS_OF_MESSAGE = 20
KEY_BYTES = 255
"""Largest size of a stored key, in bytes; longer keys are stored, and looked up, truncated."""


def business_keys(subscription: Subscription, delivery: Delivery) -> list[str]:
    """Return up to 20 distinct business keys of a decoded message, shortened. An error of ``keys=`` is raised."""
    if subscription.keys is None:
        return []
    with forks.ending():
        given = subscription.keys(delivery)
        named = [given] if isinstance(given, str) else islice(given, MOST_KEYS_OF_MESSAGE)
        return list(dict.fromkeys(short(key, KEY_BYTES) for key in named if key not in (None, "")))


def first_business_key(
    subscription: Subscription | None, delivery: Delivery, error: BaseException | None = None
) -> str:
    """Return the message's first business key, or an empty text if there is none or the handler's function fails."""
    return next(iter(known_keys(subscription, delivery, error)), "")


def known_keys(
    subscription: Subscription | None, delivery: Delivery, error: BaseException | None = None
) -> Sequence[str]:
    """Return the message's business keys; none if there are none or the handler's function fails."""
    if subscription is None or subscription.keys is None or isinstance(error, UndecodableBody):
        return ()
    try:
        return business_keys(subscription, delivery)
    except BaseException:  # noqa: BLE001 - a function of the project may fail, but every message gets its log line
        return ()


def readable_keys(subscription: Subscription | None, delivery: Delivery) -> list[str]:
    """Return the business keys of a message that is not decoded; none if it cannot be, or the function fails."""
    if subscription is None or subscription.keys is None:
        return []
    try:
        data = decoded(delivery, subscription.codec, subscription.limits)
        return business_keys(subscription, delivery.for_attempt(attempt=delivery.attempt, data=data))
    except BaseException:  # noqa: BLE001 - a function of the project, called with an arbitrary body
        return []

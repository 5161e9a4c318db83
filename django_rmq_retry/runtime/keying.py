"""The words of the business by which people know a message, as its handler names them: ``keys=``."""

from collections.abc import Iterable
from itertools import islice

from django_rmq_retry.core.errors import UndecodableBody
from django_rmq_retry.core.verdict import short
from django_rmq_retry.runtime.journal import Attempt

MOST = 20
LIMIT = 255


def texts(told: str | Iterable[object]) -> list[str]:
    """At most 20, each once."""
    named = [told] if isinstance(told, str) else islice(told, MOST)
    return list(dict.fromkeys(short(key, LIMIT) for key in named if key not in (None, "")))


def key_of(attempt: Attempt) -> str:
    """The first; none where the handler names none, or its function fails."""
    subscription = attempt.subscription
    if subscription is None or subscription.keys is None or isinstance(attempt.error, UndecodableBody):
        return ""
    try:
        return next(iter(texts(subscription.keys(attempt.delivery))), "")
    except BaseException:  # noqa: BLE001 - a function of the project's: a log line is written of every message
        return ""

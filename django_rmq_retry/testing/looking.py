"""What a test may look at: parked messages with their reasons, and what was published."""

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from django_rmq_retry.core.codec import JSON, Codec
from django_rmq_retry.core.deaths import deaths, reason_of
from django_rmq_retry.core.errors import RmqRetryError, UndecodableHeaders
from django_rmq_retry.core.headers import Headers
from django_rmq_retry.core.message import Delivery, Message
from django_rmq_retry.core.properties import encode_properties
from django_rmq_retry.core.stamps import PREFIX, Stamp
from django_rmq_retry.core.subscription import Intake, Subscription
from django_rmq_retry.core.verdict import ErrorNote


@dataclass(frozen=True, slots=True, kw_only=True)
class Parked:
    """A message in a parked queue."""

    reason: str
    """For people: ``Gave up after 5 attempts: BankDown: timeout``."""
    code: str
    """For programs: ``retries exhausted``."""
    error: ErrorNote | None
    """Its ``kind`` is the class's name, its ``text`` the message."""
    attempts: int
    handler: str
    """Empty where no handler took it."""
    queue: str
    """The work queue that it came in by."""
    message: Delivery

    @property
    def body(self) -> bytes:
        return self.message.body

    @property
    def data(self) -> Any:
        """The decoded body; None where it cannot be decoded."""
        return self.message.data

    @property
    def headers(self) -> Headers:
        return self.message.headers


def parked(delivery: Delivery, codec: Codec) -> Parked:
    """Read a parked message, whether we have parked it or the broker."""
    headers = delivery.headers
    stamp = Stamp.read(headers)
    died = deaths(headers)
    code = _text(headers, "reason") or str(reason_of(headers) or "")
    kind = _text(headers, "error")
    delivery.data = decoded(delivery, codec)
    return Parked(
        reason=_text(headers, "detail") or f"The broker gave it up: {code}",
        code=code,
        error=ErrorNote(kind=kind, text=_text(headers, "message")) if kind else None,
        attempts=stamp.attempts,
        handler=_text(headers, "handler"),
        queue=stamp.queue or (died[-1].queue if died else ""),
        message=delivery,
    )


def decoded(delivery: Delivery, codec: Codec = JSON) -> Any:
    with suppress(RmqRetryError):
        return codec.decode(delivery.body, delivery.properties)
    return None


def arriving(message: Message, queue: str) -> Delivery:
    """A message as a handler of that queue will be given it."""
    stamp = Stamp.read(message.headers)
    delayed = bool(stamp.queue)
    return Delivery(
        queue=queue,
        body=message.body,
        raw=encode_properties(message.properties),
        exchange=stamp.exchange if delayed else message.exchange,
        routing_key=stamp.routing_key if delayed else message.routing_key,
    )


def taken(delivery: Delivery, intake: Intake, subscription: Subscription) -> bool:
    """Whether it is this one of the queue's handlers that takes it."""
    try:
        chosen = intake.choose(delivery)
    except UndecodableHeaders:
        return False
    return chosen is not None and chosen.name == subscription.name


def _text(headers: Headers, name: str) -> str:
    return str(headers.get(PREFIX + name, ""))

"""Views for assertions: parked messages, attempts, waits, published messages and topology."""

import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from difflib import unified_diff
from pathlib import Path
from typing import Any

from django_rmq_retry.errors import RmqRetryError, UndecodableHeaders
from django_rmq_retry.handlers import registry
from django_rmq_retry.handlers.attempt import FinishedAttempt, message_id
from django_rmq_retry.handlers.handler import Handler
from django_rmq_retry.handlers.subscription import Intake, Subscription
from django_rmq_retry.messages.codecs import JSON, Codec
from django_rmq_retry.messages.deaths import deaths, reason_of
from django_rmq_retry.messages.headers import Headers
from django_rmq_retry.messages.message import Delivery, Message
from django_rmq_retry.messages.properties import encode_properties
from django_rmq_retry.messages.stamp import PREFIX, Stamp
from django_rmq_retry.messages.tracebacks import ErrorNote
from django_rmq_retry.policies.policy import Kind, Verdict
from django_rmq_retry.publishing.publish import message_of as published
from django_rmq_retry.publishing.publish import options_of
from django_rmq_retry.topology.drawings import definitions


@dataclass(frozen=True, slots=True, kw_only=True)
class Parked:
    """A message in a parked queue."""

    reason: str
    """For operators: ``Gave up after 5 attempts: BankDown: timeout``."""
    code: str
    """For programs: ``retries_exhausted``."""
    error: ErrorNote | None
    """``kind`` is the class's name, ``text`` the message."""
    attempts: int
    handler: str
    """Empty if no handler took the message."""
    queue: str
    """The work queue where the message first arrived."""
    message: Delivery

    @property
    def body(self) -> bytes:
        return self.message.body

    @property
    def data(self) -> Any:
        """The decoded body; None if it cannot be decoded."""
        return self.message.data

    @property
    def headers(self) -> Headers:
        return self.message.headers


def parked(delivery: Delivery, codec: Codec) -> Parked:
    """Read a message that the consumer or the broker parked."""
    headers = delivery.headers
    stamp = Stamp.read(headers)
    died = deaths(headers)
    code = _text(headers, "reason") or str(reason_of(headers) or "")
    kind = _text(headers, "error")
    return Parked(
        reason=_text(headers, "detail") or f"The broker removed it: {code}",
        code=code,
        error=ErrorNote(kind=kind, text=_text(headers, "message")) if kind else None,
        attempts=stamp.attempts,
        handler=_text(headers, "handler"),
        queue=stamp.queue or (died[-1].queue if died else ""),
        message=replace(delivery, data=decoded(delivery, codec)),
    )


def decoded(delivery: Delivery, codec: Codec = JSON) -> Any:
    with suppress(RmqRetryError):
        return codec.decode(delivery.body, delivery.properties)
    return None


def arriving(message: Message, queue: str) -> Delivery:
    """Return a message as the delivery that a handler of that queue gets."""
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
    """True if this handler of the queue takes the message."""
    try:
        chosen = intake.choose(delivery)
    except UndecodableHeaders:
        return False
    return chosen is not None and chosen.name == subscription.name


def _text(headers: Headers, name: str) -> str:
    return str(headers.get(PREFIX + name, ""))


Key = tuple[str, str | bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One attempt at its end."""

    handler: str
    """Empty if no handler took the message."""
    number: int
    at: float
    """Seconds on the virtual clock since the start of the test."""
    verdict: Verdict
    error: BaseException | None
    message: Delivery


class Recorder:
    """An observer of attempts."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._failed: dict[Key, float] = {}
        self.attempts: list[Tried] = []
        self.waits: list[float] = []
        self.unfinished: Callable[[Key, Tried], None] = lambda _key, _tried: None
        """Called after each attempt that another one follows."""

    def __call__(self, attempt: FinishedAttempt) -> None:
        delivery, now = attempt.delivery, self._clock()
        tried = Tried(
            handler=attempt.subscription.name if attempt.subscription else "",
            number=delivery.attempt,
            at=now,
            verdict=attempt.verdict,
            error=attempt.error,
            message=delivery,
        )
        key = (delivery.queue, message_id(attempt) or delivery.body)
        if not attempt.verdict.counted:
            if attempt.error is not None:
                self.unfinished(key, tried)
            return
        self.attempts.append(tried)
        failed = self._failed.pop(key, None)
        if failed is not None:
            self.waits.append(round(now - failed, 3))
        if attempt.verdict.kind in {Kind.RETRY, Kind.HALT}:
            self._failed[key] = now
            self.unfinished(key, tried)


def message_of(
    data: object,
    *,
    handler: Handler[Any] | None = None,
    attempt: int = 1,
    redelivered: bool = False,
    exchange: str = "",
    routing_key: str = "",
    **options: Any,
) -> Delivery:
    """Return a handler's argument: ``charge(message_of({"payment": 7}, attempt=3))``.

    The data passes through the codec, so that a handler gets its real types: ``Decimal`` for 0.5, no tuples.
    ``handler`` supplies the codec, queue and key. The options are those of ``publish``.
    """
    subscription = None if handler is None else handler.subscription
    codec = JSON if subscription is None else subscription.codec
    message = published(
        data,
        exchange=exchange,
        routing_key=routing_key,
        codec=codec,
        options=options_of(options),
        destination=None if handler is None else handler.destination,
    )
    return Delivery(
        queue="" if subscription is None else subscription.queue.name,
        body=message.body,
        raw=encode_properties(message.properties),
        exchange=message.exchange,
        routing_key=message.routing_key,
        redelivered=redelivered,
        attempt=attempt,
        data=codec.decode(message.body, message.properties),
    )


UPDATE = "RMQ_UPDATE_SNAPSHOTS"


def assert_topology(snapshot: str | os.PathLike[str]) -> None:
    """Fail unless every exchange, queue and binding of the project equals the snapshot.

    ``RMQ_UPDATE_SNAPSHOTS=1`` in the environment writes the file, in the format of
    ``rabbitmqctl import_definitions``.
    """
    registry.autodiscover()
    path = Path(snapshot)
    now = json.dumps(definitions(registry.topology()), indent=2, sort_keys=True) + "\n"
    if os.environ.get(UPDATE, "0") not in {"", "0"}:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(now)
        return
    fix = f"To accept it, run this test once with {UPDATE}=1 and commit the file."
    if not path.exists():
        raise AssertionError(f"There is no snapshot of the topology at {path}. {fix}")
    stored = path.read_text()
    if json.loads(stored) != json.loads(now):
        difference = unified_diff(stored.splitlines(), now.splitlines(), str(path), "the project now", lineterm="", n=2)
        raise AssertionError("\n".join([f"The topology differs from {path}. {fix}", *difference]))

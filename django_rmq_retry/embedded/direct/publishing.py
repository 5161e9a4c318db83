"""The publishing connection of the direct face: each publish has its end before the call returns."""

from collections.abc import Callable, Iterable

from django_rmq_retry.broker.base import ERRORS, Outcome
from django_rmq_retry.broker.envelope import marshal_publish
from django_rmq_retry.core.errors import HeadersTooLarge
from django_rmq_retry.core.message import Message
from django_rmq_retry.core.properties import encode_properties
from django_rmq_retry.embedded.direct.broker import DirectBroker
from django_rmq_retry.embedded.engine.channels import Channel
from django_rmq_retry.embedded.engine.events import Nack, Return
from django_rmq_retry.embedded.engine.refusals import Refused

FRAME_MAX = 131_072
Meddler = Callable[[Message], Outcome | None]
"""May give a publish an end of its own: UNKNOWN stores the message all the same, every other end does not."""


class DirectPublisher:
    """Publishes with confirms; `sent` is told of what a queue has stored."""

    def __init__(
        self,
        broker: DirectBroker,
        *,
        meddler: Meddler = lambda _message: None,
        sent: Callable[[Message], None] = lambda _message: None,
    ) -> None:
        self._lock = broker.lock
        self._session = broker.vhost.connect()
        self._meddler = meddler
        self._sent = sent
        self._channel: Channel | None = None

    def publish(self, message: Message, *, timeout: float | None = None) -> None:
        """Return when the broker has confirmed, else raise what became of it."""
        with self._lock:
            outcome, said = self._end_of(message)
        if outcome is not Outcome.CONFIRMED:
            raise ERRORS[outcome](message.exchange, message.routing_key, said=said)

    def publish_many(self, messages: Iterable[Message], *, window: int = 1000, timeout: float | None = None) -> int:
        """Publish one after the other; the first failure is raised."""
        if window < 1:
            raise ValueError(f"The window of a batch is a whole number from 1, not {window!r}.")
        confirmed = 0
        for message in messages:
            self.publish(message)
            confirmed += 1
        return confirmed

    def send(self, message: Message, done: Callable[[Outcome, str], None], *, timeout: float | None = None) -> None:
        """``done`` is called before this returns."""
        with self._lock:
            end = self._end_of(message)
        done(*end)

    def close(self) -> None:
        self._session.close()
        self._channel = None

    def _end_of(self, message: Message) -> tuple[Outcome, str]:
        raw = encode_properties(message.properties)
        try:
            _check(message, raw)
        except (HeadersTooLarge, ValueError) as error:
            return Outcome.UNSENT, str(error)
        meddled = self._meddler(message)
        if meddled is not None and meddled is not Outcome.UNKNOWN:
            return meddled, "the test asked for it"
        outcome, said = self._store(message, raw)
        if outcome is Outcome.CONFIRMED:
            self._sent(message)
            if meddled is not None:
                return meddled, "the test asked for it"
        return outcome, said

    def _store(self, message: Message, raw: bytes) -> tuple[Outcome, str]:
        try:
            self._open().publish(message.exchange, message.routing_key, raw, message.body, mandatory=message.mandatory)
        except Refused as refused:
            self._session.close()
            self._channel = None
            return _refused(message, refused)
        events = self._session.drain()
        if any(isinstance(event, Return) for event in events):
            return Outcome.RETURNED, "312 NO_ROUTE"
        if any(isinstance(event, Nack) for event in events):
            return Outcome.NACKED, ""
        return Outcome.CONFIRMED, ""

    def _open(self) -> Channel:
        if self._channel is None:
            self._channel = self._session.channel(1)
            self._channel.confirm_select()
        return self._channel


def _check(message: Message, raw: bytes) -> None:
    """Refuse what cannot be written into a frame."""
    marshal_publish(
        1,
        raw,
        b"",
        exchange=message.exchange,
        routing_key=message.routing_key,
        mandatory=message.mandatory,
        frame_max=FRAME_MAX,
    )


def _refused(message: Message, refused: Refused) -> tuple[Outcome, str]:
    """A channel that is closed says of a publish what the reason allows to conclude, as broker.confirming has it."""
    if "no exchange" in refused.reason:
        return Outcome.RETURNED, f"exchange {message.exchange!r} does not exist"
    if "larger than configured max size" in refused.reason:
        return Outcome.TOO_LARGE, f"{len(message.body)} bytes: {refused.reason}"
    return Outcome.UNKNOWN, refused.text

"""The publishing connection and the RPC client of the in-process broker."""

from collections.abc import Callable, Iterable
from dataclasses import replace

from django_rmq_retry.amqp.contracts import CONFIRMED, Cause, Done, Outcome, PublishResult, Scope, unwritable
from django_rmq_retry.amqp.frames import FRAME_MAX, marshal_publish
from django_rmq_retry.amqp.refusals import channel_closed
from django_rmq_retry.embedded.direct.broker import DirectBroker
from django_rmq_retry.embedded.engine.channel import Channel
from django_rmq_retry.embedded.engine.envelopes import Deliver, Nack, Returned
from django_rmq_retry.embedded.engine.refusals import Refused
from django_rmq_retry.errors import CallUnanswered, HeadersTooLarge, MessageReturned
from django_rmq_retry.messages.message import Delivery, Message
from django_rmq_retry.messages.properties import DIRECT, encode_properties

Meddler = Callable[[Message], Outcome | None]
"""A test's choice of a publish's end; None leaves it to the broker. Only with UNKNOWN is the message stored."""


class DirectPublisher:
    """Publishes with confirms; `sent` is called with each confirmed message."""

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
        """Return when the broker has confirmed the message, else raise the PublishError for its end."""
        with self._lock:
            result = self._end_of(message)
        if not result.confirmed:
            raise result.error(message)

    def publish_many(self, messages: Iterable[Message], *, window: int = 1000, timeout: float | None = None) -> int:
        """Publish one message after the other; raise the first failure."""
        if window < 1:
            raise ValueError(f"The window of a batch is a whole number from 1, not {window!r}.")
        confirmed = 0
        for message in messages:
            self.publish(message)
            confirmed += 1
        return confirmed

    def send(self, message: Message, done: Done, *, timeout: float | None = None) -> None:
        """Publish a message and call ``done`` before returning."""
        with self._lock:
            result = self._end_of(message)
        done(result)

    def close(self) -> None:
        self._session.close()
        self._channel = None

    def _end_of(self, message: Message) -> PublishResult:
        raw = encode_properties(message.properties)
        try:
            _check(message, raw)
        except (HeadersTooLarge, ValueError) as error:
            return unwritable(str(error))
        meddled = self._meddler(message)
        if meddled is not None and meddled is not Outcome.UNKNOWN:
            return forced(meddled)
        result = self._store(message, raw)
        if result.confirmed:
            self._sent(message)
            if meddled is not None:
                return forced(meddled)
        return result

    def _store(self, message: Message, raw: bytes) -> PublishResult:
        channel = self._open()
        # The message's user_id was compared with the user of the settings when the message was made.
        channel.user = message.properties.user_id or channel.user
        try:
            channel.publish(message.exchange, message.routing_key, raw, message.body, mandatory=message.mandatory)
        except Refused as refused:
            self._session.close()
            self._channel = None
            return channel_closed(refused.code, refused.text, message=message)
        events = self._session.drain()
        if any(isinstance(event, Returned) for event in events):
            return PublishResult(kind=Outcome.RETURNED, cause=Cause.NO_ROUTE, code=312, text="312 NO_ROUTE")
        if any(isinstance(event, Nack) for event in events):
            return PublishResult(kind=Outcome.NACKED, cause=Cause.QUEUE_FULL)
        return CONFIRMED

    def _open(self) -> Channel:
        if self._channel is None:
            self._channel = self._session.channel(1)
            self._channel.confirm_select()
        return self._channel


def _check(message: Message, raw: bytes) -> None:
    """Raise HeadersTooLarge or ValueError if a message cannot be written as frames."""
    marshal_publish(
        1,
        raw,
        b"",
        exchange=message.exchange,
        routing_key=message.routing_key,
        mandatory=message.mandatory,
        frame_max=FRAME_MAX,
    )


FORCED = {
    Outcome.UNSENT: (Scope.BROKER, Cause.OTHER),
    Outcome.UNKNOWN: (Scope.CHANNEL, Cause.OTHER),
    Outcome.NACKED: (Scope.MESSAGE, Cause.QUEUE_FULL),
}


def forced(kind: Outcome) -> PublishResult:
    """Return the result of a publish whose end was chosen by a test."""
    scope, cause = FORCED[kind]
    return PublishResult(kind=kind, scope=scope, cause=cause, text="the test asked for it")


RunUntil = Callable[[Callable[[], bool], float], None]
"""Runs handlers until the given function returns True, or this many seconds have passed."""


class DirectCaller:
    """An RPC client that runs the handlers while it waits for an answer."""

    def __init__(
        self,
        broker: DirectBroker,
        run_until: RunUntil,
        *,
        exclusive: bool = False,
        meddler: Meddler = lambda _message: None,
        sent: Callable[[Message], None] = lambda _message: None,
    ) -> None:
        self._lock = broker.lock
        self._session = broker.vhost.connect()
        self._run_until = run_until
        self._exclusive = exclusive
        self._meddler = meddler
        self._sent = sent
        self._channel: Channel | None = None
        self._answers_to = ""
        self._answers: dict[str, Delivery] = {}
        self._returned = ""

    def call(self, message: Message, *, timeout: float) -> Delivery:
        """Return the answer to a message; the timeout is in the broker's virtual time."""
        with self._lock:
            return self._call(message, timeout)

    def close(self) -> None:
        self._session.close()
        self._channel = None

    def _call(self, message: Message, timeout: float) -> Delivery:
        name = message.properties.correlation_id or ""
        meddled = self._meddler(message)
        if meddled is not None:
            raise asked_for(message, meddled)
        self._ask(message)
        self._run_until(lambda: self._has(name), timeout)
        answer = self._answers.pop(name, None)
        if answer is None:
            raise CallUnanswered(message.routing_key, timeout=timeout, sent=True)
        return answer

    def _ask(self, message: Message) -> None:
        where = message.exchange, message.routing_key
        channel = self._open()
        question = replace(message, properties=replace(message.properties, reply_to=self._answers_to))
        self._returned = ""
        channel.user = message.properties.user_id or channel.user
        try:
            channel.publish(*where, encode_properties(question.properties), question.body, mandatory=True)
        except Refused as refused:
            self.close()
            raise CallUnanswered(message.routing_key, timeout=0, sent=True, reason=refused.text) from refused
        self._read()
        if self._returned:
            raise MessageReturned(*where, said=self._returned)
        self._sent(question)

    def _open(self) -> Channel:
        if self._channel is None:
            self._channel = channel = self._session.channel(1)
            self._answers_to = channel.queue_declare("", exclusive=True).queue if self._exclusive else DIRECT
            channel.consume(self._answers_to, no_ack=True)
        return self._channel

    def _has(self, name: str) -> bool:
        self._read()
        return name in self._answers

    def _read(self) -> None:
        for event in self._session.drain():
            if isinstance(event, Returned):
                self._returned = event.text
            if isinstance(event, Deliver):
                answer = Delivery(queue=self._answers_to, body=event.message.body, raw=event.raw)
                self._answers[answer.correlation_id or ""] = answer


def asked_for(message: Message, end: Outcome) -> CallUnanswered:
    """Return the error of a call whose end was chosen by a test."""
    sent = end is not Outcome.UNSENT
    return CallUnanswered(message.routing_key, timeout=0, sent=sent, reason="the test asked for it")

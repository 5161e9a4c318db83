"""Calls of the direct face: the question is published, handlers run until the answer is there or time is over."""

from collections.abc import Callable
from dataclasses import replace

from django_rmq_retry.broker.base import Outcome
from django_rmq_retry.broker.calling import DIRECT
from django_rmq_retry.core.errors import CallUnanswered, MessageReturned
from django_rmq_retry.core.message import Delivery, Message
from django_rmq_retry.core.properties import encode_properties
from django_rmq_retry.embedded.direct.broker import DirectBroker
from django_rmq_retry.embedded.direct.publishing import Meddler
from django_rmq_retry.embedded.engine.channels import Channel
from django_rmq_retry.embedded.engine.events import Deliver, Return
from django_rmq_retry.embedded.engine.refusals import Refused

RunUntil = Callable[[Callable[[], bool], float], None]
"""Runs handlers until what it is given is true, or so many seconds are over."""


class DirectCaller:
    """Asks, and has the handlers run meanwhile."""

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
        """The answer to a message; time is the broker's."""
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
            if isinstance(event, Return):
                self._returned = event.text
            if isinstance(event, Deliver):
                answer = Delivery(queue=self._answers_to, body=event.message.body, raw=event.raw)
                self._answers[answer.correlation_id or ""] = answer


def asked_for(message: Message, end: Outcome) -> CallUnanswered:
    """How a call fails whose question has an end that a test asked for."""
    sent = end is not Outcome.UNSENT
    return CallUnanswered(message.routing_key, timeout=0, sent=sent, reason="the test asked for it")

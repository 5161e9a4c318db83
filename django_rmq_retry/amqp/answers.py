"""Answers to RPC callers, published on connections of their own: a made-up ``reply_to`` can close a connection."""

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from django_rmq_retry.amqp.address import Access
from django_rmq_retry.amqp.connection import Connection
from django_rmq_retry.amqp.contracts import Cause, Done, Publisher, PublishResult
from django_rmq_retry.amqp.frames import DIRECT_PREFIX, marshal_publish
from django_rmq_retry.amqp.io_thread import IoThread, Loop
from django_rmq_retry.amqp.protocol import Channel
from django_rmq_retry.amqp.publisher import PikaPublisher
from django_rmq_retry.amqp.reply_addresses import Family, ReplyAddresses, family_of
from django_rmq_retry.messages.message import Message
from django_rmq_retry.messages.properties import DIRECT, Properties, decode_properties, encode_properties

log = logging.getLogger("django_rmq_retry")

MOST_WAITING_ANSWERS = 1000
"""The number of answers that may wait for a test of their address; beyond it the oldest is dropped."""
IDLE_SECONDS = 5.0
"""Idleness after which the connection for untried addresses is closed."""
DROPS_LOG_SECONDS = 60.0
INTERNAL_ERROR = 541
"""RabbitMQ before 4.3 closes a connection with this code if it publishes to an unresolvable direct reply-to address."""


def answers_on(io: IoThread, access: Access, publisher: Publisher) -> "Answers":
    """Return the sender of answers for a connection that consumes, whose copies use ``publisher``."""
    addresses = ReplyAddresses()
    return Answers(
        io,
        publisher,
        proven=PikaPublisher(io, access, purpose="answer", to_callers=True),
        # It may lose its connection with each answer: an expected loss, not a problem of the broker.
        untried=PikaPublisher(
            io,
            access,
            purpose="try answers",
            to_callers=True,
            healthy=0.0,
            losses=logging.DEBUG,
            first=partial(_learn_own_address, addresses),
        ),
        addresses=addresses,
        patience=access.publish_timeout,
    )


def _learn_own_address(addresses: ReplyAddresses, connection: Connection, then: Callable[[], None]) -> None:
    """Learn the form of this node's addresses: the broker writes ours into a message that it returns."""

    def returned(_channel: object, _method: object, properties: object, _body: bytes) -> None:
        addresses.learn_own(decode_properties(properties.raw).reply_to or "")  # type: ignore[attr-defined]  # RawProperties
        then()

    def ask(channel: Channel) -> None:
        raw, most = encode_properties(Properties(reply_to=DIRECT)), connection.frame_max
        number = channel.channel_number
        connection.send_raw(
            marshal_publish(number, raw, b"", exchange="", routing_key="", mandatory=True, frame_max=most)
        )

    def opened(channel: Channel) -> None:
        channel.add_on_return_callback(returned)
        channel.add_on_close_callback(lambda *_: then())
        # Nothing is ever delivered: this consumer exists only to get a reply-to address.
        channel.basic_consume(DIRECT, lambda *_: None, auto_ack=True, callback=lambda _frame: ask(channel))

    connection.channel(on_open_callback=opened)


def _unresolved(result: PublishResult) -> bool:
    """True if the broker closed the connection because of the answer's address."""
    return result.cause is Cause.CONNECTION_LOST and result.code == INTERNAL_ERROR


@dataclass(frozen=True, slots=True, eq=False)
class _WaitingAnswer:
    """An answer that waits for its address to be tried."""

    deadline: float
    answer: Message
    done: Done
    family: Family | None


class Answers:
    """Sends answers; used on the I/O thread only.

    Answers to a queue are sent by the publisher of copies. Direct reply-to addresses are tried one at a time on a
    connection that nothing else uses, first those of families known to be this broker's. Later answers to an address
    that worked share another connection.
    """

    def __init__(
        self,
        io: Loop,
        publisher: Publisher,
        *,
        proven: Publisher,
        untried: Publisher,
        addresses: ReplyAddresses,
        patience: float,
    ) -> None:
        self.under_way = 0
        self._io = io
        self._publisher = publisher
        self._proven = proven
        self._untried = untried
        self._addresses = addresses
        self._patience = patience
        """Seconds after which an address need not be tried any more: the caller is gone."""
        self._waiting: deque[_WaitingAnswer] = deque()
        self._trying = False
        self._tried = 0
        self._dropped = 0
        self._logged = float("-inf")

    def send(self, answer: Message, done: Done) -> None:
        """Send an answer and call ``done`` with the result; an answer dropped for its address gets no call."""
        self.under_way += 1

        def ended(result: PublishResult) -> None:
            self.under_way -= 1
            done(result)

        if not answer.routing_key.startswith(DIRECT_PREFIX):
            self._publisher.send(answer, ended)
        elif answer.routing_key in self._addresses.proven:
            self._proven.send(answer, partial(self._sent, answer, ended))
        else:
            self._queue(answer, ended)

    def close(self) -> None:
        self._proven.close()
        self._untried.close()

    def _sent(self, answer: Message, done: Done, result: PublishResult) -> None:
        if _unresolved(result):
            self._addresses.distrust_all()
            self._queue(answer, done)
        else:
            done(result)

    def _queue(self, answer: Message, done: Done) -> None:
        if len(self._waiting) >= MOST_WAITING_ANSWERS:
            self._drop(self._take(known=False) or self._waiting.popleft(), "too many addresses wait to be tried")
        family = family_of(answer.routing_key)
        self._waiting.append(_WaitingAnswer(time.monotonic() + self._patience, answer, done, family))
        self._try_next()

    def _take(self, *, known: bool) -> _WaitingAnswer | None:
        """Remove and return the first answer whose family is known, or is not."""
        found = next((one for one in self._waiting if (one.family in self._addresses.known) == known), None)
        if found is not None:
            self._waiting.remove(found)
        return found

    def _try_next(self) -> None:
        """Try a known family first; else the oldest and the newest in turn, so that no flood blocks real addresses."""
        while self._waiting and not self._trying:
            other = self._waiting.pop if self._tried % 2 else self._waiting.popleft
            waiting = self._take(known=True) or other()
            objection = self._addresses.objection(waiting.answer.routing_key, waiting.family)
            if waiting.deadline <= time.monotonic():
                objection = "there was no time to try it"
            if objection:
                self._drop(waiting, objection)
            else:
                self._trying = True
                self._untried.send(waiting.answer, partial(self._was_tried, waiting))

    def _was_tried(self, one: _WaitingAnswer, result: PublishResult) -> None:
        self._trying = False
        self._tried += 1
        if _unresolved(result):
            self._addresses.closed_a_connection(one.answer.routing_key, one.family)
            self._drop(one, "the broker closed the connection over it")
        else:
            if result.confirmed:
                self._addresses.worked(one.answer.routing_key, one.family)
            one.done(result)
        self._io.later(IDLE_SECONDS, partial(self._close_idle, self._tried))
        self._io.call(self._try_next)

    def _close_idle(self, tried: int) -> None:
        if tried == self._tried and not self._trying:
            self._untried.close()

    def _drop(self, one: _WaitingAnswer, reason: str) -> None:
        self.under_way -= 1
        self._dropped += 1
        now = time.monotonic()
        if now - self._logged < DROPS_LOG_SECONDS:
            return
        log.warning(
            "%d answers were dropped for their direct reply-to address, the last one to %r: %s. The caller is gone, or "
            "the sender has made the address up.",
            *(self._dropped, one.answer.routing_key, reason),
            extra={"event": "answers_dropped"},
        )
        self._logged, self._dropped = now, 0

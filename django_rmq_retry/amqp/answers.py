"""Answers to RPC callers, published on separate connections: a made-up ``reply_to`` can close a connection."""

import logging
import re
import time
from base64 import b64decode
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from django_rmq_retry.amqp.address import Access
from django_rmq_retry.amqp.connection import Connection
from django_rmq_retry.amqp.contracts import Cause, Done, Publisher, PublishResult
from django_rmq_retry.amqp.frames import DIRECT_PREFIX, marshal_publish
from django_rmq_retry.amqp.io_thread import IoThread
from django_rmq_retry.amqp.publisher import PikaPublisher
from django_rmq_retry.messages.message import Message
from django_rmq_retry.messages.properties import DIRECT, Properties, decode_properties, encode_properties

if TYPE_CHECKING:
    from django_rmq_retry.amqp.protocol import Channel


log = logging.getLogger("django_rmq_retry")

MOST_WAITING = 1000
"""The number of answers that may wait for a test of their address; beyond it the oldest is dropped."""
MOST_KEPT = 4096
BANNED = 60.0
"""Seconds for which a family gets no answers after one of its addresses closed a connection.

The family is not refused permanently, because its node may join the cluster later.
"""
IDLE = 5.0
"""Seconds of idleness after which the connection for untried addresses is closed."""
LOG_EVERY = 60.0
INTERNAL_ERROR = 541
"""RabbitMQ before 4.3 closes a connection with this code if it publishes to an unresolvable direct reply-to address."""

# base64 of an Erlang pid (EXTERNAL_TERM_FORMAT: 103 or 88, the node as an atom, 9 or 12 bytes), a dot, a key.
_ADDRESS = re.compile(r"(?P<pid>[A-Za-z0-9+/]+={0,2})\.[A-Za-z0-9+/]+={0,2}")
_PID = re.compile(rb"\x83(?:g|X)(?:[dv](?P<long>..)|[sw](?P<short>.))(?P<rest>.+)", re.DOTALL)
_NUMBERS = {ord("g"): 9, ord("X"): 12}
_IDS, _SERIALS = 1 << 15, 1 << 13
"""Erlang before 26 takes only smaller ids and serials for its own pids; later versions take and make 32-bit numbers."""
Family = tuple[bytes, bool]
"""The bytes that name the Erlang node in a pid, and True if every Erlang version accepts the pid's numbers."""


def family_of(address: str) -> Family | None:
    """Return the family of a direct reply-to address; None if RabbitMQ cannot have made the address.

    The broker resolves either every address of a family or none.
    """
    match = _ADDRESS.fullmatch(address.removeprefix(DIRECT_PREFIX))
    try:
        raw = b64decode(match["pid"], validate=True) if match else b""
    except ValueError:
        return None
    pid = _PID.fullmatch(raw)
    if pid is None:
        return None
    length = int.from_bytes(pid["long"] or pid["short"])
    node, numbers = pid["rest"][:length], pid["rest"][length:]
    if b"@" not in node or len(numbers) != _NUMBERS[raw[1]]:
        return None
    small = int.from_bytes(numbers[:4]) < _IDS and int.from_bytes(numbers[4:8]) < _SERIALS
    return raw[: -len(numbers)], small


class _Kept:
    """The names added last, each with its time; the number is bounded, because senders choose the names."""

    def __init__(self) -> None:
        self._times: dict[object, float] = {}

    def __contains__(self, name: object) -> bool:
        return name in self._times

    def since(self, name: object) -> float:
        """Return the time at which the name was added; minus infinity if it was not."""
        return self._times.get(name, float("-inf"))

    def add(self, name: object) -> None:
        self._times.pop(name, None)
        self._times[name] = time.monotonic()
        if len(self._times) > MOST_KEPT:
            del self._times[next(iter(self._times))]

    def remove(self, name: object) -> None:
        self._times.pop(name, None)

    def clear(self) -> None:
        self._times.clear()


class _Sure(PikaPublisher):
    """Publishes answers whose address has been tried."""

    purpose = "answer"
    answers = True


class _Untried(PikaPublisher):
    """Publishes answers whose address may close the connection: an expected loss, not a problem of the broker."""

    purpose = "try answers"
    answers = True
    healthy = 0.0
    losses = logging.DEBUG

    def __init__(self, io: IoThread, access: Access, *, met: Callable[[str], None]) -> None:
        super().__init__(io, access)
        self._met = met

    def _opened(self, connection: Connection) -> None:
        """Learn the form of this node's addresses first: the broker writes ours into a message that it returns."""

        def proceed(*_: object) -> None:
            if connection.is_open:
                super(_Untried, self)._opened(connection)

        def returned(_channel: object, _method: object, properties: object, _body: bytes) -> None:
            self._met(decode_properties(properties.raw).reply_to or "")  # type: ignore[attr-defined]  # RawProperties
            proceed()

        def ask(channel: "Channel") -> None:
            raw = encode_properties(Properties(reply_to=DIRECT))
            number, most = channel.channel_number, connection.frame_max
            connection.send_raw(
                marshal_publish(number, raw, b"", exchange="", routing_key="", mandatory=True, frame_max=most)
            )

        def opened(channel: "Channel") -> None:
            channel.add_on_return_callback(returned)
            channel.add_on_close_callback(proceed)
            channel.basic_consume(DIRECT, _ignore, auto_ack=True, callback=lambda _frame: ask(channel))

        connection.channel(on_open_callback=opened)


def _unresolved(result: PublishResult) -> bool:
    """True if the broker closed the connection because of the answer's address."""
    return result.cause is Cause.CONNECTION_LOST and result.code == INTERNAL_ERROR


def _ignore(*_received: object) -> None:
    """Ignore deliveries: this consumer exists only to get a reply-to address."""


@dataclass(frozen=True, slots=True)
class _Waiting:
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

    def __init__(self, io: IoThread, access: Access, publisher: Publisher) -> None:
        self.under_way = 0
        self._io = io
        self._patience = access.publish_timeout
        self._publisher = publisher
        self._sure = _Sure(io, access)
        self._untried = _Untried(io, access, met=self._met)
        self._waiting: deque[_Waiting] = deque()
        self._trying = False
        self._tried = 0
        self._proven, self._known, self._refused = _Kept(), _Kept(), _Kept()
        self._formed = False
        """True if this broker's own addresses have RabbitMQ's form."""
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
        elif answer.routing_key in self._proven:
            self._sure.send(answer, lambda result: self._sent(answer, ended, result))
        else:
            self._queue(answer, ended)

    def close(self) -> None:
        for publisher in (self._sure, self._untried):
            publisher.close()

    def _sent(self, answer: Message, done: Done, result: PublishResult) -> None:
        if _unresolved(result):
            # A node has left the cluster, so its addresses close connections like made-up ones: try all of them again.
            self._proven.clear()
            self._known.clear()
            self._queue(answer, done)
            return
        done(result)

    def _queue(self, answer: Message, done: Done) -> None:
        if len(self._waiting) >= MOST_WAITING:
            oldest = self._first(known=False) or self._waiting[0]
            self._waiting.remove(oldest)
            self._drop(oldest, "too many addresses wait to be tried")
        family = family_of(answer.routing_key)
        self._waiting.append(_Waiting(time.monotonic() + self._patience, answer, done, family))
        self._next()

    def _first(self, *, known: bool) -> _Waiting | None:
        return next((one for one in self._waiting if (one.family in self._known) == known), None)

    def _take(self) -> _Waiting:
        """Remove and return the next answer to try.

        That is the first of a known family; else the oldest and the newest in turn, so that a flood of made-up
        addresses does not block real ones.
        """
        taken = self._first(known=True) or self._waiting[-(self._tried % 2)]
        self._waiting.remove(taken)
        return taken

    def _next(self) -> None:
        """Try the next address, unless one is being tried."""
        while self._waiting and not self._trying:
            one = self._take()
            reason = self._hopeless(one)
            if reason:
                self._drop(one, reason)
            else:
                self._trying = True
                self._try(one)

    def _try(self, one: _Waiting) -> None:
        address = one.answer.routing_key

        def tried(result: PublishResult) -> None:
            self._trying = False
            self._tried += 1
            count = self._tried
            if _unresolved(result):
                self._refused.add(address)
                if one.family in self._known:
                    # Its node may have left the cluster. The family's next address, tried after those of known
                    # families, decides.
                    self._known.remove(one.family)
                else:
                    self._refused.add(one.family)
                self._drop(one, "the broker closed the connection over it")
            else:
                if result.confirmed:
                    self._proven.add(address)
                    self._known.add(one.family)
                one.done(result)
            self._io.later(IDLE, lambda: self._rest(count))
            self._io.call(self._next)

        self._untried.send(one.answer, tried)

    def _rest(self, count: int) -> None:
        if count == self._tried and not self._trying:
            self._untried.close()

    def _hopeless(self, one: _Waiting) -> str:
        """Return the reason not to try an answer's address; an empty string if it may be tried."""
        now = time.monotonic()
        if one.deadline <= now:
            return "there was no time to try it"
        banned = one.family not in self._known and now - self._refused.since(one.family) < BANNED
        if banned or one.answer.routing_key in self._refused:
            return "the broker closed the connection over it, or over another like it"
        return "RabbitMQ makes no such address" if one.family is None and self._formed else ""

    def _drop(self, one: _Waiting, reason: str) -> None:
        self.under_way -= 1
        self._dropped += 1
        now = time.monotonic()
        if now - self._logged < LOG_EVERY:
            return
        log.warning(
            "%d answers were dropped for their direct reply-to address, the last one to %r: %s. The caller is gone, or "
            "the sender has made the address up.",
            *(self._dropped, one.answer.routing_key, reason),
            extra={"event": "answers_dropped"},
        )
        self._logged, self._dropped = now, 0

    def _met(self, own: str) -> None:
        family = family_of(own)
        self._known.add(family)
        self._formed = family is not None

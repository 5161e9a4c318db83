"""Takes retries out of their waiting queues before they are due, and sends them on.

A message that is looked at is unacked, so it does not expire. RabbitMQ keeps the remaining time of a message that is
requeued, and in a classic queue its place. In a quorum queue without a delivery limit it goes behind those that nobody
looked at, and becomes due after them if they wait for longer.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from django_rmq_retry.amqp.frames import Receive
from django_rmq_retry.amqp.inspection import counted
from django_rmq_retry.amqp.move import Copies, CopyFailed, due
from django_rmq_retry.amqp.session import Session
from django_rmq_retry.errors import UndecodableHeaders
from django_rmq_retry.messages.deaths import rejections
from django_rmq_retry.messages.header_names import PREFIX_BYTES
from django_rmq_retry.messages.message import Delivery
from django_rmq_retry.messages.parked_copy import ROOM_BYTES
from django_rmq_retry.messages.stamp import NO_STAMP, Stamp

MOST_LOOKED_AT = 5000
"""The most messages of one waiting queue that are looked at, and unacked, at a time."""
MOST_BYTES = 64 * 1024 * 1024
"""The size of the bodies at which a look ends; what is behind them waits until it is due."""
FIRST_FETCHED = 32
"""Messages that are fetched before their size is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WayBack:
    """A waiting queue, and where the broker sends its messages when they are due."""

    queue: str
    work: str
    exchange: str
    key: str | None = None
    """The routing key that expired messages get; None if they keep their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdrawn:
    """A retry that was taken out of its waiting queue: the delivery as it arrives in its work queue."""

    way: WayBack
    tag: int
    delivery: Delivery


Wanted = Callable[[Sequence[Withdrawn]], Collection[int]]
"""Returns the delivery tags of those that are wanted."""


class Withdrawal:
    """Retries taken out of waiting queues, unacked until each is sent on or put back."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._sent: set[int] = set()
        self._copies = Copies(session, self._sent.add)
        self._copies.begin()

    def take(self, way: WayBack, most: int, wanted: Wanted, *, first: int) -> list[Withdrawn]:
        """Return up to ``most`` wanted retries, the next to be due first, and put back the others.

        The first ``first`` messages are looked at, and more only if none of them is wanted.
        """
        depth = min(max(first, 1), MOST_LOOKED_AT)
        while True:
            seen = self._look(way, depth)
            retries = [one for one in seen if _is_retry(one)]
            tags = wanted(retries) if retries else ()
            chosen = [one for one in retries if one.tag in tags][:most]
            self._put_back(seen, {one.tag for one in chosen})
            if chosen or len(seen) < depth or depth == MOST_LOOKED_AT:
                return chosen
            depth = min(depth * 8, MOST_LOOKED_AT)

    def send(self, retries: Sequence[Withdrawn]) -> tuple[list[Withdrawn], CopyFailed | None]:
        """Send retries to where their waiting queue would send them; return those that were confirmed.

        If the broker does not accept one, the others are unacked still, and the withdrawal must be ended.
        """
        failed = None
        try:
            for one in retries:
                gone, raw = one.delivery, due(one.way.work)(one.delivery.raw)
                self._copies.copy(one.tag, raw, gone.body, exchange=gone.exchange, routing_key=gone.routing_key)
            self._copies.settle()
        except CopyFailed as stopped:
            failed = stopped
        return [one for one in retries if one.tag in self._sent], failed

    def end(self) -> None:
        """Put back all retries that were not sent: the channel returns them in their order."""
        self._copies.end()

    def _look(self, way: WayBack, depth: int) -> list[Withdrawn]:
        """Return the first ``depth`` messages of a waiting queue, unacked; fewer if it ends, or if they are large."""
        seen: list[Withdrawn] = []
        size, asked = 0, min(depth, FIRST_FETCHED)
        while asked:
            part = self._fetch(way, asked)
            seen += part
            size += sum(len(one.delivery.body) for one in part)
            room = (MOST_BYTES - size) * len(seen) // max(size, 1)
            asked = max(0, min(depth - len(seen), room)) if len(part) == asked else 0
        return seen

    def _fetch(self, way: WayBack, depth: int) -> list[Withdrawn]:
        """Return the next ``depth`` messages of a waiting queue, or all that it has left."""
        channel = self._copies.channel
        seen: list[Withdrawn] = []
        answers: list[object] = []
        receive = _receiver(way, seen)
        channel.basic_qos(prefetch_count=depth, callback=answers.append)
        tag = channel.basic_consume(way.queue, receive, callback=answers.append)
        self._copies.wait(lambda: len(answers) == 2)  # noqa: PLR2004 - the two requests
        while len(seen) < depth:
            holding = counted(self._session, None, way.queue)
            if holding is None or not holding.ready:
                break
        channel.basic_cancel(tag, answers.append)
        # What is under way must return behind those that arrived before it.
        channel.consumers[tag] = receive
        self._copies.wait(lambda: len(answers) == 3)  # noqa: PLR2004 - the cancel
        del channel.consumers[tag]
        return seen

    def _put_back(self, seen: Sequence[Withdrawn], kept: Collection[int]) -> None:
        for one in seen:
            if one.tag not in kept:
                # Not a reject: RabbitMQ 4.3 counts it as a failed delivery.
                self._copies.channel.basic_nack(one.tag, requeue=True)


def _is_retry(one: Withdrawn) -> bool:
    """True if a message is a retry of the work queue, not published with a delay or another queue's, and has room."""
    if len(one.delivery.raw) > ROOM_BYTES:
        return False
    try:
        headers = one.delivery.headers
        stamp = Stamp.read(headers) if PREFIX_BYTES in one.delivery.raw else NO_STAMP
        return (stamp.attempts > 0 and stamp.queue == one.way.work) or rejections(headers, one.way.work) > 0
    except UndecodableHeaders:
        return False


def _receiver(way: WayBack, seen: list[Withdrawn]) -> Receive:
    def receive(_tag: str, number: int, _again: bool, _from: str, key: str, raw: bytes, body: bytes) -> None:  # noqa: FBT001 - as every receiver
        own = key if way.key is None else way.key
        delivery = Delivery(queue=way.work, exchange=way.exchange, routing_key=own, raw=raw, body=body)
        seen.append(Withdrawn(way=way, tag=number, delivery=delivery))

    return receive

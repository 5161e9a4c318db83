"""Takes retries out of their waiting queues before they are due, and sends them on.

A message that is looked at is unacked, so it does not expire. RabbitMQ keeps its remaining time and its place when it
is requeued. The delivery limit of a quorum queue keeps the place before RabbitMQ 4, and must be too high to be reached:
each look counts, and a waiting queue sends what exceeds its limit before it is due.
"""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from django_rmq_retry.amqp.frames import Receive
from django_rmq_retry.amqp.inspection import counted
from django_rmq_retry.amqp.move import Copier, CopyFailed, due
from django_rmq_retry.amqp.session import Session
from django_rmq_retry.errors import UndecodableHeaders
from django_rmq_retry.messages.deaths import rejections
from django_rmq_retry.messages.header_names import PREFIX_BYTES
from django_rmq_retry.messages.message import Delivery
from django_rmq_retry.messages.parked_copy import ROOM_BYTES
from django_rmq_retry.messages.stamp import NO_STAMP, Stamp

MOST_LOOKED_AT = 10_000
"""The most messages of one waiting queue that are looked at, and unacked, at a time."""
MOST_LOOKED_AT_BYTES = 256 * 1024 * 1024
"""The size of their bodies at which a look ends, too."""
MOST_SECONDS = 6.0
"""Seconds after which a look ends, so that a driver of a run looks for less time than its lease lasts."""
FIRST_FETCHED = 32
"""Messages that are fetched before their size is known; from then on twice as many each time."""
MOST_FETCHED = 5000
MOST_FETCHED_BYTES = 16 * 1024 * 1024
MOST_HELD_BYTES = 64 * 1024 * 1024
"""The size of the chosen bodies at which no further one is taken; the next look takes them."""
PUT_BACK_AT_ONCE = 16
"""Messages that are put back before the queue has taken them. With more than 32 unanswered requests to a quorum queue,
RabbitMQ collects returns and takes them back in any order; one that is due late would then hold up the others."""
STANDSTILL_SECONDS, NEXT_STANDSTILL_SECONDS = 1.0, 0.05
"""Seconds without a change after which some of them count as gone because they were due: the first time, and later."""


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


Chooser = Callable[[Sequence[Withdrawn]], Collection[int]]
"""Returns the delivery tags of those that are wanted."""


class Withdrawal:
    """Retries taken out of waiting queues, unacked until each is sent on or put back."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._held: dict[int, str] = {}
        """By delivery tag, in the order of the queue: the waiting queue of what is unacked."""
        self._copier = Copier(session, self._held.pop)
        self._copier.begin()
        self.unseen_behind: dict[str, int] = {}
        """The waiting queues whose last look did not reach their end, each with the number that was looked at."""

    def take(self, way: WayBack, most: int, wanted: Chooser) -> list[Withdrawn]:
        """Return up to ``most`` wanted retries, the next to be due first; the others that were seen are put back."""
        kept = set(self._held)
        chosen: list[Withdrawn] = []
        for retries in self._looks(way, min(most, FIRST_FETCHED)):
            tags = wanted(retries) if retries else ()
            chosen += [one for one in retries if one.tag in tags][: most - len(chosen)]
            if len(chosen) >= most or sum(len(one.delivery.body) for one in chosen) >= MOST_HELD_BYTES:
                break
        self._put_back(except_for=kept | {one.tag for one in chosen})
        return chosen

    def look(self, way: WayBack, note: Callable[[Sequence[Withdrawn]], object]) -> None:
        """Show all retries of a waiting queue, part by part, and put them back."""
        kept = set(self._held)
        for retries in self._looks(way, FIRST_FETCHED):
            note(retries)
        self._put_back(except_for=kept)

    def send(self, retries: Sequence[Withdrawn]) -> tuple[list[Withdrawn], CopyFailed | None]:
        """Send retries to where their waiting queue would send them; return those that were confirmed.

        If the broker does not accept one, the others are unacked still, and the withdrawal must be ended.
        """
        failed = None
        try:
            for one in retries:
                gone, raw = one.delivery, due(one.way.work)(one.delivery.raw)
                self._copier.copy(one.tag, raw, gone.body, exchange=gone.exchange, routing_key=gone.routing_key)
            self._copier.settle()
        except CopyFailed as stopped:
            failed = stopped
        return [one for one in retries if one.tag not in self._held], failed

    def end(self) -> None:
        """Put back all retries that were not sent."""
        # Before the channel ends: RabbitMQ 4 counts what returns with its channel as lost by a worker, and shows the
        # count when the retry arrives. After three such ends it would be taken for a message that kills its worker.
        if self._copier.channel.is_open:
            self._put_back()
        self._copier.end()

    def _looks(self, way: WayBack, first: int) -> Iterator[list[Withdrawn]]:
        """Yield the retries of a waiting queue, part by part; all that was fetched stays unacked.

        Each part is judged before the next one is fetched, so that the bodies of those that stay are forgotten.
        """
        self.unseen_behind.pop(way.queue, None)
        looked_at, size, asked, until = 0, 0, first, time.monotonic() + MOST_SECONDS
        while asked:
            part = self._fetch(way, asked)
            self._held |= {one.tag: way.queue for one in part}
            looked_at += len(part)
            size += sum(len(one.delivery.body) for one in part)
            yield [one for one in part if _is_retry(one)]
            if len(part) < asked:
                return
            fitting = min(MOST_FETCHED_BYTES, MOST_LOOKED_AT_BYTES - size) * looked_at // max(size, 1)
            over = size >= MOST_LOOKED_AT_BYTES or time.monotonic() >= until
            asked = 0 if over else min(2 * looked_at, max(fitting, 1), MOST_FETCHED, MOST_LOOKED_AT - looked_at)
        holding = counted(self._session, None, way.queue)
        if holding is not None and holding.ready:
            self.unseen_behind[way.queue] = looked_at

    def _fetch(self, way: WayBack, depth: int) -> list[Withdrawn]:
        """Return the next ``depth`` messages of a waiting queue, or all that it has left."""
        channel = self._copier.channel
        seen: list[Withdrawn] = []
        answers: list[object] = []
        receive = _receiver(way, seen)
        channel.basic_qos(prefetch_count=depth, callback=answers.append)
        tag = channel.basic_consume(way.queue, receive, callback=answers.append)
        self._copier.wait(lambda: len(answers) == 2)  # noqa: PLR2004 - the two requests
        while len(seen) < depth:
            holding = counted(self._session, None, way.queue)
            if holding is None or not holding.ready:
                break
        channel.basic_cancel(tag, answers.append)
        # What is under way must return behind those that arrived before it.
        channel.consumers[tag] = receive
        self._copier.wait(lambda: len(answers) == 3)  # noqa: PLR2004 - the cancel
        del channel.consumers[tag]
        return seen

    def _put_back(self, *, except_for: Collection[int] = ()) -> None:
        tags = [tag for tag in self._held if tag not in except_for]
        standstill = STANDSTILL_SECONDS
        for start in range(0, len(tags), PUT_BACK_AT_ONCE):
            part = tags[start : start + PUT_BACK_AT_ONCE]
            queue = self._held[part[0]]
            wanted = self._ready(queue) + len(part)
            for tag in part:
                # Not a reject: RabbitMQ 4.3 counts it as a failed delivery.
                self._copier.channel.basic_nack(tag, requeue=True)
                del self._held[tag]
            if not self._has(queue, wanted, standstill):
                standstill = NEXT_STANDSTILL_SECONDS

    def _has(self, queue: str, wanted: int, standstill: float) -> bool:
        """Wait until a queue has as many messages; return False if their number stands still below."""
        most, since = 0, time.monotonic()
        while (ready := self._ready(queue)) < wanted:
            if ready > most:
                most, since = ready, time.monotonic()
            elif time.monotonic() - since > standstill:
                return False
        return True

    def _ready(self, queue: str) -> int:
        """Ask on the channel of the messages how many a queue has ready: behind all that was sent before."""
        answers: list[Any] = []
        channel = self._copier.channel
        channel.queue_declare(queue, passive=True, callback=answers.append)
        self._session.wait(lambda: answers, channel)
        return int(answers[0].method.message_count)


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

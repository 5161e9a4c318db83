"""A producer process: ``python -m tests.chaos.producing flood|mixed``, until SIGTERM."""

import os
import sys
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pika

from django_rmq_retry import Json
from tests.chaos import corpus
from tests.chaos.lanes import TOGETHER, Lane, lanes, named
from tests.chaos.ledger import ATTEMPTED, CONFIRMED, ROLLED
from tests.chaos.naming import HOSTILE, POISON, Name
from tests.chaos.paying import pay
from tests.chaos.underfire import Helper

if TYPE_CHECKING:
    from django_rmq_retry import Handler

BATCH = 1000
DEEPEST = 30_000
"""Messages that may wait in the queue before the flood pauses."""
PACE = 0.1
POISONED_EVERY = 120.0
BURST, BURST_EVERY = 240, 24.0
"""Messages per burst: half of what the rate allows, published at once."""
ROLLED_SHARE, TWICE_SHARE, BATCH_SHARE = 0.1, 0.3, 0.5
LATER, LATER_SHARE = 8.0, 0.2


class Rollback(Exception):
    """Raised to roll a transaction back on purpose."""


class Producer(Helper):
    """Writes each name to the ledger before publishing, and again after the confirm or commit."""

    def __init__(self) -> None:
        super().__init__(os.environ["CHAOS_NAME"])
        self.earlier: dict[str, deque[tuple[float, str]]] = defaultdict(deque)
        """Messages of each queue that may be published again, with their first publishing time."""
        self._numbers: Counter[str] = Counter()

    def name(self, lane: Lane) -> Name:
        self._numbers[lane.name] += 1
        return named(lane, self.life, self._numbers[lane.name], self.chance)

    @contextmanager
    def noted(self, *names: str) -> Iterator[None]:
        """Note an attempt before the block; after an error the messages count as attempted, not as confirmed."""
        self.ledger.note_all(ATTEMPTED, names)
        try:
            yield
        except Exception as error:  # noqa: BLE001 - a producer continues after any error
            print(f"{names[0]} and {len(names) - 1} more: {error!r}"[:300], file=sys.stderr, flush=True)
            return
        self.ledger.note_all(CONFIRMED, names)


def flood(producer: Producer) -> None:
    """Publish as many messages as the machine can handle, in batches."""
    from django_rmq_retry import publish_many  # noqa: PLC0415 - Django must be set up first
    from tests.chaos.project import handlers  # noqa: PLC0415 - as above

    rate = float(os.environ["CHAOS_RATE"])
    lane, batch = lanes()["flood"], max(1, min(BATCH, int(rate / 2)))
    began, sent, looked = time.monotonic(), 0, 0.0
    while not producer.stopping.is_set():
        if time.monotonic() - looked > 1:
            looked = time.monotonic()
            while deep(lane.queue) and not producer.stopping.wait(0.5):
                began, sent = time.monotonic(), 0
        names = [str(producer.name(lane)) for _ in range(batch)]
        with producer.noted(*names):
            publish_many(handlers.flood.message({"id": name}, message_id=name) for name in names)
        sent += batch
        ahead = sent / rate - (time.monotonic() - began)
        if ahead < -1:
            began, sent = time.monotonic(), 0
        producer.stopping.wait(max(0, ahead))


def deep(queue: str) -> bool:
    """Return True if too many messages wait; also while the broker is unreachable, when none can be sent."""
    try:
        with pika.BlockingConnection(pika.URLParameters(os.environ["CHAOS_LOOK"])) as connection:
            return bool(connection.channel().queue_declare(queue, passive=True).method.message_count > DEEPEST)
    except (pika.exceptions.AMQPError, OSError):
        return False


def mixed(producer: Producer) -> None:
    """Publish to all other lanes, several times a second."""
    ways = {name: way for name, way in WAYS.items() if name in lanes()}
    owed: dict[str, float] = dict.fromkeys(ways, 0.0)
    poisoned = time.monotonic() - POISONED_EVERY / 2
    # Only the first process starts with a burst, so that restarts after kills do not exceed the allowed rate.
    burst = time.monotonic() - (BURST_EVERY if producer.life == "1" else BURST_EVERY / 2)
    while not producer.stopping.wait(PACE):
        for name, way in ways.items():
            owed[name] += lanes()[name].share * PACE
            while owed[name] >= 1:
                owed[name] -= 1
                way(producer, lanes()[name])
        if "poison" in lanes() and time.monotonic() - poisoned > POISONED_EVERY:
            poisoned = time.monotonic()
            if "batch" in lanes() and producer.chance.random() < BATCH_SHARE:
                together(producer, lanes()["batch"], poisoned=True)
            else:
                plainly(producer, lanes()["poison"])
        if "metered" in lanes() and time.monotonic() - burst > BURST_EVERY:
            burst = time.monotonic()
            at_once(producer, lanes()["metered"])


def plainly(producer: Producer, lane: Lane) -> None:
    """Publish one message and wait for its confirm."""
    name = str(producer.name(lane))
    with producer.noted(name):
        handler_of(lane).publish({"id": name}, message_id=name)


def at_once(producer: Producer, lane: Lane) -> None:
    """Publish more messages than the rate of the lane allows."""
    publish_all(producer, lane, [str(producer.name(lane)) for _ in range(BURST)])


def together(producer: Producer, lane: Lane, *, poisoned: bool = False) -> None:
    """Publish as many messages as a batch takes; where no effect may be doubled, one of them again."""
    names = [producer.name(lane) for _ in range(TOGETHER)]
    if poisoned:
        names[TOGETHER // 2] = replace(names[TOGETHER // 2], plan=POISON)
    again = str(producer.chance.choice(names)) if lane.once else ""
    publish_all(producer, lane, [str(name) for name in names], again=again)


def publish_all(producer: Producer, lane: Lane, names: Sequence[str], *, again: str = "") -> None:
    from django_rmq_retry import publish_many  # noqa: PLC0415 - Django must be set up first

    with producer.noted(*names):
        publish_many(handler_of(lane).message({"id": name}, message_id=name) for name in names)
        if again and producer.chance.random() < TWICE_SHARE:
            raw(lane.queue, again)
    if again:
        publish_earlier(producer, lane, again)


def twice(producer: Producer, lane: Lane) -> None:
    """Publish some messages again with the same id, at once or later, by another client."""
    name = str(producer.name(lane))
    with producer.noted(name):
        handler_of(lane).publish({"id": name}, message_id=name)
        if producer.chance.random() < TWICE_SHARE:
            raw(lane.queue, name)
    publish_earlier(producer, lane, name)


def publish_earlier(producer: Producer, lane: Lane, name: str) -> None:
    """Publish some messages of some seconds ago again; remember this one until then."""
    earlier = producer.earlier[lane.queue]
    earlier.append((time.monotonic(), name))
    while time.monotonic() - earlier[0][0] > LATER:
        _, old = earlier.popleft()
        if producer.chance.random() < LATER_SHARE:
            # This message was published before; a second confirm changes no expectation.
            with suppress(pika.exceptions.AMQPError, OSError):
                raw(lane.queue, old)


def raw(queue: str, name: str) -> None:
    """Publish with bare pika, confirmed and mandatory."""
    body = Json().encode({"id": name})
    said = pika.BasicProperties(delivery_mode=2, content_type="application/json", message_id=name)
    with pika.BlockingConnection(pika.URLParameters(os.environ["CHAOS_LOOK"])) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("", queue, body, said, mandatory=True)


def in_a_transaction(producer: Producer, lane: Lane) -> None:
    """Publish in a transaction."""
    committed(producer, lane, lambda name: handler_of(lane).publish({"id": name}, message_id=name))


def enqueued(producer: Producer, lane: Lane) -> None:
    """Enqueue tasks of both kinds in a transaction."""
    from tests.chaos.project import tasks  # noqa: PLC0415 - Django must be set up first

    committed(producer, lane, lambda name: producer.chance.choice((tasks.work, tasks.wait)).enqueue(name))


def committed(producer: Producer, lane: Lane, publish: Callable[[str], object]) -> None:
    """Write a row and its message in one transaction; a commit counts as the confirm."""
    from django.db import transaction  # noqa: PLC0415 - Django must be set up first

    from tests.chaos.project.models import Sale  # noqa: PLC0415 - as above

    names = [str(producer.name(lane)) for _ in range(2)]
    rolled = producer.chance.random() < ROLLED_SHARE
    if rolled:
        producer.ledger.note_all(ROLLED, names)
    with producer.noted(*names), transaction.atomic():
        for name in names:
            Sale.objects.create(name=name)
            publish(name)
        if rolled:
            raise Rollback


def from_the_corpus(producer: Producer, lane: Lane) -> None:
    from django_rmq_retry import publish_many  # noqa: PLC0415 - Django must be set up first

    fresh = producer.name(lane)
    name = str(Name(fresh.lane, fresh.life, fresh.number, HOSTILE))
    with producer.noted(name):
        publish_many([corpus.message(name, lane.queue, producer.chance)])


def payments(producer: Producer) -> None:
    pay(os.environ["CHAOS_SEED"], int(os.environ["CHAOS_PAYMENTS"]), producer.stopping)


def handler_of(lane: Lane) -> "Handler[Any]":
    from tests.chaos.project import handlers  # noqa: PLC0415 - Django must be set up first

    found: Handler[Any] = getattr(handlers, lane.name)
    return found


WAYS: dict[str, Callable[[Producer, Lane], None]] = {
    "line": plainly,
    "hostile": from_the_corpus,
    "once": twice,
    "sale": in_a_transaction,
    "awaited": twice,
    "task": enqueued,
    "keyed": plainly,
    "batch": together,
    "batchonce": together,
    "fragile": plainly,
    "gated": plainly,
}


def main(role: str) -> int:
    producer = Producer()
    {"flood": flood, "mixed": mixed, "payments": payments}[role](producer)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

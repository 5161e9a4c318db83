"""Two publishers that run without a pause and record their confirms."""

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from django_rmq_retry import Message
from django_rmq_retry.amqp import Publisher
from django_rmq_retry.errors import PublishError
from django_rmq_retry.messages import Properties
from tests.amqp.live import publishing
from tests.faults.handlers import QUEUE
from tests.faults.scene import Scene
from tests.tooling.waiting import wait_until

BATCH = 20
FAILS = (0, 0, 0, 1, 2, 99)
"""Actions by the remainder of the id: most succeed at once, some later, one never."""


@dataclass(slots=True, kw_only=True)
class Load:
    """Publishes until stopped, and records attempted and confirmed messages."""

    url: str | Sequence[str]
    first: int
    many: bool
    tried: set[int] = field(default_factory=set)
    confirmed: set[int] = field(default_factory=set)
    errors: int = 0

    def run(self, over: threading.Event) -> None:
        one = self.first
        with publishing(self.url, publish_timeout=2) as publisher:
            while not over.wait(0.02):
                ids = range(one, one + (BATCH if self.many else 1))
                one = ids.stop
                self._publish(publisher, ids)

    def _publish(self, publisher: Publisher, ids: range) -> None:
        self.tried |= set(ids)
        try:
            publisher.publish_many([message(one) for one in ids], window=BATCH)
            self.confirmed |= set(ids)
        except PublishError:
            self.errors += 1


def message(one: int) -> Message:
    body = json.dumps({"id": one, "fails": FAILS[one % len(FAILS)]}).encode()
    return Message(body=body, routing_key=QUEUE, properties=Properties(delivery_mode=2, message_id=str(one)))


@contextmanager
def under_load(url: str | Sequence[str]) -> Iterator[list[Load]]:
    """Run two publishers, of single messages and of batches, inside the block."""
    loads = [Load(url=url, first=0, many=False), Load(url=url, first=1_000_000, many=True)]
    over = threading.Event()
    threads = [threading.Thread(target=load.run, args=(over,)) for load in loads]
    with ExitStack() as ending:
        for thread in threads:
            thread.start()
            ending.callback(thread.join)
        ending.callback(over.set)
        yield loads


def goes_on(loads: Sequence[Load]) -> None:
    """Wait until each has thirty more confirms."""
    before = [len(load.confirmed) for load in loads]
    wait_until(
        lambda: all(len(load.confirmed) > old + 30 for load, old in zip(loads, before, strict=True)),
        40,
        what="both publishers continue",
    )


def accounted(scene: Scene, loads: Sequence[Load], *, within: float = 60) -> None:
    """Check that every confirmed message was handled or parked as planned, and that no other message exists."""
    confirmed = set().union(*(load.confirmed for load in loads))
    tried = set().union(*(load.tried for load in loads))

    scene.finish(confirmed, *scene.workers, timeout=within)

    handled, parked = set(scene.did()), set(scene.parked_ids())
    assert confirmed - handled - parked == set()
    assert (handled | parked) - tried == set()
    assert {one for one in parked if FAILS[one % len(FAILS)] != 99} == set()
    assert {one for one in handled if FAILS[one % len(FAILS)] == 99} == set()

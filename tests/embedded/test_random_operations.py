"""The engine and RabbitMQ do the same made-up work, step by step, and must see the same."""

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import pytest

from tests.embedded.engine_rig import EngineRig
from tests.embedded.rabbit_rig import RabbitRig
from tests.embedded.rig import QUORUM, Arrival, Client
from tests.tooling.vhosts import Vhost
from tests.tooling.waiting import wait_until

pytestmark = pytest.mark.contract

STEPS = 120
KEYS = ("a", "a.b", "a.c", "b", "")
PATTERNS = ("a", "a.*", "#", "b", "*.b", "")
QUEUES: Mapping[str, Mapping[str, object]] = {
    "first": {"x-dead-letter-exchange": "topic"},
    "second": {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "third", "x-max-length": 4},
    "third": {"x-max-priority": 3, "x-dead-letter-exchange": "direct"},
    "fourth": {"x-max-length": 3, "x-overflow": "reject-publish"},
    "fifth": {"x-max-length-bytes": 9, "x-overflow": "drop-head", "x-dead-letter-exchange": "fanout"},
}
EXCHANGES = ("direct", "topic", "fanout")


QUORUM_QUEUES: Mapping[str, Mapping[str, object]] = {
    "first": QUORUM,
    "second": {**QUORUM, "x-delivery-limit": 2},
    "third": {"x-max-priority": 3},
}
ASKED = (
    {"n": 1}, {"n": True}, {"n": "1"}, {"n": None}, {"x-match": "any", "n": False, "m": 2}, {"x-match": "all", "m": 0},
)  # fmt: skip
SAID = (1, True, "1", False, 0, 2)


class Work:
    """The same choices for two clients; each step returns what it saw.

    A dead letter of RabbitMQ is in flight for a moment: with `awaited`, the engine's result, a look waits for it.
    """

    queues = QUEUES
    exchanges: Sequence[str] = EXCHANGES

    def __init__(
        self, seed: int, client: Client, awaited: Sequence[object] = (), look: Callable[[Arrival], object] | None = None
    ) -> None:
        self.look = look or seen_on_4
        self.chance = random.Random(seed)
        self.client = client
        self.awaited = awaited
        self.held: list[int] = []
        self.seen: list[object] = []
        self.steps: list[Callable[[], object]] = [
            self.publish, self.publish, self.publish, self.get, self.get, self.ack, self.nack, self.reject, self.bind,
            self.unbind, self.count, self.purge,
        ]  # fmt: skip
        for name in self.exchanges:
            client.exchange(name, name)
        for name, arguments in self.queues.items():
            client.queue(name, arguments)

    def run(self) -> list[object]:
        for _ in range(STEPS):
            step = self.chance.choice(self.steps)
            self.seen.append((step.__name__, step()))
        return self.seen

    def publish(self) -> object:
        exchange = self.chance.choice(["", "", *EXCHANGES])
        key = self.chance.choice(list(self.queues) if not exchange else KEYS)
        headers = self.chance.choice([None, {"CC": ["first", "a"]}, {"BCC": ["fourth"]}, {"n": 1}])
        priority = self.chance.choice([None, 0, 2, 7])
        size = self.chance.randint(0, 5)
        words = {} if headers is None else {"headers": headers}
        return self.client.publish(key, "x" * size, exchange=exchange, mandatory=True, priority=priority, **words)

    def get(self) -> object:
        found = self.client.get(self.chance.choice(list(self.queues)), within=5 if self.coming()[1] else 0)
        if found is None:
            return None
        self.held.append(found.tag)
        return self.look(found)

    def ack(self) -> object:
        multiple = self.chance.random() < 0.3
        tag = self.some_tag(multiple=multiple)
        if tag:
            self.client.ack(tag, multiple=multiple)
        return tag

    def nack(self) -> object:
        multiple = self.chance.random() < 0.3
        requeue = self.chance.random() < 0.5
        tag = self.some_tag(multiple=multiple)
        if tag:
            self.client.nack(tag, multiple=multiple, requeue=requeue)
        return tag

    def reject(self) -> object:
        requeue = self.chance.random() < 0.5
        tag = self.some_tag(multiple=False)
        if tag:
            self.client.reject(tag, requeue=requeue)
        return tag

    def bind(self) -> None:
        self.client.bind(
            self.chance.choice(list(self.queues)), self.chance.choice(EXCHANGES), self.chance.choice(PATTERNS)
        )

    def unbind(self) -> None:
        self.client.unbind(
            self.chance.choice(list(self.queues)), self.chance.choice(EXCHANGES), self.chance.choice(PATTERNS)
        )

    def count(self) -> object:
        _, coming = self.coming()
        if isinstance(coming, dict):
            with suppress(AssertionError):
                wait_until(lambda: self.counts() == coming, 5)
        return self.counts()

    def counts(self) -> dict[str, int]:
        return {name: self.client.queue(name, passive=True).messages for name in self.queues}

    def coming(self) -> tuple[str, object]:
        """The engine's result at this step."""
        found = self.awaited[len(self.seen)] if self.awaited else ("nothing", None)
        assert isinstance(found, tuple)
        return found

    def purge(self) -> object:
        return self.client.purge(self.chance.choice(list(self.queues))) if self.chance.random() < 0.2 else None

    def some_tag(self, *, multiple: bool) -> int:
        if not self.held:
            return 0
        tag = self.chance.choice(self.held)
        self.held = [one for one in self.held if (one > tag if multiple else one != tag)]
        return tag


class QuorumWork(Work):
    """Quorum queues, every priority that versions distinguish, and headers of several types."""

    queues = QUORUM_QUEUES
    exchanges = ("headers",)

    def publish(self) -> object:
        exchange = self.chance.choice(["", "", "headers"])
        headers = {"n": self.chance.choice(SAID), "m": self.chance.choice(SAID)}
        priority = self.chance.choice([None, 0, 1, 2, 3, 4, 5])
        key = self.chance.choice(list(self.queues))
        body = str(len(self.seen))
        return self.client.publish(key, body, exchange=exchange, mandatory=True, priority=priority, headers=headers)

    def bind(self) -> None:
        self.client.bind(self.chance.choice(list(self.queues)), "headers", "", self.chance.choice(ASKED))

    def unbind(self) -> None:
        self.client.unbind(self.chance.choice(list(self.queues)), "headers", "", self.chance.choice(ASKED))


def seen_on_4(arrival: Arrival) -> tuple[object, ...]:
    counts = [(death["queue"], death["reason"], death["count"]) for death in arrival.headers.get("x-death", [])]
    keys = [death["routing-keys"] for death in arrival.headers.get("x-death", [])]
    others = {name: value for name, value in arrival.headers.items() if name != "x-death"}
    return (arrival.text, arrival.exchange, arrival.key, arrival.redelivered, counts, keys, others)


def seen_since_3(arrival: Arrival) -> tuple[object, ...]:
    """Leave out what differs between RabbitMQ 3 and 4: the order in x-death, x-last-death-*, and when CC goes."""
    *place, counts, keys, others = seen_on_4(arrival)
    assert isinstance(others, dict)
    assert isinstance(counts, list)
    assert isinstance(keys, list)
    same = {name: value for name, value in others.items() if name != "CC" and not name.startswith("x-last-death-")}
    return (*place, sorted(zip(counts, keys, strict=True)), same)


@pytest.mark.parametrize("work", [Work, QuorumWork])
@pytest.mark.parametrize("seed", range(6))
def test_random_operations_have_equal_results_on_both_brokers(vhost: Vhost, seed: int, work: type[Work]) -> None:
    rabbit = RabbitRig(vhost.url, vhost.version)
    if rabbit.version < (4, 0) and work is QuorumWork:
        pytest.skip("quorum queues of RabbitMQ 3 have other orders and counts, which are not emulated")
    look = seen_on_4 if rabbit.version >= (4, 0) else seen_since_3
    engine = EngineRig(".".join(map(str, max(rabbit.version, (4, 0)))))
    ours = work(seed, engine.connect(), look=look).run()
    theirs = work(seed, rabbit.connect(), awaited=ours, look=look).run()
    rabbit.close()

    for step, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        assert (step, one) == (step, other)

"""The parts of a run: the storm on one node, the cluster in which a node dies each minute, and the soak."""

import os
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from tests.chaos.lanes import lanes
from tests.chaos.nemeses import ONE_NODE, Nemesis
from tests.chaos.soak import soak
from tests.chaos.stage import Stage, one_node, staged
from tests.chaos.storm import Weather, storm
from tests.tooling.cluster import SIZE, cluster, cut_off, rejoin, running, whole
from tests.tooling.node import Node
from tests.tooling.services import Services

CLUSTER_LANES = ("flood", "line", "once", "sale", "keyed", "fragile", "gated", "metered")
"""A classic queue lives on one node and is away with it."""
MINUTE = 60.0
REJOIN = 60.0
PATIENCE = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What was asked for."""

    seed: int
    version: str | None
    minutes: float
    rate: float
    plant: str = ""
    nemeses: Sequence[str] = ()
    payments: int = 0
    began: float = field(default_factory=time.monotonic)

    def weather(self, known: Mapping[str, Nemesis]) -> Weather:
        """Its time divided into phases; what starting took is taken from the chaos."""
        chosen = {name: known[name] for name in self.nemeses if name in known} or known
        return Weather(
            warm_up=min(15.0, 8 + self.minutes * 3),
            until=self.began + self.minutes * MINUTE - min(75.0, 20 + self.minutes * 6),
            patience=PATIENCE,
            nemeses=chosen,
        )


def storming(order: Order) -> bool:
    """Everything at once, on one node."""
    with staged(one_node(order.version), seed=order.seed, rate=order.rate, plant=order.plant) as stage:
        return storm(f"storm on RabbitMQ {stage.node.version}", stage, order.weather(ONE_NODE))


def clustered(order: Order) -> bool:
    """Three nodes with quorum queues; each minute, or five times where there is less time, one dies or is cut off."""
    every = min(MINUTE, order.minutes * MINUTE / 5)

    def node_dies(stage: Stage, chance: random.Random) -> Iterator[float]:
        node = chance.choice(stage.nodes)
        node.kill()
        yield chance.uniform(5, every / 3)
        node.start()
        # Two of three must be whole at any time: that is what a quorum queue rests on.
        stage.wait(lambda: complete(stage.node), REJOIN)
        yield every / 2

    def node_is_cut_off(stage: Stage, chance: random.Random) -> Iterator[float]:
        node = chance.choice(stage.nodes)
        others = [other for other in stage.nodes if other is not node]
        cut_off(node, others)
        yield chance.uniform(5, every / 3)
        rejoin(node, others)
        stage.wait(lambda: complete(others[0]), REJOIN)
        yield every / 2

    asked = os.environ.get("CHAOS_LANES", "")
    os.environ["CHAOS_LANES"] = asked or ",".join(CLUSTER_LANES)
    try:
        with staged(three_nodes(order.version), seed=order.seed, rate=order.rate / 2, plant=order.plant) as stage:
            weather = order.weather({"node_dies": node_dies, "node_is_cut_off": node_is_cut_off})
            return storm(f"cluster on RabbitMQ {stage.node.version}", stage, weather, lanes())
    finally:
        os.environ["CHAOS_LANES"] = asked


def complete(node: Node) -> bool:
    """Whether all nodes run, and every replica is at work."""
    try:
        return running(node) == SIZE and whole(node)
    except OSError:
        return False


def soaked(order: Order) -> bool:
    """Exactly once, to the cent."""
    with staged(one_node(order.version), seed=order.seed, rate=0, plant=order.plant) as stage:
        title = f"soak on RabbitMQ {stage.node.version}"
        return soak(title, stage, order.payments, until=order.began + order.minutes * MINUTE * 0.85)


def three_nodes(version: str | None) -> Callable[[Services, ExitStack], Sequence[Node]]:
    def make(services: Services, stack: ExitStack) -> Sequence[Node]:
        return stack.enter_context(cluster(services, version))

    return make


PARTS: Mapping[str, Callable[[Order], bool]] = {"storm": storming, "cluster": clustered, "soak": soaked}

"""The parts of a run: the storm on one node, the cluster in which a node dies each minute, and the soak."""

import os
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.chaos import postgres, report, sweeping
from tests.chaos.lanes import lanes
from tests.chaos.mariadb import Mariadb
from tests.chaos.nemeses import ONE_NODE, Nemesis
from tests.chaos.soak import soak
from tests.chaos.stage import Stage, one_node, staged
from tests.chaos.storm import Weather, storm
from tests.tooling.cluster import SIZE, cluster, cut_off, rejoin, running, whole
from tests.tooling.databases import MARIADB, POSTGRESQL
from tests.tooling.installs import install_for
from tests.tooling.node import Node
from tests.tooling.services import Services

SWEPT_LANES = ("flood", "line", "once", "sale", "keyed", "awaited", "task", "batch", "batchonce")
CLUSTER_LANES = (*SWEPT_LANES, "fragile", "gated", "metered")
"""The lanes of the cluster: a classic queue is on one node, and is unavailable with it."""
SWEPT_RATE = 500.0
"""The prefetch in the sweep: unacked messages of an ended process are redelivered, so a larger one only adds these."""
BESIDE_SWEEP = ("kill", "connections_closed", "backends_terminated", "clock_jumps")
MINUTE = 60.0
REJOIN = 60.0
PATIENCE = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The options of a run."""

    seed: int
    version: str | None
    minutes: float
    rate: float
    plant: str = ""
    nemeses: Sequence[str] = ()
    payments: int = 0
    began: float = field(default_factory=time.monotonic)

    def weather(self, known: Mapping[str, Nemesis]) -> Weather:
        """Divide the time into phases; the start counts as a part of the chaos phase."""
        chosen = {name: known[name] for name in self.nemeses if name in known} or known
        return Weather(
            warm_up=min(15.0, 8 + self.minutes * 3),
            until=self.began + self.minutes * MINUTE - min(75.0, 20 + self.minutes * 6),
            patience=PATIENCE,
            nemeses=chosen,
        )


def storming(order: Order) -> bool:
    """Run all lanes and nemeses on one node."""
    with staged(one_node(order.version), seed=order.seed, rate=order.rate, plant=order.plant) as stage:
        return storm(f"storm on RabbitMQ {stage.node.version}", stage, order.weather(ONE_NODE))


def on_mariadb(order: Order) -> bool:
    """Run the storm on MariaDB."""
    options: dict[str, Any] = {"seed": order.seed, "rate": order.rate / 2, "plant": order.plant}
    with staged(one_node(order.version), server=Mariadb, **options) as stage:
        return storm(f"storm on MariaDB and RabbitMQ {stage.node.version}", stage, order.weather(ONE_NODE))


def swept(order: Order) -> bool:
    """Let each process kill itself in a function that the seed chooses, with a few nemeses besides."""
    options: dict[str, Any] = {"seed": order.seed, "rate": min(order.rate, SWEPT_RATE), "plant": order.plant}
    with only(SWEPT_LANES), staged(one_node(order.version), sweep=True, **options) as stage:
        weather = order.weather({name: ONE_NODE[name] for name in BESIDE_SWEEP})
        good = storm(f"sweep on RabbitMQ {stage.node.version}", stage, weather, lanes())
        report.say(f"  {sweeping.summary(stage.folder)}")
        return good


@contextmanager
def only(some: Sequence[str]) -> Iterator[None]:
    """Use these lanes, unless others were requested."""
    asked = os.environ.get("CHAOS_LANES", "")
    os.environ["CHAOS_LANES"] = asked or ",".join(some)
    try:
        yield
    finally:
        os.environ["CHAOS_LANES"] = asked


def clustered(order: Order) -> bool:
    """Run three nodes with quorum queues; each minute, or five times in a short run, one is killed or partitioned."""
    every = min(MINUTE, order.minutes * MINUTE / 5)

    def node_dies(stage: Stage, chance: random.Random) -> Iterator[float]:
        node = chance.choice(stage.nodes)
        node.kill()
        yield chance.uniform(5, every / 3)
        node.start()
        # A quorum queue needs two of three replicas at any time.
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

    options: dict[str, Any] = {"seed": order.seed, "rate": order.rate / 2, "plant": order.plant}
    with only(CLUSTER_LANES), staged(three_nodes(order.version), **options) as stage:
        weather = order.weather({"node_dies": node_dies, "node_is_cut_off": node_is_cut_off})
        return storm(f"cluster on RabbitMQ {stage.node.version}", stage, weather, lanes())


def complete(node: Node) -> bool:
    """Return True if all nodes run and all replicas are online."""
    try:
        return running(node) == SIZE and whole(node)
    except OSError:
        return False


def soaked(order: Order) -> bool:
    """Run the soak: each payment has its effect exactly once, to the cent."""
    with staged(one_node(order.version), seed=order.seed, rate=0, plant=order.plant) as stage:
        title = f"soak on RabbitMQ {stage.node.version}"
        return soak(title, stage, order.payments, until=order.began + order.minutes * MINUTE * 0.85)


def three_nodes(version: str | None) -> Callable[[Services, ExitStack], Sequence[Node]]:
    def make(services: Services, stack: ExitStack) -> Sequence[Node]:
        return stack.enter_context(cluster(services, version))

    return make


PARTS: Mapping[str, Callable[[Order], bool]] = {
    "storm": storming,
    "mariadb": on_mariadb,
    "sweep": swept,
    "cluster": clustered,
    "soak": soaked,
}


def lack(part: str, version: str) -> str:
    """Return the reason that a part cannot run on this machine; empty if it can."""
    why = postgres.lack(MARIADB if part == "mariadb" else POSTGRESQL)
    if not why and version and install_for(version) is None:
        why = f"RabbitMQ {version} is not on this machine. Run `make brokers` as root on a Debian."
    return why

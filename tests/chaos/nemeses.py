"""The nemeses: each injects a fault, yields its duration in seconds, and ends it. The seed chooses fault and target."""

import random
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from urllib.error import HTTPError
from urllib.parse import quote

from tests.chaos.lanes import lanes
from tests.chaos.ledger import ATTEMPTED, CONFIRMED, now
from tests.chaos.naming import Name
from tests.chaos.producing import raw
from tests.chaos.stage import Stage
from tests.tooling.clocks import DAY, YEAR
from tests.tooling.proxy import Mode

Nemesis = Callable[[Stage, random.Random], Iterator[float]]
NETWORK = tuple(mode for mode in Mode if mode not in {Mode.PASS, Mode.CORRUPT_TO_CLIENT, Mode.CORRUPT_TO_SERVER})
"""Without corruption: a changed byte in a body cannot be detected; in production the TCP checksum prevents it."""
SET = "application:set_env(rabbit, "
JUMPS = (200.0, 4000.0, DAY, 300 * DAY, 8 * YEAR)
RESTARTED = 0.7
ALL = ("consumer", "producer", "relay", "operator", "steering")


def kill(stage: Stage, chance: random.Random) -> Iterator[float]:
    """Send SIGKILL to any process."""
    stage.fleet.pick(chance, *ALL).signal(signal.SIGKILL)
    yield 0.0


def kill_consumer(stage: Stage, chance: random.Random) -> Iterator[float]:
    stage.fleet.pick(chance, "consumer").signal(signal.SIGKILL)
    yield 0.0


def deploy(stage: Stage, _chance: random.Random) -> Iterator[float]:
    """Restart every consumer and relay in turn by SIGTERM."""
    for actor in stage.fleet.of("consumer", "relay"):
        actor.signal(signal.SIGTERM)
        yield 1.0


def freeze(stage: Stage, chance: random.Random) -> Iterator[float]:
    """Stop a process by SIGSTOP, for less or more than the heartbeat timeout."""
    actor = stage.fleet.pick(chance, "consumer", "relay", "producer")
    actor.signal(signal.SIGSTOP)
    yield chance.uniform(1, 12)
    actor.signal(signal.SIGCONT)


def clock_jumps(stage: Stage, chance: random.Random) -> Iterator[float]:
    """Set the clocks of some hosts wrong, by minutes to years; most of their processes are restarted."""
    everybody = [*stage.fleet.of("consumer"), *stage.fleet.of(*ALL)]
    actors = dict.fromkeys(chance.choices(everybody, k=3))
    for actor in actors:
        stage.turn_clock(actor.role, chance.choice((-1, 1)) * chance.choice(JUMPS))
        if chance.random() < RESTARTED:
            actor.signal(signal.SIGKILL)
    # Long enough for a restart with the wrong clock, and for deleting old rows.
    yield chance.uniform(8, 15)
    for actor in actors:
        stage.turn_clock(actor.role, 0.0)


def broker_killed(stage: Stage, chance: random.Random) -> Iterator[float]:
    node = chance.choice(stage.nodes)
    node.kill()
    yield chance.uniform(0, 3)
    node.start()


def broker_restarted(stage: Stage, _chance: random.Random) -> Iterator[float]:
    stage.node.stop()
    yield 0.0
    stage.node.start()


def broker_frozen(stage: Stage, chance: random.Random) -> Iterator[float]:
    stage.node.pause()
    yield chance.uniform(1, 10)
    stage.node.resume()


def memory_alarm(stage: Stage, chance: random.Random) -> Iterator[float]:
    stage.node.raise_alarm()
    yield chance.uniform(2, 8)
    stage.node.clear_alarm()


def disk_alarm(stage: Stage, chance: random.Random) -> Iterator[float]:
    stage.node.ctl("set_disk_free_limit", "100000GB")
    yield chance.uniform(2, 8)
    stage.node.ctl("set_disk_free_limit", "50MB")


def amqp_network(stage: Stage, chance: random.Random) -> Iterator[float]:
    """Disturb the network between some processes and the broker."""
    stage.amqp.set(chance.choice(NETWORK))
    yield chance.uniform(2, 10)
    stage.amqp.set(Mode.PASS)


def sql_network(stage: Stage, chance: random.Random) -> Iterator[float]:
    """Disturb the network between some processes and the database, without corruption, because SQL has no checksum."""
    stage.sql.set(chance.choice([mode for mode in NETWORK if mode is not Mode.GARBLE_TO_SERVER]))
    yield chance.uniform(2, 8)
    stage.sql.set(Mode.PASS)


def refused(stage: Stage, chance: random.Random) -> Iterator[float]:
    """Refuse connections at the proxies."""
    proxy = chance.choice([stage.amqp, stage.sql])
    proxy.refuse()
    yield chance.uniform(1, 5)
    proxy.accept()


def database_stopped(stage: Stage, chance: random.Random) -> Iterator[float]:
    stage.database.stop_at_once()
    yield chance.uniform(0, 4)
    stage.database.start()


def backends_terminated(stage: Stage, _chance: random.Random) -> Iterator[float]:
    stage.database.terminate_backends()
    yield 0.0


def connections_closed(stage: Stage, _chance: random.Random) -> Iterator[float]:
    for row in stage.node.management.call("GET", "connections?columns=name"):
        with suppress(HTTPError):
            stage.node.management.call("DELETE", f"connections/{quote(row['name'], safe='')}")
    yield 0.0


def permission_revoked(stage: Stage, chance: random.Random) -> Iterator[float]:
    permit(stage, "^$")
    yield chance.uniform(1, 4)
    permit(stage, ".*")


def permit(stage: Stage, what: str) -> None:
    stage.node.management.call("PUT", "permissions/%2F/guest", dict.fromkeys(("configure", "write", "read"), what))


def impatience(stage: Stage, chance: random.Random) -> Iterator[float]:
    """Make the broker requeue messages that are unacked for longer than a second."""
    stage.node.ctl("eval", f"{SET}consumer_timeout, 1000), {SET}channel_tick_interval, 1000).")
    yield chance.uniform(4, 8)
    stage.node.ctl("eval", f"{SET}consumer_timeout, 1800000), {SET}channel_tick_interval, 60000).")


def queue_deleted(stage: Stage, chance: random.Random) -> Iterator[float]:
    """Delete an empty queue under its consumers, and declare it again; they must consume the new one."""
    lane = lanes().get("idle")
    if lane is None:
        return
    if lane.queue not in stage.depths():
        stage.node.management.call("DELETE", f"queues/%2F/{lane.queue}")
        yield chance.uniform(0, 2)
    stage.declare()
    name = str(Name(lane.name, "stage", now()))
    stage.ledger.note(ATTEMPTED, name)
    raw(lane.queue, name)
    stage.ledger.note(CONFIRMED, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Strike:
    """One scheduled nemesis."""

    number: int
    name: str
    pause: float
    """Seconds after the previous one."""
    chance: random.Random


ONE_NODE: Mapping[str, Nemesis] = {
    one.__name__: one
    for one in (
        *(kill, kill_consumer, freeze, deploy, clock_jumps),
        *(broker_killed, broker_restarted, broker_frozen, memory_alarm, disk_alarm),
        *(amqp_network, sql_network, refused, database_stopped, backends_terminated),
        *(connections_closed, permission_revoked, impatience, queue_deleted),
    )
}
OFTEN = ("kill", "kill_consumer", "amqp_network", "kill")
"""Nemeses that run more often than the others."""


def schedule(seed: int, known: Mapping[str, Nemesis], *, shortest: float, longest: float) -> Iterator[Strike]:
    """Yield nemeses without end, the same for the same seed; each runs once before any runs again."""
    chance = random.Random(f"{seed}/schedule")
    number = 0
    while True:
        turn = [*known, *(name for name in OFTEN if name in known)]
        chance.shuffle(turn)
        for name in turn:
            number += 1
            pause = chance.uniform(shortest, longest)
            yield Strike(number=number, name=name, pause=pause, chance=random.Random(f"{seed}/{number}/{name}"))

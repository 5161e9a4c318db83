"""The storm: all lanes and nemeses, on one node or a cluster. Warm-up, chaos, repair, quiescence, judgement."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tests.chaos import report, steering
from tests.chaos.gathering import Historian, books, settle
from tests.chaos.judge import judge
from tests.chaos.lanes import Lane, landed, lanes
from tests.chaos.ledger import CONFIRMED, Counting, now
from tests.chaos.metrics import miscounted
from tests.chaos.nemeses import Nemesis, schedule
from tests.chaos.processes import Role
from tests.chaos.stage import Stage
from tests.tooling.node import free_ports

LOOK_EVERY = 20.0
AT_LEAST = 10.0
START = 180.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """The duration of each phase, and the nemeses that may run."""

    warm_up: float
    until: float
    """The end of the chaos phase, by the monotonic clock; the phase lasts at least ``AT_LEAST`` seconds."""
    patience: float
    """Seconds after which all queues must be empty."""
    nemeses: Mapping[str, Nemesis]
    shortest: float = 1.0
    longest: float = 5.0


def consumer(name: str, *queues: str, proxied: bool, prefetch: int = 10, port: int = 0) -> Role:
    words = ("django", "rmq_consume", *queues, "--prefetch", str(prefetch), "--shutdown-timeout", "15", "-v", "0")
    http = ("--http", str(port)) if port else ()
    return Role(name=name, words=(*words, *http), kind="consumer", proxied=proxied, port=port)


def roles(known: Mapping[str, Lane]) -> Sequence[Role]:
    """Two consumers each for the flood and the rest, one of each behind the proxies; relay, producers, operator."""
    flood, others = ["chaos.flood"], [lane.queue for lane in known.values() if lane.name != "flood"]
    relay = (
        [Role(name="relay", words=("django", "rmq_relay"), kind="relay")]
        if landed("management.commands.rmq_relay")
        else []
    )
    ports = free_ports(4)
    return [
        consumer("flood-1", *flood, proxied=False, prefetch=300, port=ports[0]),
        consumer("flood-2", *flood, proxied=True, prefetch=100, port=ports[1]),
        consumer("others-1", *others, proxied=False, port=ports[2]),
        consumer("others-2", *others, proxied=True, port=ports[3]),
        *relay,
        Role(name="producer-flood", words=("tests.chaos.producing", "flood"), kind="producer"),
        Role(name="producer-mixed", words=("tests.chaos.producing", "mixed"), kind="producer", proxied=True),
        Role(name="operator", words=("tests.chaos.operating",), kind="operator"),
        Role(name="steering", words=("tests.chaos.steering",), kind="steering"),
    ]


def storm(title: str, stage: Stage, weather: Weather, known: Mapping[str, Lane] | None = None) -> bool:
    """Run all phases; return True if no invariant was violated."""
    known = lanes() if known is None else known
    historian = Historian()
    began = now()
    report.say(f"{title}")
    stage.man(roles(known))
    if not stage.wait(lambda: warm(stage), START):
        report.say(f"  BROKEN: no message was handled within {START:g} s, before the first nemesis")
        report.keep(stage.folder)
        return False
    stage.rest(weather.warm_up)
    quiet_until = now()
    rage(stage, weather, historian)
    report.say("  all nemeses have ended; waiting for empty queues")
    stage.heal()
    stage.fleet.stop("producer", "steering")
    if not steering.release(stage.folder, stage.ledger):
        report.say("  paused queues could not be resumed")
    settled = settle(stage, weather.patience)
    stage.fleet.stop("operator")
    # The messages that the operator requeued last must be handled as well.
    again = settle(stage, weather.patience) if settled is not None else None
    compared, wrong = miscounted(stage)
    report.say(f"  {compared:,} successes and attempts in the ledger were compared with /metrics")
    survivors = [f"{actor.role.name}.{actor.pid}" for actor in stage.fleet.of("consumer")]
    last = stage.fleet.stop("consumer", "relay")
    found = books(stage, known, historian, survivors=survivors)
    found.miscounted = wrong if settled is not None else ()
    found.last, found.began_at, found.quiet_until = last, began, quiet_until
    verdict = judge(found)
    report.judged(title, found, verdict, settled=None if settled is None or again is None else settled + again)
    if verdict.findings and not stage.plant:
        report.keep(stage.folder)
    return not verdict.findings


def warm(stage: Stage) -> bool:
    """Return True once any handler has started an attempt."""
    return any((stage.folder / "ledger").glob("began-*"))


def rage(stage: Stage, weather: Weather, historian: Historian) -> None:
    """Run one nemesis after the other until the time is over."""
    deadline, looked = max(weather.until, time.monotonic() + AT_LEAST), 0.0
    confirmed = Counting(stage.folder, CONFIRMED)
    for strike in schedule(stage.seed, weather.nemeses, shortest=weather.shortest, longest=weather.longest):
        if time.monotonic() + strike.pause >= deadline:
            stage.rest(deadline - time.monotonic())
            return
        stage.rest(strike.pause)
        if time.monotonic() - looked > LOOK_EVERY:
            looked = time.monotonic()
            historian.look()
        began = now()
        for seconds in weather.nemeses[strike.name](stage, strike.chance):
            stage.rest(seconds)
        stage.harmed(strike.name, began)
        took = (now() - began) / 1000
        report.say(f"  {strike.number:>3} {strike.name:<22} {took:5.1f} s {confirmed.look():>11,} confirmed")


@contextmanager
def timed(what: str) -> Iterator[None]:
    began = time.monotonic()
    yield
    report.say(f"{what}: {time.monotonic() - began:.0f} s")

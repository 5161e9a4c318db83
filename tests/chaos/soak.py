"""The soak: payments pass from queue to database to queue exactly once, while a process is killed every two seconds."""

import math
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from tests.chaos import report
from tests.chaos.gathering import settle
from tests.chaos.judge import IN_ORDER
from tests.chaos.nemeses import ALL
from tests.chaos.paying import ACCOUNTS, Money, made_up
from tests.chaos.processes import Role
from tests.chaos.stage import Stage
from tests.chaos.storm import consumer

KILL_EVERY = 2.0
LOOK_EVERY = 10.0
START, FINISH = 180.0, 240.0
LEGS = {"book": "booked", "report": "reported"}
EXAMPLES = 5
ROLES = (
    *(consumer(f"bank-{number}", "chaos.book", "chaos.report", proxied=False, prefetch=50) for number in (1, 2, 3)),
    *(Role(name=f"relay-{number}", words=("django", "rmq_relay"), kind="relay") for number in (1, 2)),
    Role(name="producer-payments", words=("tests.chaos.producing", "payments"), kind="producer"),
    Role(name="operator", words=("tests.chaos.operating",), kind="operator"),
)


def soak(title: str, stage: Stage, payments: int, *, until: float) -> bool:
    """Kill processes until every payment is booked and reported, or until a time; return True if every sum is right."""
    from tests.chaos.project.models import Account  # noqa: PLC0415 - Django must be set up first

    # With this many kills a harmless message may be quarantined and parked, so the operator always requeues it.
    os.environ.update({"CHAOS_PAYMENTS": str(payments), "CHAOS_DISCARDS": "0"})
    Account.objects.bulk_create(Account(pk=number) for number in range(1, ACCOUNTS + 1))
    began = time.monotonic()
    stage.man(ROLES)
    stage.wait(lambda: booked() > 0, START)
    progress = Progress(len(LEGS) * payments)
    kills = reap(stage, progress, until=until, grown_up=(time.monotonic() - began) / 2)
    stage.wait(progress.over, math.inf)
    took = time.monotonic() - began
    settled = settle(stage, FINISH) if progress.all_booked else None
    last = stage.fleet.stop(*ALL)
    found = [
        *wrong(stage.seed, payments),
        *(f"{name} ended with {code}" for name, code in last.items() if code not in IN_ORDER),
        *(["the queues did not become empty"] if settled is None else []),
    ]
    report.say(f"{title}: {payments:,} payments, {kills} kills, {took:.0f} s, {payments / took:.0f} payments a second")
    for sentence in found:
        report.say(f"  BROKEN {sentence}")
    if found:
        report.keep(stage.folder)
    return not found


@dataclass(slots=True)
class Progress:
    """The number of bookings, and the time since it last grew."""

    bookings: int
    done: int = 0
    _grew: float = field(default_factory=time.monotonic)

    @property
    def all_booked(self) -> bool:
        return self.done >= self.bookings

    def over(self) -> bool:
        """Return True if all bookings are there, or if none was added for ``FINISH`` seconds."""
        now_there = booked()
        if now_there > self.done:
            self.done, self._grew = now_there, time.monotonic()
        return self.all_booked or time.monotonic() - self._grew > FINISH


def reap(stage: Stage, progress: Progress, *, until: float, grown_up: float) -> int:
    """Kill one process every two seconds, except those that are still starting; return the number of kills."""
    looked, kills = time.monotonic(), 0
    while time.monotonic() < until:
        stage.rest(KILL_EVERY)
        if time.monotonic() - looked > LOOK_EVERY:
            looked, over = time.monotonic(), progress.over()
            report.say(f"  {progress.done:,} of {progress.bookings:,} bookings, {kills} kills")
            if over:
                break
        chance = random.Random(f"{stage.seed}/{kills}/kill")
        able = [actor for actor in stage.fleet.of(*ALL) if actor.age >= max(KILL_EVERY, grown_up)]
        if able:
            kills += 1
            chance.choice(able).signal(signal.SIGKILL)
    return kills


def booked() -> int:
    from tests.chaos.project.models import Booking  # noqa: PLC0415 - Django must be set up first

    return Booking.objects.count()


def wrong(seed: int, payments: int) -> Iterator[str]:
    """Compare the database with the generated payments."""
    from tests.chaos.project.models import Account, Booking  # noqa: PLC0415 - Django must be set up first

    expected = {payment: made_up(seed, payment) for payment in range(1, payments + 1)}
    rows = list(Account.objects.values_list("pk", "cents", "reported"))
    yield from audit(
        expected,
        Booking.objects.values_list("payment", "leg").iterator(),
        cents={pk: cents for pk, cents, _ in rows},
        reported={pk: reported for pk, _, reported in rows},
    )


def audit(
    expected: Mapping[int, Money],
    bookings: Iterable[tuple[int, str]],
    *,
    cents: Mapping[int, int],
    reported: Mapping[int, int],
) -> Iterator[str]:
    """Check the sum of every account, and that every payment is booked once and reported once."""
    sums: Counter[int] = Counter()
    for money in expected.values():
        sums[money.account] += money.cents
    times = Counter(bookings)
    for leg, done in LEGS.items():
        yield from some(f"D: {done} more than once", (pk for pk, by in times if by == leg and times[pk, by] > 1))
        yield from some(f"A: never {done}", (pk for pk in expected if not times[pk, leg]))
        yield from some(f"I2: {done}, but never paid", (pk for pk, by in times if by == leg and pk not in expected))
    for what, there in (("booked", cents), ("reported", reported)):
        yield from some(f"D: the wrong sum is {what} for account", (pk for pk in there if there[pk] != sums[pk]))
        if sum(there.values()) != sum(sums.values()):
            yield f"D: {sum(there.values())} cents are {what} in total, but {sum(sums.values())} were paid"


def some(said: str, which: Iterable[int]) -> Iterator[str]:
    found = sorted(which)
    if found:
        more = f" and {len(found) - EXAMPLES} more" if len(found) > EXAMPLES else ""
        yield f"{said}: {', '.join(map(str, found[:EXAMPLES]))}{more}"

"""Drives a requeue run: pace, guards and queue depth.

A driver may be killed anywhere: its lease runs out, and the next one goes on with what nobody has claimed.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Protocol

from django.db import transaction
from django.db.models import F, Q, QuerySet

from django_rmq_retry import server
from django_rmq_retry.amqp.contracts import Cause, Outcome, unsent
from django_rmq_retry.amqp.inspection import counted
from django_rmq_retry.amqp.refusals import BrokerUnreachable, Refusal
from django_rmq_retry.amqp.session import Session
from django_rmq_retry.conf import settings
from django_rmq_retry.errors import BrokerRefused, RmqRetryError
from django_rmq_retry.messages.tracebacks import short
from django_rmq_retry.models import ItemReason, ItemState, RequeueItem, RequeueRun, RunState, RunWait
from django_rmq_retry.parked.claims import Answer, Claim, claim, lasts, leave_out, settle, sweep
from django_rmq_retry.parked.copies import copy_for, publish, timeout_for
from django_rmq_retry.parked.database import database, locked_run, steadily
from django_rmq_retry.parked.items import Choice, advance, list_part, recount, release
from django_rmq_retry.publishing import broker_connections


def paced() -> dict[str, Any]:
    """What a run that begins to send, at another rate or after a break, notes to tell its real rate by."""
    return {"paced_at": server.now(database()), "paced_sent": F("sent")}


ENOUGH = 5
"""Outcomes from which a share means something."""
CANARY = timedelta(seconds=60)


def tripped(run: RequeueRun) -> bool:
    """Whether more messages failed again than the run allows, since somebody last looked at it and resumed it."""
    ended, failed = tally(run)
    return run.stop_at is not None and ended >= ENOUGH and failed * 100 > run.stop_at * ended


def tally(run: RequeueRun) -> tuple[int, int]:
    """The outcomes that the guard goes by, and how many of them failed again."""
    failed = max(run.failed - run.spared_failed, 0)
    return failed + max(run.processed - run.spared_processed, 0), failed


def canary(run: RequeueRun) -> tuple[RunWait | None, bool]:
    """Return why the rest waits for the first message, and whether only an operator can end that; None if it held."""
    if run.processed:
        return None, False
    rows = (
        RequeueItem.objects.using(database()).filter(run=run).exclude(state__in=(ItemState.PENDING, ItemState.SKIPPED))
    )
    states = set(rows.values_list("state", flat=True)[:ENOUGH])
    if ItemState.FAILED in states:
        return RunWait.CANARY_FAILED, True
    if ItemState.UNCONFIRMED in states:
        return RunWait.NOT_CONFIRMED, True
    if not states:
        return None, False
    sent_at = rows.filter(state=ItemState.SENT).values_list("sent_at", flat=True).first()
    if sent_at is not None and sent_at < server.now(database()) - CANARY:
        return RunWait.CANARY_SILENT, True
    return RunWait.CANARY_WAITS, False


SLICE = 0.25
"""Seconds between two slices."""
SAVED = 1.0
"""Seconds for which unused room is kept: a slow slice is made up for, a long pause is not."""


class Pace:
    """A bucket that fills by the rate; a driver that begins finds room for one message in it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._at: float | None = None
        self._room = 1.0

    def room(self, rate: float) -> int:
        """Whole messages that may leave now."""
        now = self._clock()
        passed = 0.0 if self._at is None else now - self._at
        self._room = min(self._room + passed * rate, max(1.0, rate * SAVED))
        self._at = now
        # Sums of fractions fall short of a whole number by a hair.
        return int(self._room + 1e-6)

    def spend(self, count: int) -> None:
        self._room -= count

    def wait(self, rate: float) -> float:
        """Seconds until the next slice is worth while."""
        return max(SLICE, (1.0 - self._room) / rate) if rate > 0 else SLICE


FRESH = 1.0
"""Seconds for which an answer is good enough."""
PATIENCE = 5.0


class Depths(Protocol):
    """What a driver wants to know of the broker."""

    def answers(self) -> bool:
        """Whether the broker can be reached."""

    def of(self, queue: str) -> int | None:
        """Messages that are ready; 0 for a queue that does not exist, None where nobody can tell."""

    def added(self, queue: str, count: int) -> None:
        """So many have been sent to it since."""

    def close(self) -> None: ...


class BrokersDepths:
    """By passive declares."""

    def __init__(self, *, patience: float = PATIENCE, clock: Callable[[], float] = time.monotonic) -> None:
        self._patience = patience
        self._clock = clock
        self._session: Session | None = None
        self._known: dict[str, tuple[float, int | None]] = {}

    def answers(self) -> bool:
        if broker_connections.current.replaced:
            return True
        try:
            self._open().ask(lambda channel, done: channel.exchange_declare("amq.direct", passive=True, callback=done))
        except Refusal:
            return True
        except (BrokerUnreachable, BrokerRefused, RmqRetryError, OSError):
            self.close()
            return False
        return True

    def of(self, queue: str) -> int | None:
        if broker_connections.current.replaced:
            return 0
        at, depth = self._known.get(queue, (float("-inf"), None))
        if self._clock() - at >= FRESH:
            depth = self._ask(queue)
            self._known[queue] = self._clock(), depth
        return depth

    def added(self, queue: str, count: int) -> None:
        at, depth = self._known.get(queue, (0.0, None))
        if depth is not None:
            self._known[queue] = at, depth + count

    def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.__exit__(None, None, None)

    def _ask(self, queue: str) -> int | None:
        try:
            holding = counted(self._open(), None, queue)
        except Refusal:
            return None
        except (BrokerUnreachable, BrokerRefused, RmqRetryError, OSError):
            self.close()
            return None
        return 0 if holding is None else holding.ready

    def _open(self) -> Session:
        if self._session is None:
            access = settings().access()
            access = replace(access, connect_timeout=min(access.connect_timeout, self._patience))
            session = Session(access, purpose="run", patience=self._patience)
            session.__enter__()
            self._session = session
        return self._session


LEASE = timedelta(seconds=15)
SWEEP = 5.0
"""Seconds between two looks for claims that nobody ended."""
AWAY = 1.0
"""Seconds between two looks whether the broker is back."""
DRIVEN = (RunState.PLANNED, RunState.RUNNING, RunState.WAITING)
TO_DRIVE = Q(state__in=DRIVEN) | Q(state=RunState.STOPPED, finished_at=None)
"""Also a stopped run that has not let go of all its messages."""
Clock = Callable[[], float]


class Drive:
    """One driver of one run. ``step()`` does what there is to do now and tells when to come again."""

    def __init__(
        self, run: int, driver: str, *, seconds: float | None = None, clock: Clock = time.monotonic,
        depths: Depths | None = None,
    ) -> None:  # fmt: skip
        self.run = run
        self.driver = short(driver, 255)
        self._clock = clock
        self._timeout = timeout_for(seconds)
        self._depths = depths or BrokersDepths(patience=min(5.0, self._timeout), clock=clock)
        self._pace = Pace(clock)
        self._swept = float("-inf")
        self._doubts = 0
        self._mine = False
        self.waiting = False
        """Whether all is sent and only outcomes are missing."""

    def step(self) -> float | None:
        """One slice; seconds until the next, or None where this driver has nothing more to do."""
        run = self._renewed()
        if run is None:
            return None
        if self._clock() - self._swept >= SWEEP:
            sweep()
            self._swept = self._clock()
        if run.state == RunState.STOPPED or run.listing:
            return self._before_or_after(run)
        if run.state == RunState.WAITING:
            return self._advance()
        if not self._reachable(run):
            self._say(run, RunWait.BROKER_AWAY)
            return AWAY
        if run.state == RunState.PLANNED:
            self._set(run, state=RunState.RUNNING, wait="", started_at=server.now(database()), **paced())
            return 0.0
        return self._slice(run)

    def _before_or_after(self, run: RequeueRun) -> float | None:
        """Nothing is sent yet, or not any more: its items are written, or let go of, a part at a time."""
        if run.state == RunState.STOPPED:
            return 0.0 if release(run.pk) else None
        list_part(run.pk, self.driver)
        return 0.0

    def end(self) -> None:
        """Leave the run to whoever comes next."""
        self._depths.close()
        if self._mine:
            mine = _runs().filter(pk=self.run, driver=self.driver)
            mine.update(leased_until=None)

    def _renewed(self) -> RequeueRun | None:
        """The run, if it is to be driven and by nobody else."""
        now = server.now(database())
        free = Q(leased_until__isnull=True) | Q(leased_until__lt=now) | Q(driver=self.driver)
        rows = _runs().filter(free, TO_DRIVE, pk=self.run)
        self._mine = bool(rows.update(driver=self.driver, leased_until=now + LEASE, beat_at=now))
        run = _runs().filter(TO_DRIVE, pk=self.run).first() if self._mine else None
        if run is not None and self._swept == float("-inf") and not run.listing and run.state in DRIVEN:
            # Whoever drove it before may have been killed between a publish and its note.
            recount(run.pk)
            run.refresh_from_db()
        return run

    def _reachable(self, run: RequeueRun) -> bool:
        """Asked only where there is doubt: a publish would tell as well, but takes longer to fail."""
        return self._depths.answers() if run.state == RunState.PLANNED or run.wait == RunWait.BROKER_AWAY else True

    def _slice(self, run: RequeueRun) -> float | None:
        held = self._held(run)
        if held is not None:
            return held
        room = self._pace.room(run.rate)
        if not room:
            return self._pace.wait(run.rate)
        # One alone finds out: the broker was away or silent a moment ago, or the run tries one first.
        doubtful = self._doubts or run.wait == RunWait.BROKER_AWAY or (run.canary and not run.processed)
        unknown: list[str] = []
        choice = Choice(run, 1 if doubtful else room, lambda queue: self._room(run, queue, unknown))
        if choice.blocked:
            _leave_out(run.pk, choice.blocked)
        if not choice.items:
            return self._idle(run, choice, unknown=bool(unknown))
        begun = self._clock()
        claims = claim(run.pk, self.driver, choice.items, copy_for)
        answers = self._published(claims, begun)
        settle(run.pk, answers)
        self._pace.spend(len(claims))
        self._judge(run, claims, answers)
        return self._pace.wait(run.rate)

    def _held(self, run: RequeueRun) -> float | None:
        """Seconds to wait where a guard or the first message holds the rest back."""
        if tripped(run):
            self._set(run, state=RunState.PAUSED, wait=RunWait.GUARD)
            return SLICE
        wait, final = canary(run) if run.canary else (None, False)
        if wait:
            self._set(run, wait=wait, **({"state": RunState.PAUSED} if final else {}))
            return SLICE
        return None

    def _room(self, run: RequeueRun, queue: str, unknown: list[str]) -> int:
        if run.max_depth is None:
            return 1 << 30
        depth = self._depths.of(queue)
        if depth is None:
            unknown.append(queue)
            return 0
        return max(0, run.max_depth + 1 - depth)

    def _published(self, claims: Sequence[Claim], begun: float) -> list[Answer]:
        """A process that stood still for so long that its claims are about to run out sends nothing any more."""
        if self._clock() - begun + self._timeout > lasts() * 0.75:
            late = unsent(Cause.TIMEOUT, "its claim is about to run out")
            return [Answer(claim=one, result=late) for one in claims]
        return publish(claims, timeout=self._timeout, clock=self._clock)

    def _judge(self, run: RequeueRun, claims: Sequence[Claim], answers: Sequence[Answer]) -> None:
        outcomes = {one.kind for one in answers if one.result.cause is not Cause.UNWRITABLE}
        for one in claims:
            self._depths.added(one.copy.routing_key, 1)
        if Outcome.CONFIRMED in outcomes:
            self._doubts = 0
            if run.wait == RunWait.BROKER_AWAY:
                self._set(run, **paced())
            self._say(run, None)
        elif Outcome.UNKNOWN in outcomes:
            self._doubts += 1
            if self._doubts > 1:
                self._set(run, state=RunState.PAUSED, wait=RunWait.NOT_CONFIRMED)
        elif Outcome.UNSENT in outcomes:
            self._say(run, RunWait.BROKER_AWAY)
        elif Outcome.NACKED in outcomes:
            self._say(run, RunWait.QUEUE_FULL)

    def _idle(self, run: RequeueRun, choice: Choice, *, unknown: bool) -> float | None:
        if choice.waits_for_queue:
            self._say(run, self._unknown() if unknown else RunWait.QUEUE_DEEP)
        elif choice.waits_for_key:
            self._say(run, RunWait.KEYS_WAIT)
        else:
            return self._advance()
        return SLICE

    def _unknown(self) -> RunWait:
        """Return why the number of messages in a queue is unknown."""
        return RunWait.DEPTH_UNKNOWN if self._depths.answers() else RunWait.BROKER_AWAY

    def _advance(self) -> float | None:
        state = advance(self.run, self.driver)
        self.waiting = state == RunState.WAITING
        return SLICE if state in DRIVEN else None

    def _say(self, run: RequeueRun, wait: RunWait | None) -> None:
        if run.wait != (wait or ""):
            self._set(run, wait=wait or "")

    def _set(self, run: RequeueRun, **changes: object) -> None:
        """Unless a person has paused or stopped it meanwhile, or somebody else drives it."""
        _runs().filter(pk=run.pk, driver=self.driver, state__in=DRIVEN).update(**changes)


def drive(
    run: int,
    driver: str,
    *,
    for_seconds: float | None = None,
    outcomes: bool = True,
    ended: threading.Event | None = None,
    clock: Clock = time.monotonic,
) -> RequeueRun:
    """Send what a run has to send, for so many seconds or until it needs no driver; the run as it is then.

    Without ``outcomes`` it returns when all is sent. Never to be called in a transaction: what it claims is to be seen.
    """
    ended = ended or threading.Event()
    until = float("inf") if for_seconds is None else clock() + for_seconds
    one = Drive(run, driver, seconds=for_seconds, clock=clock)
    try:
        wait = one.step()
        while wait is not None and clock() < until and (outcomes or not one.waiting):
            if ended.wait(min(wait, max(0.0, until - clock()))):
                break
            wait = one.step() if clock() < until else None
    finally:
        one.end()
    return RequeueRun.objects.using(database()).get(pk=run)


def _leave_out(run: int, codes: Mapping[int, ItemReason]) -> None:
    def act() -> None:
        with transaction.atomic(using=database()):
            locked_run(run)
            leave_out(run, codes)

    steadily(act)


def _runs() -> QuerySet[RequeueRun]:
    return RequeueRun.objects.using(database())

"""Drives a requeue run: whoever has its lease sends a slice of it at a time, as fast as it may, until all is sent.

A driver may be killed anywhere: its lease runs out, and the next one goes on with what nobody has claimed.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta

from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from django_rmq_retry.broker.base import Outcome
from django_rmq_retry.core.verdict import short
from django_rmq_retry.models import RequeueRun, RunState
from django_rmq_retry.operating import words
from django_rmq_retry.operating.choosing import Choice
from django_rmq_retry.operating.claiming import Claim, claim, lasts, leave_out, sweep
from django_rmq_retry.operating.depths import BrokersDepths, Depths
from django_rmq_retry.operating.ending import advance, recount, release
from django_rmq_retry.operating.guarding import canary, tripped
from django_rmq_retry.operating.locking import database, locked_run, steadily
from django_rmq_retry.operating.materialising import list_part, listing
from django_rmq_retry.operating.pacing import SLICE, Pace
from django_rmq_retry.operating.sending import copy_for, publish, timeout_for
from django_rmq_retry.operating.settling import Answer, settle

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
        if run.state == RunState.STOPPED or listing(run):
            return self._before_or_after(run)
        if run.state == RunState.WAITING:
            return self._advance()
        if not self._reachable(run):
            self._say(run, words.BROKER_AWAY)
            return AWAY
        if run.state == RunState.PLANNED:
            self._set(run, state=RunState.RUNNING, why="", started_at=timezone.now())
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
        now = timezone.now()
        free = Q(leased_until__isnull=True) | Q(leased_until__lt=now) | Q(driver=self.driver)
        rows = _runs().filter(free, TO_DRIVE, pk=self.run)
        self._mine = bool(rows.update(driver=self.driver, leased_until=now + LEASE, beat_at=now))
        run = _runs().filter(TO_DRIVE, pk=self.run).first() if self._mine else None
        if run is not None and self._swept == float("-inf") and not listing(run) and run.state in DRIVEN:
            # Whoever drove it before may have been killed between a publish and its note.
            recount(run.pk)
            run.refresh_from_db()
        return run

    def _reachable(self, run: RequeueRun) -> bool:
        """Asked only where there is doubt: a publish would tell as well, but takes longer to fail."""
        return self._depths.answers() if run.state == RunState.PLANNED or run.why == words.BROKER_AWAY else True

    def _slice(self, run: RequeueRun) -> float | None:
        held = self._held(run)
        if held is not None:
            return held
        room = self._pace.room(run.rate)
        if not room:
            return self._pace.wait(run.rate)
        # One alone finds out: the broker was away or silent a moment ago, or the run tries one first.
        doubtful = self._doubts or run.why == words.BROKER_AWAY or (run.canary and not run.processed)
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
            self._set(run, state=RunState.PAUSED, why=words.GUARD)
            return SLICE
        why, final = canary(run) if run.canary else ("", False)
        if why:
            self._set(run, why=why, **({"state": RunState.PAUSED} if final else {}))
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
            return [Answer(claim=one, outcome=Outcome.UNSENT) for one in claims]
        return publish(claims, timeout=self._timeout, clock=self._clock)

    def _judge(self, run: RequeueRun, claims: Sequence[Claim], answers: Sequence[Answer]) -> None:
        outcomes = {one.outcome for one in answers if one.fit}
        for one in claims:
            self._depths.added(one.copy.routing_key, 1)
        if Outcome.CONFIRMED in outcomes:
            self._doubts = 0
            self._say(run, "")
        elif Outcome.UNKNOWN in outcomes:
            self._doubts += 1
            if self._doubts > 1:
                self._set(run, state=RunState.PAUSED, why=words.NOT_CONFIRMED)
        elif Outcome.UNSENT in outcomes:
            self._say(run, words.BROKER_AWAY)
        elif Outcome.NACKED in outcomes:
            self._say(run, words.QUEUE_FULL)

    def _idle(self, run: RequeueRun, choice: Choice, *, unknown: bool) -> float | None:
        if choice.waits_for_queue:
            self._say(run, words.DEPTH_UNKNOWN if unknown else words.QUEUE_DEEP)
        elif choice.waits_for_key:
            self._say(run, words.KEYS_WAIT)
        else:
            return self._advance()
        return SLICE

    def _advance(self) -> float | None:
        state = advance(self.run, self.driver)
        self.waiting = state == RunState.WAITING
        return SLICE if state in DRIVEN else None

    def _say(self, run: RequeueRun, why: str) -> None:
        if run.why != why:
            self._set(run, why=why)

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


def _leave_out(run: int, whys: Mapping[int, str]) -> None:
    def act() -> None:
        with transaction.atomic(using=database()):
            locked_run(run)
            leave_out(run, whys)

    steadily(act)


def _runs() -> QuerySet[RequeueRun]:
    return RequeueRun.objects.using(database())

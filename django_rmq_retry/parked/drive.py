"""Drives a requeue run: pace, guards and queue depth.

A driver may be killed anywhere: its lease expires, and the next driver continues with the unclaimed items.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from django.db.models import F, Q, QuerySet

from django_rmq_retry import database_clock
from django_rmq_retry.amqp.contracts import Cause, Outcome, unsent
from django_rmq_retry.amqp.move import CopyFailed
from django_rmq_retry.amqp.refusals import Refusal
from django_rmq_retry.errors import BrokerRefused, BrokerUnreachable
from django_rmq_retry.messages.texts import short
from django_rmq_retry.models import ItemReason, ItemState, ParkedMessage, RequeueRun, RunState, RunWait
from django_rmq_retry.models.runs import MIN_OUTCOMES
from django_rmq_retry.parked.claims import (
    Claim,
    ClaimResult,
    claim,
    claim_lifetime,
    end_expired_claims,
    skip_items,
    store_results,
)
from django_rmq_retry.parked.copies import copy_for, publish, timeout_for
from django_rmq_retry.parked.database import database, locked_run, transaction_of
from django_rmq_retry.parked.early import EarlySender, settle
from django_rmq_retry.parked.items import Choice, advance, list_part, parts_of, recount, skip_unsent
from django_rmq_retry.parked.operators import Refused
from django_rmq_retry.publishing import broker_connections
from django_rmq_retry.publishing.target_queues import TargetQueues

CANARY_LIMIT = timedelta(seconds=60)
DEPTH_SECONDS = 5.0
"""Seconds to wait for the depth of a queue."""
SLICE_SECONDS = 0.25
"""Seconds between two slices."""
SAVED_SECONDS = 1.0
"""Seconds for which unused capacity is kept: enough to catch up after a slow slice, but not after a long pause."""
RUN_LEASE = timedelta(seconds=15)
SETTLE_SECONDS = 1.0
"""Seconds between two searches for the outcomes of retries that were sent early."""
LONGEST_STEP_SECONDS = 5.0
"""Longest time between two steps, however slow the run is: a step renews the lease, and looks at a held connection."""
SWEEP_SECONDS = 5.0
"""Seconds between two searches for expired claims."""
RECHECK_SECONDS = 1.0
"""Seconds between two checks of an unreachable broker."""
DRIVEN = (RunState.PLANNED, RunState.RUNNING, RunState.WAITING)
TO_DRIVE = Q(state__in=DRIVEN) | Q(state=RunState.STOPPED, finished_at=None)
"""Runs that need a driver, including stopped runs with items that are not skipped yet."""
Clock = Callable[[], float]


def restart_rate() -> dict[str, Any]:
    """Return the columns for computing a run's real rate, to set when it starts, resumes or changes its rate."""
    return {"paced_at": database_clock.now(database()), "paced_sent": F("sent")}


def canary(run: RequeueRun) -> tuple[RunWait | None, bool]:
    """Return why the rest waits for the canary, or None; and True if it has passed, or if only an operator helps."""
    if not run.awaits_canary:
        return None, run.canary
    unsent = (ItemState.PENDING, ItemState.SKIPPED)
    rows = parts_of(run).exclude(state__in=unsent)
    if run.canary_since is not None:
        rows = rows.filter(Q(state=ItemState.CLAIMED) | Q(sent_at=None) | Q(sent_at__gt=run.canary_since))
    states = set(rows.values_list("state", flat=True)[:MIN_OUTCOMES])
    if ItemState.FAILED in states:
        return RunWait.CANARY_FAILED, True
    if ItemState.UNCONFIRMED in states:
        return RunWait.NOT_CONFIRMED, True
    if not states or ItemState.PROCESSED in states:
        return None, bool(states)
    sent_at = rows.filter(state=ItemState.SENT).values_list("sent_at", flat=True).first()
    if sent_at is not None and sent_at < database_clock.now(database()) - CANARY_LIMIT:
        return RunWait.CANARY_SILENT, True
    return RunWait.CANARY_WAITS, False


class RunPace:
    """A token bucket that fills at the rate; it starts with room for one message."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._at: float | None = None
        self._room = 1.0

    def room(self, rate: float) -> int:
        now = self._clock()
        passed = 0.0 if self._at is None else now - self._at
        self._room = min(self._room + passed * rate, max(1.0, rate * SAVED_SECONDS))
        self._at = now
        # Sums of floats may be slightly below a whole number.
        return int(self._room + 1e-6)

    def spend(self, count: int) -> None:
        self._room -= count

    def wait(self, rate: float) -> float:
        """Return the seconds until the next slice, which can send a message if the rate allows one by then."""
        if rate <= 0:
            return SLICE_SECONDS
        return min(max(SLICE_SECONDS, (1.0 - self._room) / rate), LONGEST_STEP_SECONDS)


class Drive:
    """One driver of one run. ``step()`` does what is due now and returns when to call it again."""

    def __init__(
        self, run: int, driver: str, *, seconds: float | None = None, clock: Clock = time.monotonic,
        targets: TargetQueues | None = None,
    ) -> None:  # fmt: skip
        self.run = run
        self.driver = short(driver, 255)
        self._clock = clock
        self._timeout = timeout_for(seconds)
        self._targets = targets or broker_connections.current.target_queues(min(DEPTH_SECONDS, self._timeout))
        self._pace = RunPace(clock)
        self._swept = self._settled = float("-inf")
        self._early = EarlySender(min(DEPTH_SECONDS, self._timeout), seconds)
        self._unconfirmed_slices = 0
        self._mine = False
        self.waiting = False
        """True if all messages are sent and only outcomes are missing."""

    def step(self) -> float | None:
        """Do one slice; return the seconds until the next, or None if this driver has nothing more to do."""
        run = self._renewed()
        if run is None:
            return None
        if self._clock() - self._swept >= SWEEP_SECONDS:
            end_expired_claims()
            self._swept = self._clock()
        if run.state == RunState.STOPPED or run.listing:
            return self._list_or_skip(run)
        if run.state == RunState.WAITING:
            self._settle(run)
            return self._advance()
        # Ask the broker only when in doubt: a publish would detect an outage too, but takes longer to fail.
        doubtful = run.state == RunState.PLANNED or run.wait == RunWait.BROKER_AWAY
        if doubtful and not self._targets.is_reachable():
            self._set_wait(run, RunWait.BROKER_AWAY)
            return RECHECK_SECONDS
        if run.state == RunState.PLANNED:
            self._set(run, state=RunState.RUNNING, wait="", started_at=database_clock.now(database()), **restart_rate())
            return 0.0
        return self._slice(run)

    def _list_or_skip(self, run: RequeueRun) -> float | None:
        if run.state == RunState.STOPPED:
            return 0.0 if skip_unsent(run.pk) else None
        list_part(run.pk, self.driver)
        return 0.0

    def end(self) -> None:
        """Release the run to the next driver."""
        self._targets.close()
        self._early.close()
        if self._mine:
            mine = _runs().filter(pk=self.run, driver=self.driver)
            mine.update(leased_until=None)

    def _renewed(self) -> RequeueRun | None:
        """Renew the lease; return the run, or None if it needs no driver or another driver owns it."""
        now = database_clock.now(database())
        free = Q(leased_until__isnull=True) | Q(leased_until__lt=now) | Q(driver=self.driver)
        rows = _runs().filter(free, TO_DRIVE, pk=self.run)
        self._mine = bool(rows.update(driver=self.driver, leased_until=now + RUN_LEASE, beat_at=now))
        run = _runs().filter(TO_DRIVE, pk=self.run).first() if self._mine else None
        if run is not None and self._swept == float("-inf") and not run.listing and run.state in DRIVEN:
            # The previous driver may have been killed between a publish and storing its result.
            recount(run.pk)
            run.refresh_from_db()
        return run

    def _slice(self, run: RequeueRun) -> float | None:
        self._settle(run)
        pause = self._guard_pause(run)
        if pause is not None:
            return pause
        room = self._pace.room(run.rate)
        if not room:
            return self._pace.wait(run.rate)
        if run.retries_of:
            return self._send_early(run, room)
        # Send a single message if the broker was just unreachable or did not confirm, or if the canary has no result.
        doubtful = self._unconfirmed_slices or run.wait == RunWait.BROKER_AWAY or run.awaits_canary
        unknown: list[str] = []
        choice = Choice(run, 1 if doubtful else room, lambda queue: self._room(run, queue, unknown))
        if choice.blocked:
            _skip(run.pk, choice.blocked)
        if not choice.items:
            return self._idle(run, choice, unknown=bool(unknown))
        begun = self._clock()
        claims = claim(run.pk, self.driver, choice.items, copy_for)
        results = self._published(claims, begun)
        store_results(run.pk, results)
        self._pace.spend(len(claims))
        self._judge(run, claims, results)
        return self._pace.wait(run.rate)

    def _send_early(self, run: RequeueRun, room: int) -> float | None:
        """Send retries that wait on the broker; a run of all of them ends with their number at its start."""
        left = room if len(run.selection.get("filter", {})) > 1 else min(room, run.total - run.sent)
        most = 1 if run.awaits_canary else left
        try:
            sent = self._early.send(run, most) if most > 0 else 0
        except (BrokerUnreachable, BrokerRefused, Refusal, CopyFailed, Refused) as failed:
            return self._wait_after(run, failed)
        if sent is None:
            return 0.0
        if not sent:
            if self._early.not_seen:
                self._set(run, note=short(self._early.not_seen, 255))
            self._early.close()
            self._settle(run, ended=True)
            return self._advance()
        recount(run.pk)
        self._pace.spend(sent)
        self._set_wait(run, None)
        return self._pace.wait(run.rate)

    def _wait_after(self, run: RequeueRun, failed: Exception) -> float:
        """Wait for the broker or a full queue; pause if only an operator can help."""
        final = isinstance(failed, Refusal) and (failed.missing or failed.forbidden)
        if isinstance(failed, (BrokerUnreachable, BrokerRefused, Refusal)) and not final:
            self._set_wait(run, RunWait.BROKER_AWAY)
        elif isinstance(failed, CopyFailed) and failed.full:
            self._set_wait(run, RunWait.QUEUE_FULL)
        else:
            wait = "" if isinstance(failed, Refused) else RunWait.NO_WAY_BACK
            self._set(run, state=RunState.PAUSED, wait=wait, note=short(str(failed), 255))
        return RECHECK_SECONDS

    def _settle(self, run: RequeueRun, *, ended: bool = False) -> None:
        """Find the outcomes of retries that were sent early; consumers find those of parked messages."""
        if run.retries_of and (ended or self._clock() - self._settled >= SETTLE_SECONDS):
            settle(run, ended=ended)
            recount(run.pk)
            run.refresh_from_db()
            self._settled = self._clock()

    def _guard_pause(self, run: RequeueRun) -> float | None:
        """Return the seconds to wait if the guard or the canary stops the rest; None if neither does."""
        if run.guard_exceeded:
            self._set(run, state=RunState.PAUSED, wait=RunWait.GUARD)
            return SLICE_SECONDS
        wait, final = canary(run)
        if wait:
            self._set(run, wait=wait, **({"state": RunState.PAUSED} if final else {}))
            return SLICE_SECONDS
        if final and (run.canary_since is not None or run.wait == RunWait.CANARY_WAITS):
            # The wait for the canary says nothing about the rate of the others.
            self._set(run, canary_since=None, **restart_rate())
            run.canary_since = None
        if run.wait == RunWait.CANARY_WAITS:
            self._set_wait(run, None)
        return None

    def _room(self, run: RequeueRun, queue: str, unknown: list[str]) -> int:
        if run.max_depth is None:
            return 1 << 30
        depth = self._targets.ready(queue)
        if depth is None:
            unknown.append(queue)
            return 0
        return max(0, run.max_depth + 1 - depth)

    def _published(self, claims: Sequence[Claim], begun: float) -> list[ClaimResult]:
        """Publish the claims, or nothing if the process was suspended for so long that they are about to expire."""
        if self._clock() - begun + self._timeout > claim_lifetime() * 0.75:
            late = unsent(Cause.TIMEOUT, "its claim is about to expire")
            return [ClaimResult(claim=one, result=late) for one in claims]
        return publish(claims, timeout=self._timeout, clock=self._clock)

    def _judge(self, run: RequeueRun, claims: Sequence[Claim], results: Sequence[ClaimResult]) -> None:
        outcomes = {one.kind for one in results if one.result.cause is not Cause.UNWRITABLE}
        for one in claims:
            self._targets.added(one.copy.routing_key, 1)
        if Outcome.CONFIRMED in outcomes:
            self._unconfirmed_slices = 0
            if run.wait == RunWait.BROKER_AWAY:
                self._set(run, **restart_rate())
            self._set_wait(run, None)
        elif Outcome.UNKNOWN in outcomes:
            self._unconfirmed_slices += 1
            if self._unconfirmed_slices > 1:
                self._set(run, state=RunState.PAUSED, wait=RunWait.NOT_CONFIRMED)
        elif Outcome.UNSENT in outcomes:
            self._set_wait(run, RunWait.BROKER_AWAY)
        elif Outcome.NACKED in outcomes:
            self._set_wait(run, RunWait.QUEUE_FULL)

    def _idle(self, run: RequeueRun, choice: Choice, *, unknown: bool) -> float | None:
        if choice.waits_for_queue and unknown:
            self._set_wait(run, RunWait.DEPTH_UNKNOWN if self._targets.is_reachable() else RunWait.BROKER_AWAY)
        elif choice.waits_for_queue:
            self._set_wait(run, RunWait.QUEUE_DEEP)
        elif choice.waits_for_key:
            self._set_wait(run, RunWait.KEYS_WAIT)
        else:
            return self._advance()
        return SLICE_SECONDS

    def _advance(self) -> float | None:
        state = advance(self.run, self.driver)
        self.waiting = state == RunState.WAITING
        return SLICE_SECONDS if state in DRIVEN else None

    def _set_wait(self, run: RequeueRun, wait: RunWait | None) -> None:
        if run.wait != (wait or ""):
            self._set(run, wait=wait or "")

    def _set(self, run: RequeueRun, **changes: object) -> None:
        """Change the run, unless an operator has paused or stopped it meanwhile, or another driver owns it."""
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
    """Send a run's messages for ``for_seconds``, or until it needs no driver; return the run as it is then.

    Without ``outcomes`` it returns when all messages are sent. Never call it in a transaction: other processes must
    see its claims.
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


@transaction_of(ParkedMessage)
def _skip(run: int, codes: Mapping[int, ItemReason]) -> None:
    locked_run(run)
    skip_items(run, codes)


def _runs() -> QuerySet[RequeueRun]:
    return RequeueRun.objects.using(database())

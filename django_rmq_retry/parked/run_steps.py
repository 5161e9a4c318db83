"""Drives a requeue run: lease, pace, canary and guard. One of two senders sends the messages.

A driver may be killed anywhere: its lease expires, and the next driver continues with the unclaimed messages.
"""

import threading
import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol

from django.db import router
from django.db.models import Q

from django_rmq_retry import database_clock
from django_rmq_retry.models import ConsumerProcess, ItemState, RequeueRun, RunState, RunWait
from django_rmq_retry.models.runs import HELD, MIN_OUTCOMES, NOTHING_SENT
from django_rmq_retry.parked.claims import end_expired_claims
from django_rmq_retry.parked.copies import timeout_for
from django_rmq_retry.parked.database import records_alias
from django_rmq_retry.parked.early_sender import EarlySender
from django_rmq_retry.parked.held_up import held_up, waiting_in
from django_rmq_retry.parked.item_sender import ItemSender
from django_rmq_retry.parked.items import advance, recount, skip_unsent
from django_rmq_retry.parked.lease import DRIVEN, RunLease
from django_rmq_retry.parked.listing import list_part
from django_rmq_retry.parked.pace import (
    RECHECK_SECONDS,
    SLICE_SECONDS,
    Clock,
    RunPace,
    recent_rate,
    restart_rate,
    saved_room,
)
from django_rmq_retry.publishing import broker_connections
from django_rmq_retry.publishing.target_queues import TargetQueues
from django_rmq_retry.topology.declarations import work_queue

CANARY_LIMIT = timedelta(seconds=60)
OUTCOMES_LIMIT = timedelta(minutes=5)
"""Time without any outcome after which a run that waits for its first ones pauses: handlers may take minutes."""
USUAL_WAIT = timedelta(seconds=2)
"""Time in which the first outcomes usually come, so that nothing is asked of the broker before it is over."""
DEPTH_SECONDS = 5.0
"""Seconds to wait for the depth of a queue."""
SWEEP_SECONDS = 5.0
"""Seconds between two searches for expired claims."""


class RunSender(Protocol):
    """Sends the messages of one run; there is one for parked messages, and one for retries that wait."""

    def send(self, run: RequeueRun, room: int) -> float | None:
        """Send up to ``room`` messages; return the seconds until the next slice, or None if none is left to send."""

    def find_outcomes(self, run: RequeueRun) -> None:
        """Find the outcomes that nobody else finds, and count them in the run."""

    def close(self) -> None:
        """Give back what is held."""


def canary_wait(run: RequeueRun) -> tuple[RunWait | None, bool]:
    """Return why the rest waits for the canary, or None; and True if it has passed, or if only an operator helps.

    While its queue is stopped, no time passes: ``held_at`` of the run is now.
    """
    if not run.awaits_canary:
        return None, run.canary
    rows = run.parts.using(records_alias()).exclude(state__in=NOTHING_SENT)
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
    now = database_clock.now(records_alias())
    if held_up([run]):
        run.held_at = now
    if sent_at is not None and max(sent_at, run.held_at or sent_at) < now - CANARY_LIMIT:
        return RunWait.CANARY_SILENT, True
    return RunWait.CANARY_WAITS, False


class RunSteps:
    """The steps of one driver on one run. ``step()`` does what is due now and returns when to call it again."""

    def __init__(
        self, run_id: int, driver: str, *, seconds: float | None = None, clock: Clock = time.monotonic,
        targets: TargetQueues | None = None,
    ) -> None:  # fmt: skip
        self.run_id = run_id
        self._seconds = seconds
        self._clock = clock
        self._timeout = timeout_for(seconds)
        self._patience = min(DEPTH_SECONDS, self._timeout)
        self._targets = targets or broker_connections.connections.target_queues(self._patience)
        self._lease = RunLease(run_id, driver)
        self._pace = RunPace(clock)
        self._sender: RunSender | None = None
        self._swept = float("-inf")
        self.waiting = False
        """True if all messages are sent and only outcomes are missing."""

    def step(self) -> float | None:
        """Do one slice; return the seconds until the next, or None if this driver has nothing more to do."""
        run = self._lease.renew()
        if run is None:
            return None
        if self._sender is None:
            self._sender = self._sender_of(run)
            _take_over(run)
            self._pace.go_on_with(saved_room(run))
        if self._clock() - self._swept >= SWEEP_SECONDS:
            end_expired_claims()
            self._swept = self._clock()
        if run.state == RunState.STOPPED or run.listing:
            return self._list_or_skip(run)
        if run.state == RunState.WAITING:
            self._sender.find_outcomes(run)
            return self._advance()
        # Ask the broker only when in doubt: a publish would detect an outage too, but takes longer to fail.
        doubtful = run.state == RunState.PLANNED or run.wait == RunWait.BROKER_AWAY
        if doubtful and not self._targets.is_reachable():
            self._lease.note_wait(run, RunWait.BROKER_AWAY)
            # Another process may have a connection.
            self._lease.release()
            return RECHECK_SECONDS
        if run.state == RunState.PLANNED:
            now = database_clock.now(records_alias())
            self._lease.change(state=RunState.RUNNING, started_at=now, **run.waits("", now), **restart_rate())
            return 0.0
        return self._slice(run, self._sender)

    def end(self) -> None:
        """Release the run to the next driver."""
        try:
            self._targets.close()
            if self._sender is not None:
                self._sender.close()
        finally:
            self._lease.release()

    def _sender_of(self, run: RequeueRun) -> RunSender:
        if run.retries_of:
            return EarlySender(
                self._lease, self._pace, patience=self._patience, seconds=self._seconds, clock=self._clock
            )
        return ItemSender(self._lease, self._pace, self._targets, timeout=self._timeout, clock=self._clock)

    def _list_or_skip(self, run: RequeueRun) -> float | None:
        if run.state == RunState.STOPPED:
            return 0.0 if skip_unsent(run.pk) else None
        list_part(run.pk, self._lease.driver)
        return 0.0

    def _slice(self, run: RequeueRun, sender: RunSender) -> float | None:
        sender.find_outcomes(run)
        if rate := recent_rate(run):
            self._lease.change(**rate)
        if not run.unsent and (run.guard_exceeded or run.awaits_canary):
            # Nothing is left that a pause could hold back.
            sender.close()
            return self._advance()
        pause = self._guard_pause(run)
        if pause is not None:
            return pause
        room, least = self._pace.room(run.rate), run.room_before_outcomes
        if least == 0:
            return self._hold(run)
        if run.wait in HELD:
            # As with the canary, the time of waiting says nothing about the rate of the others.
            self._lease.change(**self._waits(run, ""), **restart_rate())
        if not room:
            return self._pace.wait(run.rate)
        wait = sender.send(run, room if least is None else min(room, least))
        return self._advance() if wait is None else wait

    def _guard_pause(self, run: RequeueRun) -> float | None:
        """Return the seconds to wait if the guard or the canary stops the rest; None if neither does.

        A canary that is sent after a pause decides alone, whatever becomes of what was sent before. Once it was
        processed, the guard counts anew.
        """
        if run.guard_exceeded and run.canary_since is None:
            pauses = run.with_guard_pause(database_clock.now(records_alias()))
            self._lease.change(state=RunState.PAUSED, guard_pauses=pauses, **self._waits(run, RunWait.GUARD))
            return SLICE_SECONDS
        wait, final = canary_wait(run)
        if wait:
            paused = {"state": RunState.PAUSED} if final else {}
            self._lease.change(**self._waits(run, wait), held_at=run.held_at, **paused)
            return SLICE_SECONDS
        if final and (run.canary_since is not None or run.wait == RunWait.CANARY_WAITS):
            # The wait for the canary says nothing about the rate of the others.
            tested: dict[str, Any] = {}
            if run.canary_since is not None:
                run.spared_failed, run.spared_processed = run.failed, run.processed
                tested = {
                    "guard_pauses": run.with_guard_test(database_clock.now(records_alias())),
                    "spared_failed": run.failed,
                    "spared_processed": run.processed,
                }
            self._lease.change(canary_since=None, **tested, **restart_rate())
            run.canary_since = None
        if run.wait == RunWait.CANARY_WAITS:
            self._lease.note_wait(run, None)
        return None

    def _hold(self, run: RequeueRun) -> float:
        """Hold the rest until the guard can judge what was sent; pause the run if no consumer tells what became of it.

        Its time begins anew after an outage, and with a consumer. Programs that are not ours never tell: for them it
        holds nothing.
        """
        now = database_clock.now(records_alias())
        if run.wait not in HELD or run.held_at is None:
            self._lease.change(**self._waits(run, RunWait.OUTCOMES_WAIT), held_at=now)
            return SLICE_SECONDS
        if now - run.held_at < USUAL_WAIT:
            return SLICE_SECONDS
        queues = waiting_in(run)
        if not self._targets.is_reachable():
            self._lease.note_wait(run, RunWait.BROKER_AWAY)
        elif all(self._targets.lacks_consumers(queue) for queue in queues):
            self._lease.note_wait(run, RunWait.NO_CONSUMER)
        elif not _is_read_by_ours(queues):
            self._lease.change(unheld=True)
            return SLICE_SECONDS
        elif run.wait == RunWait.NO_CONSUMER:
            self._lease.change(**self._waits(run, RunWait.OUTCOMES_WAIT), held_at=now)
        elif run.held_at < now - OUTCOMES_LIMIT and not _has_outcomes_since(run, now - OUTCOMES_LIMIT):
            self._lease.change(state=RunState.PAUSED, **self._waits(run, RunWait.OUTCOMES_SILENT))
        return RECHECK_SECONDS

    def _waits(self, run: RequeueRun, wait: str) -> dict[str, Any]:
        return run.waits(wait, database_clock.now(records_alias()))

    def _advance(self) -> float | None:
        state = advance(self.run_id, self._lease.driver)
        self.waiting = state == RunState.WAITING
        return SLICE_SECONDS if state in DRIVEN else None


def _is_read_by_ours(queues: Sequence[str]) -> bool:
    """Return True if a consuming process of this project reads one of these queues."""
    alias = router.db_for_read(ConsumerProcess)
    living = ConsumerProcess.objects.using(alias).living(database_clock.now(alias))
    return any(work_queue(one) in queues for some in living.values_list("queues", flat=True) for one in some)


def _has_outcomes_since(run: RequeueRun, since: datetime) -> bool:
    ended = run.parts.using(records_alias()).filter(state__in=(ItemState.PROCESSED, ItemState.FAILED))
    return ended.filter(ended_at__gt=since).exists()


def _take_over(run: RequeueRun) -> None:
    """Count again: the previous driver may have been killed between a publish and storing its result."""
    if not run.listing and run.state in DRIVEN:
        recount(run.pk)
        run.refresh_from_db()


def send_run(
    run_id: int,
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
    one = RunSteps(run_id, driver, seconds=for_seconds, clock=clock)
    try:
        wait = one.step()
        while wait is not None and clock() < until and (outcomes or not one.waiting):
            if ended.wait(min(wait, max(0.0, until - clock()))):
                break
            wait = one.step() if clock() < until else None
    finally:
        one.end()
    return RequeueRun.objects.using(records_alias()).get(pk=run_id)

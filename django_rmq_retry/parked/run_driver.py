"""The thread of a consumer that drives requeue runs, ends holds and claims in time, and finishes approved discards."""

import logging
import time
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext, suppress

from django.db.models import Q

from django_rmq_retry import database_clock
from django_rmq_retry.models import RequeueRun
from django_rmq_retry.parked.actions import unhold_due
from django_rmq_retry.parked.approvals import finish_left_discards
from django_rmq_retry.parked.claims import end_expired_claims
from django_rmq_retry.parked.database import outage, records_alias
from django_rmq_retry.parked.early_runs import leave_out_due
from django_rmq_retry.parked.lease import TO_DRIVE
from django_rmq_retry.parked.pace import SLICE_SECONDS
from django_rmq_retry.parked.run_steps import RunSteps
from django_rmq_retry.recurring import LastingFailures, Recurring, thread_name

log = logging.getLogger("django_rmq_retry")

RUN_LOOK_SECONDS = 1.0
"""Seconds between two searches for runs without a driver."""
CHORES_SECONDS = 5.0
"""Seconds between two searches for expired claims, ended holds, discards left behind and retries that became due."""
PUT_OFF_SECONDS = 5.0
"""Seconds for which a process leaves a run alone that failed: one that always does must not stop those after it."""
MOST_RUNS = 20
"""Largest number of runs that one process drives at a time."""


class RunDriver(Recurring):
    """Drives requeue runs beside a consumer. An outage of the database or broker pauses only this thread.

    At its end it leaves its runs to the next driver.
    """

    def __init__(
        self,
        *,
        with_connections: Callable[[], AbstractContextManager[object]] = nullcontext,
        look: float = RUN_LOOK_SECONDS,
        chores: float = CHORES_SECONDS,
    ) -> None:
        super().__init__("rmq-runs")
        self._with_connections = with_connections
        self._look, self._chores = look, chores
        self._steps: dict[int, tuple[RunSteps, float]] = {}
        self._put_off: dict[int, float] = {}
        """Those that failed, each with the time until which they are left alone."""
        self._look_at = self._chores_at = 0.0
        self._failures = LastingFailures()

    def turn(self) -> float:
        try:
            with self._with_connections():
                self._do_due()
        except Exception as error:  # noqa: BLE001 - the thread lives as long as its process
            self._complain(error)
            self._leave()
            return self._look
        self._failures.ends()
        nearest = min((at for _one, at in self._steps.values()), default=float("inf"))
        return max(0.0, min(nearest, self._look_at) - time.monotonic())

    def _complain(self, error: Exception) -> None:
        if not self._failures.begins():
            return
        why = outage(records_alias())
        if why:
            log.warning("Requeue runs wait: %s", why, extra={"event": "runs"})
        else:
            line = "Driving the requeue runs failed. The consumer retries every %g s."
            log.error(line, self._look, exc_info=error, extra={"event": "runs"})

    def _do_due(self) -> None:
        now = time.monotonic()
        if now >= self._chores_at:
            self._chores_at = now + self._chores
            end_expired_claims()
            unhold_due()
            finish_left_discards()
            leave_out_due()
        if now >= self._look_at:
            self._look_at = now + self._look
            self._put_off = {run_id: until for run_id, until in self._put_off.items() if until > now}
            for run_id in undriven(MOST_RUNS - len(self._steps), without=self._put_off):
                self._steps.setdefault(run_id, (RunSteps(run_id, thread_name("rmq_consume")), now))
        for run_id, (one, at) in list(self._steps.items()):
            if self.stopping.is_set():
                return
            if time.monotonic() < at:
                continue
            try:
                wait = one.step()
            except Exception:
                self._put_off[run_id] = time.monotonic() + PUT_OFF_SECONDS
                raise
            if wait is None:
                one.end()
                del self._steps[run_id]
            else:
                self._steps[run_id] = one, time.monotonic() + max(wait, SLICE_SECONDS if one.waiting else 0.0)

    def _leave(self) -> None:
        """Leave all runs to the next driver; without a database their leases expire by themselves."""
        for one, _at in self._steps.values():
            with suppress(Exception):
                one.end()
        self._steps.clear()

    def at_end(self) -> None:
        for one, _at in self._steps.values():
            try:
                one.end()
            except Exception:
                log.warning(
                    "The lease of requeue run %s was not released. It expires by itself.", one.run_id, exc_info=True
                )


def undriven(most: int, *, without: Collection[int] = ()) -> list[int]:
    if most <= 0:
        return []
    now = database_clock.now(records_alias())
    free = Q(leased_until__isnull=True) | Q(leased_until__lt=now)
    rows = RequeueRun.objects.using(records_alias()).filter(free, TO_DRIVE).exclude(pk__in=without)
    return list(rows.order_by("pk").values_list("pk", flat=True)[:most])

"""The lease of a driver on a run: while it lasts, no other driver has the run."""

from datetime import datetime, timedelta

from django.db.models import Q, QuerySet

from django_rmq_retry import database_clock
from django_rmq_retry.messages.texts import COLUMN_BYTES, short
from django_rmq_retry.models import RequeueRun, RunState, RunWait
from django_rmq_retry.models.runs import PACED
from django_rmq_retry.parked.database import locked_run, records_alias
from django_rmq_retry.parked.pace import restart_rate

RUN_LEASE = timedelta(seconds=15)
DRIVEN = (RunState.PLANNED, RunState.RUNNING, RunState.WAITING)
TO_DRIVE = Q(state__in=DRIVEN) | Q(state=RunState.STOPPED, finished_at=None)
"""Runs that need a driver, including stopped runs with items that are not skipped yet."""


class RunLease:
    """One driver and its run. It changes the run only while the run is its own, and an operator lets it go on."""

    def __init__(self, run_id: int, driver: str) -> None:
        self.run_id = run_id
        self.driver = short(driver, COLUMN_BYTES)
        self._had = False
        self._known: RequeueRun | None = None

    def renew(self) -> RequeueRun | None:
        """Return the run, or None if it needs no driver or another driver owns it."""
        now = database_clock.now(records_alias())
        free = Q(leased_until__isnull=True) | Q(leased_until__lt=now) | Q(driver=self.driver)
        rows = self._rows().filter(free, TO_DRIVE)
        if self._known is None or self._known.is_silent(now):
            _end_silence(rows, now)
        mine = bool(rows.update(driver=self.driver, leased_until=now + RUN_LEASE, beat_at=now))
        self._had = self._had or mine
        self._known = self._rows().filter(TO_DRIVE).first() if mine else None
        return self._known

    def release(self) -> None:
        """Leave the run to the next driver, also one that was paused meanwhile: it may be resumed at once."""
        if self._had:
            self._rows().filter(driver=self.driver).update(leased_until=None)

    def change(self, **changes: object) -> None:
        """Change the run, unless an operator has paused or stopped it meanwhile, or another driver owns it."""
        self._rows().filter(driver=self.driver, state__in=DRIVEN).update(**changes)

    def note_wait(self, run: RequeueRun, wait: RunWait | None) -> None:
        """Store the reason that the run sends nothing now; None if it sends."""
        if run.wait != (wait or ""):
            # Another pace begins, about which what was sent until then says nothing.
            paced = restart_rate() if {run.wait, wait}.intersection(PACED) else {}
            self.change(**run.waits(wait or "", database_clock.now(records_alias())), **paced)

    def _rows(self) -> QuerySet[RequeueRun]:
        return RequeueRun.objects.using(records_alias()).filter(pk=self.run_id)


def _end_silence(rows: QuerySet[RequeueRun], now: datetime) -> None:
    """Note the time in which nothing was heard of the run, if there was one, and that its rate is measured anew."""
    run = rows.exclude(beat_at=None).first()
    if run is None or not run.is_silent(now):
        return
    # Nobody sent meanwhile: a standstill says nothing about the rate. One without a broker is noted as an outage.
    silences = {} if run.wait == RunWait.BROKER_AWAY else {"silences": run.with_silence(now)}
    rows.filter(beat_at=run.beat_at).update(**restart_rate(), **silences)


def run_of_driver(run_id: int, driver: str, *states: RunState) -> RequeueRun | None:
    """Return a run, locked until the transaction ends; None if it was paused, stopped or taken over meanwhile."""
    present = locked_run(run_id)
    return present if present is not None and present.driver == driver and present.state in states else None

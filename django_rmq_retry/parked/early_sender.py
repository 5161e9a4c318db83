"""Sends retries before they are due, as a requeue run: takes them out of their waiting queues at the run's rate.

A row of each retry is written before it is sent. So no run sends a message twice that failed again meanwhile, and a
driver that was killed is followed by one that knows which messages may have been sent.
"""

import math
from collections.abc import Collection, Sequence
from contextlib import ExitStack, suppress

from django.db.models import QuerySet
from django.utils.translation import gettext as _

from django_rmq_retry import database_clock
from django_rmq_retry.amqp.move import CopyFailed
from django_rmq_retry.amqp.refusals import Refusal
from django_rmq_retry.amqp.withdrawal import Withdrawal, Withdrawn
from django_rmq_retry.errors import BrokerRefused, BrokerUnreachable, RmqRetryError
from django_rmq_retry.messages.texts import COLUMN_BYTES, short
from django_rmq_retry.models import Attempt, EarlyRetry, ItemState, RequeueRun, RunState, RunWait
from django_rmq_retry.models.runs import SENT_LATELY
from django_rmq_retry.parked.database import records_alias, transaction_of
from django_rmq_retry.parked.early_choice import RetryChoice, RetryFilter, WaitingRetry
from django_rmq_retry.parked.early_outcomes import note_in
from django_rmq_retry.parked.early_retries import unseen, ways_back, work_queue_of
from django_rmq_retry.parked.items import recount
from django_rmq_retry.parked.lease import RunLease, run_of_driver
from django_rmq_retry.parked.operators import NotAllowed, Refused, refusal, user_of
from django_rmq_retry.parked.pace import RECHECK_SECONDS, Clock, RunPace
from django_rmq_retry.publishing import broker_connections
from django_rmq_retry.statements import in_slices

HELD_SECONDS = 20.0
"""Seconds for which retries are held unacked, at the run's rate: they do not expire meanwhile."""
MOST_HELD = 500
OUTCOMES_SECONDS = 1.0
"""Seconds between two searches for the outcomes of retries that were sent early."""


class EarlySender:
    """Sends the retries of one run. Those that it has taken out and not sent return when it is closed."""

    def __init__(self, lease: RunLease, pace: RunPace, *, patience: float, seconds: float | None, clock: Clock) -> None:
        self._lease = lease
        self._pace = pace
        self._patience = patience
        self._seconds = HELD_SECONDS if seconds is None else min(seconds, HELD_SECONDS)
        self._clock = clock
        self._counted = float("-inf")
        self._opened = ExitStack()
        self._withdrawal: Withdrawal | None = None
        self._held: list[WaitingRetry] = []
        self._not_seen = ""
        self._refused_at = float("-inf")
        """When a full queue refused a retry last."""

    def send(self, run: RequeueRun, room: int) -> float | None:
        """Send up to ``room`` retries; return the seconds until the next slice, or None if none is left to send.

        A run of all that wait ends with their number at its start.
        """
        left = room if len(run.selection.get("filter", {})) > 1 else min(room, run.total - run.sent)
        most = 1 if run.awaits_canary else left
        try:
            sent = self._send_held(run, most) if most > 0 else 0
        except (BrokerUnreachable, BrokerRefused, Refusal, CopyFailed, Refused) as failed:
            return self._wait_after(run, failed)
        if sent is None:
            return 0.0
        if not sent:
            self._end(run)
            return None
        recount(run.pk)
        self._pace.spend(sent)
        full = self._clock() - self._refused_at < SENT_LATELY.total_seconds()
        self._lease.note_wait(run, RunWait.QUEUE_FULL if full else None)
        return self._pace.wait(run.rate)

    def find_outcomes(self, run: RequeueRun) -> None:
        """Find the outcomes of the retries that were sent, and count them in the run."""
        if self._clock() - self._counted >= OUTCOMES_SECONDS:
            self._count_outcomes(run)

    def close(self) -> None:
        """Give back what is held."""
        self._withdrawal, self._held = None, []
        # Whatever fails here, the broker puts back what is unacked when the connection ends.
        with suppress(RmqRetryError, Refusal, OSError):
            self._opened.close()

    def _send_held(self, run: RequeueRun, most: int) -> int | None:
        """Send up to ``most`` retries; return their number, 0 if none is left, None if the run must not go on here."""
        try:
            if not self._held:
                _check(run)
                self._held = self._take(run)
            part, self._held = self._held[:most], self._held[most:]
            return self._send_part(run, part) if part else 0
        except BaseException:
            self.close()
            raise

    def _take(self, run: RequeueRun) -> list[WaitingRetry]:
        wanted = RetryFilter.of(run.selection.get("filter", {}))
        # Nothing is held while the first one has no outcome.
        alone = run.awaits_canary
        most = 1 if alone else max(1, min(math.ceil(run.rate * self._seconds), MOST_HELD))
        if (least := run.room_before_outcomes) is not None:
            # Nor is anything while the run waits for its first outcomes.
            most = min(most, least)
        choice, known = RetryChoice(work_queue_of(run.retries_of), wanted), dict[int, WaitingRetry]()

        def choose(seen: Sequence[Withdrawn]) -> Collection[int]:
            known.update({one.withdrawn.tag: one for one in _unsent(run, choice.of(seen))})
            return known.keys()

        taken: list[Withdrawn] = []
        for way in ways_back(run.retries_of):
            if len(taken) < most:
                taken += self._open().take(way, most - len(taken), choose)
        self._not_seen = "" if taken or self._withdrawal is None else unseen(self._withdrawal.unseen_behind)
        return [known[one.tag] for one in taken]

    def _open(self) -> Withdrawal:
        if self._withdrawal is None:
            opening = broker_connections.connections.session(purpose="run", patience=self._patience)
            session = self._opened.enter_context(opening)
            if session is None:
                raise NotAllowed(_("There is no broker whose waiting queues could be read."))
            self._withdrawal = Withdrawal(session)
            self._opened.callback(self._withdrawal.end)
        return self._withdrawal

    def _send_part(self, run: RequeueRun, part: Sequence[WaitingRetry]) -> int | None:
        if not _claim(run, part):
            self.close()
            return None
        confirmed, failed = self._open().send([one.withdrawn for one in part])
        tags = {one.tag for one in confirmed}
        names = [one.identity for one in part if one.withdrawn.tag in tags]
        rows_of(run).filter(identity__in=names, state=ItemState.CLAIMED).update(state=ItemState.SENT)
        if failed is not None:
            raise failed
        return len(confirmed)

    def _end(self, run: RequeueRun) -> None:
        """Count what was sent; note it if nothing was chosen, but not all that wait were looked at."""
        if self._not_seen:
            self._lease.change(note=short(self._not_seen, COLUMN_BYTES))
        self.close()
        # None is left, so those that were claimed were sent too.
        rows_of(run).filter(state=ItemState.CLAIMED).update(state=ItemState.SENT)
        self._count_outcomes(run)

    def _count_outcomes(self, run: RequeueRun) -> None:
        note_in(run.pk, list(rows_of(run).filter(state=ItemState.SENT).values_list("identity", flat=True)))
        recount(run.pk)
        run.refresh_from_db()
        self._counted = self._clock()

    def _wait_after(self, run: RequeueRun, failed: Exception) -> float:
        """Wait for the broker or a full queue; pause if only an operator can help."""
        final = isinstance(failed, Refusal) and (failed.missing or failed.forbidden)
        if isinstance(failed, (BrokerUnreachable, BrokerRefused, Refusal)) and not final:
            self._lease.note_wait(run, RunWait.BROKER_AWAY)
        elif isinstance(failed, CopyFailed) and failed.full:
            self._refused_at = self._clock()
            # It took those before that one.
            recount(run.pk)
            self._lease.note_wait(run, RunWait.QUEUE_FULL)
        else:
            wait = "" if isinstance(failed, Refused) else RunWait.NO_WAY_BACK
            self._lease.change(state=RunState.PAUSED, wait=wait, note=short(str(failed), COLUMN_BYTES))
        return RECHECK_SECONDS


def rows_of(run: RequeueRun) -> QuerySet[EarlyRetry]:
    return EarlyRetry.objects.using(records_alias()).filter(run=run)


def _check(run: RequeueRun) -> None:
    """Refuse if the operator who started the run in the admin may not send retries any more."""
    if run.source != "admin":
        return
    user = user_of(run.by_user_id)
    why = _("The account that started it no longer exists.") if user is None else refusal(user, "send_waiting")
    if why:
        raise NotAllowed(why)


def _unsent(run: RequeueRun, retries: Sequence[WaitingRetry]) -> list[WaitingRetry]:
    """Return the retries that this run has not sent, and that have not failed again since it was started.

    Messages that cannot be told apart are sent once: the others wait until they are due.
    """
    once = list({one.identity: one for one in reversed(retries)}.values())[::-1]
    gone: set[str] = set()
    for some in in_slices([one.identity for one in once], MOST_HELD):
        sent = rows_of(run).filter(identity__in=some).exclude(state=ItemState.CLAIMED)
        later = Attempt.objects.using(records_alias()).filter(identity__in=some, started_at__gt=run.created_at)
        gone |= {*sent.values_list("identity", flat=True), *later.values_list("identity", flat=True)}
    return [one for one in once if one.identity not in gone]


@transaction_of(RequeueRun)
def _claim(run: RequeueRun, part: Sequence[WaitingRetry]) -> bool:
    """Write the rows before the messages are sent; a row may be left from a driver that was killed.

    False if the run has been paused or stopped meanwhile, or if another driver has it.
    """
    if run_of_driver(run.pk, run.driver, RunState.RUNNING) is None:
        return False
    now, names = database_clock.now(records_alias()), [one.identity for one in part]
    RequeueRun.objects.using(records_alias()).filter(pk=run.pk).update(sent_at=now)
    rows_of(run).filter(identity__in=names).update(sent_at=now)
    known = set(rows_of(run).filter(identity__in=names).values_list("identity", flat=True))
    new = [one for one in part if one.identity not in known]
    EarlyRetry.objects.using(records_alias()).bulk_create(
        [EarlyRetry(run=run, identity=one.identity, shown=short(one.shown, COLUMN_BYTES), sent_at=now) for one in new]
    )
    return True

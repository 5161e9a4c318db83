"""Sends the parked messages of a requeue run, slice by slice: claimed, published, and the results stored."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial

from django.db import DatabaseError

from django_rmq_retry import database_clock
from django_rmq_retry.amqp.contracts import Cause, PublishEnd, unsent
from django_rmq_retry.models import ItemReason, ParkedMessage, RequeueRun, RunState, RunWait
from django_rmq_retry.models.runs import LONGEST_GAP, SENT_LATELY
from django_rmq_retry.parked.claims import Claim, ClaimResult, claim, claim_lifetime, skip_items, store_results
from django_rmq_retry.parked.copies import copies_of, publish
from django_rmq_retry.parked.database import locked_run, records_alias, transaction_of
from django_rmq_retry.parked.lease import RunLease
from django_rmq_retry.parked.next_items import ItemChoice
from django_rmq_retry.parked.pace import SLICE_SECONDS, Clock, RunPace, restart_rate
from django_rmq_retry.publishing.target_queues import TargetQueues

TOO_LATE = unsent(Cause.TIMEOUT, "its claim is about to expire")
"""The result of a message that is not published, because another driver may take it before its result is known."""


class ItemSender:
    """Sends the items of one run."""

    def __init__(self, lease: RunLease, pace: RunPace, targets: TargetQueues, *, timeout: float, clock: Clock) -> None:
        self._lease = lease
        self._pace = pace
        self._targets = targets
        self._timeout = timeout
        self._clock = clock
        self._unconfirmed_slices = 0
        self._refused_at = float("-inf")
        """When a full queue refused a message last."""

    def send(self, run: RequeueRun, room: int) -> float | None:
        """Send up to ``room`` messages; return the seconds until the next slice, or None if none is left to send."""
        # Send a single message if the broker was just unreachable or did not confirm, or if the canary has no result.
        doubtful = self._unconfirmed_slices or run.wait == RunWait.BROKER_AWAY or run.awaits_canary
        depths = _Depths(self._targets)
        choice = ItemChoice(run, 1 if doubtful else room, partial(depths.room, run.max_depth))
        if choice.blocked:
            _skip(run.pk, choice.blocked)
        if not choice.items:
            return self._idle(run, choice, depths)
        begun = self._clock()
        claims = claim(run.pk, self._lease.driver, choice.items, copies_of)
        if self._clock() - begun + self._timeout > claim_lifetime() * 0.75:
            # The database took long to answer, or the process was suspended. That says nothing of the broker.
            store_results(run.pk, [ClaimResult(claim=one, result=TOO_LATE) for one in claims])
            return SLICE_SECONDS
        results = publish(claims, timeout=self._timeout, quiet=partial(self._keep, run))
        store_results(run.pk, results)
        self._pace.spend(len(claims))
        self._judge(run, claims, results, choice)
        return self._pace.wait(run.rate)

    def find_outcomes(self, run: RequeueRun) -> None:
        """Do nothing: consumers note the outcomes of parked messages."""

    def close(self) -> None:
        """Do nothing: nothing is held between two slices."""

    def _keep(self, run: RequeueRun) -> None:
        """Keep the run while the results of its claims are waited for, and note it if the broker is away.

        A publish waits for a connection until its deadline. Noted only after that, an outage looked like sending; and
        a lease that had ended by then went to another driver, so that it was never noted.
        """
        # What was claimed is settled below whether or not the database answers meanwhile.
        with suppress(DatabaseError):
            if self._lease.renew() is not None and not self._targets.is_reachable():
                self._lease.note_wait(run, RunWait.BROKER_AWAY)

    def _judge(
        self, run: RequeueRun, claims: Sequence[Claim], results: Sequence[ClaimResult], choice: ItemChoice
    ) -> None:
        outcomes = {one.kind for one in results if one.result.cause is not Cause.UNWRITABLE}
        for one in claims:
            self._targets.added(one.copy.routing_key, 1)
        if PublishEnd.NACKED in outcomes:
            self._refused_at = self._clock()
        if PublishEnd.CONFIRMED in outcomes:
            self._unconfirmed_slices = 0
            if run.wait == RunWait.BROKER_AWAY or _stood(run):
                self._lease.change(**restart_rate())
            self._lease.note_wait(run, self._pacing(run, claims, choice))
        elif PublishEnd.UNKNOWN in outcomes:
            self._unconfirmed_slices += 1
            run.refresh_from_db(fields=["sent", "skipped", "unconfirmed"])
            # Once nothing is left, a pause could hold back nothing.
            if self._unconfirmed_slices > 1 and run.unsent:
                self._lease.change(state=RunState.PAUSED, wait=RunWait.NOT_CONFIRMED)
        elif PublishEnd.UNSENT in outcomes:
            self._lease.note_wait(run, RunWait.BROKER_AWAY)
        elif PublishEnd.NACKED in outcomes:
            self._lease.note_wait(run, RunWait.QUEUE_FULL)

    def _pacing(self, run: RequeueRun, claims: Sequence[Claim], choice: ItemChoice) -> RunWait | None:
        """Return what a run that has just sent sends more slowly for than at its rate; None if nothing is.

        It lasts for as long as it may come again with the next slice.
        """
        if self._have_filled(run, claims):
            return RunWait.QUEUE_DEEP
        if self._clock() - self._refused_at < SENT_LATELY.total_seconds():
            return RunWait.QUEUE_FULL
        behind = choice.waits_for_key and (choice.takes_more or run.wait == RunWait.KEYS_WAIT)
        return RunWait.KEYS_WAIT if behind else None

    def _have_filled(self, run: RequeueRun, claims: Sequence[Claim]) -> bool:
        """Return True if the queues to which these were sent take no more now, so that the run sends as they empty."""
        most = run.max_depth
        return most is not None and all((self._targets.ready(one.copy.routing_key) or 0) > most for one in claims)

    def _idle(self, run: RequeueRun, choice: ItemChoice, depths: "_Depths") -> float | None:
        if choice.waits_for_queue and depths.unknown:
            self._lease.note_wait(run, RunWait.BROKER_AWAY if depths.away else RunWait.DEPTH_UNKNOWN)
        elif choice.waits_for_queue:
            self._lease.note_wait(run, RunWait.QUEUE_DEEP)
        elif choice.waits_for_key:
            self._lease.note_wait(run, RunWait.KEYS_WAIT)
        else:
            return None
        return SLICE_SECONDS


def _stood(run: RequeueRun) -> bool:
    """Return True if it had sent nothing for long, as to a queue that was paused: that says nothing about the rate."""
    now = database_clock.reckoned(records_alias())
    since = run.idle_since(now)
    return since is not None and now - since > LONGEST_GAP


class _Depths:
    """The depths of the queues in one slice. Each is asked once, and none after the broker was found away.

    A slice looks at thousands of messages, and a broker that hangs answers each question after seconds.
    """

    def __init__(self, targets: TargetQueues) -> None:
        self._targets = targets
        self._known: dict[str, int | None] = {}
        self.away = False

    @property
    def unknown(self) -> bool:
        return None in self._known.values()

    def room(self, most: int | None, queue: str) -> int:
        if most is None:
            return 1 << 30
        if queue not in self._known and not self.away:
            self._known[queue] = self._targets.ready(queue)
            self.away = self._known[queue] is None and not self._targets.is_reachable()
        depth = self._known.get(queue)
        return 0 if depth is None else max(0, most + 1 - depth)


@transaction_of(ParkedMessage)
def _skip(run_id: int, codes: Mapping[int, ItemReason]) -> None:
    locked_run(run_id)
    skip_items(run_id, codes)

"""Sends the parked messages of a requeue run, slice by slice: claimed, published, and the results stored."""

from collections.abc import Mapping, Sequence

from django_rmq_retry.amqp.contracts import Cause, Outcome, unsent
from django_rmq_retry.models import ItemReason, ParkedMessage, RequeueRun, RunState, RunWait
from django_rmq_retry.parked.claims import Claim, ClaimResult, claim, claim_lifetime, skip_items, store_results
from django_rmq_retry.parked.copies import copy_for, publish
from django_rmq_retry.parked.database import locked_run, transaction_of
from django_rmq_retry.parked.lease import RunLease
from django_rmq_retry.parked.next_items import Choice
from django_rmq_retry.parked.pace import SLICE_SECONDS, Clock, RunPace, restart_rate
from django_rmq_retry.publishing.target_queues import TargetQueues


class ItemSender:
    """Sends the items of one run."""

    def __init__(self, lease: RunLease, pace: RunPace, targets: TargetQueues, *, timeout: float, clock: Clock) -> None:
        self._lease = lease
        self._pace = pace
        self._targets = targets
        self._timeout = timeout
        self._clock = clock
        self._unconfirmed_slices = 0

    def send(self, run: RequeueRun, room: int) -> float | None:
        """Send up to ``room`` messages; return the seconds until the next slice, or None if none is left to send."""
        # Send a single message if the broker was just unreachable or did not confirm, or if the canary has no result.
        doubtful = self._unconfirmed_slices or run.wait == RunWait.BROKER_AWAY or run.awaits_canary
        unknown: list[str] = []
        choice = Choice(run, 1 if doubtful else room, lambda queue: self._room(run, queue, unknown))
        if choice.blocked:
            _skip(run.pk, choice.blocked)
        if not choice.items:
            return self._idle(run, choice, unknown=bool(unknown))
        begun = self._clock()
        claims = claim(run.pk, self._lease.driver, choice.items, copy_for)
        results = self._publish(claims, begun)
        store_results(run.pk, results)
        self._pace.spend(len(claims))
        self._judge(run, claims, results)
        return self._pace.wait(run.rate)

    def find_outcomes(self, run: RequeueRun) -> None:
        """Do nothing: consumers note the outcomes of parked messages."""

    def close(self) -> None:
        """Do nothing: nothing is held between two slices."""

    def _room(self, run: RequeueRun, queue: str, unknown: list[str]) -> int:
        if run.max_depth is None:
            return 1 << 30
        depth = self._targets.ready(queue)
        if depth is None:
            unknown.append(queue)
            return 0
        return max(0, run.max_depth + 1 - depth)

    def _publish(self, claims: Sequence[Claim], begun: float) -> list[ClaimResult]:
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
                self._lease.change(**restart_rate())
            self._lease.note_wait(run, None)
        elif Outcome.UNKNOWN in outcomes:
            self._unconfirmed_slices += 1
            if self._unconfirmed_slices > 1:
                self._lease.change(state=RunState.PAUSED, wait=RunWait.NOT_CONFIRMED)
        elif Outcome.UNSENT in outcomes:
            self._lease.note_wait(run, RunWait.BROKER_AWAY)
        elif Outcome.NACKED in outcomes:
            self._lease.note_wait(run, RunWait.QUEUE_FULL)

    def _idle(self, run: RequeueRun, choice: Choice, *, unknown: bool) -> float | None:
        if choice.waits_for_queue and unknown:
            self._lease.note_wait(run, RunWait.DEPTH_UNKNOWN if self._targets.is_reachable() else RunWait.BROKER_AWAY)
        elif choice.waits_for_queue:
            self._lease.note_wait(run, RunWait.QUEUE_DEEP)
        elif choice.waits_for_key:
            self._lease.note_wait(run, RunWait.KEYS_WAIT)
        else:
            return None
        return SLICE_SECONDS


@transaction_of(ParkedMessage)
def _skip(run_id: int, codes: Mapping[int, ItemReason]) -> None:
    locked_run(run_id)
    skip_items(run_id, codes)

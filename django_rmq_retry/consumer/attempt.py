"""One attempt as a pipeline: identify, decode, gate, run, judge, record, finish.

Each step takes the state of the attempt and writes its result there. A message leaves the pipeline early in four places
only: before ``identify``, if it came again before its wait is over (``waits_until``), which keeps it unacked; in
``identify`` (it is parked, quarantined or has to wait longer); at a gate that turns it away; and in ``run``, if its
handler cannot run now (``Unready``), which keeps it unacked.

Three exceptional ways follow the steps in this file: the ordering key, which is read before the attempt; an exception
from a step, for which ``after_outside_failure`` finds a settlement; and a handler that hangs. Behind them is what steps
and exceptional ways share: ``_settle_by``, which makes a settlement of a verdict, and ``_note``.
"""

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial

from django_rmq_retry import forks
from django_rmq_retry.arguments import LONGEST_WAIT_SECONDS
from django_rmq_retry.consumer.attempt_state import AttemptState
from django_rmq_retry.consumer.deadlines import HUNG_FACTOR, Deadlines, HandlerAbandoned, TimedRun, keyless
from django_rmq_retry.consumer.last_acks import remember
from django_rmq_retry.consumer.surroundings import Surroundings
from django_rmq_retry.consumer.unacked import Unacked
from django_rmq_retry.errors import InvalidBody, NoKey, UndecodableBody, UndecodableHeaders
from django_rmq_retry.handlers.call import (
    HandlerOutcome,
    HandlerSkipped,
    OnceState,
    Unready,
    alone,
    closed,
    log_left_open,
)
from django_rmq_retry.handlers.contracts import FinishedAttempt, Judged, log_failure, notify_each
from django_rmq_retry.handlers.grouping import grouped
from django_rmq_retry.handlers.loop import LoopEnded
from django_rmq_retry.handlers.settlement import Case, answer_to, copied_to, failed_attempts, next_hop, settlement_of
from django_rmq_retry.handlers.subscription import Subscription, WorkQueue, ordering_key_of
from django_rmq_retry.handlers.verdicts import crashed, feasible, lost_by_auto_ack, no_handler, unsettled
from django_rmq_retry.hooks import AroundAttempt, Entered, context_of
from django_rmq_retry.messages.codecs import decoded, untyped
from django_rmq_retry.messages.header_names import PREFIX_BYTES
from django_rmq_retry.messages.message import DONE, Delivery, Instruction, Settlement, message_id
from django_rmq_retry.messages.reasons import Reason
from django_rmq_retry.messages.stamp import at_origin, has_history, may_be_second, stamp_of
from django_rmq_retry.messages.texts import ErrorNote
from django_rmq_retry.policies.policy import Failure
from django_rmq_retry.policies.verdict import ACK, Kind, Verdict, park, retry

log = logging.getLogger("django_rmq_retry")

MOST_OUTSIDE_FAILURES = 3
"""Failures outside the handler (such as in a gate or the inbox) after which a message is parked."""
OUTSIDE_FAILURE_SECONDS = 5.0
"""Seconds for which a message stays unacked after a failure outside its handler."""


class AttemptPipeline:
    """Make attempts and keep the state of each message that stays unacked. Shared by all worker threads."""

    def __init__(self, work_queues: Sequence[WorkQueue], surroundings: Surroundings) -> None:
        self.deadlines = Deadlines(surroundings.interrupted, shortest=surroundings.key_timeout or math.inf)
        work_queues = [self.deadlines.limited(work_queue) for work_queue in work_queues]
        self._work_queues = {work_queue.queue.name: work_queue for work_queue in work_queues}
        self._work_queues |= {
            work_queue.quarantine: work_queue for work_queue in work_queues if work_queue.quarantine is not None
        }
        self._quarantines = {work_queue.queue.name: work_queue.quarantine for work_queue in work_queues}
        self._only = {one.queue.name: one.subscriptions[0] for one in work_queues if not one.dispatches}
        self._ordered = frozenset(work_queue.queue.name for work_queue in work_queues if work_queue.ordered)
        self._surroundings = surroundings
        self._hooks = surroundings.hooks
        self._unacked = Unacked(self._ordered, surroundings.clock)
        self.in_flight = set[AttemptState]()
        """The attempts that worker threads make now; copy it before reading it."""

    def attempt(self, arrival: Delivery, begin: Callable[[Delivery], None] | None = None) -> Settlement:
        """Make the attempt and return its settlement. An exception raised here is for ``after_outside_failure``."""
        state = self._unacked.state_of(arrival)
        state.began = self._surroundings.clock()
        if state.waits_until > state.began:
            self._unacked.keep(state, arrival, until=state.waits_until)
            return Settlement(instruction=Instruction.KEEP, hold=state.waits_until - state.began)
        self.in_flight.add(state)
        try:
            self._take_steps(state, begin)
        except BaseException:
            self._unacked.keep(state, arrival)
            raise
        finally:
            self.in_flight.discard(state)
        return self._unacked.ended(state)

    def _take_steps(self, state: AttemptState, begin: Callable[[Delivery], None] | None) -> None:
        """Run the steps; an attempt that was interrupted after its handler returned resumes with the judgement."""
        with self._surroundings.with_connections():
            if state.outcome is not None and state.subscription is not None:
                self._conclude(state, state.subscription)
                return
            subscription = self._identify(state)
            if subscription is None:
                return
            self._decode(state, subscription)
            if self._turned_away(state, subscription):
                return
            entered = self._enter_hooks(state, subscription)
            try:
                if state.unreadable is None:
                    if state.crash is None:
                        self._run(state, subscription, begin)
                    else:
                        skip_crashed(state, state.crash)
                self._conclude(state, subscription)
            except BaseException as error:
                if entered and state.hooked is not None:
                    state.hooked.verdict, state.hooked.error = None, error
                raise
            finally:
                if entered and self._hooks is not None:
                    self._hooks.leave(entered, roll_back_left_open=self._surroundings.roll_back_left_open)

    def _identify(self, state: AttemptState) -> Subscription | None:
        """Number the attempt and return its handler; None for a message that is settled without an attempt."""
        try:
            subscription = self._find(state)
        except UndecodableHeaders as error:
            self._decline(state, None, park(Reason.UNDECODABLE_HEADERS, str(error), ErrorNote.of(error)))
            return None
        if subscription is None:
            self._decline(state, None, no_handler(state.delivery, self._work_queues[state.arrival.queue]))
            return None
        if not state.without_headers and self._leaves_unrun(state, subscription):
            return None
        # Count the attempts that the carrier knows, and those made while the message was unacked.
        state.number = state.earlier + (
            1 if state.without_headers else subscription.policy.via.attempt(subscription.route, state.delivery)
        )
        return subscription

    def _find(self, state: AttemptState) -> Subscription | None:
        """Return the handler that takes the message; read the properties only if they can matter."""
        arrival = state.arrival
        subscription = self._only.get(arrival.queue) if arrival.is_first_without_headers else None
        state.without_headers = subscription is not None
        if subscription is None:
            state.subscription, work_queue = None, self._work_queues[arrival.queue]
            work = work_queue.queue.name
            quarantined = arrival.queue != work
            moved = replace(arrival, queue=work, quarantined=True) if quarantined else arrival
            state.delivery = at_origin(moved, came_by=arrival)
            state.delivery.headers.check()
            subscription = self._only.get(work) or work_queue.choose(state.delivery)
        state.subscription = subscription
        return subscription

    def _leaves_unrun(self, state: AttemptState, subscription: Subscription) -> bool:
        """Settle a second copy, a message that may kill its worker, or one on its next hop; return False for others."""
        delivery = state.delivery
        if delivery.quarantined and self._withheld(state, subscription):
            return True
        if delivery.redelivered and self._isolate(state, subscription):
            return True
        if PREFIX_BYTES in delivery.raw and (settlement := next_hop(delivery, subscription)):
            state.settlement = settlement
            return True
        return not delivery.quarantined and self._withheld(state, subscription)

    def _withheld(self, state: AttemptState, subscription: Subscription) -> bool:
        """Settle a copy whose message was parked or handled meanwhile; return False for any other message.

        One with an ordering key may block its key, and each process has its own copy of a broadcast message.
        """
        asked = not (subscription.order_by or subscription.queue.named_by_broker) and may_be_second(state.delivery)
        verdict = self._surroundings.withheld(state.delivery) if asked else None
        if verdict is not None:
            _number_by_failures(state)
            # No handler makes this attempt, so neither the copy nor the journals name one.
            self._decline(state, None, verdict)
        return verdict is not None

    def _isolate(self, state: AttemptState, subscription: Subscription) -> bool:
        """Quarantine or park a message that may have killed its worker; return False for any other message.

        A message with an ordering key may merely be waiting its turn; only the gate knows. So it is parked behind the
        gates, by ``skip_crashed``.
        """
        delivery = state.delivery
        quarantine = None if delivery.quarantined or subscription.order_by else self._quarantines[delivery.queue]
        crash = crashed(delivery, subscription, self._surroundings.crash_limit, movable=quarantine is not None)
        state.crash = crash
        if crash is None or subscription.order_by:
            return False
        if quarantine is not None and crash.kind is Kind.RETRY:
            state.settlement = copied_to(delivery, quarantine, subscription)
            self._note(state, subscription, crash)
            return True
        _number_by_failures(state)
        # No handler makes this attempt, so the copy and the journals name none.
        self._decline(state, None, crash)
        return True

    def _decode(self, state: AttemptState, subscription: Subscription) -> None:
        if state.fresh:
            # Use the decoded data only once: a handler may change them, so its next attempt decodes the body again.
            state.fresh = False
        else:
            state.unreadable = None
            try:
                self._read(state, subscription)
            except (UndecodableBody, NoKey) as error:
                state.unreadable = error
        state.delivery = state.delivery.for_attempt(attempt=state.number, data=state.data, key=state.key)

    def _read(self, state: AttemptState, subscription: Subscription) -> None:
        state.data = None
        state.data = decoded(state.delivery, subscription.codec, subscription.limits)
        if subscription.order_by is not None and state.key is None:
            state.key = ordering_key_of(
                subscription.order_by, state.delivery.for_attempt(attempt=state.number, data=state.data)
            )
            log_left_open(f"order_by of handler {subscription.name}", self._surroundings.roll_back_left_open())

    def _turned_away(self, state: AttemptState, subscription: Subscription) -> bool:
        """Enter the gates; return True for a message that one of them settles without an attempt."""
        if not subscription.gated or state.unreadable is not None:
            return False
        state.gates_left = None
        for gate in self._surroundings.gates:
            answer = gate.enter(state.delivery, subscription)
            if isinstance(answer, Verdict):
                self._decline(state, subscription, answer)
                return True
            if answer is not None:
                state.settlement = answer
                return True
        # A gate may have waited for its database longer than the connection has lived.
        return is_dropped(state)

    def _enter_hooks(self, state: AttemptState, subscription: Subscription) -> Entered | None:
        """Enter the hooks of the setting AROUND; they are left with the verdict, once the attempt is recorded."""
        hooks, roll_back_left_open = self._hooks, self._surroundings.roll_back_left_open
        if hooks is None:
            return None
        wanting = hooks.wanting(state.delivery, state.hooked, roll_back_left_open)
        if not wanting:
            return None
        state.hooked = AroundAttempt(
            delivery=state.delivery,
            handler=subscription.name,
            limit=subscription.policy.limit_for(state.delivery),
            before=state.traceparent,
            hooks=wanting,
        )
        entered = hooks.enter(state.hooked, wanting, roll_back_left_open=roll_back_left_open)
        state.traceparent = context_of(state.hooked)
        return entered

    def _run(self, state: AttemptState, subscription: Subscription, begin: Callable[[Delivery], None] | None) -> None:
        outcome: HandlerOutcome
        try:
            if begin is not None:
                begin(state.arrival)
            if subscription.once:
                state.once = state.once or OnceState()
                outcome = self._surroundings.once(subscription, state.delivery, state.once), None
            else:
                outcome = subscription.run(state.delivery), None
        except HandlerAbandoned:
            raise
        except BaseException as raised:  # noqa: BLE001 - SystemExit of one handler must not end the worker
            outcome = None, alone(raised)
        outcome = closed(outcome, subscription.name, self._surroundings.roll_back_left_open())
        if isinstance(outcome[1], Unready):
            if subscription.gated:
                self._leave_gates(state, subscription, retry(0.0, detail=str(outcome[1]), counted=False), outcome[1])
            raise outcome[1]
        state.outcome = outcome

    def _conclude(self, state: AttemptState, subscription: Subscription) -> None:
        """Judge, record and finish an attempt whose handler has ended or could not be run."""
        self._judge(state, subscription)
        self._record(state, subscription)
        self._finish(state, subscription)

    def _judge(self, state: AttemptState, subscription: Subscription) -> None:
        """Set the verdict on the handler's exception, as the gates leave it, and the settlement that follows."""
        error = state.unreadable if state.outcome is None else state.outcome[1]
        state.verdict, state.settlement, state.error = ACK, DONE, error
        if isinstance(error, HandlerSkipped):
            # The handler was not run: use the verdict that came in its place.
            state.error = None
            self._settle_by(state, subscription, error.verdict)
        elif error is not None:
            # If the verdict cannot be carried out, the message is parked. Gates and journals then see only that park.
            self._settle_by(state, subscription, self._policy_verdict(state.delivery, subscription, error))
        if subscription.gated and state.unreadable is None:
            verdict = self._leave_gates(state, subscription, state.verdict, state.error)
            if verdict is not state.verdict:
                self._settle_by(state, subscription, verdict)

    def _policy_verdict(self, delivery: Delivery, subscription: Subscription, error: BaseException) -> Verdict:
        """Return the policy's verdict; park if the policy fails, or if the body or ordering key is unreadable."""
        if isinstance(error, InvalidBody):
            return park(Reason.INVALID, str(error), ErrorNote.of(error), counted=False)
        if isinstance(error, UndecodableBody):
            return park(Reason.UNDECODABLE_BODY, str(error), ErrorNote.of(error))
        if isinstance(error, NoKey):
            return park(Reason.PERMANENT, str(error), ErrorNote.of(error.__cause__ or error))
        since = stamp_of(delivery).since
        age = max(0.0, (self._surroundings.now_ms() - since) / 1000) if since else 0.0
        # Not the surroundings' clock, which the test kit moves: a handler makes its Retry(at=…) from the real time.
        now = time.time()
        failure = Failure(delivery=delivery, error=error, chance=self._surroundings.chance(), age=age, now=now)
        broken: BaseException
        try:
            with forks.ending():
                verdict = subscription.policy.judge(failure)
            if 0 <= verdict.after <= LONGEST_WAIT_SECONDS:
                return verdict
            broken = ValueError(f"the wait of {verdict.after!r} s is invalid")
        except BaseException as raised:  # noqa: BLE001 - a predicate or back-off function of the project may raise
            broken = raised
        return park(Reason.PERMANENT, f"The policy failed on {ErrorNote.of(error)}", ErrorNote.of(broken))

    def _leave_gates(
        self, state: AttemptState, subscription: Subscription, verdict: Verdict, error: BaseException | None
    ) -> Verdict:
        """Return the verdict after each gate has seen it. After an error, the next call resumes at that gate."""
        first, verdict = state.gates_left or (0, verdict)
        for number, gate in enumerate(self._surroundings.gates[first:], first):
            try:
                verdict = gate.leave(state.delivery, subscription, verdict, error)
            except BaseException:
                state.gates_left = number, verdict
                raise
        state.gates_left = None
        return verdict

    def _record(self, state: AttemptState, subscription: Subscription) -> None:
        """Note the attempt in the journals; a successful first one only if a journal asks for it, or it comes again."""
        if state.hooked is not None:
            state.hooked.verdict, state.hooked.error = state.verdict, state.error
        # The broker delivers it again.
        stale = state.arrival.is_stale
        repeated = stale and state.verdict is ACK
        if repeated:
            _warn_of_repeat(state, subscription)
        first = (state.without_headers and state.number == 1) or not (
            state.delivery.redelivered or has_history(state.delivery)
        )
        # Evaluated for every message: a generator would take three times as long.
        asked = any([one.notes_acks for one in self._surroundings.journals])  # noqa: C419
        wanted = state.verdict is not ACK or repeated or not first or asked
        if first and not stale and state.verdict is ACK and not subscription.once:
            # No row tells of it, and no row is needed if its ack arrives.
            remember(state, subscription, self._surroundings.clock())
        if wanted or subscription.judged is not None:
            self._note(state, subscription, state.verdict, stale=stale)
        elif self._surroundings.acked is not None:
            self._surroundings.acked(subscription, self._surroundings.clock() - state.began, state.delivery.raw)

    def _finish(self, state: AttemptState, subscription: Subscription) -> None:
        """Make the settlement final, with the answer that a caller waits for."""
        answer: object = state.error
        if answer is None and state.outcome is not None:
            answer = state.outcome[0]
        if subscription.policy.answers or not (answer is None or isinstance(answer, BaseException)):
            self._answer(state, subscription, answer)
        if state.settlement.instruction is Instruction.KEEP and state.verdict.counted:
            state.earlier += 1
        state.settled = True

    def _answer(self, state: AttemptState, subscription: Subscription, answer: object) -> None:
        """Add the answer to the settlement, if the message names a reply queue that the settings allow."""
        try:
            to = state.delivery.reply_to
            if not to or (isinstance(answer, BaseException) and not subscription.policy.answers):
                return
            if any(fnmatchcase(to, pattern) for pattern in self._surroundings.reply_to):
                reply = answer_to(state.delivery, answer, untyped(subscription.codec))
                state.settlement = replace(state.settlement, answer=reply)
            else:
                self._surroundings.refused(to)
        except BaseException:  # noqa: BLE001 - the handler has run: an answer that fails must not run it again
            log_failure("The answer cannot be encoded; the message is settled without it")

    def read_key(self, arrival: Delivery) -> tuple[str, str] | None:
        """Return the handler's name and the ordering key of a message; None without a key or if it is unreadable."""
        # A strict-order queue is one key: the broker may deliver a message again while its handler runs.
        if arrival.queue in self._ordered:
            return "", arrival.queue
        state = self._unacked.state_of(arrival)
        self._unacked.keep(state, arrival)
        try:
            subscription = self._find(state)
            if subscription is None or subscription.order_by is None:
                return None
            self._read_in_time(state, subscription)
        except (UndecodableHeaders, UndecodableBody):
            return None
        except NoKey as error:
            # The attempt must not call order_by again, which may have taken long. Without its traceback, because that
            # refers to the delivery, whose state would then never be dropped; the traceback of its cause remains.
            state.key, state.unreadable, state.fresh = None, error.with_traceback(None), True
            return None
        state.unreadable, state.fresh = None, True
        return subscription.name, state.key or ""

    def _read_in_time(self, state: AttemptState, subscription: Subscription) -> None:
        """Decode the body and compute the ordering key; raise NoKey if that takes too long."""
        seconds = self._surroundings.key_timeout
        if seconds is None:
            self._read(state, subscription)
            return
        run = TimedRun(state.arrival, subscription, seconds, part="order_by")
        self.deadlines.run_key(lambda _arrival: self._read(state, subscription), run)

    def after_outside_failure(self, arrival: Delivery, error: BaseException) -> Settlement:
        """Return the settlement of a message after a failure outside its handler.

        The message stays unacked and is attempted again, because a return to the queue would count as a crash; the
        failure is not counted as an attempt. After three failures in a row the message is parked. Failures that would
        hit any message, such as a lost database, do not count towards the three.
        """
        state = self._unacked.state_of(arrival)
        if state.settled:
            log_failure("An attempt failed after its last step; its message is settled anyway", error)
            return self._unacked.ended(state)
        state.outside_failures += not self._surroundings.away(error)
        if state.outside_failures >= MOST_OUTSIDE_FAILURES:
            try:
                self._give_up(state, error)
                return self._unacked.ended(state)
            except BaseException as second:  # noqa: BLE001 - no error may end the worker thread
                error = second
        if isinstance(error, Unready):
            ending = isinstance(error, LoopEnded)
            what = "returns to its queue" if ending else f"stays unacked for {OUTSIDE_FAILURE_SECONDS} s"
            log.warning("%s The message %s.", error, what, extra={"event": "unready"})
        else:
            log_failure(
                f"The attempt failed outside its handler; the message stays unacked for {OUTSIDE_FAILURE_SECONDS} s",
                error,
            )
        self._unacked.keep(state, arrival)
        return Settlement(instruction=Instruction.KEEP, hold=OUTSIDE_FAILURE_SECONDS)

    def _give_up(self, state: AttemptState, error: BaseException) -> None:
        """Park a message that can be neither attempted nor settled in another way, with its original bytes."""
        state.began = self._surroundings.clock()
        subscription = state.subscription = self._work_queues[state.arrival.queue].presumed(state.delivery)
        state.delivery = replace(state.delivery, attempt=state.number, key=state.key)
        detail = f"{_begun(state)}: {ErrorNote.of(error)}"
        verdict = park(_unsettled_reason(state), detail, ErrorNote.of(error), counted=False)
        with self._surroundings.with_connections():
            self._settle_by(state, subscription, verdict, as_bytes=True)
            state.error = error
            if subscription is not None and subscription.order_by is not None and state.key is not None:
                self._leave_gates_given_up(state, subscription)
            self._note(state, subscription, state.verdict)

    def _leave_gates_given_up(self, state: AttemptState, subscription: Subscription) -> None:
        """Let later messages of the key wait behind this one; if this message makes the gates fail, they continue."""
        state.gates_left = None
        try:
            self._leave_gates(state, subscription, state.verdict, state.error)
        except Exception as error:
            if self._surroundings.away(error):
                raise
            log.exception("A gate failed for a message that is given up; the messages behind it continue")

    def settle_hung(self, run: TimedRun) -> Settlement:
        """Finish the attempt as if the handler that hangs, or its ``order_by``, had raised DeadlineExceeded."""
        state = _hung_state(run, self._surroundings.clock())
        self._take_steps(state, None)
        for other in self.in_flight.copy():
            if other.arrival.token is run.delivery.token:
                self.in_flight.discard(other)
        # The process ends: a copy that would have waited here is sent now, or its attempt would not be counted.
        settlement = state.settlement
        return settlement if settlement.copy is None else replace(settlement, hold=0.0)

    # What several of the functions above share: how a verdict becomes a settlement, and how an attempt is noted.

    def _decline(self, state: AttemptState, subscription: Subscription | None, verdict: Verdict) -> None:
        """Settle a message that leaves the pipeline without an attempt by a verdict, and note it."""
        self._settle_by(state, subscription, verdict)
        self._note(state, subscription, state.verdict)

    def _note(
        self, state: AttemptState, subscription: Subscription | None, verdict: Verdict, *, stale: bool | None = None
    ) -> None:
        finished = FinishedAttempt(
            delivery=state.delivery,
            verdict=verdict,
            subscription=subscription,
            seconds=self._surroundings.clock() - state.began,
            error=state.error,
            answer=None if state.outcome is None else state.outcome[0],
            traceparent=state.traceparent,
            stale=state.arrival.is_stale if stale is None else stale,
        )
        if subscription is not None and subscription.judged is not None:
            self._tell(subscription.judged, finished)
        notify_each([journal.note for journal in self._surroundings.journals], finished)
        if verdict.kind is Kind.PARK and self._surroundings.unparked is not None:
            lost = partial(self._surroundings.unparked, state.delivery)
            state.settlement = replace(state.settlement, lost=lost)

    def _tell(self, judged: Judged, finished: FinishedAttempt) -> None:
        """Tell the handler how its attempt ended, and keep the row that it returns. An error fails no attempt."""
        try:
            kept = judged(finished)
            if kept is not None:
                self._surroundings.keep(kept)
        except BaseException as error:  # noqa: BLE001 - receivers of signals may raise anything
            log_failure("The end of an attempt could not be told; its message is settled anyway", error)

    def _settle_by(
        self, state: AttemptState, subscription: Subscription | None, verdict: Verdict, *, as_bytes: bool = False
    ) -> None:
        """Set the verdict and its settlement: the one way to park. What its content breaks is parked as bytes."""
        self._set_verdict(state, subscription, verdict, as_bytes=as_bytes)
        if as_bytes:
            state.settlement = settlement_of(state.verdict, self._case(state, subscription, as_bytes=True))
        else:
            state.settlement = self._settlement_or_bytes(state, subscription)
        # The gates and journals that follow must not write into a transaction that nobody commits.
        name = "" if subscription is None else subscription.name
        log_left_open(f"The policy or fingerprint of handler {name}", self._surroundings.roll_back_left_open())

    def _set_verdict(
        self, state: AttemptState, subscription: Subscription | None, verdict: Verdict, *, as_bytes: bool
    ) -> None:
        """Set the verdict, or the one in its place if the message or its queue allows no such verdict."""
        if self._work_queues[state.arrival.queue].auto_ack and verdict.kind not in (Kind.ACK, Kind.DISCARD):
            verdict = lost_by_auto_ack(verdict)
        elif subscription is not None:
            verdict = feasible(verdict, state.delivery, subscription)
        if verdict.kind is Kind.PARK:
            verdict = grouped(verdict, state.delivery, subscription, None if as_bytes else state.error)
        state.verdict = verdict

    def _settlement_or_bytes(self, state: AttemptState, subscription: Subscription | None) -> Settlement:
        """Return the settlement that follows from the verdict; if the content breaks it, park the original bytes."""
        try:
            settlement = settlement_of(state.verdict, self._case(state, subscription, as_bytes=False))
            if settlement.copy is not None:
                # A copy that fails in the connection would be sent again without end.
                self._surroundings.check(settlement.copy)
        except Exception as broken:  # noqa: BLE001 - whatever fails here, the original bytes can be parked
            verdict = unsettled(broken, state.verdict, _unsettled_reason(state))
            self._set_verdict(state, subscription, verdict, as_bytes=True)
            return settlement_of(state.verdict, self._case(state, subscription, as_bytes=True))
        return settlement

    def _case(self, state: AttemptState, subscription: Subscription | None, *, as_bytes: bool) -> Case:
        return Case(
            delivery=state.delivery,
            subscription=subscription,
            parked_queue=self._work_queues[state.arrival.queue].park,
            now=self._surroundings.now_ms(),
            nonce=int(self._surroundings.chance() * 2**53),
            traceparent=state.traceparent,
            as_bytes=as_bytes,
        )


def _unsettled_reason(state: AttemptState) -> Reason:
    """Return the reason to park a message that cannot be settled: its handler may have succeeded all the same."""
    return Reason.HANDLED if state.outcome is not None and state.outcome[1] is None else Reason.UNSETTLED


def _begun(state: AttemptState) -> str:
    """Return a sentence on how the handler ended, for a message that is given up."""
    error = HandlerSkipped(ACK) if state.outcome is None else state.outcome[1]
    if error is None:
        return "Its handler succeeded, but the next step failed"
    if isinstance(error, HandlerSkipped):
        return "No attempt can be made"
    return f"Its handler failed ({ErrorNote.of(error)}), and so did the next step"


def _hung_state(run: TimedRun, now: float) -> AttemptState:
    """Return the state of its message, as if the handler or ``order_by`` that hangs had raised its error."""
    state = AttemptState(run.delivery, run.delivery, began=now - HUNG_FACTOR * run.seconds)
    if run.part:
        state.unreadable, state.fresh = keyless(run.error()), True
    else:
        state.subscription, state.outcome = run.subscription, (None, run.error())
    return state


def is_dropped(state: AttemptState) -> bool:
    """Return True, and settle nothing, for a message that the broker delivers again because its line has closed."""
    if not state.arrival.is_stale:
        return False
    state.settlement = DONE
    return True


def _warn_of_repeat(state: AttemptState, subscription: Subscription) -> None:
    if subscription.once:
        return
    log.warning(
        "Handler %s has handled message %r, but its connection was lost meanwhile: RabbitMQ delivers it again, and it "
        "may be handled twice",
        *(subscription.name, message_id(state.arrival)),
        extra={"event": "handled_unacked", "queue": state.arrival.queue},
    )


def skip_crashed(state: AttemptState, crash: Verdict) -> None:
    """Let the verdict on a message with an ordering key take the place of its handler's outcome."""
    _number_by_failures(state)
    state.outcome = None, HandlerSkipped(crash)


def _number_by_failures(state: AttemptState) -> None:
    """Number a message by its finished attempts: a carrier that counts returns would count stops and crashes too."""
    state.number = failed_attempts(state.delivery) + 1
    state.delivery = replace(state.delivery, attempt=state.number)

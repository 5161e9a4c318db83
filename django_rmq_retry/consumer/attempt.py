"""One attempt as a pipeline: identify, decode, gate, run, judge, record, settle."""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from weakref import WeakKeyDictionary

from django_rmq_retry import forks
from django_rmq_retry.arguments import LONGEST
from django_rmq_retry.consumer.deadlines import HUNG, Deadlines, HandlerAbandoned, Run, keyless
from django_rmq_retry.errors import NoKey, UndecodableBody, UndecodableHeaders
from django_rmq_retry.handlers.attempt import (
    FinishedAttempt,
    HandlerSkipped,
    OnceState,
    Surroundings,
    Unready,
    grouped,
    has_history,
    log_failure,
    log_outside_failure,
    notify_each,
)
from django_rmq_retry.handlers.call import Outcome, closed, log_left_open
from django_rmq_retry.handlers.settlement import (
    answer_to,
    copied_to,
    crashed,
    failed_attempts,
    feasible,
    lost,
    no_handler,
    parked_in_bytes,
    settle,
    unhandled,
    unsettled,
    waits_on,
)
from django_rmq_retry.handlers.subscription import Subscription, WorkQueue, ordering_key_of
from django_rmq_retry.hooks import AroundAttempt, Entered, Hooks, Listed, context_of
from django_rmq_retry.messages.codecs import decoded
from django_rmq_retry.messages.header_names import PREFIX_BYTES
from django_rmq_retry.messages.history import Reason, at_origin, stamp_of
from django_rmq_retry.messages.message import DONE, Delivery, Instruction, Settlement
from django_rmq_retry.messages.texts import ErrorNote
from django_rmq_retry.policies.policy import Failure
from django_rmq_retry.policies.verdict import ACK, Kind, Verdict, park, retry

log = logging.getLogger("django_rmq_retry")

OUTSIDE_FAILURES = 3
"""Failures outside the handler (such as in a gate or the inbox) after which a message is parked."""
OUTSIDE_FAILURE_WAIT = 5.0
"""Seconds for which a message stays unacked after a failure outside its handler."""


@dataclass(slots=True, eq=False, repr=False)  # error trackers send the repr of local variables, and it has the data
class AttemptState:
    """The state of one delivery from its arrival to its settlement. Only the steps of the pipeline write it."""

    arrival: Delivery
    """The delivery as the source passed it in."""
    delivery: Delivery
    """The delivery as the handler receives it, once it is decoded."""
    earlier: int = 0
    """Attempts already made while the message was unacked."""
    began: float = 0.0
    plain: bool = False
    """True for a first arrival without headers: no count, stamp or condition has to be read."""
    subscription: Subscription | None = None
    number: int = 1
    data: object = None
    key: str | None = None
    fresh: bool = False
    """True if the data were decoded to compute the ordering key and no handler has received them yet."""
    unreadable: UndecodableBody | NoKey | None = None
    once: OnceState | None = None
    outcome: Outcome | None = None
    """The handler's answer and error. Once it is set, no later failure may run the handler again."""
    error: BaseException | None = None
    """The error that led to the verdict."""
    verdict: Verdict = ACK
    gates_left: tuple[int, Verdict] | None = None
    """The index of the first gate that has not seen the verdict, and the verdict after the gates before it."""
    settlement: Settlement = DONE
    settled: bool = False
    """True if the settlement is final: no later failure changes it."""
    outside_failures: int = 0
    """Failures outside the handler that the message itself may have caused."""
    around: AroundAttempt | None = None
    """The attempt as its hooks see it; None if there are none."""
    traceparent: str = ""
    """The W3C trace context of the attempt, if a hook has set one."""


class Attempts:
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
        self._unacked: WeakKeyDictionary[Delivery, AttemptState] = WeakKeyDictionary()
        self.in_flight = set[AttemptState]()
        """The attempts that worker threads make now; copy it before reading it."""
        self._has_kept = False  # True once a message has stayed unacked: until then no delivery is looked up
        self._halted: dict[str, tuple[bytes, str, int]] = {}
        """By queue, the body, routing key and attempts of the halted message at the head of a strict-order queue.

        The broker may redeliver that message over another channel, as a new delivery.
        """

    def settlement(self, arrival: Delivery, begin: Callable[[Delivery], None] | None = None) -> Settlement:
        """Make the attempt and return the settlement of the message; ``begin`` is called before a handler runs.

        An exception raised here is a failure outside the handler; pass it to ``after_outside_failure``.
        """
        state = self._state(arrival)
        state.began = self._surroundings.clock()
        self.in_flight.add(state)
        try:
            settlement = self._identify(state) if state.outcome is None else None
            if settlement is None:
                with self._surroundings.around():
                    settlement = self._attempt(state, begin)
        except BaseException:
            self.in_flight.discard(state)
            self._keep(state, arrival)
            raise
        self.in_flight.discard(state)
        return self._end(state, settlement)

    def key(self, arrival: Delivery) -> tuple[str, str] | None:
        """Return the handler's name and the ordering key of a message; None without a key or if it is unreadable."""
        # A strict-order queue is one key: the broker may deliver a message again while its handler runs.
        if arrival.queue in self._ordered:
            return "", arrival.queue
        state = self._state(arrival)
        self._keep(state, arrival)
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

    def after_outside_failure(self, arrival: Delivery, error: BaseException) -> Settlement:
        """Return the settlement of a message after a failure outside its handler.

        The message stays unacked and is attempted again, because a return to the queue would count as a crash; the
        failure is not counted as an attempt. After three failures in a row the message is parked. Failures that would
        hit any message, such as a lost database, do not count towards the three.
        """
        state = self._state(arrival)
        if state.settled:
            log_failure("An attempt failed after its last step; its message is settled anyway", error)
            return self._end(state, state.settlement)
        state.outside_failures += not self._surroundings.away(error)
        if state.outside_failures >= OUTSIDE_FAILURES:
            try:
                return self._end(state, self._give_up(state, error))
            except BaseException as second:  # noqa: BLE001 - no error may end the worker thread
                error = second
        log_outside_failure(error, OUTSIDE_FAILURE_WAIT)
        self._keep(state, arrival)
        return Settlement(instruction=Instruction.KEEP, hold=OUTSIDE_FAILURE_WAIT)

    def abandoned(self, run: Run) -> Settlement:
        """Return the settlement of a message whose handler hangs, as if the handler had raised DeadlineExceeded.

        If its ``order_by`` hangs, the message has no ordering key.
        """
        state = AttemptState(run.delivery, run.delivery)
        state.began = self._surroundings.clock() - HUNG * run.seconds
        if run.part:
            settlement = self._identify(state)
            if settlement is not None:
                return settlement
            state.unreadable, state.fresh = keyless(run.error()), True
        else:
            state.subscription, state.outcome = run.subscription, (None, run.error())
        with self._surroundings.around():
            settlement = self._attempt(state, None)
        for other in self.in_flight.copy():
            if other.arrival.token is run.delivery.token:
                self.in_flight.discard(other)
        # The process ends: a copy that would have waited here is sent now, or its attempt would not be counted.
        return settlement if settlement.copy is None else replace(settlement, hold=0.0)

    def _attempt(self, state: AttemptState, begin: Callable[[Delivery], None] | None) -> Settlement:
        """Run the steps of an attempt. An attempt interrupted after its handler returned resumes after that step."""
        subscription, hooks, tidied = state.subscription, self._surroundings.hooks, self._surroundings.tidied
        assert subscription is not None  # noqa: S101 - identified before
        entered: Entered | None = None
        try:
            if state.outcome is None:
                self._decode(state, subscription)
                gated = subscription.gated and state.unreadable is None
                turned_away = self._enter(state, subscription) if gated else None
                if turned_away is not None:
                    return turned_away
                if hooks is not None and (wanting := hooks.wanting(state.delivery, state.around, tidied)):
                    entered = self._enter_hooks(hooks, wanting, state, subscription)
                if state.unreadable is None:
                    self._run(state, subscription, begin)
            self._judge(state, subscription)
            if subscription.gated and state.unreadable is None:
                self._leave(state, subscription)
            self._record(state, subscription)
        except BaseException as error:
            if entered is not None and state.around is not None:
                state.around.verdict, state.around.error = None, error
            raise
        finally:
            if hooks is not None and entered is not None:
                hooks.leave(entered, tidied=tidied)
        return self._settle(state, subscription)

    def _identify(self, state: AttemptState) -> Settlement | None:
        """Find the handler and number the attempt, or settle a message that must not be attempted."""
        try:
            subscription = self._find(state)
        except UndecodableHeaders as error:
            return self._unattempted(state, park(Reason.UNDECODABLE_HEADERS, str(error), ErrorNote.of(error)))
        if subscription is None:
            return self._unattempted(state, no_handler(state.delivery))
        if not state.plain:
            settlement = self._returned(state, subscription) if state.delivery.redelivered else None
            if settlement is None and PREFIX_BYTES in state.delivery.raw:
                settlement = waits_on(state.delivery, subscription)
            if settlement is not None:
                return settlement
        # Count the attempts that the carrier knows, and those made while the message was unacked.
        state.number = state.earlier + (
            1 if state.plain else subscription.policy.via.attempt(subscription.route, state.delivery)
        )
        return None

    def _find(self, state: AttemptState) -> Subscription | None:
        """Return the handler that takes the message.

        The message's properties are read only if they can decide the handler or hold a history of earlier attempts.
        """
        arrival = state.arrival
        subscription = self._only.get(arrival.queue) if arrival.plain else None
        state.plain = subscription is not None
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

    def _returned(self, state: AttemptState, subscription: Subscription) -> Settlement | None:
        """Quarantine or park a message that may have killed its worker; return None for any other message."""
        delivery = state.delivery
        if subscription.order_by:
            # A message that only waits behind another one must not be parked because of its returns.
            return None
        quarantine = None if delivery.quarantined else self._quarantines[delivery.queue]
        verdict = crashed(delivery, subscription, self._surroundings.crash_limit, movable=quarantine is not None)
        if verdict is None:
            return None
        if quarantine is not None and verdict.kind is Kind.RETRY:
            settlement = copied_to(delivery, quarantine)
            self._note(state, verdict, since=self._surroundings.clock())
            return settlement
        # Do not ask the carrier: one that counts returns would count orderly stops and crashes as attempts.
        state.number = failed_attempts(delivery) + 1
        state.delivery = replace(delivery, attempt=state.number)
        state.subscription = None
        return self._unattempted(state, verdict)

    def _decode(self, state: AttemptState, subscription: Subscription) -> None:
        """Make the delivery that the handler receives."""
        if state.fresh:
            # Use the decoded data only once: a handler may change them, so its next attempt decodes the body again.
            state.fresh = False
        else:
            state.unreadable = None
            try:
                self._read(state, subscription)
            except (UndecodableBody, NoKey) as error:
                state.unreadable = error
        state.delivery = state.delivery.ready(attempt=state.number, data=state.data, key=state.key)

    def _read_in_time(self, state: AttemptState, subscription: Subscription) -> None:
        """Decode the body and compute the ordering key; raise NoKey if that takes too long."""
        seconds = self._surroundings.key_timeout
        if seconds is None:
            self._read(state, subscription)
            return
        run = Run(state.arrival, subscription, seconds, part="order_by")
        self.deadlines.run_key(lambda _arrival: self._read(state, subscription), run)

    def _read(self, state: AttemptState, subscription: Subscription) -> None:
        state.data = None
        state.data = decoded(state.delivery, subscription.codec, subscription.limits)
        if subscription.order_by is not None and state.key is None:
            state.key = ordering_key_of(
                subscription.order_by, state.delivery.ready(attempt=state.number, data=state.data)
            )
            log_left_open(f"order_by of handler {subscription.name}", self._surroundings.tidied())

    def _enter_hooks(self, hooks: Hooks, wanting: Sequence[Listed], state: AttemptState, one: Subscription) -> Entered:
        """Enter the hooks of the setting AROUND; they are left with the verdict, once the attempt is recorded."""
        limit, before = one.policy.attempts, state.traceparent
        state.around = AroundAttempt(
            delivery=state.delivery, handler=one.name, limit=limit, before=before, hooks=wanting
        )
        entered = hooks.enter(state.around, wanting, tidied=self._surroundings.tidied)
        state.traceparent = context_of(state.around)
        return entered

    def _enter(self, state: AttemptState, subscription: Subscription) -> Settlement | None:
        """Enter the gates; return the settlement of the first gate that refuses the message (no attempt), or None."""
        state.gates_left = None
        for gate in self._surroundings.gates:
            settlement = gate.enter(state.delivery, subscription)
            if settlement is not None:
                return settlement
        return None

    def _run(self, state: AttemptState, subscription: Subscription, begin: Callable[[Delivery], None] | None) -> None:
        """Run the handler and keep its answer or its exception."""
        limit = self._surroundings.crash_limit
        crash = crashed(state.delivery, subscription, limit, movable=False) if subscription.order_by else None
        if crash is not None:
            state.number = failed_attempts(state.delivery) + 1
            state.delivery = replace(state.delivery, attempt=state.number)
            state.outcome = None, HandlerSkipped(crash)
            return
        outcome: Outcome
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
            outcome = None, raised
        outcome = closed(outcome, subscription.name, self._surroundings.tidied())
        if isinstance(outcome[1], Unready):
            if subscription.gated:
                self._leave_gates(state, subscription, retry(0.0, detail=str(outcome[1]), counted=False), outcome[1])
            raise outcome[1]
        state.outcome = outcome

    def _judge(self, state: AttemptState, subscription: Subscription) -> None:
        """Set the verdict on the handler's exception, and the settlement that follows from it."""
        error = state.unreadable if state.outcome is None else state.outcome[1]
        state.verdict, state.settlement, state.error = ACK, DONE, error
        if error is None:
            return
        if isinstance(error, HandlerSkipped):
            # The handler was not run: use the verdict that came in its place.
            state.verdict, state.error = error.verdict, None
        else:
            state.verdict = feasible(self._judged(state.delivery, subscription, error), state.delivery, subscription)
        # Before gates and journals see the verdict: one that cannot be carried out becomes a park, the only one noted.
        self._carry_out(state, subscription)

    def _leave(self, state: AttemptState, subscription: Subscription) -> None:
        """Pass the verdict to the gates; each may change it."""
        verdict = self._leave_gates(state, subscription, state.verdict, state.error)
        if verdict is not state.verdict:
            state.verdict = verdict
            self._carry_out(state, subscription)

    def _record(self, state: AttemptState, subscription: Subscription) -> None:
        """Note the attempt in the journals; a successful first attempt only if a journal asks for those."""
        if state.around is not None:
            state.around.verdict, state.around.error = state.verdict, state.error
        first = (state.plain and state.number == 1) or not has_history(state.delivery)
        # Evaluated for every message: a generator would take three times as long.
        wanted = state.verdict is not ACK or not first or any([one.notes_acks for one in self._surroundings.journals])  # noqa: C419
        if wanted:
            self._note(state, state.verdict, since=state.began)
        elif self._surroundings.acked is not None:
            self._surroundings.acked(subscription, self._surroundings.clock() - state.began, state.delivery.raw)

    def _settle(self, state: AttemptState, subscription: Subscription) -> Settlement:
        """Return the final settlement, with the answer that a caller waits for."""
        answer: object = state.error
        if answer is None and state.outcome is not None:
            answer = state.outcome[0]
        if subscription.policy.answers or not (answer is None or isinstance(answer, BaseException)):
            state.settlement = self._with_answer(state, subscription, answer)
        if state.settlement.instruction is Instruction.KEEP and state.verdict.counted:
            state.earlier += 1
        state.settled = True
        return state.settlement

    def _state(self, arrival: Delivery) -> AttemptState:
        """Return the state of a message that stayed unacked, or a new state."""
        state = self._unacked.get(arrival) if self._has_kept else None
        if state is not None:
            state.arrival = arrival
        else:
            state = AttemptState(arrival, arrival)
            if self._halted:
                body, key, attempts = self._halted.pop(arrival.queue, (b"", "", 0))
                if arrival.redelivered and (body, key) == (arrival.body, arrival.routing_key):
                    state.earlier = attempts
        return state

    def _keep(self, state: AttemptState, arrival: Delivery) -> None:
        """Keep the state as long as the consumer has the delivery: it may return to its queue instead."""
        # A state that refers to its delivery would never be dropped, so it refers to a copy meanwhile.
        state.arrival = arrival.ready(attempt=arrival.attempt, data=arrival.data, key=arrival.key)
        if state.delivery is arrival:
            state.delivery = state.arrival
        self._unacked[arrival], self._has_kept = state, True
        if arrival.queue in self._ordered:
            self._halted[arrival.queue] = arrival.body, arrival.routing_key, state.earlier

    def _end(self, state: AttemptState, settlement: Settlement) -> Settlement:
        """Keep the state of a message that stays unacked for its next attempt; drop the state of any other."""
        if settlement.instruction is Instruction.KEEP:
            state.outcome, state.error, state.settled, state.outside_failures = None, None, False, 0
            self._keep(state, state.arrival)
        elif self._has_kept:
            self._unacked.pop(state.arrival, None)
        return settlement

    def _leave_gates(
        self, state: AttemptState, subscription: Subscription, verdict: Verdict, error: BaseException | None
    ) -> Verdict:
        """Return the verdict after each gate has seen it.

        If a gate raises, the next call resumes at that gate: the gates before it are not called again.
        """
        first, verdict = state.gates_left or (0, verdict)
        for number, gate in enumerate(self._surroundings.gates[first:], first):
            try:
                verdict = gate.leave(state.delivery, subscription, verdict, error)
            except BaseException:
                state.gates_left = number, verdict
                raise
        state.gates_left = None
        return verdict

    def _with_answer(self, state: AttemptState, subscription: Subscription, answer: object) -> Settlement:
        try:
            return self._answered(state.settlement, state.delivery, subscription, answer)
        except BaseException:  # noqa: BLE001 - the handler has run: an answer that fails must not run it again
            log_failure("The answer cannot be encoded; the message is settled without it")
            return state.settlement

    def _carry_out(self, state: AttemptState, subscription: Subscription) -> None:
        """Make the settlement of the verdict; if the message makes that fail, park the message."""
        verdict, delivery = state.verdict, state.delivery
        if verdict.kind is Kind.PARK:
            verdict = state.verdict = grouped(verdict, delivery, subscription, state.error)
        try:
            now, nonce = self._surroundings.now_ms(), self._nonce()
            settlement = settle(verdict, delivery, subscription, now=now, nonce=nonce, traceparent=state.traceparent)
            if settlement.copy is not None:
                # A copy that fails in the connection would be sent again without end.
                self._surroundings.check(settlement.copy)
            state.settlement = settlement
        except Exception as broken:  # noqa: BLE001 - no content of a message may keep it in the queue
            self._park_in_bytes(state, unsettled(broken, verdict), subscription.park)
        # The gates and journals that follow must not write into a transaction that nobody commits.
        log_left_open(f"The policy or fingerprint of handler {subscription.name}", self._surroundings.tidied())

    def _park_in_bytes(self, state: AttemptState, verdict: Verdict, park: str) -> None:
        subscription, delivery = state.subscription, state.delivery
        verdict = state.verdict = grouped(verdict, delivery, subscription, None)
        name = "" if subscription is None else subscription.name
        now, nonce = self._surroundings.now_ms(), self._nonce()
        state.settlement = parked_in_bytes(verdict, delivery, park, handler=name, now=now, nonce=nonce)

    def _note(self, state: AttemptState, verdict: Verdict, *, since: float) -> None:
        finished = FinishedAttempt(
            delivery=state.delivery,
            verdict=verdict,
            subscription=state.subscription,
            seconds=self._surroundings.clock() - since,
            error=state.error,
            traceparent=state.traceparent,
        )
        notify_each([journal.note for journal in self._surroundings.journals], finished)

    def _judged(self, delivery: Delivery, subscription: Subscription, error: BaseException) -> Verdict:
        """Return the policy's verdict; park if the policy fails, or if the body or ordering key is unreadable."""
        if isinstance(error, UndecodableBody):
            return park(Reason.UNDECODABLE_BODY, str(error), ErrorNote.of(error))
        if isinstance(error, NoKey):
            return park(Reason.PERMANENT, str(error), ErrorNote.of(error.__cause__ or error))
        since = stamp_of(delivery).since
        age = max(0.0, (self._surroundings.now_ms() - since) / 1000) if since else 0.0
        failure = Failure(delivery=delivery, error=error, chance=self._surroundings.chance(), age=age)
        broken: BaseException
        try:
            with forks.ending():
                verdict = subscription.policy.judge(failure)
            if 0 <= verdict.after <= LONGEST:
                return verdict
            broken = ValueError(f"the wait of {verdict.after!r} s is invalid")
        except BaseException as raised:  # noqa: BLE001 - a predicate or back-off function of the project may raise
            broken = raised
        return park(Reason.PERMANENT, f"The policy failed on {ErrorNote.of(error)}", ErrorNote.of(broken))

    def _unattempted(self, state: AttemptState, verdict: Verdict) -> Settlement:
        """Park a message that is not attempted."""
        work_queue = self._work_queues[state.arrival.queue]
        if work_queue.auto_ack:
            state.verdict, state.settlement = lost(verdict), DONE
        else:
            state.verdict = grouped(verdict, state.delivery, None, None)
            try:
                now, nonce = self._surroundings.now_ms(), self._nonce()
                settlement = unhandled(state.verdict, state.delivery, work_queue, now=now, nonce=nonce)
                if settlement.copy is not None:
                    self._surroundings.check(settlement.copy)
                state.settlement = settlement
            except Exception as broken:  # noqa: BLE001 - as above
                self._park_in_bytes(state, unsettled(broken, state.verdict), work_queue.park)
        with self._surroundings.around():
            self._note(state, state.verdict, since=state.began)
        return state.settlement

    def _give_up(self, state: AttemptState, error: BaseException) -> Settlement:
        """Park a message that can be neither attempted nor settled in another way, with its original bytes."""
        began = self._surroundings.clock()
        work_queue = self._work_queues[state.arrival.queue]
        subscription = state.subscription = work_queue.presumed(state.delivery)
        state.delivery = replace(state.delivery, attempt=state.number, key=state.key)
        detail = f"{_begun(state)}: {ErrorNote.of(error)}"
        verdict = replace(park(Reason.UNSETTLED, detail, ErrorNote.of(error)), counted=False)
        if work_queue.auto_ack:
            state.verdict, state.settlement = lost(verdict), DONE
        else:
            self._park_in_bytes(state, verdict, work_queue.park)
        state.error = error
        with self._surroundings.around():
            if subscription is not None and subscription.order_by is not None and state.key is not None:
                self._leave_gates_given_up(state, subscription)
            self._note(state, state.verdict, since=began)
        return state.settlement

    def _leave_gates_given_up(self, state: AttemptState, subscription: Subscription) -> None:
        """Let later messages of the key wait behind this one; if this message makes the gates fail, they continue."""
        state.gates_left = None
        try:
            self._leave_gates(state, subscription, state.verdict, state.error)
        except Exception as error:
            if self._surroundings.away(error):
                raise
            log.exception("A gate failed for a message that is given up; the messages behind it continue")

    def _nonce(self) -> int:
        return int(self._surroundings.chance() * 2**53)

    def _answered(
        self, settlement: Settlement, delivery: Delivery, subscription: Subscription, answer: object
    ) -> Settlement:
        """Return the settlement with an answer, if the message names a reply queue that the settings allow."""
        to = delivery.reply_to
        if not to or (isinstance(answer, BaseException) and not subscription.policy.answers):
            return settlement
        if not any(fnmatchcase(to, pattern) for pattern in self._surroundings.reply_to):
            self._surroundings.refused(to)
            return settlement
        return replace(settlement, answer=answer_to(delivery, answer, subscription.codec))


def _begun(state: AttemptState) -> str:
    """Return a sentence on how the handler ended, for a message that is given up."""
    error = HandlerSkipped(ACK) if state.outcome is None else state.outcome[1]
    if error is None:
        return "Its handler succeeded, but the next step failed"
    if isinstance(error, HandlerSkipped):
        return "No attempt can be made"
    return f"Its handler failed ({ErrorNote.of(error)}), and so did the next step"

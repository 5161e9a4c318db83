"""One attempt, from delivery to settlement."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from django_rmq_retry.consumer.deadlines import HUNG, Deadlines, HandlerAbandoned, Run
from django_rmq_retry.errors import UndecodableBody, UndecodableHeaders
from django_rmq_retry.handlers.attempt import (
    FinishedAttempt,
    Instead,
    Surroundings,
    Unready,
    grouped,
    left_unready,
    storied,
    tell_each,
    tell_failed,
)
from django_rmq_retry.handlers.settlement import (
    ended,
    feasible,
    lost,
    parked_in_bytes,
    set_apart,
    settle,
    unhandled,
    waits_on,
)
from django_rmq_retry.handlers.subscription import Intake, NoKey, Subscription, ready, restore_origin
from django_rmq_retry.messages.codecs import JSON, Codec
from django_rmq_retry.messages.deaths import Reason, counts_losses_only, returns
from django_rmq_retry.messages.headers import Headers
from django_rmq_retry.messages.message import DONE, Delivery, Message, Settlement, Tell
from django_rmq_retry.messages.parked import ROOM
from django_rmq_retry.messages.properties import Properties, has_headers
from django_rmq_retry.messages.seconds import LONGEST
from django_rmq_retry.messages.stamp import ANSWER, FAILED, MARK, story
from django_rmq_retry.messages.tracebacks import ErrorNote
from django_rmq_retry.policies.policy import Failure, Policy
from django_rmq_retry.policies.verdict import ACK, Kind, Verdict, park, retry

SUSPICIOUS = 3
"""So often a message may come back before it is tried alone: a worker's orderly stop counts too (before 4.3)."""
STOPS = 4
"""So many returns weigh as much as one crash where stops count too and a message cannot be tried alone."""


def crashed(delivery: Delivery, subscription: Subscription, limit: int | None, *, movable: bool) -> Verdict | None:
    """To be parked, or retried where it is tried alone; None where it is attempted as any other.

    All that such a worker held comes back with the same count, so what is movable is tried alone before it is parked.
    """
    came_back = returns(delivery.headers, redelivered=delivery.redelivered)
    # A line that is halted gives its message back again and again, and never gives it up for that.
    if limit is None or not came_back or subscription.policy.ordered:
        return None
    said = f"Came back {came_back} times from workers that stopped or went away while they held it"
    if movable and len(delivery.raw) <= ROOM:
        if came_back < min(SUSPICIOUS, limit):
            return None
        return retry(0.0, detail=f"{said}; it is tried alone next.", counted=False)
    own = subscription.policy.via.returns(subscription.route, delivery)
    # A line that keeps the order of keys gives back by closing its channel, which every version counts as a loss.
    if not delivery.apart and (subscription.order_by is not None or not counts_losses_only(delivery.headers)):
        limit *= STOPS
    if own is None or came_back < limit + own:
        return None
    # Not as its carrier counts: to one that counts returns, stops and crashes are attempts.
    delivery.attempt = ended(delivery) + 1
    return replace(park(Reason.CRASHED, f"{said}."), counted=False)


log = logging.getLogger("django_rmq_retry")

MISHAPS = 3
"""So often an attempt may fail before or after its handler; then the message is parked for it."""


class Attempts:
    """Makes attempts; shared by all worker threads, and keeps nothing between two deliveries."""

    def __init__(self, intakes: Sequence[Intake], surroundings: Surroundings) -> None:
        self.deadlines = Deadlines(surroundings.interrupted)
        intakes = [self.deadlines.limited(intake) for intake in intakes]
        self._intakes: Mapping[str, Intake] = {intake.queue.name: intake for intake in intakes}
        self._apart = {intake.suspects: intake.queue.name for intake in intakes if intake.suspects is not None}
        self._only = {name: intake.subscriptions[0] for name, intake in self._intakes.items() if not intake.dispatches}
        self._out = surroundings

    def settlement(self, delivery: Delivery, begin: Callable[[Delivery], None] | None = None) -> Settlement:
        """Make the attempt and say how it is settled; ``begin`` is told before a handler is run."""
        began = self._out.clock()
        plain = not delivery.redelivered and not has_headers(delivery.raw)
        subscription = self._only.get(delivery.queue) if plain else None
        if subscription is None:
            found = self._look(delivery)
            if isinstance(found, Settlement):
                return found
            if isinstance(found, Verdict):
                return self._unhandled(delivery, found, began)
            subscription = found
        return self._attempt(delivery, subscription, began, begin)

    def key(self, delivery: Delivery) -> tuple[str, str] | None:
        """Of a message whose order counts its handler and its key; None for any other, and where neither is known."""
        plain = not delivery.redelivered and not has_headers(delivery.raw)
        subscription = self._only.get(delivery.queue) if plain else None
        if subscription is None:
            intake = self._intakes[self._apart.get(delivery.queue, delivery.queue)]
            try:
                restore_origin(delivery, intake.queue.name)
                delivery.headers.check()
                subscription = intake.choose(delivery)
            except UndecodableHeaders:
                return None
        if subscription is None or subscription.order_by is None or ready(delivery, subscription) is not None:
            return None
        delivery.decoded = True
        return subscription.name, delivery.key or ""

    def _look(self, delivery: Delivery) -> Subscription | Verdict | Settlement:
        """Who takes the delivery; or why nobody shall; or, where its time has not come, how it waits on."""
        # Noted in the delivery, for it may be looked at again after something outside its handler failed.
        apart = delivery.apart = delivery.apart or delivery.queue in self._apart
        intake = self._intakes[self._apart.get(delivery.queue, delivery.queue)]
        try:
            restore_origin(delivery, intake.queue.name)
            delivery.headers.check()
            subscription = intake.choose(delivery)
        except UndecodableHeaders as error:
            return park(Reason.UNDECODABLE_HEADERS, str(error), ErrorNote.of(error))
        if subscription is None:
            kind = f" of type {delivery.type!r}" if delivery.type else ""
            return park(
                Reason.UNHANDLED,
                f"No handler of queue {delivery.queue!r} takes a message{kind} with the key {delivery.routing_key!r}.",
            )
        suspects = None if apart else intake.suspects
        verdict = None if subscription.order_by else self._crashed(delivery, subscription, suspects)
        if verdict is not None and suspects is not None and verdict.kind is Kind.RETRY:
            settlement = set_apart(delivery, suspects)
            self._note(delivery, verdict, subscription, self._out.clock())
            return settlement
        if verdict is not None:
            return verdict
        on_its_way = waits_on(delivery, subscription) if MARK in delivery.raw else None
        if on_its_way is not None:
            return on_its_way
        if delivery.attempt == 1:
            delivery.attempt = subscription.policy.via.attempt(subscription.route, delivery)
        return subscription

    def _attempt(
        self, delivery: Delivery, subscription: Subscription, began: float, begin: Callable[[Delivery], None] | None
    ) -> Settlement:
        with self._out.around():
            settlement = self._outcome(delivery, subscription, began, begin)
        delivery.ended = delivery.settled = None
        return settlement

    def _outcome(
        self, delivery: Delivery, subscription: Subscription, began: float, begin: Callable[[Delivery], None] | None
    ) -> Settlement:
        ended, answer = delivery.ended, None
        error: BaseException | None = ready(delivery, subscription) if ended is None else None
        gate = self._out.gate if subscription.gated and error is None else None
        instead = None if gate is None or ended is not None else gate.enter(delivery, subscription)
        if instead is not None:
            return _unattempted(instead, delivery)
        if error is None:
            answer, error = ended or self._run(delivery, subscription, begin)
            if isinstance(error, Unready):
                raise left_unready(gate, delivery, subscription, error)
            # From here on, no failure may run the handler again.
            delivery.ended = answer, error
        verdict, settlement = ACK, DONE
        if error is not None:
            verdict, error = self._ended(delivery, subscription, error)
        # Before anybody is told: what cannot be carried out is parked, and only that is noted.
        if verdict is not ACK:
            verdict, settlement = self._settled(verdict, delivery, subscription, error)
        if gate is not None:
            left = gate.leave(delivery, subscription, verdict, error)
            if left is not verdict:
                verdict, settlement = self._settled(left, delivery, subscription, error)
        self._note(delivery, verdict, subscription, began, error=error)
        if not verdict.counted:
            settlement = _unattempted(settlement, delivery)
        settlement = delivery.settled = self._told(
            settlement, delivery, subscription, answer if error is None else error
        )
        return settlement

    def known(self, delivery: Delivery) -> Settlement | None:
        """The settlement of an attempt that failed only after it was known, such as at the end of ``around``."""
        settlement: Settlement | None = delivery.settled
        if settlement is not None:
            delivery.ended = delivery.settled = None
        return settlement

    def abandoned(self, run: Run) -> Settlement:
        """How a message is settled whose handler hangs: as if that had raised DeadlineExceeded."""
        delivery, subscription, error = run.delivery, run.subscription, run.error()
        began = self._out.clock() - HUNG * run.seconds
        with self._out.around():
            verdict, _ = self._ended(delivery, subscription, error)
            verdict, settlement = self._settled(verdict, delivery, subscription, error)
            if subscription.gated and self._out.gate is not None:
                left = self._out.gate.leave(delivery, subscription, verdict, error)
                if left is not verdict:
                    verdict, settlement = self._settled(left, delivery, subscription, error)
            self._note(delivery, verdict, subscription, began, error=error)
        if not verdict.counted:
            settlement = _unattempted(settlement, delivery)
        settlement = self._told(settlement, delivery, subscription, error)
        # The process ends: a copy that would have waited in its hand leaves now, or its attempt would not be counted.
        return settlement if settlement.copy is None else replace(settlement, hold=0.0)

    def _told(
        self, settlement: Settlement, delivery: Delivery, subscription: Subscription, answer: object
    ) -> Settlement:
        """The settlement, with the answer or the error that a caller waits for."""
        if (answer is None or isinstance(answer, BaseException)) and not subscription.policy.answers:
            return settlement
        try:
            return self._answered(settlement, delivery, subscription, answer)
        except BaseException:  # noqa: BLE001 - the handler has done its work: it must not be done again
            tell_failed("The answer cannot be written; its message is settled without it")
            return settlement

    def _settled(
        self, verdict: Verdict, delivery: Delivery, subscription: Subscription, error: BaseException | None
    ) -> tuple[Verdict, Settlement]:
        """The verdict as it stands, and how it is carried out; what the message keeps from both is parked."""
        if verdict.kind is Kind.PARK:
            verdict = grouped(verdict, delivery, subscription, error)
        try:
            settlement = settle(verdict, delivery, subscription, now=self._out.today(), nonce=self._nonce())
            return verdict, self._writable(settlement)
        except Exception as broken:  # noqa: BLE001 - whatever a message holds, it must not stay
            return self._in_bytes(_unsettled(broken, verdict), delivery, subscription.park, subscription)

    def _in_bytes(
        self, verdict: Verdict, delivery: Delivery, park: str, subscription: Subscription | None
    ) -> tuple[Verdict, Settlement]:
        verdict = grouped(verdict, delivery, subscription, None)
        name = "" if subscription is None else subscription.name
        now, nonce = self._out.today(), self._nonce()
        return verdict, parked_in_bytes(verdict, delivery, park, handler=name, now=now, nonce=nonce)

    def _crashed(self, delivery: Delivery, subscription: Subscription, suspects: str | None) -> Verdict | None:
        return crashed(delivery, subscription, self._out.crash_limit, movable=suspects is not None)

    def _run(
        self, delivery: Delivery, subscription: Subscription, begin: Callable[[Delivery], None] | None
    ) -> tuple[object, BaseException | None]:
        """The handler's answer, or what it raised."""
        # Where order counts, what waits for another message is not parked for its returns.
        crash = self._crashed(delivery, subscription, None) if subscription.order_by else None
        if crash is not None:
            return None, Instead(crash)
        try:
            if begin is not None:
                begin(delivery)
            if subscription.once:
                return self._out.once(subscription, delivery), None
            return subscription.run(delivery), None
        except HandlerAbandoned:
            raise
        except BaseException as raised:  # noqa: BLE001 - SystemExit of one handler must not end the worker
            return None, raised

    def _ended(
        self, delivery: Delivery, subscription: Subscription, error: BaseException
    ) -> tuple[Verdict, BaseException | None]:
        """The verdict on what was raised; where the handler was not run, that it stands for itself."""
        if isinstance(error, Instead):
            return error.verdict, None
        return feasible(self._judge(subscription, delivery, error), delivery, subscription), error

    def _note(
        self,
        delivery: Delivery,
        verdict: Verdict,
        subscription: Subscription | None,
        began: float,
        *,
        error: BaseException | None = None,
    ) -> None:
        if verdict is ACK and not self._out.journal.notes_acks and not storied(delivery):
            return
        seconds = self._out.clock() - began
        tell_each(
            (self._out.journal.note,),
            FinishedAttempt(
                delivery=delivery, verdict=verdict, subscription=subscription, seconds=seconds, error=error
            ),
        )

    def _judge(self, subscription: Subscription, delivery: Delivery, error: BaseException) -> Verdict:
        """The policy's verdict; a policy that fails itself costs no message, and no policy makes a body readable."""
        if isinstance(error, UndecodableBody):
            return park(Reason.UNDECODABLE_BODY, str(error), ErrorNote.of(error))
        if isinstance(error, NoKey):
            return park(Reason.PERMANENT, str(error), ErrorNote.of(error.__cause__ or error))
        since = story(delivery).since
        age = max(0.0, (self._out.today() - since) / 1000) if since else 0.0
        failure = Failure(delivery=delivery, error=error, chance=self._out.chance(), age=age)
        try:
            return _judged(subscription.policy, failure)
        except BaseException as broken:  # noqa: BLE001 - a predicate or back-off of the project's
            return park(Reason.PERMANENT, f"The policy failed on {ErrorNote.of(error)}", ErrorNote.of(broken))

    def _unhandled(self, delivery: Delivery, verdict: Verdict, began: float) -> Settlement:
        intake = self._intakes[delivery.queue]
        if intake.lossy:
            verdict, settlement = lost(verdict), DONE
        else:
            verdict, settlement = self._unhandled_kept(grouped(verdict, delivery, None, None), delivery, intake)
        with self._out.around():
            self._note(delivery, verdict, None, began)
        return settlement

    def _unhandled_kept(self, verdict: Verdict, delivery: Delivery, intake: Intake) -> tuple[Verdict, Settlement]:
        try:
            made = unhandled(verdict, delivery, intake, now=self._out.today(), nonce=self._nonce())
            return verdict, self._writable(made)
        except Exception as broken:  # noqa: BLE001 - as above
            return self._in_bytes(_unsettled(broken, verdict), delivery, intake.park, None)

    def _writable(self, settlement: Settlement) -> Settlement:
        """Checked here: a copy that fails in the connection would be tried again without an end."""
        if settlement.copy is not None:
            self._out.check(settlement.copy)
        return settlement

    def at_fault(self, delivery: Delivery, mishap: BaseException) -> bool:
        """Whether the message itself has kept its attempt from being made, and so often that it is given up."""
        delivery.mishaps += not self._out.away(mishap)
        return delivery.mishaps >= MISHAPS

    def give_up(self, delivery: Delivery, mishap: BaseException) -> Settlement:
        """Park, as it came, what can be neither attempted nor settled otherwise."""
        began = self._out.clock()
        intake = self._intakes[self._apart.get(delivery.queue, delivery.queue)]
        subscription = _taker(intake, delivery)
        said = f"{_begun(delivery)}: {ErrorNote.of(mishap)}"
        verdict = replace(park(Reason.UNSETTLED, said, ErrorNote.of(mishap)), counted=False)
        if intake.lossy:
            verdict, settlement = lost(verdict), DONE
        else:
            verdict, settlement = self._in_bytes(verdict, delivery, intake.park, subscription)
        with self._out.around():
            if subscription is not None and subscription.order_by is not None and delivery.key is not None:
                self._left(delivery, subscription, verdict, mishap)
            self._note(delivery, verdict, subscription, began, error=mishap)
        return settlement

    def _left(self, delivery: Delivery, subscription: Subscription, verdict: Verdict, mishap: BaseException) -> None:
        """Have those of its key wait behind it; where the message keeps the gate from that as well, they go on."""
        if self._out.gate is None:
            return
        delivery.left = None
        try:
            self._out.gate.leave(delivery, subscription, verdict, mishap)
        except Exception as error:
            if self._out.away(error):
                raise
            log.exception("The messages behind one that is given up go on")

    def _nonce(self) -> int:
        return int(self._out.chance() * 2**53)

    def _answered(
        self, settlement: Settlement, delivery: Delivery, subscription: Subscription, answer: object
    ) -> Settlement:
        """The settlement with an answer, if somebody waits for one and may be answered."""
        to = delivery.reply_to
        if not to or (isinstance(answer, BaseException) and not subscription.policy.answers):
            return settlement
        if not any(fnmatchcase(to, pattern) for pattern in self._out.reply_to):
            self._out.refused(to)
            return settlement
        failed, content_type, body = _written(answer, subscription.codec)
        properties = Properties(
            content_type=content_type,
            correlation_id=delivery.correlation_id,
            delivery_mode=2,
            headers=Headers.of({ANSWER: FAILED if failed else "ok"}),
        )
        # Direct reply-to queues answer 'mandatory' wrongly: before RabbitMQ 4.1 they return what was delivered.
        mandatory = not to.startswith("amq.rabbitmq.reply-to.")
        message = Message(body=body, routing_key=to, properties=properties, mandatory=mandatory)
        return replace(settlement, answer=message)


def _unsettled(broken: Exception, verdict: Verdict) -> Verdict:
    """What becomes of a message whose verdict cannot be carried out."""
    wanted = verdict.error or verdict.detail or verdict.kind.value
    said = f"It cannot be settled ({ErrorNote.of(broken)}) after: {wanted}"
    return replace(park(Reason.UNSETTLED, said, ErrorNote.of(broken)), counted=verdict.counted)


def _begun(delivery: Delivery) -> str:
    """The outcome of the handler of a message that is given up."""
    error = Instead(ACK) if delivery.ended is None else delivery.ended[1]
    if error is None:
        return "Its handler succeeded, but what follows cannot be done"
    if isinstance(error, Instead):
        return "No attempt can be made"
    return f"Its handler failed ({ErrorNote.of(error)}), and what follows cannot be done"


def _taker(intake: Intake, delivery: Delivery) -> Subscription | None:
    try:
        return intake.choose(delivery)
    except Exception:  # noqa: BLE001 - this may be what is wrong with it
        return None if intake.dispatches else intake.subscriptions[0]


def _unattempted(settlement: Settlement, delivery: Delivery) -> Settlement:
    """What stays in hand is attempted again, and counted then: this was no attempt."""
    if settlement.tell is Tell.AGAIN:
        delivery.attempt -= 1
    return settlement


def _judged(policy: Policy, failure: Failure) -> Verdict:
    verdict = policy.judge(failure)
    if not 0 <= verdict.after <= LONGEST:
        raise ValueError(f"it waits {verdict.after!r} s")
    return verdict


def _written(answer: object, codec: Codec) -> tuple[bool, str, bytes]:
    """Whether it is an error, its content type, and its body. An error is JSON whatever codec a handler has."""
    error = answer if isinstance(answer, BaseException) else None
    if error is None:
        try:
            return False, codec.content_type, codec.encode(answer)
        except Exception as broken:  # noqa: BLE001 - the handler has done its work: it must not be done again
            error = broken
    note = ErrorNote.of(error)
    return True, JSON.content_type, JSON.encode({"error": {"type": note.kind, "message": note.text}})

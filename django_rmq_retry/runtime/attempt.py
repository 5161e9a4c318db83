"""One delivery, step by step: look, decode, run, judge; the result is a settlement, and nothing escapes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from django_rmq_retry.core.backoff import LONGEST
from django_rmq_retry.core.codec import JSON, Codec
from django_rmq_retry.core.errors import UndecodableBody, UndecodableHeaders
from django_rmq_retry.core.headers import Headers
from django_rmq_retry.core.keying import NoKey
from django_rmq_retry.core.message import Delivery, Message
from django_rmq_retry.core.policy import Failure, Policy
from django_rmq_retry.core.properties import Properties, has_headers
from django_rmq_retry.core.settlement import DONE, Settlement, Tell
from django_rmq_retry.core.settling import feasible, set_apart, settle, unhandled, waits_on
from django_rmq_retry.core.stamps import ANSWER, FAILED, MARK, story
from django_rmq_retry.core.subscription import Intake, Subscription
from django_rmq_retry.core.verdict import ACK, ErrorNote, Kind, Reason, Verdict, park
from django_rmq_retry.runtime.crashing import crashed
from django_rmq_retry.runtime.grouping import grouped
from django_rmq_retry.runtime.journal import Attempt, storied
from django_rmq_retry.runtime.preparing import ready, restore_origin
from django_rmq_retry.runtime.surroundings import Instead, Surroundings, Unready, left_unready


class Attempts:
    """Makes attempts; shared by all worker threads, and keeps nothing between two deliveries."""

    def __init__(self, intakes: Sequence[Intake], surroundings: Surroundings) -> None:
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
            self._note(delivery, verdict, subscription, self._out.clock())
            return set_apart(delivery, suspects)
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
        answer: object = None
        with self._out.around():
            error: BaseException | None = ready(delivery, subscription)
            gate = self._out.gate if subscription.gated and error is None else None
            instead = None if gate is None or delivery.ended else gate.enter(delivery, subscription)
            if instead is not None:
                return _unattempted(instead, delivery)
            # Where order counts, what waits for another message is not parked for its returns.
            crash = self._crashed(delivery, subscription, None) if subscription.order_by else None
            verdict = crash or ACK
            if error is None and crash is None:
                answer, error = delivery.ended or self._run(delivery, subscription, begin)
            if isinstance(error, Unready):
                raise left_unready(gate, delivery, subscription, error)
            ran = error
            if error is not None:
                verdict, error = self._ended(delivery, subscription, error)
            if gate is not None:
                # What a gate raises must not make the handler run again.
                delivery.ended = answer, ran
                verdict = gate.leave(delivery, subscription, verdict, error)
                delivery.ended = None
            if verdict.kind is Kind.PARK:
                verdict = grouped(verdict, delivery, subscription, error)
            self._note(delivery, verdict, subscription, began, error=error)
        settlement = DONE
        if verdict is not ACK:
            settlement = self._settled(verdict, delivery, subscription)
        if answer is None and not subscription.policy.answers:
            return settlement
        return self._answered(settlement, delivery, subscription, answer if error is None else error)

    def _settled(self, verdict: Verdict, delivery: Delivery, subscription: Subscription) -> Settlement:
        settlement = settle(verdict, delivery, subscription, now=self._out.today(), nonce=self._nonce())
        return settlement if verdict.counted else _unattempted(settlement, delivery)

    def _crashed(self, delivery: Delivery, subscription: Subscription, suspects: str | None) -> Verdict | None:
        return crashed(delivery, subscription, self._out.crash_limit, movable=suspects is not None)

    def _run(
        self, delivery: Delivery, subscription: Subscription, begin: Callable[[Delivery], None] | None
    ) -> tuple[object, BaseException | None]:
        """The handler's answer, or what it raised."""
        try:
            if begin is not None:
                begin(delivery)
            if subscription.once:
                return self._out.once(subscription, delivery), None
            return subscription.run(delivery), None
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
        self._out.journal.note(
            Attempt(delivery=delivery, verdict=verdict, subscription=subscription, seconds=seconds, error=error)
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
        verdict = grouped(verdict, delivery, None, None)
        with self._out.around():
            self._note(delivery, verdict, None, began)
        return unhandled(verdict, delivery, self._intakes[delivery.queue], now=self._out.today(), nonce=self._nonce())

    def _nonce(self) -> int:
        return int(self._out.chance() * 2**53)

    def _answered(
        self, settlement: Settlement, delivery: Delivery, subscription: Subscription, answer: object
    ) -> Settlement:
        """The settlement with an answer, if somebody waits for one and may be answered."""
        to = delivery.reply_to
        if not to or not any(fnmatchcase(to, pattern) for pattern in self._out.reply_to):
            return settlement
        if isinstance(answer, BaseException) and not subscription.policy.answers:
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

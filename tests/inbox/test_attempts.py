"""Results of the inbox in an attempt: a duplicate, a message to park, or no attempt possible now."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from django_rmq_retry import Breaker, Delivery, Queue, RetryThenPark
from django_rmq_retry.consumer.events import Events
from django_rmq_retry.handlers import Subscription
from django_rmq_retry.handlers.call import HandlerSkipped, OnceState, Unready
from django_rmq_retry.handlers.loop import LoopEnded
from django_rmq_retry.messages import DONE, Reason, Settlement
from django_rmq_retry.policies import DUPLICATE, Kind, Verdict, park
from tests.consumer.attempts import pipeline_of
from tests.handlers.factories import delivery

CHARGE = Subscription(
    name="h", run=print, queue=Queue("payments"), policy=RetryThenPark(attempts=3), park="payments.parked", once=True
)
PARK = replace(park(Reason.CONFLICT, "another body"), counted=False)


@dataclass
class Gate:
    """A gate that admits every message and keeps the verdicts."""

    told: list[tuple[Verdict, BaseException | None]] = field(default_factory=list)
    fails: bool = False

    def enter(self, _delivery: Delivery, _subscription: Subscription) -> Settlement | None:
        return None

    def leave(
        self, _delivery: Delivery, _subscription: Subscription, verdict: Verdict, error: BaseException | None
    ) -> Verdict:
        self.told.append((verdict, error))
        if self.fails:
            raise OSError("the gate is stuck")
        return verdict


def attempts(
    says: BaseException | object, *, gate: Gate | None = None, events: Events | None = None
) -> Callable[[Delivery], Settlement]:
    """Return the result of an attempt whose inbox raises or returns this."""

    def once(_subscription: Subscription, _delivery: Delivery, _state: OnceState) -> object:
        if isinstance(says, BaseException):
            raise says
        return says

    one = replace(CHARGE, breaker=Breaker(share=0.5)) if gate else CHARGE
    journals, gates = (events or Events(lambda: 1.0),), () if gate is None else (gate,)
    return pipeline_of(one, journals=journals, gates=gates, once=once).attempt


def test_a_duplicate_is_acknowledged_and_counted() -> None:
    events = Events(lambda: 1.0)

    assert attempts(HandlerSkipped(DUPLICATE), events=events)(delivery()) is DONE
    assert (events.duplicates, events.counts[Kind.ACK]) == (1, 1)


def test_a_handled_message_does_not_count_as_a_duplicate() -> None:
    events = Events(lambda: 1.0)
    attempts(None, events=events)(delivery(headers={"rmq-retry-attempts": 1}))

    assert (events.duplicates, events.counts[Kind.ACK]) == (0, 1)


def test_a_message_for_an_operator_is_parked_without_an_attempt() -> None:
    settlement = attempts(HandlerSkipped(PARK))(delivery())

    assert settlement.copy is not None
    told = {name: settlement.copy.headers.get(f"rmq-retry-{name}") for name in ("reason", "detail", "attempts")}
    assert told == {"reason": "identity_conflict", "detail": "another body", "attempts": None}


def test_the_gate_gets_each_verdict_and_a_failing_gate_loses_none() -> None:
    gate, message = Gate(fails=True), delivery()
    settle = attempts(HandlerSkipped(PARK), gate=gate)
    with pytest.raises(OSError, match="stuck"):
        settle(message)
    gate.fails = False

    assert settle(message).copy is not None
    assert [(verdict.kind, error) for verdict, error in gate.told] == [(Kind.PARK, None)] * 2


def test_an_unavailable_database_is_an_uncounted_retry_for_the_gate() -> None:
    gate, unready = Gate(), Unready("no database")
    with pytest.raises(Unready):
        attempts(unready, gate=gate)(delivery())

    ((verdict, error),) = gate.told
    assert (verdict.kind, verdict.counted, verdict.detail, error) == (Kind.RETRY, False, "no database", unready)


def test_unavailability_is_logged_in_one_line_and_failures_with_a_traceback(caplog: pytest.LogCaptureFixture) -> None:
    bench = pipeline_of(CHARGE)
    bench.after_outside_failure(delivery(), Unready("No database."))
    bench.after_outside_failure(delivery(), LoopEnded("Handler charge was cancelled, because its process stops."))
    bench.after_outside_failure(delivery(), OSError("the disk is full"))

    assert [(one.levelno, one.getMessage(), bool(one.exc_info)) for one in caplog.records] == [
        (logging.WARNING, "No database. The message stays unacked for 5.0 s.", False),
        (
            logging.WARNING,
            "Handler charge was cancelled, because its process stops. The message returns to its queue.",
            False,
        ),
        (logging.ERROR, "The attempt failed outside its handler; the message stays unacked for 5.0 s", True),
    ]

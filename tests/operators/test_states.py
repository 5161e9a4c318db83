"""The states of a record against a model: whatever is done, in whatever order, a message is where it should be."""

import time
from contextlib import ExitStack
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from django_rmq_retry import Delivery, Message, RetryThenPark
from django_rmq_retry.amqp import Done, PublishEnd
from django_rmq_retry.messages import ErrorNote, Reason
from django_rmq_retry.models import AuditHead, ErrorGroup, OperatorAction, ParkedMessage, RequeueItem, RequeueRun, State
from django_rmq_retry.models.runs import ItemState
from django_rmq_retry.parked.requeue import requeue
from django_rmq_retry.policies import park
from tests.handlers.factories import arrived, delivery, settled, subscription
from tests.operators.invariants import check_books
from tests.operators.made import QUEUE, discard_messages, hold_messages, restore_messages, unhold_messages
from tests.parked.arrivals import record_store, ticket_in
from tests.parked.made import copy_succeeded
from tests.tooling.brokers import replaced_by
from tests.tooling.results import OF_KIND

HANDLED = subscription(RetryThenPark(), queue=QUEUE, park=f"{QUEUE}.parked")
FAILED = park(Reason.EXHAUSTED, "Gave up", ErrorNote(kind="BankDown", text="timeout"))
OPEN, UNDER_WAY = {"parked", "on_hold"}, {"requeueing", "requeued"}


@dataclass(slots=True)
class Model:
    """The expected state of a record."""

    state: str = "parked"
    cycle: int = 1
    unconfirmed: bool = False


class Broker:
    """Stands in for the broker: copies that were delivered lie here until they are handled."""

    def __init__(self) -> None:
        self.outcome = PublishEnd.CONFIRMED
        self.delivers = True
        self.copies: list[Message] = []

    def send(self, message: Message, done: Done, *, timeout: float | None = None) -> None:
        if self.delivers:
            self.copies.append(message)
        done(OF_KIND[self.outcome])


class Records(RuleBasedStateMachine):
    """Two messages, all actions of operators on them, and all outcomes of their copies."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.broker = Broker()
        self.stack.enter_context(replaced_by(self.broker))
        self.record_store = record_store({f"{QUEUE}.parked": QUEUE})
        OperatorAction.objects.all()._raw_delete("default")
        for model in (AuditHead, RequeueRun, ParkedMessage, ErrorGroup):
            model.objects.all().delete()
        self.arrivals: list[Delivery] = []
        self.models: dict[int, Model] = {}
        for number in (1, 2):
            self.fail(delivery(queue=QUEUE, message_id=f"m-{number}", body=b'{"amount": 100.00}'))
        for pk in ParkedMessage.objects.values_list("pk", flat=True):
            self.models[pk] = Model()

    def teardown(self) -> None:
        self.stack.close()

    def fail(self, one: Delivery) -> None:
        """Its last attempt failed: a copy goes to the parked queue, and from there into the database."""
        later()
        copy = settled(FAILED, one, HANDLED, now=time.time_ns() // 1_000_000).copy
        assert copy is not None
        self.arrivals.append(arrived(copy, queue=f"{QUEUE}.parked"))
        [stored] = self.record_store.store(self.arrivals[-1:])
        assert not stored.problem
        later()

    def chosen(self, number: int) -> tuple[int, Model]:
        return sorted(self.models.items())[number]

    @rule(
        number=st.integers(0, 1),
        outcome=st.sampled_from([PublishEnd.CONFIRMED, PublishEnd.UNKNOWN, PublishEnd.RETURNED, PublishEnd.UNSENT]),
        delivered=st.booleans(),
        insists=st.sets(st.sampled_from(["on_hold", "unconfirmed"])),
    )
    def requeue_it(self, number: int, outcome: PublishEnd, insists: set[str], *, delivered: bool) -> None:
        pk, model = self.chosen(number)
        doubtful = outcome is PublishEnd.UNKNOWN
        self.broker.outcome, self.broker.delivers = outcome, outcome is PublishEnd.CONFIRMED or (doubtful and delivered)
        before = len(self.broker.copies)
        requeue([pk], by="ann", include=["succeeded", "discarded", "unhandled", "under_way", *insists], wait=0.0)
        found = {"on_hold": model.state == "on_hold", "unconfirmed": model.unconfirmed}
        sendable = model.state in OPEN and not any(found[name] for name in found if name not in insists)

        assert len(self.broker.copies) - before == int(sendable and self.broker.delivers)
        if not sendable or outcome in (PublishEnd.RETURNED, PublishEnd.UNSENT):
            return
        model.cycle += 1
        model.state, model.unconfirmed = ("parked", True) if doubtful else ("requeued", False)

    @precondition(lambda self: self.broker.copies)
    @rule(data=st.data(), killed=st.booleans())
    def handle_a_copy(self, data: st.DataObject, *, killed: bool) -> None:
        """It succeeds; a consumer that is killed before the ack gets it once more."""
        copy = self.taken(data, stays=killed)
        record, cycle = ticket_of(copy)
        later()
        copy_succeeded(record, cycle)
        model = self.models[record]
        if cycle == model.cycle and model.state in OPEN | UNDER_WAY:
            model.state, model.unconfirmed = "processed", False

    @precondition(lambda self: self.broker.copies)
    @rule(data=st.data(), killed=st.booleans())
    def fail_a_copy(self, data: st.DataObject, *, killed: bool) -> None:
        copy = self.taken(data, stays=killed)
        record, cycle = ticket_of(copy)
        self.fail(arrived(copy, queue=QUEUE))
        model = self.models[record]
        if cycle < model.cycle:
            return
        model.state = "on_hold" if model.state == "on_hold" else "parked"
        model.unconfirmed = False

    @rule(data=st.data())
    def deliver_a_parked_copy_twice(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.arrivals))
        again = Delivery(queue=one.queue, body=one.body, raw=one.raw, redelivered=True)
        self.record_store.store([again])

    @rule(number=st.integers(0, 1))
    def discard_it(self, number: int) -> None:
        pk, model = self.chosen(number)
        done = discard_messages([pk])

        assert done.changed == (model.state in OPEN)
        model.state = "discarded" if done.changed else model.state

    @rule(number=st.integers(0, 1))
    def restore_it(self, number: int) -> None:
        pk, model = self.chosen(number)
        done = restore_messages([pk])

        assert done.changed == (model.state == "discarded")
        model.state = "parked" if done.changed else model.state

    @rule(number=st.integers(0, 1))
    def hold_it(self, number: int) -> None:
        pk, model = self.chosen(number)
        done = hold_messages([pk])

        assert done.changed == (model.state in OPEN)
        model.state = "on_hold" if done.changed else model.state

    @rule(number=st.integers(0, 1))
    def release_it(self, number: int) -> None:
        pk, model = self.chosen(number)
        done = unhold_messages([pk])

        assert done.changed == (model.state == "on_hold")
        model.state = "parked" if done.changed else model.state

    @invariant()
    def records_are_as_the_model_says(self) -> None:
        rows = ParkedMessage.objects.all()

        assert {row.pk: Model(row.state, row.cycle, row.unconfirmed) for row in rows} == self.models
        assert {bytes(row.body) for row in rows} == {b'{"amount": 100.00}'}

    @invariant()
    def nothing_is_under_way_without_a_copy(self) -> None:
        alive = {ticket_of(copy) for copy in self.broker.copies}
        for pk, model in self.models.items():
            assert model.state not in UNDER_WAY or (pk, model.cycle) in alive

    @invariant()
    def numbers_and_the_log_are_whole(self) -> None:
        check_books()
        assert not RequeueItem.objects.filter(state=ItemState.CLAIMED).exists()
        assert not ParkedMessage.objects.filter(state=State.REQUEUEING).exists()

    def taken(self, data: st.DataObject, *, stays: bool) -> Message:
        copy = data.draw(st.sampled_from(self.broker.copies))
        if not stays:
            self.broker.copies.remove(copy)
        return copy


def later() -> None:
    """Until the clock of milliseconds, which parked copies go by, has moved on."""
    begun = time.time_ns() // 1_000_000
    while time.time_ns() // 1_000_000 <= begun:
        pass


def ticket_of(copy: Message) -> tuple[int, int]:
    return ticket_in(copy.headers, queue=copy.routing_key, id=copy.properties.message_id, body=copy.body)


@pytest.mark.slow
@pytest.mark.django_db
def test_records_match_a_model_after_any_sequence_of_actions() -> None:
    checks = list(HealthCheck)
    how = settings(max_examples=10, stateful_step_count=30, deadline=None, suppress_health_check=checks)
    run_state_machine_as_test(Records, settings=how)

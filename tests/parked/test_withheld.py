"""A copy that waited while its message was parked is not run: the message may have been done by hand meanwhile."""

from dataclasses import replace
from typing import Any

import pytest
from django.db import Error, InterfaceError, OperationalError, connection

from django_rmq_retry import Broadcast, Delivery, Exchange, InPlace, RetryThenPark
from django_rmq_retry.consumer.batch_attempt import BatchPipeline
from django_rmq_retry.messages import Instruction, Settlement
from django_rmq_retry.models import Attempt, ParkedMessage, State
from django_rmq_retry.parked.withheld import withheld
from tests.consumer.attempts import pipeline_of
from tests.handlers.factories import NOW, delivery, subscription
from tests.operators.made import discard_messages, hold_messages, restore_messages
from tests.parked.arrivals import by_us, change, store, the_record, ticket_header

pytestmark = [pytest.mark.django_db, pytest.mark.database]

PUBLISHED = 1_699_999_000
"""The time at which the message was published, in seconds of the epoch."""


def retried(*, since: int = NOW - 60_000) -> dict[str, Any]:
    """A first delivery of the copy of a retry; ``since`` is when the message failed first."""
    return {"headers": {"rmq-retry-attempts": 2, "rmq-retry-since": since}, "redelivered": False}


class Bank:
    """A worker of payments; those that it pays are noted."""

    def __init__(self) -> None:
        self.paid: list[Delivery] = []
        made = replace(subscription(RetryThenPark()), run=self.paid.append)
        self.pipeline: BatchPipeline = pipeline_of(made, withheld=withheld)

    def takes(self, *, of: str = "payments.quarantine", **told: Any) -> Settlement:
        """Settle the message m-1; it comes out of quarantine if no other queue is named."""
        properties = {"message_id": "m-1", "timestamp": PUBLISHED, "redelivered": True, **told}
        return self.pipeline.attempt(delivery(queue=of, **properties))


@pytest.fixture
def bank() -> Bank:
    return Bank()


@pytest.fixture
def number() -> int:
    """The number of the message that was parked while a copy of it waited in quarantine."""
    store(by_us(timestamp=PUBLISHED))
    return the_record().pk


def told() -> list[tuple[str, str]]:
    """What the history tells of copies that were not handled, and the status of the message then."""
    return list(Attempt.objects.order_by("pk").values_list("verdict", "reason"))


def test_a_message_done_by_hand_is_not_paid_once_more(bank: Bank, number: int) -> None:
    discard_messages([number], category="handled elsewhere")

    settlement = bank.takes()

    assert (bank.paid, settlement.instruction, settlement.copy) == ([], Instruction.ACK, None)
    assert (the_record().state, told()) == (State.DISCARDED, [("withheld", "discarded")])


@pytest.mark.parametrize("held", [False, True])
def test_a_copy_of_a_message_that_waits_for_an_operator_joins_it(bank: Bank, number: int, *, held: bool) -> None:
    if held:
        hold_messages([number])

    settlement = bank.takes()

    assert (bank.paid, settlement.instruction, settlement.copy) == ([], Instruction.ACK, None)
    assert (the_record().copies, the_record().attempts) == (2, 5)
    assert told() == [("withheld", "on_hold" if held else "parked")]


@pytest.mark.parametrize("state", [State.REQUEUEING, State.REQUEUED])
def test_of_a_requeued_message_only_the_copy_that_was_requeued_is_paid(bank: Bank, number: int, state: State) -> None:
    change(the_record(), state=state, cycle=2, requeued_at=the_record().recorded_at)

    old = bank.takes()
    assert (bank.paid, old.copy) == ([], None)
    bank.takes(headers=ticket_header(number, 2))

    assert len(bank.paid) == 1
    assert told() == [("withheld", state)]


def test_a_copy_of_a_requeue_that_failed_again_meanwhile_is_not_paid(bank: Bank, number: int) -> None:
    change(the_record(), state=State.PARKED, cycle=2)

    bank.takes(headers=ticket_header(number, 2))

    assert (bank.paid, the_record().state, told()) == ([], State.PARKED, [("withheld", "parked")])


def test_a_requeued_copy_that_was_not_confirmed_is_paid(bank: Bank, number: int) -> None:
    change(the_record(), state=State.PARKED, cycle=2, unconfirmed=True)

    bank.takes(headers=ticket_header(number, 2))

    assert (len(bank.paid), told()) == (1, [])


@pytest.mark.parametrize("again", [{"timestamp": PUBLISHED + 60}, {"timestamp": None}])
def test_what_may_have_been_published_after_the_decision_is_parked_and_decided_again(
    bank: Bank, number: int, again: dict[str, Any]
) -> None:
    discard_messages([number])

    copy = bank.takes(**again).copy

    assert (bank.paid, copy is not None) == ([], True)
    assert copy is not None
    assert copy.routing_key == "payments.parked"
    detail = copy.properties.headers.get("rmq-retry-detail")
    expected = f"It waited in quarantine, and message #{number} with its id and body is discarded by now"
    assert str(detail).startswith(expected)


@pytest.mark.usefixtures("number")
@pytest.mark.parametrize("copy", [{}, retried(), {"timestamp": None, **retried()}], ids=["redelivered", "retry", "old"])
@pytest.mark.parametrize("state", [State.PARKED, State.DISCARDED, State.REQUEUED, State.PROCESSED])
def test_a_copy_that_waited_in_a_paused_queue_or_for_its_retry_is_not_paid(
    bank: Bank, state: State, copy: dict[str, Any]
) -> None:
    """It was run, although its message was parked, done by hand, or on its way again."""
    now = the_record().recorded_at
    change(the_record(), state=state, parked_at=now, requeued_at=now, resolved_at=now)

    settlement = bank.takes(of="payments", **copy)

    assert (bank.paid, settlement.instruction, settlement.copy) == ([], Instruction.ACK, None)
    assert told() == [("withheld", state)]


def test_a_requeued_payment_whose_acknowledgement_was_lost_is_not_paid_once_more(bank: Bank, number: int) -> None:
    change(the_record(), state=State.REQUEUED, cycle=2, requeued_at=the_record().recorded_at)
    requeued: dict[str, Any] = {"of": "payments", "headers": ticket_header(number, 2)}

    bank.takes(**requeued, redelivered=False)
    change(the_record(), state=State.PROCESSED, resolved_at=the_record().recorded_at)
    bank.takes(**requeued)

    assert len(bank.paid) == 1


@pytest.mark.usefixtures("number")
def test_each_process_has_a_copy_of_a_broadcast_of_its_own() -> None:
    paid: list[Delivery] = []
    prices = Broadcast("payments", bindings=[Exchange("prices").bind()])
    made = replace(subscription(RetryThenPark(via=InPlace()), queue=prices), run=paid.append)
    arrival = delivery(queue="payments", redelivered=True, message_id="m-1", timestamp=PUBLISHED)
    pipeline_of(made, withheld=withheld).attempt(arrival)

    assert len(paid) == 1


@pytest.mark.parametrize("error", [OperationalError, InterfaceError])
def test_without_the_database_a_copy_is_paid_as_any_message(
    bank: Bank, monkeypatch: pytest.MonkeyPatch, error: type[Error]
) -> None:
    def fails(*_: object) -> None:
        raise error("no answer")

    monkeypatch.setattr("django_rmq_retry.parked.withheld._record_of", fails)
    bank.takes(of="payments")

    assert len(bank.paid) == 1


@pytest.mark.parametrize("first", [{}, {"headers": {"rmq-retry-queue": "payments", "rmq-retry-exchange": "bank"}}])
def test_no_database_is_asked_of_a_first_delivery(
    first: dict[str, Any], django_assert_num_queries: Any, bank: Bank
) -> None:
    with django_assert_num_queries(0):
        bank.takes(of="payments", redelivered=False, **first)


@pytest.mark.parametrize(
    "other",
    [
        {"message_id": "m-2"},
        {"body": b'{"another": 1}'},
        {"message_id": None},
        {"of": "payments", "redelivered": False},
        {"of": "payments", "timestamp": PUBLISHED + 60},
        {"of": "payments", "timestamp": None},
        {"of": "payments", "timestamp": None, **retried(since=2 * NOW)},
    ],
    ids=["id", "body", "no id", "first delivery", "newer", "perhaps newer", "failed after the decision"],
)
def test_any_other_message_is_paid(bank: Bank, number: int, other: dict[str, Any]) -> None:
    discard_messages([number])

    bank.takes(**other)

    assert len(bank.paid) == 1


def test_a_copy_of_a_message_that_was_restored_joins_it(bank: Bank, number: int) -> None:
    discard_messages([number])
    restore_messages([number])

    bank.takes()

    assert (bank.paid, told()) == ([], [("withheld", "parked")])


def test_without_the_database_a_message_from_quarantine_waits() -> None:
    def away(_delivery: Delivery) -> None:
        raise OperationalError("away")

    pipeline = pipeline_of(subscription(RetryThenPark()), withheld=away, away=lambda _error: True)
    arrival = delivery(queue="payments.quarantine", message_id="m-1")
    for _ in range(5):
        with pytest.raises(OperationalError) as raised:
            pipeline.attempt(arrival)
        assert pipeline.after_outside_failure(arrival, raised.value).instruction is Instruction.KEEP


@pytest.mark.parametrize("migrated", [True, False])
def test_a_database_without_our_tables_has_no_records_and_one_that_is_away_is_waited_for(
    bank: Bank, monkeypatch: pytest.MonkeyPatch, *, migrated: bool
) -> None:
    def fails(*_: object) -> None:
        raise OperationalError("no such table, or no answer")

    monkeypatch.setattr("django_rmq_retry.parked.withheld._record_of", fails)
    tables = [ParkedMessage._meta.db_table] if migrated else []
    monkeypatch.setattr(connection.introspection, "table_names", lambda: tables)

    if migrated:
        with pytest.raises(OperationalError):
            bank.takes()
    else:
        bank.takes()

    assert len(bank.paid) == (0 if migrated else 1)

"""The test kit: what a test lets go wrong, and what is promised all the same."""

from typing import Any

import pytest

from django_rmq_retry import Delivery, Fixed, Handler, RetryThenPark, StopTheLine, handler
from django_rmq_retry.errors import CallUnanswered, MessageNacked, MessageUnsent, PublishUnknown
from django_rmq_retry.testing import Fault, RmqTest
from tests.messages.exceptions import BankDown

pytestmark = pytest.mark.usefixtures("no_handlers")


@pytest.fixture
def done() -> list[Any]:
    """What handlers have done."""
    return []


@pytest.fixture
def charge(done: list[Any]) -> Handler[None]:
    @handler("payments.charge", policy=RetryThenPark(attempts=3, backoff=Fixed(10)), name="charge")
    def charge(message: Delivery) -> None:
        done.append(message.data)

    return charge


@pytest.fixture
def post(done: list[Any]) -> Handler[None]:
    @handler("ledger.post", policy=StopTheLine(backoff=Fixed(10)), name="post")
    def post(message: Delivery) -> None:
        done.append(message.data)

    return post


@pytest.mark.parametrize("error", [BankDown, BankDown("timeout")])
def test_a_handler_fails_as_often_as_the_fault_demands(
    rmq: RmqTest, charge: Handler[None], done: list[Any], error: Any
) -> None:
    rmq.fail_next(charge, error, times=2)
    charge.publish(1)
    rmq.drain()

    assert [one.verdict.error.kind for one in rmq.attempts(charge) if one.verdict.error] == ["BankDown", "BankDown"]
    assert rmq.waits == [10, 10]
    assert done == [1]


def test_a_crash_before_the_acknowledgement_runs_the_handler_twice(
    rmq: RmqTest, charge: Handler[None], done: list[Any]
) -> None:
    rmq.fail_next(charge, "crash before ack")
    charge.publish(1)
    rmq.drain()

    assert done == [1, 1]
    assert [(one.number, one.message.redelivered) for one in rmq.attempts(charge)] == [(1, False), (1, True)]
    assert rmq.waits == []


def test_a_message_that_kills_its_worker_is_parked(rmq: RmqTest, charge: Handler[None], done: list[Any]) -> None:
    rmq.fail_next(charge, Fault.CRASH, times=100)
    charge.publish(1)
    rmq.drain()

    assert rmq.parked(charge).code == "worker_stopped"
    assert 5 <= len(done) <= 10


def test_messages_unacked_during_a_crash_are_handled(rmq: RmqTest, charge: Handler[None], done: list[Any]) -> None:
    rmq.fail_next(charge, "crash before ack")
    for number in range(30):
        charge.publish(number)
    rmq.drain()

    assert sorted(done) == sorted([0, *range(30)])


def test_a_duplicate_is_handled_as_well_as_the_original(rmq: RmqTest, charge: Handler[None], done: list[Any]) -> None:
    rmq.fail_next(charge, "duplicate delivery")
    charge.publish(1)
    rmq.drain()

    assert done == [1, 1]


def test_a_lost_broker_connection_loses_no_message(rmq: RmqTest, charge: Handler[None], done: list[Any]) -> None:
    rmq.fail_next(charge, "broker loss")
    charge.publish(1)
    charge.publish(2)
    rmq.drain()

    assert set(done) == {1, 2}
    assert done.count(1) == 2


def test_an_ordered_queue_keeps_its_order_over_lost_connection_and_crash(
    rmq: RmqTest, post: Handler[None], done: list[Any]
) -> None:
    rmq.fail_next(post, BankDown)
    rmq.fail_next(post, "broker loss")
    rmq.fail_next(post, BankDown)
    rmq.fail_next(post, "crash before ack")
    for number in (1, 2, 3):
        post.publish(number)
    rmq.drain()

    assert done == [1, 1, 1, 2, 3]
    assert [one.number for one in rmq.attempts(post)] == [1, 2, 2, 3, 1, 1, 1]


def test_a_lost_confirm_raises_publish_unknown(rmq: RmqTest, charge: Handler[None], done: list[Any]) -> None:
    rmq.fail_next("publish", "confirm lost")

    with pytest.raises(PublishUnknown):
        charge.publish(1)
    charge.publish(1)
    rmq.drain()
    assert done == [1, 1]


@pytest.mark.parametrize(("fault", "error"), [("broker loss", MessageUnsent), ("nack", MessageNacked)])
def test_a_publish_that_fails_stores_nothing(
    rmq: RmqTest, charge: Handler[None], fault: str, error: type[Exception]
) -> None:
    rmq.fail_next("publish", fault)

    with pytest.raises(error):
        charge.publish(1)
    assert rmq.published(charge) == []
    assert rmq.drain() == 0


def test_a_retry_whose_confirm_is_lost_is_published_twice(rmq: RmqTest, charge: Handler[None], done: list[Any]) -> None:
    charge.publish(1)
    rmq.fail_next(charge, BankDown)
    rmq.fail_next("publish", "confirm lost")
    rmq.drain()

    assert done == [1, 1]
    assert [one.at for one in rmq.attempts(charge)] == [0, 10, 10.5]


def test_a_call_without_a_broker_is_unanswered_and_unsent(rmq: RmqTest, charge: Handler[None]) -> None:
    rmq.fail_next("publish", "broker loss")

    with pytest.raises(CallUnanswered) as raised:
        charge.call(1)
    assert not raised.value.sent


def test_an_impossible_fault_is_refused_with_the_possible_ones(rmq: RmqTest, charge: Handler[None]) -> None:
    with pytest.raises(ValueError, match="'crash before ack', 'duplicate delivery', 'broker loss', or an exception"):
        rmq.fail_next(charge, "confirm lost")
    with pytest.raises(ValueError, match="takes 'broker loss', 'confirm lost', 'nack', not"):
        rmq.fail_next("publish", BankDown)
    with pytest.raises(ValueError, match="'nonsense'"):
        rmq.fail_next(charge, "nonsense")
    with pytest.raises(ValueError, match="takes a handler or 'publish', not 'chrage'"):
        rmq.fail_next("chrage", BankDown)

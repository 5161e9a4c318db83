"""Tests as a project would write them, run by tests/bank/test_by_kit.py with the bank's settings."""

from typing import Any

import pytest
from django.db import transaction
from django.test import TestCase

from django_rmq_retry import publish
from django_rmq_retry.errors import CallFailed
from django_rmq_retry.testing import RmqTest, RmqTestMixin, assert_topology, message_of
from testproject.accounts.models import Account
from testproject.payments import gateway
from testproject.payments.errors import GatewayDown
from testproject.payments.handlers import cash, charge, post, quote
from testproject.payments.models import Entry, GatewayCharge, Payment
from testproject.payments.sending import send
from testproject.playing.telling import Tally

pytestmark = pytest.mark.django_db


@pytest.fixture
def account() -> Account:
    return Account.objects.create(number="DE-1", holder="Ada", balance=1000, limit=500)


def pay(account: Account, kind: str, amount: int, **options: Any) -> Payment:
    payment = Payment.objects.create(account=account, kind=kind, amount=amount)
    send(payment, **options)
    return payment


def test_a_dead_bank_is_retried_and_then_parked(rmq: RmqTest, account: Account) -> None:
    gateway.become("down")
    payment = pay(account, "card", 30)
    rmq.drain()
    parked = rmq.parked(charge)
    payment.refresh_from_db()

    assert rmq.waits == [10, 20, 40, 80]
    assert parked.reason == "Gave up after 5 attempts: GatewayDown: no answer from the other bank"
    assert parked.data == {"payment": payment.pk}
    assert (payment.state, payment.attempts) == ("new", 5)


def test_a_bank_that_comes_back_charges_once(rmq: RmqTest, account: Account) -> None:
    rmq.fail_next(charge, GatewayDown("no answer"), times=2)
    payment = pay(account, "card", 30)
    rmq.drain()
    account.refresh_from_db()

    assert rmq.waits == [10, 20]
    assert GatewayCharge.objects.count() == 1
    assert [one.data for one in rmq.published(post)] == [{"payment": payment.pk}]
    assert account.balance == 970


@pytest.mark.parametrize("fault", ["crash before ack", "duplicate delivery", "broker loss"])
def test_whatever_happens_to_the_worker_a_card_is_charged_once(rmq: RmqTest, account: Account, fault: str) -> None:
    rmq.fail_next(charge, fault)
    rmq.fail_next(post, fault)
    pay(account, "card", 30)
    rmq.drain()
    account.refresh_from_db()

    assert GatewayCharge.objects.count() == Entry.objects.count() == 1
    assert account.balance == 970
    assert len(rmq.attempts(charge)) == 2


def test_a_posting_that_fails_to_publish_is_published_by_the_next_attempt(rmq: RmqTest, account: Account) -> None:
    pay(account, "card", 30)
    rmq.fail_next("publish", "confirm lost")
    rmq.drain()

    assert [type(one.error).__name__ for one in rmq.attempts(charge)] == ["PublishUnknown", "NoneType"]
    assert (len(rmq.published(post)), Entry.objects.count()) == (2, 1)


def test_the_ledger_keeps_its_order(rmq: RmqTest, account: Account) -> None:
    poor = Account.objects.create(number="DE-2", holder="Bob", balance=0, limit=500)
    payments = [pay(one, "transfer", 10) for one in (account, poor, account)]
    rmq.advance(10)
    held = list(Entry.objects.values_list("payment_id", flat=True))
    Account.objects.filter(pk=poor.pk).update(balance=10)
    rmq.drain()

    assert held == [payments[0].pk]
    assert list(Entry.objects.values_list("payment_id", flat=True)) == [payment.pk for payment in payments]
    assert rmq.waits == [1, 2, 4, 8]


def test_cash_above_the_limit_is_retried_three_times_and_parked(rmq: RmqTest, account: Account) -> None:
    pay(account, "cash", 501, reply_to="reply-queue", correlation_id="c-1")
    rmq.drain()

    assert rmq.waits == [30, 30, 30]
    assert rmq.parked(cash).reason == "Gave up after 4 attempts: AboveLimit: 501.00 is above the limit of 500.00"
    assert rmq.parked(cash).message.routing_key == "parking-queue"
    assert rmq.messages("reply-queue") == []


def test_a_request_of_another_department_is_paid_once(rmq: RmqTest, account: Account) -> None:
    where: dict[str, Any] = {
        "exchange": "main-exchange",
        "routing_key": "srvc.transact.cash",
        "reply_to": "reply-queue",
    }
    for _ in range(2):
        publish({"num": 1, "dbt": "DE-1", "krd": "DE-2", "amount": 100, "remark": "rent"}, message_id="m-1", **where)
    rmq.drain()
    account.refresh_from_db()

    assert [answer.data for answer in rmq.messages("reply-queue")] == [{"status": "ok"}, {"status": "ok"}]
    assert account.balance == 900
    assert (Payment.objects.count(), Entry.objects.count()) == (1, 1)


@pytest.mark.parametrize(
    ("retries", "waiting", "said"),
    [
        (0, 0, "0 paid, 0 retries, 0 waiting for their next attempt, 0 parked"),
        (1, 1, "0 paid, 1 retry, 1 waiting for its next attempt, 0 parked"),
        (2, 2, "0 paid, 2 retries, 2 waiting for their next attempt, 0 parked"),
    ],
)
def test_the_demo_prints_its_counts(retries: int, waiting: int, said: str) -> None:
    tally = Tally()
    tally.retries = retries
    tally.waiting = {f"card-{number}": 1 for number in range(waiting)}

    assert tally.total() == said


def test_a_limit_raised_in_time_pays_the_cash(rmq: RmqTest, account: Account) -> None:
    pay(account, "cash", 501, reply_to="reply-queue", correlation_id="c-1")
    rmq.advance(89)
    Account.objects.update(limit=600)
    rmq.drain()
    (answer,) = rmq.messages("reply-queue")

    assert (answer.correlation_id, answer.data) == ("c-1", {"status": "ok"})
    assert rmq.now == 90


@pytest.mark.usefixtures("rmq")
def test_a_quote_is_answered_or_fails_at_the_caller() -> None:
    assert quote.call({"pair": "EURUSD"}) == {"pair": "EURUSD", "rate": "1.0831"}
    with pytest.raises(CallFailed, match="UnknownPair: EURXXX"):
        quote.call({"pair": "EURXXX"})


@pytest.mark.usefixtures("rmq")
def test_a_handler_can_be_called_as_a_function(account: Account) -> None:
    payment = Payment.objects.create(account=account, kind="transfer", amount=10)
    post(message_of({"payment": payment.pk}))

    assert Entry.objects.get().payment == payment


class TransferTest(RmqTestMixin, TestCase):
    def test_a_transfer_is_published_on_commit(self) -> None:
        account = Account.objects.create(number="DE-1", holder="Ada", balance=1000, limit=500)
        with self.captureOnCommitCallbacks(execute=True), transaction.atomic():
            pay(account, "transfer", 10)
            assert self.rmq.published(post) == []
        self.rmq.drain()

        assert Entry.objects.count() == 1


def test_the_topology_equals_its_snapshot(request: pytest.FixtureRequest) -> None:
    assert_topology(request.path.parent / "topology.json")

"""Cash, on a topology older than the project: rejected, round by the retry queue, and parked after three retries."""

import json

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.bank.bank import Bank
from tests.bank.looking import depth, taken, told
from tests.tooling.vhosts import Vhost
from tests.tooling.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.on_both]


def spy_on(amqp: BlockingChannel) -> str:
    """A queue that gets a copy of everything that goes round by retry-exchange."""
    amqp.queue_declare("spy", durable=True)
    amqp.queue_bind("spy", "retry-exchange")
    return "spy"


@pytest.mark.usefixtures("bank")
def test_the_topology_has_the_names_and_the_ways_it_had_before(vhost: Vhost) -> None:
    arguments = {name: row["arguments"] for name, row in vhost.queues().items()}

    assert arguments["main-queue"]["x-dead-letter-exchange"] == "retry-exchange"
    assert arguments["retry-queue"]["x-dead-letter-exchange"] == "main-exchange"
    assert arguments["retry-queue"]["x-message-ttl"] == 500
    assert {"parking-queue", "reply-queue"} <= arguments.keys()
    assert {name: row["type"] for name, row in vhost.exchanges().items()} == {
        "main-exchange": "direct",
        "retry-exchange": "fanout",
    }
    assert vhost.bindings() == {
        ("main-exchange", "main-queue", "srvc.transact.cash"),
        ("retry-exchange", "retry-queue", ""),
    }


def test_cash_is_paid_and_answered_with_the_correlation_id(bank: Bank, amqp: BlockingChannel) -> None:
    bank.play("account", number="DE-1", limit=500)
    with bank.consuming():
        bank.play("pay", number="DE-1", kind="cash", amount=500, reply_to="reply-queue", correlation_id="c-1")
        properties, body = taken(amqp, "reply-queue")

    assert (properties.correlation_id, json.loads(body)) == ("c-1", {"status": "ok"})
    assert bank.play("balance", number="DE-1") == "500.00"


def test_cash_above_the_limit_goes_round_three_times_and_is_parked(bank: Bank, amqp: BlockingChannel) -> None:
    bank.play("account", number="DE-1", limit=500)
    spy = spy_on(amqp)
    with bank.consuming():
        payment = bank.play("pay", number="DE-1", kind="cash", amount=501, reply_to="reply-queue", correlation_id="c-1")
        parked = told(amqp, "parking-queue")

    assert depth(amqp, spy) == 3
    assert parked["reason"] == "retries exhausted"
    assert parked["detail"] == "Gave up after 4 attempts: AboveLimit: 501.00 is above the limit of 500.00"
    assert (parked["exchange"], parked["routing-key"]) == ("main-exchange", "srvc.transact.cash")
    assert depth(amqp, "reply-queue") == 0
    assert bank.play("state", payment=payment) == "new"
    assert bank.play("balance", number="DE-1") == "1000.00"


def test_a_limit_raised_before_the_last_retry_lets_the_cash_through(bank: Bank, amqp: BlockingChannel) -> None:
    bank.play("account", number="DE-1", limit=500)
    spy = spy_on(amqp)
    with bank.consuming():
        bank.play("pay", number="DE-1", kind="cash", amount=501, reply_to="reply-queue", correlation_id="c-1")
        wait_until(lambda: depth(amqp, spy) == 3, 30, what="three retries")
        bank.play("change", number="DE-1", limit=600)
        properties, body = taken(amqp, "reply-queue")

    assert (properties.correlation_id, json.loads(body)) == ("c-1", {"status": "ok"})
    assert bank.play("balance", number="DE-1") == "499.00"
    assert depth(amqp, "parking-queue") == 0

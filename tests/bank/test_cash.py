"""Cash, on a topology older than the project: rejected, retried by the retry queue, and parked after three retries."""

import json
from typing import Any

import pytest
from pika import BasicProperties
from pika.adapters.blocking_connection import BlockingChannel

from tests.bank.bank import Bank
from tests.bank.looking import depth, taken, told
from tests.tooling.vhosts import Vhost
from tests.tooling.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.on_both(embedded=pytest.mark.nightly)]


OK = b'{"status":"ok"}'
"""The answer as it is sent: other departments may compare its bytes."""


def spy_on(amqp: BlockingChannel) -> str:
    """A queue that gets a copy of every message through retry-exchange."""
    amqp.queue_declare("spy", durable=True)
    amqp.queue_bind("spy", "retry-exchange")
    return "spy"


@pytest.mark.usefixtures("bank")
def test_the_topology_keeps_its_former_names_and_bindings(vhost: Vhost) -> None:
    arguments = {name: row["arguments"] for name, row in vhost.queues().items()}

    assert {name: arguments[name] for name in ("main-queue", "retry-queue", "parking-queue", "reply-queue")} == {
        "main-queue": {"x-dead-letter-exchange": "retry-exchange"},
        "retry-queue": {"x-dead-letter-exchange": "main-exchange", "x-message-ttl": 500},
        "parking-queue": {},
        "reply-queue": {},
    }
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

    assert (properties.correlation_id, body) == ("c-1", OK)
    assert bank.play("balance", number="DE-1") == "500.00"


PAID = b'{"num":1,"dbt":"1001001","krd":"2002002","amount":10.23,"remark":"rent"}'
REFUSED = b'{"num":2,"dbt":"1001001","krd":"2002002","amount":210.23,"remark":"rent"}'
"""The payments of another department, as its JavaScript writes them."""


def asked(amqp: BlockingChannel, body: bytes, *, content_type: str = "application/json", **properties: Any) -> None:
    """Publish like another department, with bare pika."""
    known = BasicProperties(reply_to="reply-queue", content_type=content_type, **properties)
    amqp.basic_publish("main-exchange", "srvc.transact.cash", body, known)


@pytest.mark.nightly
def test_a_payment_of_another_department_is_made_once_and_answered(bank: Bank, amqp: BlockingChannel) -> None:
    bank.play("account", number="1001001", limit=100)
    with bank.consuming():
        for _ in range(2):
            asked(amqp, PAID, correlation_id="c-1")
            properties, body = taken(amqp, "reply-queue")

            assert (properties.correlation_id, properties.content_type) == ("c-1", "application/json")
            assert body == OK

    assert bank.play("balance", number="1001001") == "989.77"


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        (REFUSED, "AboveLimit: 210.23 is above the limit of 100.00"),
        pytest.param(
            PAID.replace(b"1001001", b"9999999"),
            "DoesNotExist: Account matching query does not exist.",
            marks=pytest.mark.nightly,
        ),
        pytest.param(PAID.replace(b"10.23", b"-1"), "ValidationError: ", marks=pytest.mark.nightly),
    ],
    ids=["above the limit", "unknown account", "negative"],
)
def test_a_payment_that_cannot_be_made_is_parked_after_its_third_return(
    bank: Bank, amqp: BlockingChannel, body: bytes, detail: str
) -> None:
    bank.play("account", number="1001001", limit=100)
    spy = spy_on(amqp)
    with bank.consuming():
        asked(amqp, body, correlation_id="c-1")
        parked = told(amqp, "parking-queue")

    assert depth(amqp, spy) == 3
    assert parked["detail"].startswith(f"Gave up after 4 attempts: {detail}")
    assert {(died["queue"], died["reason"], died["count"]) for died in json.loads(parked["x-death"])} == {
        ("main-queue", "rejected", 3),
        ("retry-queue", "expired", 3),
    }
    assert depth(amqp, "reply-queue") == 0
    assert bank.play("balance", number="1001001") == "1000.00"


def test_text_that_is_no_json_is_parked_at_once(bank: Bank, amqp: BlockingChannel) -> None:
    bank.play("account", number="1001001", limit=100)
    spy = spy_on(amqp)
    with bank.consuming():
        asked(amqp, b"please pay 10.23", content_type="text/plain", correlation_id="c-1")
        parked = told(amqp, "parking-queue")

    assert parked["reason"] == "undecodable_body"
    assert (depth(amqp, spy), depth(amqp, "reply-queue")) == (0, 0)


@pytest.mark.nightly
def test_cash_above_the_limit_is_retried_three_times_and_parked(bank: Bank, amqp: BlockingChannel) -> None:
    bank.play("account", number="DE-1", limit=500)
    spy = spy_on(amqp)
    with bank.consuming():
        payment = bank.play("pay", number="DE-1", kind="cash", amount=501, reply_to="reply-queue", correlation_id="c-1")
        parked = told(amqp, "parking-queue")

    assert depth(amqp, spy) == 3
    assert parked["reason"] == "retries_exhausted"
    assert parked["detail"] == "Gave up after 4 attempts: AboveLimit: 501.00 is above the limit of 500.00"
    assert (parked["exchange"], parked["routing-key"]) == ("main-exchange", "srvc.transact.cash")
    assert depth(amqp, "reply-queue") == 0
    assert bank.play("state", payment=payment) == "new"
    assert bank.play("balance", number="DE-1") == "1000.00"


def test_a_limit_raised_before_the_last_retry_pays_the_cash(bank: Bank, amqp: BlockingChannel) -> None:
    bank.play("account", number="DE-1", limit=500)
    spy = spy_on(amqp)
    with bank.consuming():
        bank.play("pay", number="DE-1", kind="cash", amount=501, reply_to="reply-queue", correlation_id="c-1")
        wait_until(lambda: depth(amqp, spy) == 3, 30, what="three retries")
        bank.play("change", number="DE-1", limit=600)
        properties, body = taken(amqp, "reply-queue")

    assert (properties.correlation_id, body) == ("c-1", OK)
    assert bank.play("balance", number="DE-1") == "499.00"
    assert depth(amqp, "parking-queue") == 0

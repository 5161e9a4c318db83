"""Card payments: charged by another bank, retried while it is down, parked if no retry can help."""

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.bank.bank import Bank
from tests.bank.looking import depth, told
from tests.tooling.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.on_both, pytest.mark.nightly]


def test_a_card_payment_is_charged_and_posted(bank: Bank) -> None:
    bank.play("account", number="DE-1")
    with bank.consuming():
        payment = bank.play("pay", number="DE-1", kind="card", amount=30)
        wait_until(lambda: bank.play("state", payment=payment) == "posted", 30, what="the payment is posted")

    assert bank.play("attempts", payment=payment) == 1
    assert bank.play("balance", number="DE-1") == "970.00"


def test_while_the_gateway_is_down_a_payment_is_retried_and_then_charged_once(
    bank: Bank, amqp: BlockingChannel
) -> None:
    bank.play("account", number="DE-1")
    bank.manage("gateway", "down")
    with bank.consuming():
        payment = bank.play("pay", number="DE-1", kind="card", amount=30)
        wait_until(lambda: bank.play("attempts", payment=payment) >= 2, 30, what="a second attempt")
        # Use the teller, because starting a command takes as long as all five attempts.
        bank.play("gateway", mode="up")
        wait_until(lambda: bank.play("state", payment=payment) == "posted", 30, what="the payment is posted")

    assert bank.play("charges", payment=payment) == 1
    assert bank.play("balance", number="DE-1") == "970.00"
    assert depth(amqp, "payments.charge.parked") == 0


def test_a_gateway_that_stays_down_parks_the_payment_after_five_attempts(bank: Bank, amqp: BlockingChannel) -> None:
    bank.play("account", number="DE-1")
    bank.play("gateway", mode="down")
    with bank.consuming():
        payment = bank.play("pay", number="DE-1", kind="card", amount=30)
        parked = told(amqp, "payments.charge.parked")

    assert bank.play("attempts", payment=payment) == 5
    assert parked["reason"] == "retries_exhausted"
    assert parked["detail"] == "Gave up after 5 attempts: GatewayDown: no answer from the other bank"
    assert (parked["attempts"], parked["queue"]) == (5, "payments.charge")
    assert bank.play("state", payment=payment) == "new"


def test_a_busy_gateway_sets_the_delay_of_the_next_attempt(bank: Bank) -> None:
    bank.play("account", number="DE-1")
    bank.play("gateway", mode="busy")
    with bank.consuming():
        payment = bank.play("pay", number="DE-1", kind="card", amount=30)
        # The gateway counts a charge before it answers; only the log shows the answer.
        wait_until(lambda: bank.attempts("retry", "charge"), 30, what="the first attempt")
        bank.play("gateway", mode="up")
        wait_until(lambda: bank.play("state", payment=payment) == "posted", 30, what="the payment is posted")

    assert [(line["attempt"], line["after"]) for line in bank.attempts("retry", "charge")] == [(1, 2.0)]


def test_a_payment_of_a_closed_account_is_parked_at_once_with_its_reason(bank: Bank, amqp: BlockingChannel) -> None:
    bank.play("account", number="DE-9", closed=True)
    with bank.consuming():
        payment = bank.play("pay", number="DE-9", kind="card", amount=30)
        parked = told(amqp, "payments.charge.parked")

    assert parked["reason"] == "permanent"
    assert parked["error"] == "AccountClosed"
    assert parked["message"] == "account DE-9 is closed"
    assert parked["attempts"] == 1
    assert bank.play("attempts", payment=payment) == 0


def test_a_message_delivered_twice_charges_once(bank: Bank) -> None:
    bank.play("account", number="DE-1")
    with bank.consuming():
        payment = bank.play("pay", number="DE-1", kind="card", amount=30)
        bank.play("send_again", payment=payment)
        later = bank.play("pay", number="DE-1", kind="card", amount=1)
        wait_until(lambda: bank.play("state", payment=later) == "posted", 30, what="a later payment is posted")
        wait_until(lambda: bank.play("state", payment=payment) == "posted", 30, what="the payment is posted")

    assert bank.play("charges", payment=payment) == 1
    assert bank.play("balance", number="DE-1") == "969.00"


def test_a_body_that_is_not_json_is_parked_unchanged(bank: Bank, amqp: BlockingChannel) -> None:
    bank.play("publish_bytes", text='{"payment": 1')
    with bank.consuming():
        parked = told(amqp, "payments.charge.parked")

    assert parked["reason"] == "undecodable_body"

"""Publishing inside a transaction: the message is sent if and only if the transaction commits."""

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.bank.bank import Bank
from tests.bank.looking import depth

pytestmark = [pytest.mark.slow, pytest.mark.on_both, pytest.mark.nightly]


def test_a_payment_and_its_message_are_committed_together(bank: Bank, amqp: BlockingChannel) -> None:
    bank.play("account", number="DE-1")

    assert bank.play("pay_in_transaction", number="DE-1", regret=False) == {"within": 0, "exists": True}
    assert depth(amqp, "payments.charge") == 1


def test_a_rolled_back_message_is_not_published(bank: Bank, amqp: BlockingChannel) -> None:
    bank.play("account", number="DE-1")

    assert bank.play("pay_in_transaction", number="DE-1", regret=True) == {"within": 0, "exists": False}
    assert depth(amqp, "payments.charge") == 0

"""The ledger: no posting overtakes a failing one."""

import pytest

from tests.bank.bank import Bank
from tests.tooling.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.on_both(embedded=pytest.mark.nightly)]


def test_the_ledger_keeps_its_order_when_the_second_posting_fails_three_times(bank: Bank) -> None:
    bank.play("account", number="DE-1", balance=100)
    bank.play("account", number="DE-2", balance=0)
    with bank.consuming():
        first = bank.play("pay", number="DE-1", kind="transfer", amount=10)
        second = bank.play("pay", number="DE-2", kind="transfer", amount=10)
        third = bank.play("pay", number="DE-1", kind="transfer", amount=10)
        wait_until(lambda: len(bank.attempts("halt", "post")) >= 3, 30, what="three failed attempts of the second")
        held = bank.play("ledger")
        bank.play("change", number="DE-2", balance=10)
        wait_until(lambda: bank.play("state", payment=third) == "posted", 30, what="the queue resumes")

    assert held == [first]
    assert bank.play("ledger") == [first, second, third]

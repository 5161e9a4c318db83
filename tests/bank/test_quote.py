"""Quotes: the caller waits for one attempt and its answer."""

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.bank.bank import Bank
from tests.bank.looking import depth

pytestmark = [pytest.mark.slow, pytest.mark.on_both]


def test_a_quote_is_answered(bank: Bank) -> None:
    with bank.consuming():
        assert bank.play("quote", pair="EURUSD") == {"answer": {"pair": "EURUSD", "rate": "1.0831"}}


def test_a_handler_that_fails_raises_at_its_caller_and_is_not_retried(bank: Bank, amqp: BlockingChannel) -> None:
    with bank.consuming():
        answer = bank.play("quote", pair="EURXXX")

    assert answer == {"failed": "UnknownPair", "said": "EURXXX"}
    assert depth(amqp, "rates.quote") == depth(amqp, "rates.quote.parked") == 0


def test_an_unanswered_call_states_that_it_was_sent(bank: Bank) -> None:
    assert bank.play("quote", pair="EURUSD", timeout=0.5) == {"unanswered": "rates.quote", "sent": True}

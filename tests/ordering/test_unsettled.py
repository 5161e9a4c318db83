"""A message that cannot be settled unchanged is parked, and blocks its key like any parked message."""

import pytest

from django_rmq_retry import Message
from django_rmq_retry.messages import Headers, Properties
from django_rmq_retry.testing import RmqTest
from tests.messages.hostile_headers import VALUES
from tests.ordering.bank import QUEUE, Bank, blocked, waiting
from tests.tooling.brokers import publish_exactly

pytestmark = [pytest.mark.database, pytest.mark.django_db(transaction=True)]


@pytest.mark.parametrize("once", [False, True])
def test_an_error_text_that_is_not_utf_8_blocks_only_its_own_key(rmq: RmqTest, once: bool) -> None:
    bank = Bank(once=once)
    bank.closed.add(1)
    table = b"\x11rmq-retry-summary" + VALUES["not UTF-8"]
    properties = Properties(delivery_mode=2, message_id="m1", headers=Headers(table))
    publish_exactly(Message(body=b'{"account": "A", "number": 1}', routing_key=QUEUE, properties=properties))
    bank.publish(2)
    bank.publish(3, account="B")
    rmq.drain()

    assert (bank.posted, blocked(), waiting()) == ([3], {"A": ("m1", True, 1)}, ["m2"])
    assert rmq.parked(bank.post).reason == "Non-retryable: Closed: 1"

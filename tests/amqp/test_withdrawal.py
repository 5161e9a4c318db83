"""Looking at the messages of a waiting queue leaves them where they are."""

from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry.amqp.withdrawal import WayBack, Withdrawal
from tests.amqp.declared import has, session_on
from tests.tooling.vhosts import Vhost

pytestmark = [pytest.mark.contract, pytest.mark.on_both]

MANY = 1500
"""So many that a quorum queue collects them when they return all at once, and mixes them."""


@pytest.mark.parametrize("kind", ["quorum", "classic"])
def test_many_messages_that_were_looked_at_return_in_their_order(
    kind: str, amqp: BlockingChannel, vhost: Vhost
) -> None:
    limit = {"x-delivery-limit": 1_000_000} if kind == "quorum" else {}
    amqp.queue_declare("wait", durable=True, arguments={"x-queue-type": kind, "x-message-ttl": 3_600_000, **limit})
    headers: Any = {"rmq-retry-attempts": 1, "rmq-retry-queue": "work"}
    for number in range(MANY):
        properties = pika.BasicProperties(delivery_mode=2, message_id=str(number), headers=headers)
        amqp.basic_publish("", "wait", b"{}", properties)
    has(amqp, "wait", MANY)

    with session_on(vhost.url) as session:
        seen: list[int] = []
        withdrawal = Withdrawal(session)
        way = WayBack(queue="wait", work="work", exchange="", key="work")
        withdrawal.look(way, lambda part: seen.extend(one.tag for one in part))
        withdrawal.end()
    has(amqp, "wait", MANY)
    found = [amqp.basic_get("wait", auto_ack=True)[1] for _ in range(MANY)]

    assert len(seen) == MANY
    assert [int(str(properties.message_id)) for properties in found if properties is not None] == [*range(MANY)]

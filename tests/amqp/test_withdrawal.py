"""Looking at the messages of a waiting queue leaves them where they are."""

import socket
from collections.abc import Sequence
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry.amqp.withdrawal import WayBack, Withdrawal, Withdrawn
from tests.amqp.declared import has, session_on
from tests.tooling.vhosts import Vhost

pytestmark = [pytest.mark.contract, pytest.mark.on_both]

MANY = 1500
"""So many that a quorum queue collects them when they return all at once, and mixes them."""


def tags(seen: Sequence[Withdrawn]) -> list[int]:
    return [one.tag for one in seen]


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


@pytest.mark.parametrize("kind", ["quorum", "classic"])
def test_a_retry_that_was_sent_does_not_return_with_its_senders_connection(
    kind: str, amqp: BlockingChannel, vhost: Vhost
) -> None:
    """A sender that waits for its database, or is killed, says nothing more on its connection."""
    arguments: Any = {"x-queue-type": kind, "x-message-ttl": 3_600_000}
    amqp.queue_declare("wait", durable=True, arguments=arguments)
    amqp.queue_declare("work", durable=True)
    headers: Any = {"rmq-retry-attempts": 1, "rmq-retry-queue": "work"}
    for _ in range(3):
        amqp.basic_publish("", "wait", b"{}", pika.BasicProperties(delivery_mode=2, headers=headers))
    has(amqp, "wait", 3)

    with session_on(vhost.url) as session:
        withdrawal = Withdrawal(session)
        taken = withdrawal.take(WayBack(queue="wait", work="work", exchange="", key="work"), 3, tags)
        sent, failed = withdrawal.send(taken[:1])
        transport = session.connection.services.transport
        assert transport is not None
        transport._sock.shutdown(socket.SHUT_RDWR)
        has(amqp, "wait", 2)
        has(amqp, "work", 1)

    assert (len(sent), failed) == (1, None)

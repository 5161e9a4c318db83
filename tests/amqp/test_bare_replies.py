"""A bare direct reply address: a broker stores it for a sender by AMQP 1.0, and takes it from no copy."""

from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry import Delivery, Queue, Republish, RetryThenPark
from django_rmq_retry.amqp import Line
from django_rmq_retry.amqp.source import PikaSource
from django_rmq_retry.handlers import Subscription
from django_rmq_retry.messages import Reason
from django_rmq_retry.policies import Verdict, park, retry
from tests.amqp.declared import declare, ready, session_on
from tests.amqp.live import Seen, consuming, publishing
from tests.amqp.recreated import OLD, recreate
from tests.handlers.factories import settled
from tests.messages.parked_copies import read_back, requeued_copy
from tests.tooling.amqp10 import send
from tests.tooling.vhosts import Vhost
from tests.tooling.waiting import wait_until

pytestmark = pytest.mark.contract
BARE = "amq.rabbitmq.reply-to"
PARKED = park(Reason.PERMANENT, "no such account")
HANDLED = Subscription(
    name="pay", run=lambda _: None, queue=Queue("work"), policy=RetryThenPark(via=Republish()), park="work.parked"
)


@pytest.fixture(autouse=True)
def _stored(vhost: Vhost) -> None:
    if vhost.version.startswith("3."):
        pytest.skip("RabbitMQ 3 stores no such message")


def carried_out(verdict: Verdict, source: PikaSource, seen: Seen, count: int) -> list[Delivery]:
    taken = [seen.next() for _ in range(count)]
    for one in taken:
        source.settle(one, settled(verdict, one, HANDLED))
    return taken


def parked_record(url: str) -> Any:
    with consuming(url, Line(queue="work.parked", prefetch=10)) as (_, seen):
        arrivals = [seen.next() for _ in range(5)]
    found = {one.body: read_back(one, {"work.parked": "work"}) for one in arrivals}
    assert sorted(found) == [b"bare", b"good 0", b"good 1", b"good 2", b"good 3"]
    return found[b"bare"]


def test_a_message_with_a_bare_reply_address_is_retried_parked_requeued(vhost: Vhost, amqp: BlockingChannel) -> None:
    for name in ("work", "work.parked"):
        amqp.queue_declare(name, durable=True)
    send(vhost.url, "work", b"bare", reply_to=BARE)
    for number in range(4):
        amqp.basic_publish("", "work", b"good %d" % number)

    with consuming(vhost.url, Line(queue="work", prefetch=10)) as (source, seen):
        first = carried_out(retry(0.001), source, seen, 5)
        assert [one.reply_to for one in first if one.body == b"bare"] == [BARE]
        carried_out(PARKED, source, seen, 5)
        wait_until(lambda: ready(amqp, "work.parked") == 5, 10)
    record = parked_record(vhost.url)
    copy = requeued_copy(body=record.body, raw=record.raw, routing_key="work", queue="work")
    with publishing(vhost.url) as publisher:
        publisher.publish(copy)
    _, properties, body = amqp.basic_get("work", auto_ack=True)

    assert (record.properties.reply_to, record.by.value) == (BARE, "consumer")
    assert properties is not None
    assert properties.headers is not None
    assert (body, properties.reply_to, properties.headers["rmq-retry-reply-to"]) == (b"bare", None, BARE)


def test_a_queue_with_a_bare_reply_address_can_be_recreated(vhost: Vhost, amqp: BlockingChannel) -> None:
    declare(vhost, OLD)
    send(vhost.url, "orders", b"bare", reply_to=BARE)
    wait_until(lambda: ready(amqp, "orders") == 1, 10)

    with session_on(vhost.url) as session:
        assert recreate(session).moved == 1
    _, properties, body = amqp.basic_get("orders", auto_ack=True)

    assert properties is not None
    assert properties.headers is not None
    assert (body, properties.reply_to, properties.headers["rmq-retry-reply-to"]) == (b"bare", None, BARE)

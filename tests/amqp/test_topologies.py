"""The topologies of the literature, in the app's own nouns: found on the broker argument by argument, and used."""

from collections.abc import Mapping
from dataclasses import dataclass

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry import DeadLetter, Exchange, Exponential, Queue, RetryThenPark, WaitQueue
from django_rmq_retry.handlers import Subscription
from django_rmq_retry.messages.deaths import rejections
from django_rmq_retry.policies import Kind
from tests.amqp.declared import Queues, arguments, declare, has, redeclare
from tests.amqp.slow_motion import SlowConsumer
from tests.handlers.factories import topology_of
from tests.tooling.vhosts import Vhost

pytestmark = [pytest.mark.contract, pytest.mark.on_both]

NO_DEAD_LETTER = {"x-dead-letter-exchange": None, "x-dead-letter-routing-key": None}


def subscribed(queue: Queue, policy: RetryThenPark, park: str) -> Subscription:
    return Subscription(name="test", run=lambda _: None, queue=queue, policy=policy, park=park)


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A topology as it was published, and the handler that declares it."""

    handler: Subscription
    queues: Queues
    exchanges: Mapping[str, str]
    bindings: set[tuple[str, str, str]]
    also: tuple[Queue, ...] = ()


WORK = Exchange("WorkExchange", "fanout")
ACME = Exchange("acme", "direct")
MAIN = Exchange("main-exchange", "direct")
PRIMARY = Exchange("primary-exchange", "direct")
KEYS = ("routing-key-a", "routing-key-b")
TOPOLOGIES = {
    "a work queue and a retry queue that dead-letter into each other's exchange": Published(
        handler=subscribed(
            Queue("WorkQueue", type=None, bindings=[WORK.bind()]),
            RetryThenPark(via=DeadLetter(exchange="RetryExchange", queue="RetryQueue", after=300)),
            "WorkQueue.parked",
        ),
        queues={
            "WorkQueue": {"x-dead-letter-exchange": "RetryExchange"},
            "RetryQueue": {"x-dead-letter-exchange": "WorkExchange", "x-message-ttl": 300000},
            "WorkQueue.parked": {},
        },
        exchanges={"WorkExchange": "fanout", "RetryExchange": "fanout"},
        bindings={("WorkExchange", "WorkQueue", ""), ("RetryExchange", "RetryQueue", "")},
    ),
    "one exchange, whose keys decide": Published(
        handler=subscribed(
            Queue("timeline", type=None, bindings=[ACME.bind("timeline")]),
            RetryThenPark(
                attempts=6,
                via=DeadLetter(
                    exchange=ACME, key="timeline_retry10", queue="timeline_retry10", after=10, back_key="timeline"
                ),
            ),
            "timeline_error",
        ),
        queues={
            "timeline": {"x-dead-letter-exchange": "acme", "x-dead-letter-routing-key": "timeline_retry10"},
            "timeline_retry10": {
                "x-dead-letter-exchange": "acme",
                "x-dead-letter-routing-key": "timeline",
                "x-message-ttl": 10000,
            },
            "timeline_error": {},
        },
        exchanges={"acme": "direct"},
        bindings={("acme", "timeline", "timeline"), ("acme", "timeline_retry10", "timeline_retry10")},
    ),
    "three retries of thirty seconds, then the parking queue; answers in a reply queue": Published(
        handler=subscribed(
            Queue("main-queue", type=None, bindings=[MAIN.bind("srvc.transact.cash")]),
            RetryThenPark(attempts=4, via=DeadLetter(exchange="retry-exchange", queue="retry-queue", after=30)),
            "parking-queue",
        ),
        queues={
            "main-queue": {"x-dead-letter-exchange": "retry-exchange"},
            "retry-queue": {"x-dead-letter-exchange": "main-exchange", "x-message-ttl": 30000},
            "parking-queue": {},
            "reply-queue": {},
        },
        exchanges={"main-exchange": "direct", "retry-exchange": "fanout"},
        bindings={("main-exchange", "main-queue", "srvc.transact.cash"), ("retry-exchange", "retry-queue", "")},
        also=(Queue("reply-queue", type=None),),
    ),
    "one wait queue for many keys; each message brings its own, growing expiration": Published(
        handler=subscribed(
            Queue("primary-queue", type=None, bindings=[PRIMARY.bind(key) for key in KEYS], arguments=NO_DEAD_LETTER),
            RetryThenPark(
                attempts=4, backoff=Exponential(10, factor=3, jitter=0.5), via=WaitQueue("wait-exchange", "wait-queue")
            ),
            "primary-queue.parked",
        ),
        queues={
            "primary-queue": {},
            "wait-queue": {"x-dead-letter-exchange": "primary-exchange"},
            "primary-queue.parked": {},
        },
        exchanges={"primary-exchange": "direct", "wait-exchange": "direct"},
        bindings={
            *(("primary-exchange", "primary-queue", key) for key in KEYS),
            *(("wait-exchange", "wait-queue", key) for key in KEYS),
        },
    ),
}


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_the_declaration_equals_the_published_topology(vhost: Vhost, amqp: BlockingChannel, name: str) -> None:
    published = TOPOLOGIES[name]
    declare(vhost, topology_of(published.handler, extra=list(published.also)))

    redeclare(amqp, published.queues)
    assert arguments(vhost) == published.queues
    assert {name: row["type"] for name, row in vhost.exchanges().items()} == published.exchanges
    assert vhost.bindings() == published.bindings


def line(vhost: Vhost, amqp: BlockingChannel, name: str) -> SlowConsumer:
    handler = TOPOLOGIES[name].handler
    declare(vhost, topology_of(handler))
    return SlowConsumer(channel=amqp, subscription=handler)


def go_round(line: SlowConsumer, waiting: str) -> Kind:
    """Fail once, and let the message return at once: it is rejected in its waiting queue instead of expired."""
    verdict = line.fail()
    tag, _, _ = line.take(waiting)
    line.channel.basic_nack(tag, requeue=False)
    return verdict.kind


def test_the_sixth_failure_goes_to_the_error_queue(vhost: Vhost, amqp: BlockingChannel) -> None:
    timeline = line(vhost, amqp, "one exchange, whose keys decide")
    sent = pika.BasicProperties(headers={"own": "kept"}, correlation_id="c-7", reply_to="reply-queue")
    amqp.basic_publish("acme", "timeline", b"post", sent)

    assert [go_round(timeline, "timeline_retry10") for _ in range(5)] == [Kind.RETRY] * 5
    tag, delivery, _ = timeline.take("timeline")
    amqp.basic_nack(tag, requeue=True)
    # The rejections of the waiting queue do not count.
    assert rejections(delivery.headers, "timeline_retry10") == 5
    assert timeline.fail().kind is Kind.PARK

    has(amqp, "timeline", 0)
    _, parked, _ = timeline.take("timeline_error")
    assert (parked.body, parked.headers["own"]) == (b"post", "kept")
    assert (parked.correlation_id, parked.reply_to) == ("c-7", "reply-queue")
    assert parked.headers["rmq-retry-reason"] == "retries_exhausted"
    assert parked.headers["rmq-retry-routing-key"] == "timeline"


def test_the_expiration_triples_and_key_and_properties_are_kept(vhost: Vhost, amqp: BlockingChannel) -> None:
    primary = line(vhost, amqp, "one wait queue for many keys; each message brings its own, growing expiration")
    properties = pika.BasicProperties(message_id="m-9", type="order", headers={"own": 1}, priority=3)
    amqp.basic_publish("primary-exchange", "routing-key-b", b"{}", properties)

    expirations = []
    for _ in range(3):
        primary.fail()
        tag, _, seen = primary.take("wait-queue")
        expirations.append(seen.expiration)
        amqp.basic_nack(tag, requeue=False)
    _, delivery, seen = primary.take("primary-queue")

    assert expirations == ["12500", "37500", "112500"]  # 10 s times 3 each time, and half of the half by chance
    assert (delivery.exchange, delivery.routing_key) == ("primary-exchange", "routing-key-b")
    assert (seen.message_id, seen.type, seen.priority, delivery.headers["own"]) == ("m-9", "order", 3, 1)

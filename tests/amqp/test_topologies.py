"""The topologies of the literature, in the app's own nouns: found on the broker argument by argument, and used."""

from typing import ClassVar

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


class TestWorkAndRetryExchange:
    """Topology 1: a work queue and a retry queue that dead-letter into each other's exchange."""

    queues: ClassVar[Queues] = {
        "WorkQueue": {"x-dead-letter-exchange": "RetryExchange"},
        "RetryQueue": {"x-dead-letter-exchange": "WorkExchange", "x-message-ttl": 300000},
        "WorkQueue.parked": {},
    }

    @pytest.fixture
    def line(self, vhost: Vhost, amqp: BlockingChannel) -> SlowConsumer:
        work = Exchange("WorkExchange", "fanout")
        policy = RetryThenPark(via=DeadLetter(exchange="RetryExchange", queue="RetryQueue", after=300))
        found = subscribed(Queue("WorkQueue", type=None, bindings=[work.bind()]), policy, "WorkQueue.parked")
        declare(vhost, topology_of(found))
        return SlowConsumer(channel=amqp, subscription=found)

    def test_the_declaration_equals_the_published_topology(self, line: SlowConsumer, vhost: Vhost) -> None:
        redeclare(line.channel, self.queues)

        assert arguments(vhost) == self.queues
        assert vhost.bindings() == {("WorkExchange", "WorkQueue", ""), ("RetryExchange", "RetryQueue", "")}
        assert {name: row["type"] for name, row in vhost.exchanges().items()} == {
            "WorkExchange": "fanout",
            "RetryExchange": "fanout",
        }

    def test_a_failure_waits_in_the_retry_queue_and_comes_back(self, line: SlowConsumer) -> None:
        line.channel.basic_publish("WorkExchange", "invoice", b"{}", pika.BasicProperties(message_id="m-1"))

        assert line.fail().kind is Kind.RETRY

        tag, _, _ = line.take("RetryQueue")
        line.channel.basic_nack(tag, requeue=False)  # as its TTL would, five minutes later
        _, delivery, _ = line.take("WorkQueue")
        assert (delivery.id, delivery.routing_key) == ("m-1", "invoice")
        assert line.subscription.policy.via.attempt(line.subscription.route, delivery) == 2


class TestTimeline:
    """Topology 2: one exchange, the keys decide; rejections of this queue alone are counted."""

    queues: ClassVar[Queues] = {
        "timeline": {"x-dead-letter-exchange": "acme", "x-dead-letter-routing-key": "timeline_retry10"},
        "timeline_retry10": {
            "x-dead-letter-exchange": "acme",
            "x-dead-letter-routing-key": "timeline",
            "x-message-ttl": 10000,
        },
        "timeline_error": {},
    }

    @pytest.fixture
    def line(self, vhost: Vhost, amqp: BlockingChannel) -> SlowConsumer:
        acme = Exchange("acme", "direct")
        via = DeadLetter(exchange=acme, key="timeline_retry10", queue="timeline_retry10", after=10, back_key="timeline")
        queue = Queue("timeline", type=None, bindings=[acme.bind("timeline")])
        found = subscribed(queue, RetryThenPark(attempts=6, via=via), "timeline_error")
        declare(vhost, topology_of(found))
        return SlowConsumer(channel=amqp, subscription=found)

    def test_the_declaration_equals_the_published_topology(self, line: SlowConsumer, vhost: Vhost) -> None:
        redeclare(line.channel, self.queues)

        assert arguments(vhost) == self.queues
        assert vhost.bindings() == {("acme", "timeline", "timeline"), ("acme", "timeline_retry10", "timeline_retry10")}

    def test_the_sixth_failure_goes_to_the_error_queue(self, line: SlowConsumer) -> None:
        line.channel.basic_publish("acme", "timeline", b"post", pika.BasicProperties(headers={"own": "kept"}))

        kinds = [self.go_round(line) for _ in range(5)]
        last = line.fail()

        assert kinds == [Kind.RETRY] * 5
        assert last.kind is Kind.PARK
        has(line.channel, "timeline", 0)
        _, parked, _ = line.take("timeline_error")
        assert (parked.body, parked.headers["own"]) == (b"post", "kept")
        assert parked.headers["rmq-retry-reason"] == "retries_exhausted"

    def test_rejections_of_another_queue_do_not_count(self, line: SlowConsumer) -> None:
        line.channel.basic_publish("acme", "timeline", b"post")
        for _ in range(3):
            self.go_round(line)

        _, delivery, _ = line.take("timeline")

        assert rejections(delivery.headers, "timeline_retry10") == 3
        assert line.subscription.policy.via.attempt(line.subscription.route, delivery) == 4

    @staticmethod
    def go_round(line: SlowConsumer) -> Kind:
        verdict = line.fail()
        tag, _, _ = line.take("timeline_retry10")
        # Rejected there instead of expired: it returns at once, with a rejection of another queue in x-death.
        line.channel.basic_nack(tag, requeue=False)
        return verdict.kind


class TestTransactions:
    """Topology 3: three retries of thirty seconds, then the parking queue; answers in a reply queue."""

    queues: ClassVar[Queues] = {
        "main-queue": {"x-dead-letter-exchange": "retry-exchange"},
        "retry-queue": {"x-dead-letter-exchange": "main-exchange", "x-message-ttl": 30000},
        "parking-queue": {},
        "reply-queue": {},
    }

    @pytest.fixture
    def line(self, vhost: Vhost, amqp: BlockingChannel) -> SlowConsumer:
        main = Exchange("main-exchange", "direct")
        via = DeadLetter(exchange="retry-exchange", queue="retry-queue", after=30)
        queue = Queue("main-queue", type=None, bindings=[main.bind("srvc.transact.cash")])
        found = subscribed(queue, RetryThenPark(attempts=4, via=via), "parking-queue")
        declare(vhost, topology_of(found, extra=[Queue("reply-queue", type=None)]))
        return SlowConsumer(channel=amqp, subscription=found)

    def test_the_declaration_equals_the_published_topology(self, line: SlowConsumer, vhost: Vhost) -> None:
        redeclare(line.channel, self.queues)
        line.channel.exchange_declare("main-exchange", "direct", durable=True)
        line.channel.exchange_declare("retry-exchange", "fanout", durable=True)

        assert arguments(vhost) == self.queues
        assert vhost.bindings() == {
            ("main-exchange", "main-queue", "srvc.transact.cash"),
            ("retry-exchange", "retry-queue", ""),
        }

    def test_after_three_retries_a_transaction_is_parked(self, line: SlowConsumer) -> None:
        properties = pika.BasicProperties(correlation_id="c-7", reply_to="reply-queue")
        line.channel.basic_publish("main-exchange", "srvc.transact.cash", b'{"amount": 1000}', properties)

        for _ in range(3):
            assert line.fail().kind is Kind.RETRY
            tag, _, _ = line.take("retry-queue")
            line.channel.basic_nack(tag, requeue=False)
        assert line.fail().kind is Kind.PARK

        _, parked, _ = line.take("parking-queue")
        assert (parked.correlation_id, parked.reply_to) == ("c-7", "reply-queue")
        assert parked.headers["rmq-retry-routing-key"] == "srvc.transact.cash"


class TestWaitExchange:
    """Topology 4: one wait queue for many keys; each message brings its own, growing expiration."""

    queues: ClassVar[Queues] = {
        "primary-queue": {},
        "wait-queue": {"x-dead-letter-exchange": "primary-exchange"},
        "primary-queue.parked": {},
    }

    def line(self, vhost: Vhost, amqp: BlockingChannel, *, first: float) -> SlowConsumer:
        primary = Exchange("primary-exchange", "direct")
        keys = [primary.bind("routing-key-a"), primary.bind("routing-key-b")]
        queue = Queue("primary-queue", type=None, bindings=keys, arguments=NO_DEAD_LETTER)
        backoff = Exponential(first, factor=3, jitter=0.5)
        policy = RetryThenPark(attempts=4, backoff=backoff, via=WaitQueue("wait-exchange", "wait-queue"))
        found = subscribed(queue, policy, "primary-queue.parked")
        declare(vhost, topology_of(found))
        return SlowConsumer(channel=amqp, subscription=found)

    def test_the_declaration_equals_the_published_topology(self, vhost: Vhost, amqp: BlockingChannel) -> None:
        self.line(vhost, amqp, first=10)
        redeclare(amqp, self.queues)
        for exchange in ("primary-exchange", "wait-exchange"):
            amqp.exchange_declare(exchange, "direct", durable=True)

        assert arguments(vhost) == self.queues
        assert vhost.bindings() == {
            (exchange, queue, key)
            for exchange, queue in (("primary-exchange", "primary-queue"), ("wait-exchange", "wait-queue"))
            for key in ("routing-key-a", "routing-key-b")
        }

    def test_the_expiration_triples_and_key_and_properties_are_kept(self, vhost: Vhost, amqp: BlockingChannel) -> None:
        line = self.line(vhost, amqp, first=10)
        properties = pika.BasicProperties(message_id="m-9", type="order", headers={"own": 1}, priority=3)
        amqp.basic_publish("primary-exchange", "routing-key-b", b"{}", properties)

        expirations = []
        for _ in range(3):
            line.fail()
            tag, _, seen = line.take("wait-queue")
            expirations.append(seen.expiration)
            amqp.basic_nack(tag, requeue=False)
        _, delivery, seen = line.take("primary-queue")

        assert expirations == ["12500", "37500", "112500"]  # 10 s times 3 each time, and half of the half by chance
        assert (delivery.exchange, delivery.routing_key) == ("primary-exchange", "routing-key-b")
        assert (seen.message_id, seen.type, seen.priority, delivery.headers["own"]) == ("m-9", "order", 3, 1)

    def test_a_short_wait_ends_by_its_expiration(self, vhost: Vhost, amqp: BlockingChannel) -> None:
        line = self.line(vhost, amqp, first=0.02)
        amqp.basic_publish("primary-exchange", "routing-key-a", b"{}")

        kinds = [line.fail().kind for _ in range(4)]

        assert kinds == [Kind.RETRY, Kind.RETRY, Kind.RETRY, Kind.PARK]
        has(amqp, "primary-queue.parked", 1)

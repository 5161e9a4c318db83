"""More channels than a connection has: idle ones are closed, and what cannot be sent or consumed ends clearly."""

from collections import defaultdict
from collections.abc import Callable

import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.connection import Parameters

from django_rmq_retry.amqp import Line, PublishEnd, PublishResult
from django_rmq_retry.errors import MessageUnsent, QueueUnusable
from tests.amqp.line_between import between
from tests.amqp.live import consuming, publishing, to
from tests.tooling.waiting import wait_until

pytestmark = [pytest.mark.contract, pytest.mark.on_both]

Limit = Callable[[int], None]


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> Limit:
    """Negotiate this number of channels for each connection, as a broker with that ``channel_max`` does."""
    return lambda most: monkeypatch.setattr(Parameters, "DEFAULT_CHANNEL_MAX", most)


def tenants(amqp: BlockingChannel, count: int) -> list[str]:
    """Declare exchanges, each with a queue of its name."""
    names = [f"tenant.{number}" for number in range(count)]
    for name in names:
        amqp.exchange_declare(name, "fanout")
        amqp.queue_declare(name)
        amqp.queue_bind(name, name)
    return names


@pytest.mark.parametrize("most", [1, 2, 16])
def test_more_exchanges_than_channels_are_published_to_in_order(
    broker_url: str, amqp: BlockingChannel, limit: Limit, most: int
) -> None:
    names = tenants(amqp, 30)
    limit(most)
    with publishing(broker_url) as publisher:
        for number in range(2):
            for name in names:
                publisher.publish(to("k", b"%d" % number, exchange=name))
        if most > 2:
            ends: dict[str, list[PublishResult]] = defaultdict(list)
            for number in range(2, 5):
                for name in names[: most // 2]:
                    publisher.send(to("k", b"%d" % number, exchange=name), ends[name].append)
            wait_until(lambda: sum(map(len, ends.values())) == 3 * (most // 2), 5)
            assert {end.kind for each in ends.values() for end in each} == {PublishEnd.CONFIRMED}

    for at, name in enumerate(names):
        got = iter(lambda name=name: amqp.basic_get(name, auto_ack=True), (None, None, None))  # type: ignore[misc]
        assert [body for _, _, body in got] == [
            b"%d" % number for number in range(5 if most > 2 and at < most // 2 else 2)
        ]


def test_a_publish_ends_as_unsent_while_every_channel_has_messages_in_flight(
    broker_url: str, amqp: BlockingChannel, limit: Limit
) -> None:
    first, second, third = tenants(amqp, 3)
    limit(4)
    with between(broker_url) as line, publishing(line.url) as publisher:
        for name in (first, second):
            publisher.publish(to("k", exchange=name))
        line.silence()
        for name in (first, second):
            publisher.send(to("k", exchange=name), lambda _result: None)
        with pytest.raises(MessageUnsent, match="no channel of the connection is free"):
            publisher.publish(to("k", exchange=third))
        line.speak()
        wait_until(lambda: amqp.queue_declare(second, passive=True).method.message_count == 2, 5)

        publisher.publish(to("k", exchange=first))
        publisher.publish(to("k", exchange=third))


@pytest.mark.parametrize("most", [1, 2])
def test_a_large_body_is_published_even_without_a_free_channel_to_test_it(
    broker_url: str, amqp: BlockingChannel, limit: Limit, most: int
) -> None:
    [name] = tenants(amqp, 1)
    limit(most)
    with publishing(broker_url) as publisher:
        publisher.publish(to("k", b"x" * 10_000, exchange=name))
        publisher.publish(to("k", b"x" * 20_000, exchange=name))

    assert amqp.queue_declare(name, passive=True).method.message_count == 2


def test_a_consumer_of_more_queues_than_channels_raises_an_explanation(
    broker_url: str, amqp: BlockingChannel, limit: Limit
) -> None:
    names = tenants(amqp, 3)
    limit(2)
    with consuming(broker_url, *(Line(queue=name, prefetch=1) for name in names)) as (_source, seen):
        wait_until(lambda: seen.failures, 5)

    [error] = seen.failures
    assert isinstance(error, QueueUnusable)
    assert error.queue == names[2]
    assert "the connection has no free channel" in str(error)

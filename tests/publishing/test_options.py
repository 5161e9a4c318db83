"""What a publish says besides its data is checked before anything is sent."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import transaction
from django.test import override_settings
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry import Delivery, Handler, Message, Raw, RetryThenPark, apublish, handler, publish, publish_many
from django_rmq_retry.errors import ConfigurationError, HeadersTooLarge, MessageUnsent
from django_rmq_retry.messages import Properties
from django_rmq_retry.publishing.options import PublishOptions
from django_rmq_retry.publishing.publish import message_of
from django_rmq_retry.testing import RmqTest, isolated_handlers
from django_rmq_retry.testing import message_of as kit_message_of
from tests.amqp.live import publishing
from tests.tooling.brokers import using_broker
from tests.tooling.vhosts import Vhost
from tests.tooling.waiting import wait_until


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"message_id": 5}, "message_id=… takes a text of at most 255 bytes, not 5"),
        ({"type": "x" * 256}, "type=… takes a text of at most 255 bytes"),
        ({"headers": ["tenant"]}, r"headers=… takes a dict, such as {'tenant': 'acme'}, not \['tenant'\]"),
        ({"headers": 7}, "headers=… takes a dict, .* not 7"),
        (
            {"expiration": timedelta(minutes=10)},
            r"expiration=… takes seconds, not a timedelta. Pass its .total_seconds",
        ),
        ({"headers": {1: 2}}, "A header's name must be a string, not 1"),
        ({"headers": {"x": "\ud800"}}, "The headers cannot be encoded"),
        ({"headers": {"x": object()}}, r"^The headers cannot be encoded: .+ in the body\.$"),
        ({"expiration": 0}, "expiration=…"),
        ({"app_id": b"shop"}, "app_id=… takes a text of at most 255 bytes, not b'shop'"),
        ({"content_type": 7}, "content_type=… takes a text of at most 255 bytes, not 7"),
        ({"content_encoding": "gzip"}, "content_encoding='gzip' requires a codec that writes it, such as Raw"),
        ({"priority": 256}, "priority=… takes a whole number from 0 to 255, not 256"),
        ({"priority": True}, "priority=… takes a whole number from 0 to 255, not True"),
        ({"priority": "high"}, "priority=… takes a whole number from 0 to 255, not 'high'"),
        ({"timestamp": datetime(2026, 11, 22)}, "timestamp=… takes a datetime with a time zone"),  # noqa: DTZ001
        ({"timestamp": 1.5}, "timestamp=… takes a datetime with a time zone, .*, not 1.5"),
        ({"timestamp": -1}, "timestamp=… takes a datetime with a time zone, .*, not -1"),
        ({"timestamp": datetime(1900, 1, 1, tzinfo=UTC)}, "timestamp=… takes a datetime with a time zone"),
        ({"user_id": "root"}, "The broker refuses user_id='root'.* which is 'guest'"),
    ],
)
def test_invalid_options_are_refused_with_a_clear_error(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        message_of({}, options=PublishOptions(**options))


def test_headers_too_large_for_a_frame_are_refused_before_sending() -> None:
    with pytest.raises(HeadersTooLarge):
        message_of({}, options=PublishOptions(headers={"x": "x" * 200_000}))


GIVEN: dict[str, Any] = {
    "headers": {"tenant": "acme"},
    "type": "scan",
    "priority": 3,
    "message_id": "m-1",
    "reply_to": "answers",
    "correlation_id": "c-1",
    "content_type": "image/png",
    "content_encoding": "gzip",
    "timestamp": datetime(2026, 11, 22, 10, tzinfo=UTC),
    "app_id": "scanner",
    "user_id": "guest",
}
ARRIVED = {
    "content_type": "image/png",
    "content_encoding": "gzip",
    "headers": {"tenant": "acme"},
    "delivery_mode": 2,
    "priority": 3,
    "correlation_id": "c-1",
    "reply_to": "answers",
    "expiration": None,
    "message_id": "m-1",
    "timestamp": 1795341600,
    "type": "scan",
    "user_id": "guest",
    "app_id": "scanner",
    "cluster_id": None,
}


def by_publish(_amqp: BlockingChannel) -> None:
    publish(b"x", routing_key="scans", codec=Raw(), **GIVEN)


def by_apublish(_amqp: BlockingChannel) -> None:
    asyncio.run(apublish(b"x", routing_key="scans", codec=Raw(), **GIVEN))


def by_publish_many(_amqp: BlockingChannel) -> None:
    publish_many([message_of(b"x", routing_key="scans", codec=Raw(), options=PublishOptions(**GIVEN))])


def by_outbox(amqp: BlockingChannel) -> None:
    with transaction.atomic():
        publish(b"x", routing_key="scans", codec=Raw(), **GIVEN)

        assert amqp.queue_declare("scans", passive=True).method.message_count == 0


@pytest.fixture
def scans(vhost: Vhost, settings: Any, amqp: BlockingChannel) -> Iterator[BlockingChannel]:
    amqp.queue_declare("scans", durable=True)
    with using_broker(settings, vhost.url):
        yield amqp


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("send", [by_publish, by_apublish, by_publish_many, by_outbox])
def test_every_property_that_a_caller_sets_reaches_the_broker(
    scans: BlockingChannel, send: Callable[[BlockingChannel], None]
) -> None:
    send(scans)
    _, properties, body = wait_until(lambda: next(scans.consume("scans", auto_ack=True, inactivity_timeout=1)))

    assert properties is not None
    assert ({name: getattr(properties, name) for name in ARRIVED}, body) == (ARRIVED, b"x")


def test_a_message_with_another_user_id_fails_alone(vhost: Vhost, amqp: BlockingChannel) -> None:
    amqp.queue_declare("scans", durable=True)
    with publishing(vhost.url) as publisher:
        foreign = Message(body=b"1", routing_key="scans", properties=Properties(user_id="root"))
        with pytest.raises(MessageUnsent, match="its user_id is not 'guest', the user of this connection"):
            publisher.publish(foreign)
        publisher.publish(replace(foreign, properties=Properties(user_id="guest")))

    assert amqp.queue_declare("scans", passive=True).method.message_count == 1


def test_a_message_with_a_forbidden_reply_address_fails_alone(vhost: Vhost, amqp: BlockingChannel) -> None:
    amqp.queue_declare("scans", durable=True)
    with publishing(vhost.url) as publisher:
        bare = Message(body=b"1", routing_key="scans", properties=Properties(reply_to="amq.rabbitmq.reply-to"))
        with pytest.raises(MessageUnsent, match=r"only a consumer of 'amq\.rabbitmq\.reply-to' may send it"):
            publisher.publish(bare)
        publisher.publish(replace(bare, properties=Properties(reply_to="answers")))

    assert amqp.queue_declare("scans", passive=True).method.message_count == 1


@pytest.fixture
def scan() -> Iterator[Handler[None]]:
    with isolated_handlers():

        @handler("scans", policy=RetryThenPark(attempts=2), codec=Raw(), name="scan")
        def scan(_message: Delivery) -> None:
            raise ValueError("unreadable")

        yield scan


def test_every_property_survives_retry_and_parking_in_the_test_kit(scan: Handler[None]) -> None:
    given = {name: value for name, value in GIVEN.items() if name != "type"}
    with RmqTest() as rmq:
        scan.publish(b"x", **given)
        rmq.drain()
        parked = rmq.parked(scan).message

    expected = {name: value for name, value in ARRIVED.items() if name not in {"headers", "user_id", "type"}}
    assert {name: getattr(parked.properties, name) for name in expected} == expected
    assert (parked.headers["tenant"], parked.properties.user_id) == ("acme", None)


def test_a_test_message_accepts_every_property(scan: Handler[None]) -> None:
    made = kit_message_of(b"x", handler=scan, **GIVEN)

    assert made.properties.app_id == "scanner"
    assert made.properties.timestamp == 1795341600


@override_settings(RMQ_RETRY={"URL": "amqp://bank:secret@rabbit/"})
def test_calls_and_the_test_kit_use_the_user_id_of_the_settings(scan: Handler[None]) -> None:
    @handler("questions", name="question")
    def question(message: Delivery) -> object:
        return [message.properties.user_id, message.properties.app_id, message.properties.timestamp]

    with RmqTest() as rmq:
        scan.publish(b"x", user_id="bank")

        assert rmq.published(scan)[0].properties.user_id == "bank"
        assert question.call(1, user_id="bank", app_id="till", timestamp=5) == ["bank", "till", 5]

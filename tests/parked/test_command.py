"""The drainer within the command: every parked message reaches the database, by whichever program it was parked."""

import json
import signal

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry.models import ParkedMessage
from tests.parked.conftest import PARKED, Park
from tests.shop.running import Shop
from tests.tooling.waiting import wait_until

pytestmark = pytest.mark.database


def rows() -> list[ParkedMessage]:
    return list(ParkedMessage.objects.using("own").order_by("pk"))


def left(amqp: BlockingChannel, queue: str = PARKED) -> int:
    return int(amqp.queue_declare(queue, passive=True).method.message_count)


def test_a_burst_ends_after_its_parked_messages_are_recorded(shop: Shop, amqp: BlockingChannel) -> None:
    for number in range(20):
        amqp.basic_publish("", "shop.orders", json.dumps({"do": "park", "n": number}).encode())

    ran = shop.run("rmq_consume", "--burst")

    assert (ran.returncode, len(rows()), left(amqp)) == (0, 20, 0)
    assert {(row.reason, row.queue, row.by) for row in rows()} == {("parked_by_handler", "shop.orders", "consumer")}


def test_a_consumer_keeps_recording_until_it_is_stopped(shop: Shop, park: Park, amqp: BlockingChannel) -> None:
    with shop.running("rmq_consume") as consumer:
        park(b"1", id="one")
        wait_until(lambda: len(rows()) == 1)
        park(b"2", id="two")
        wait_until(lambda: len(rows()) == 2)
        consumer.signal(signal.SIGTERM)

        assert consumer.code() == 0

    assert ([row.message_id for row in rows()], left(amqp)) == (["one", "two"], 0)

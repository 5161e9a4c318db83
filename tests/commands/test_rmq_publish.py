"""The command as a process, against a real broker."""

import json
from pathlib import Path
from typing import Any

import pytest
from pika import BasicProperties
from pika.adapters.blocking_connection import BlockingChannel

from tests.shop.running import Shop
from tests.tooling.waiting import wait_until

pytestmark = pytest.mark.on_both

ORDERS = "shop.orders"
WAITING = {"x-message-ttl": 200, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": ORDERS}


@pytest.fixture
def shop(broker_url: str, tmp_path: Path, amqp: BlockingChannel) -> Shop:
    amqp.queue_declare(ORDERS, durable=True, arguments={"x-max-priority": 9})
    amqp.queue_declare("shop.orders.parked", durable=True)
    amqp.queue_declare("shop.orders.retry.200ms", durable=True, arguments=WAITING)
    return Shop(url=broker_url, notes=tmp_path / "notes")


@pytest.fixture
def no_broker(tmp_path: Path) -> Shop:
    return Shop(url="amqp://app:sesame@127.0.0.1:1/", notes=tmp_path / "notes")


def arrived(amqp: BlockingChannel, queue: str = ORDERS) -> tuple[BasicProperties, bytes]:
    """The next message of a queue."""

    def get() -> Any:
        method, properties, body = amqp.basic_get(queue, auto_ack=True)
        return method and (properties, body)

    found: tuple[BasicProperties, bytes] = wait_until(get, what=f"a message in {queue}")
    return found


def test_stdin_is_published_to_a_queue_byte_for_byte(shop: Shop, amqp: BlockingChannel) -> None:
    told = shop.run("rmq_publish", "--queue", ORDERS, given=b'{"amount": 100.00}\n')
    properties, body = arrived(amqp)

    assert (told.returncode, told.stderr) == (0, "")
    assert told.stdout == f"{properties.message_id}\n"
    assert body == b'{"amount": 100.00}\n'
    assert (properties.content_type, properties.delivery_mode) == ("application/json", 2)


def test_a_file_is_published_to_a_handler(shop: Shop, tmp_path: Path) -> None:
    (tmp_path / "order.json").write_text('{"do": "a"}')
    shop.run("rmq_publish", "--handler", "tests.shop.handlers.order", str(tmp_path / "order.json"))
    shop.run("rmq_consume", ORDERS, "--burst")

    assert shop.noted("end") == ["end a"]


def test_properties_and_headers_are_published_as_given(shop: Shop, amqp: BlockingChannel) -> None:
    words = "--header a=b=c --header n:=7 --type order --priority 3 --expiration 60 --correlation-id c --message-id m"
    told = shop.run("rmq_publish", "--queue", ORDERS, *words.split(), given="{}")
    properties, _ = arrived(amqp)

    assert told.stdout == "m\n"
    assert properties.headers == {"a": "b=c", "n": 7}
    assert (properties.type, properties.priority, properties.expiration) == ("order", 3, "60000")
    assert (properties.correlation_id, properties.message_id) == ("c", "m")


def test_every_other_property_is_published_as_given(shop: Shop, amqp: BlockingChannel) -> None:
    words = (
        "--app-id scanner --user-id guest --reply-to answers --timestamp 2026-11-22T10:00:00Z "
        "--raw --content-type image/png --content-encoding gzip"
    )
    told = shop.run("rmq_publish", "--queue", ORDERS, *words.split(), given=b"\x1f\x8b")
    properties, _ = arrived(amqp)

    assert (told.returncode, told.stderr) == (0, "")
    assert (properties.app_id, properties.user_id, properties.reply_to) == ("scanner", "guest", "answers")
    assert (properties.content_type, properties.content_encoding) == ("image/png", "gzip")
    assert properties.timestamp == 1795341600


def test_a_message_is_published_to_an_exchange_by_its_routing_key(shop: Shop, amqp: BlockingChannel) -> None:
    amqp.exchange_declare("photos", "topic")
    amqp.queue_bind(ORDERS, "photos", "photo.*")
    words = ("--exchange", "photos", "--routing-key", "photo.new", "--raw", "--content-type", "image/png", "--json")
    told = shop.run("rmq_publish", *words, given=b"\x89PNG\0")
    properties, body = arrived(amqp)
    document = json.loads(told.stdout)

    assert (properties.content_type, body) == ("image/png", b"\x89PNG\0")
    assert (document["schema"], document["message_id"]) == ("rmq_retry.publish/1", properties.message_id)
    assert (document["exchange"], document["routing_key"], document["bytes"]) == ("photos", "photo.new", 5)


def test_a_delayed_message_waits_in_the_handlers_waiting_queue(shop: Shop, amqp: BlockingChannel) -> None:
    told = shop.run("rmq_publish", "--handler", "tests.shop.handlers.order", "--delay", "0.2", "--json", given="{}")

    assert json.loads(told.stdout)["routing_key"] == "shop.orders.retry.200ms"
    assert arrived(amqp)[1] == b"{}"


def test_a_message_that_no_queue_receives_is_reported(shop: Shop) -> None:
    told = shop.run("rmq_publish", "--queue", "nobodys", given="{}")

    assert (told.returncode, told.stdout) == (1, "")
    assert told.stderr.startswith(
        "CommandError: The message to the default exchange with the routing key 'nobodys' was returned"
    )


def test_a_missing_exchange_is_named_with_the_fix(shop: Shop) -> None:
    told = shop.run("rmq_publish", "--exchange", "shpo", "--routing-key", "order.new", given="{}")

    assert (told.returncode, told.stdout) == (1, "")
    assert "(exchange 'shpo' does not exist)" in told.stderr
    assert "correct the name of the exchange or the routing key" in told.stderr


def test_a_full_queue_that_refuses_the_message_is_reported(shop: Shop, amqp: BlockingChannel) -> None:
    amqp.queue_declare("full", durable=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    shop.run("rmq_publish", "--queue", "full", given="{}")
    told = shop.run("rmq_publish", "--queue", "full", given="{}")

    assert (told.returncode, "was refused by a queue" in told.stderr) == (1, True)


def test_without_a_broker_nothing_is_stored(no_broker: Shop) -> None:
    told = no_broker.run("rmq_publish", "--queue", ORDERS, "--timeout", "0.5", given="{}")

    assert (told.returncode, "Nothing was stored" in told.stderr) == (3, True)
    assert "sesame" not in told.stdout + told.stderr


@pytest.mark.parametrize(
    ("words", "given", "said"),
    [
        (("--queue", ORDERS), "{oops}", "it is not JSON"),
        (("--queue", ORDERS, "--delay", "5"), "{}", "delay=… requires a handler"),
        (("--queue", ORDERS, "--header", "rmq-retry-attempts=1"), "{}", "is reserved"),
        (("--queue", ORDERS, "--header", "n:=oops"), "{}", "'oops' is not JSON"),
        (("--queue", ORDERS, "--header", "oops"), "{}", "takes NAME=text or NAME:=json"),
        (("--queue", ORDERS, "--priority", "256"), "{}", "takes a whole number from 0 to 255, not '256'"),
        (("--queue", ORDERS, "--priority", "high"), "{}", "takes a whole number from 0 to 255, not 'high'"),
        (
            ("--queue", ORDERS, "--timestamp", "now"),
            "{}",
            "takes 2026-11-22T10:00:00Z or seconds since 1970, not 'now'",
        ),
        (("--queue", ORDERS, "--content-encoding", "gzip"), "{}", "--content-encoding requires --raw"),
        (("--queue", ORDERS, "--user-id", "root"), "{}", "The broker refuses user_id='root'"),
        (("--queue", ORDERS, "/none"), "", "/none cannot be read"),
        (("--queue", ORDERS, "--routing-key", "x"), "{}", "--queue cannot be combined with --routing-key"),
        (("--handler", "tests.shop.handlers.orders"), "{}", "Did you mean tests.shop.handlers.order?"),
        ((), "{}", "one of the arguments --handler --queue --exchange is required"),
    ],
)
def test_invalid_options_are_refused_by_publish(no_broker: Shop, words: tuple[str, ...], given: str, said: str) -> None:
    told = no_broker.run("rmq_publish", *words, given=given)

    assert (told.returncode, told.stdout) == (2, "")
    assert said in told.stderr

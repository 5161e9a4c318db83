"""The page "Replace a hand-written dead-letter loop": its steps lose nothing, and its patterns do what it says."""

import json
import os
import re
import shlex
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry.models import ParkedMessage
from tests.shop.running import Shop
from tests.tooling.filled import ALIAS, Own
from tests.tooling.pages import ROOT, blocks, page
from tests.tooling.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

INVOICES = """
from tests.shop.notes import note

def send_invoice(order):
    note(f"invoice {order}")
    if order in {2, 5, 6}:
        raise ValueError("no paper")
"""


def steps() -> list[str]:
    """The handlers of the page in their order: the loop by its names, and the loop replaced."""
    return [block.text for block in blocks(page("dead-letter-loop.md")) if block.kind == "python"]


def parked_queue() -> str:
    """The parked queue of the page that takes the place of the old retry queue."""
    found = re.search(r"`(park=Queue\(.+?bindings=.+?)`", page("dead-letter-loop.md").read_text(), re.DOTALL)
    assert found, "the page binds no parked queue"
    return found[1]


def changed(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new)


class Orders(Shop):
    """The reader's project, whose app "shop" lies beside the notes."""

    def environment(self, **others: str) -> dict[str, str]:
        own = {"SHOP_APPS": "shop", "PYTHONPATH": f"{ROOT}{os.pathsep}{self.notes.parent}"}
        return super().environment(**own, **others)

    def written(self, handlers: str) -> None:
        folder = self.notes.parent / "shop"
        folder.mkdir(exist_ok=True)
        for name, text in (("__init__", ""), ("invoices", INVOICES), ("handlers", handlers)):
            (folder / f"{name}.py").write_text(text)


@pytest.fixture
def orders(broker_url: str, tmp_path: Path, own_database: Own) -> Orders:
    return Orders(url=broker_url, notes=tmp_path / "notes", records=own_database.environment)


def declare_by_hand(amqp: BlockingChannel) -> None:
    for exchange in ("orders", "orders.retry"):
        amqp.exchange_declare(exchange, "direct", durable=True)
    amqp.queue_declare("orders.invoice", durable=True, arguments={"x-dead-letter-exchange": "orders.retry"})
    back: dict[str, Any] = {"x-message-ttl": 1000, "x-dead-letter-exchange": "orders"}
    amqp.queue_declare("orders.invoice.retry", durable=True, arguments=back)
    amqp.queue_declare("orders.invoice.failed", durable=True)
    amqp.queue_bind("orders.invoice", "orders", "order.paid")
    amqp.queue_bind("orders.invoice.retry", "orders.retry", "order.paid")
    amqp.confirm_delivery()


def place(amqp: BlockingChannel, order: int) -> None:
    properties = pika.BasicProperties(message_id=f"order-{order}", delivery_mode=2)
    amqp.basic_publish("orders", "order.paid", json.dumps({"order": order}).encode(), properties, mandatory=True)


def take(amqp: BlockingChannel) -> tuple[Any, Any, bytes]:
    """The first message of the work queue, once there is one."""
    found: list[Any] = []

    def arrived() -> bool:
        found[:] = amqp.basic_get("orders.invoice")
        return found[0] is not None

    wait_until(arrived)
    return found[0], found[1], found[2]


def parked() -> dict[str, tuple[str, int]]:
    rows = ParkedMessage.objects.using(ALIAS).values_list("message_id", "reason", "attempts")
    return {name: (reason, attempts) for name, reason, attempts in rows}


def requeued(orders: Orders, reason: str) -> None:
    """Send back what the loop had parked, by the command of the page."""
    lines = page("dead-letter-loop.md").read_text().splitlines()
    command = next(line for line in lines if "requeue" in line and "--canary" in line)
    words = shlex.split(command.partition("manage.py ")[2].replace("foreign", reason))
    done = orders.run(*words, "--yes")
    assert done.returncode == 0, done.stdout + done.stderr


def ready(amqp: BlockingChannel, queue: str) -> int:
    return int(amqp.queue_declare(queue, passive=True).method.message_count)


def test_a_dead_letter_loop_is_migrated_with_the_messages_in_its_queues(orders: Orders, amqp: BlockingChannel) -> None:
    declare_by_hand(amqp)
    # The hand-written consumer has parked the third, with its x-death. Two are in the retry queue, the fourth waits.
    place(amqp, 3)
    amqp.basic_reject(take(amqp)[0].delivery_tag, requeue=False)
    method, properties, body = take(amqp)
    assert properties.headers["x-death"]
    amqp.basic_publish("", "orders.invoice.failed", body, properties, mandatory=True)
    amqp.basic_ack(method.delivery_tag)
    for order in (1, 2, 4):
        place(amqp, order)
    for _ in range(2):
        amqp.basic_reject(take(amqp)[0].delivery_tag, requeue=False)

    orders.written(changed(steps()[0], "after=30", "after=1"))
    checked = orders.run("rmq_declare", "--check")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "5 unchanged, 2 not visible" in checked.stdout
    orders.declared()
    with orders.running("rmq_consume", "orders.invoice") as consumer:
        wait_until(lambda: len(parked()) == 2, what="two parked messages")
        requeued(orders, "foreign")
        wait_until(lambda: orders.noted("invoice 3"))
        consumer.signal()
        assert consumer.code() == 0

    # Its return before the takeover was attempt 1: three executions are left of four.
    assert sorted(orders.noted()) == ["invoice 1", "invoice 2", "invoice 2", "invoice 2", "invoice 3", "invoice 4"]
    assert parked() == {"order-2": ("retries_exhausted", 4), "order-3": ("foreign", 0)}
    assert [ready(amqp, f"orders.invoice{end}") for end in ("", ".retry", ".failed")] == [0, 0, 0]


def test_the_old_consumer_and_the_worker_may_read_the_loop_together(orders: Orders, amqp: BlockingChannel) -> None:
    """The page "Take over an existing topology" says so: both count the rejections of the queue."""
    ran: list[int] = []

    def work(channel: BlockingChannel, method: Any, properties: Any, body: bytes) -> None:
        order = json.loads(body)["order"]
        ran.append(order)
        deaths = (properties.headers or {}).get("x-death", [])
        if order not in {2, 5, 6}:
            channel.basic_ack(method.delivery_tag)
        elif sum(death["count"] for death in deaths if death["queue"] == "orders.invoice") < 3:
            channel.basic_reject(method.delivery_tag, requeue=False)
        else:
            channel.basic_publish("", "orders.invoice.failed", body, properties)
            channel.basic_ack(method.delivery_tag)

    def all_parked() -> bool:
        amqp.connection.process_data_events(0)
        return len(parked()) == 3

    declare_by_hand(amqp)
    orders.written(changed(steps()[0], "after=30", "after=1"))
    orders.declared()
    with orders.running("rmq_consume", "orders.invoice") as consumer:
        place(amqp, 1)
        wait_until(orders.noted)
        amqp.basic_consume("orders.invoice", work)
        for order in range(2, 9):
            place(amqp, order)
        wait_until(all_parked, timeout=30)
        consumer.signal()
        assert consumer.code() == 0

    noted = [int(line.removeprefix("invoice ")) for line in orders.noted()]
    assert ran
    assert noted
    assert Counter(ran + noted) == dict.fromkeys((1, 3, 4, 7, 8), 1) | dict.fromkeys((2, 5, 6), 4)


def test_after_the_migration_the_last_retry_of_the_loop_is_handled(orders: Orders, amqp: BlockingChannel) -> None:
    declare_by_hand(amqp)
    orders.written(changed(steps()[0], "after=30", "after=1"))
    orders.declared()
    for order in (1, 2):
        place(amqp, order)
    amqp.basic_reject(take(amqp)[0].delivery_tag, requeue=False)

    orders.written(changed(steps()[1], "Exponential(10, factor=3)", "Exponential(0.1, factor=2)"))
    orders.declared()
    with orders.running("rmq_consume", "orders.invoice") as consumer:
        wait_until(lambda: orders.noted("invoice 1") and parked(), what="order 1 handled, order 2 parked")
        consumer.signal()
        assert consumer.code() == 0
    before = orders.run("rmq_status").stdout
    deleted = orders.run("rmq_delete", "orders.invoice.retry", "--yes")
    after = orders.run("rmq_status").stdout

    assert sorted(orders.noted()) == ["invoice 1", *["invoice 2"] * 4]
    assert parked() == {"order-2": ("retries_exhausted", 4)}
    assert "abandoned, empty: manage.py rmq_delete orders.invoice.retry" in before
    assert "Queue 'orders.invoice.retry' was deleted." in deleted.stdout
    assert "orders.invoice.retry " not in after.replace("\t", " ")
    assert "orders.invoice.quarantine" not in after


def old_consumer(amqp: BlockingChannel, until: Callable[[], bool]) -> None:
    """The hand-written loop: each order fails; after three returns it is put into the parking queue."""
    amqp.queue_bind("orders.invoice.retry", "orders.retry", "orders.invoice")
    amqp.queue_bind("orders.invoice", "orders", "orders.invoice")

    def done() -> bool:
        got: tuple[Any, Any, Any] = amqp.basic_get("orders.invoice")
        method, properties, body = got
        if method is None:
            return until()
        deaths = (properties.headers or {}).get("x-death", [])
        if sum(death["count"] for death in deaths if death["queue"] == "orders.invoice") < 3:
            amqp.basic_reject(method.delivery_tag, requeue=False)
        else:
            amqp.basic_publish("", "orders.invoice.failed", body, properties, mandatory=True)
            amqp.basic_ack(method.delivery_tag)
        return False

    wait_until(done, what="the loop to give up")


def test_the_way_back_to_the_loop_loses_nothing(orders: Orders, amqp: BlockingChannel) -> None:
    declare_by_hand(amqp)
    orders.written(changed(steps()[0], "after=30", "after=1").replace("attempts=4", "attempts=2"))
    orders.declared()
    for order in (2, 5, 6):
        place(amqp, order)
    with orders.running("rmq_consume", "orders.invoice") as consumer:
        wait_until(lambda: bool(parked()), what="a parked message")
        consumer.signal()
        assert consumer.code() == 0
    before = ParkedMessage.objects.using(ALIAS).filter(state="parked").count()

    lines = page("dead-letter-loop.md").read_text().splitlines()
    command = next(line for line in lines if "requeue" in line and "--wait 0" in line)
    done = orders.run(*shlex.split(command.partition("manage.py ")[2]), "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    old_consumer(amqp, until=lambda: ready(amqp, "orders.invoice.failed") == 3)

    assert before > 0


def test_after_the_migration_what_the_broker_gives_up_is_parked(orders: Orders, amqp: BlockingChannel) -> None:
    declare_by_hand(amqp)
    orders.written(changed(steps()[0], "after=30", "after=1"))
    orders.declared()
    orders.written(changed(steps()[1], "Exponential(10, factor=3)", "Exponential(0.1, factor=2)"))
    orders.declared()
    text = changed(steps()[1], 'park=Queue("orders.invoice.failed", type=None)', parked_queue())
    retry = 'retry = Exchange("orders.retry", "direct")'
    orders.written(changed(text, "\n\n\n@handler", f"\n{retry}\n\n\n@handler"))
    orders.declared()

    # One that came by the exchange, and one by the queue's name, as retries and requeues do.
    for exchange, key, order in (("orders", "order.paid", 1), ("", "orders.invoice", 3)):
        soon = pika.BasicProperties(message_id=f"order-{order}", delivery_mode=2, expiration="0")
        amqp.basic_publish(exchange, key, json.dumps({"order": order}).encode(), soon, mandatory=True)
    with orders.running("rmq_consume", "orders.invoice") as consumer:
        wait_until(lambda: len(parked()) == 2, what="two parked messages")
        # The old retry queue got a copy of the first, too, which RabbitMQ drops at its return as a cycle.
        wait_until(lambda: ready(amqp, "orders.invoice.retry") == 0, what="an empty retry queue")
        assert orders.noted() == []
        assert "was deleted" in orders.run("rmq_delete", "orders.invoice.retry", "--yes").stdout
        requeued(orders, "expired")
        wait_until(lambda: len(orders.noted()) == 2, what="both handled")
        consumer.signal()
        assert consumer.code() == 0

    assert parked() == {"order-1": ("expired", 0), "order-3": ("expired", 0)}
    assert sorted(orders.noted()) == ["invoice 1", "invoice 3"]


def test_a_loop_with_copies_is_migrated_with_the_messages_in_its_queues(orders: Orders, amqp: BlockingChannel) -> None:
    amqp.exchange_declare("orders", "direct", durable=True)
    given_up: dict[str, Any] = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "orders.invoice.failed"}
    back: dict[str, Any] = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "orders.invoice"}
    amqp.queue_declare("orders.invoice", durable=True, arguments=given_up)
    amqp.queue_declare("orders.invoice.wait.1s", durable=True, arguments={"x-message-ttl": 1000, **back})
    amqp.queue_declare("orders.invoice.failed", durable=True)
    amqp.queue_bind("orders.invoice", "orders", "order.paid")
    amqp.confirm_delivery()
    # The hand-written consumer has given up the third, and has put a copy of the first into a retry queue.
    place(amqp, 3)
    amqp.basic_reject(take(amqp)[0].delivery_tag, requeue=False)
    place(amqp, 1)
    method, properties, body = take(amqp)
    properties.headers = {"x-retries": 1}
    amqp.basic_publish("", "orders.invoice.wait.1s", body, properties, mandatory=True)
    amqp.basic_ack(method.delivery_tag)
    place(amqp, 4)

    orders.written(steps()[1])
    orders.declared()
    with orders.running("rmq_consume", "orders.invoice") as consumer:
        wait_until(lambda: parked() and len(orders.noted()) == 2, what="one parked, two handled")
        requeued(orders, "rejected")
        wait_until(lambda: orders.noted("invoice 3"))
        consumer.signal()
        assert consumer.code() == 0

    assert sorted(orders.noted()) == ["invoice 1", "invoice 3", "invoice 4"]
    assert parked() == {"order-3": ("rejected", 0)}


def test_a_retry_through_a_shared_exchange_reaches_the_other_queues(amqp: BlockingChannel) -> None:
    declare_by_hand(amqp)
    amqp.queue_declare("orders.stock")
    amqp.queue_bind("orders.stock", "orders", "order.paid")
    place(amqp, 1)
    amqp.basic_reject(take(amqp)[0].delivery_tag, requeue=False)
    _, properties, _ = take(amqp)

    assert ready(amqp, "orders.stock") == 2
    assert properties.headers["x-death"][0]["queue"] == "orders.invoice.retry"


def test_a_copy_to_a_missing_parking_queue_is_lost_without_an_error(amqp: BlockingChannel) -> None:
    amqp.queue_declare("orders.invoice")
    amqp.basic_publish("", "orders.invoice", b"1")
    method, properties, body = take(amqp)
    amqp.basic_publish("", "orders.invoice.faild", body, properties)
    amqp.basic_ack(method.delivery_tag)

    assert amqp.connection.is_open
    assert ready(amqp, "orders.invoice") == 0


def test_a_short_wait_waits_behind_a_long_one(amqp: BlockingChannel) -> None:
    back: dict[str, Any] = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "orders.invoice"}
    amqp.queue_declare("orders.wait", arguments=back)
    amqp.queue_declare("orders.invoice")
    for body, expiration in ((b"long", "1500"), (b"short", "10")):
        amqp.basic_publish("", "orders.wait", body, pika.BasicProperties(expiration=expiration))

    assert [take(amqp)[2], take(amqp)[2]] == [b"long", b"short"]

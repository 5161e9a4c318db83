"""The page "Replace a hand-written dead-letter loop": its steps lose nothing, and its patterns do what it says."""

import json
import os
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
    if order == 2:
        raise ValueError("no paper")
"""


def steps() -> list[str]:
    """The handlers of the page in their order: the loop by its names, and the loop replaced."""
    return [block.text for block in blocks(page("dead-letter-loop.md")) if block.kind == "python"]


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
        requeue = orders.run(
            "rmq_parked", "requeue", "--queue", "orders.invoice", "--parked-reason", "foreign", "--rate", "20", "--yes"
        )
        assert requeue.returncode == 0, requeue.stdout + requeue.stderr
        wait_until(lambda: orders.noted("invoice 3"))
        consumer.signal()
        assert consumer.code() == 0

    # Its return before the takeover was attempt 1: three executions are left of four.
    assert sorted(orders.noted()) == ["invoice 1", "invoice 2", "invoice 2", "invoice 2", "invoice 3", "invoice 4"]
    assert parked() == {"order-2": ("retries_exhausted", 4), "order-3": ("foreign", 0)}
    assert [ready(amqp, f"orders.invoice{end}") for end in ("", ".retry", ".failed")] == [0, 0, 0]


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

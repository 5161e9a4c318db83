"""Attempt history within the command: consumers as processes, on every database."""

import json
import signal
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from pika import BasicProperties
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry.models import Attempt
from tests.parked.arrivals import ticket_header
from tests.shop.running import Shop
from tests.tooling.marks import NIGHTLY_ON_SQLITE
from tests.tooling.waiting import wait_until

pytestmark = [pytest.mark.database, *NIGHTLY_ON_SQLITE]


def order(
    amqp: BlockingChannel, name: str, ticket: tuple[int, int] | None = None, *, queue: str = "shop.orders", **data: Any
) -> None:
    body = json.dumps(data).encode()
    headers: Any = ticket_header(*ticket, queue=queue, id=name, body=body) if ticket else None
    amqp.basic_publish("", queue, body, BasicProperties(message_id=name, headers=headers))


def attempts(**told: Any) -> list[Attempt]:
    return list(Attempt.objects.using("own").filter(**told).order_by("started_at", "pk"))


def test_log_lines_before_a_failure_are_recorded(shop: Shop, amqp: BlockingChannel) -> None:
    order(amqp, "warns", do="warn")
    order(amqp, "fails", do="fail")
    order(amqp, "both", do="warn and fail")

    # Not --burst, which does not wait for retries that are not due.
    with shop.running("rmq_consume", "--threads", "1") as consumer:
        wait_until(lambda: len(attempts(verdict="park")) == 2)
        consumer.signal(signal.SIGTERM)
        assert consumer.code() == 0

    assert [one.logs for one in attempts(message_id="fails")] == ["", ""]
    assert [one.logs.partition(" ")[2] for one in attempts(message_id="both")] == ["WARNING shop: stock is low"] * 2


def test_each_of_several_processes_records_its_own_attempts(shop: Shop, amqp: BlockingChannel) -> None:
    for number in range(40):
        order(amqp, f"m-{number}", do="fail")

    with shop.running("rmq_consume", "--processes", "2") as consumer:
        wait_until(lambda: len(attempts()) == 80)
        consumer.signal(signal.SIGTERM)
        assert consumer.code() == 0

    assert len(attempts(number=1)) == len(attempts(number=2)) == 40


def test_a_consumer_without_tables_keeps_consuming_and_logs_it(
    shop: Shop, amqp: BlockingChannel, tmp_path: Path
) -> None:
    unmigrated = tmp_path / "unmigrated.sqlite3"
    sqlite3.connect(unmigrated).close()
    settings = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(unmigrated)}
    bare = Shop(url=shop.url, notes=shop.notes, records={name: json.dumps(settings) for name in shop.records})
    order(amqp, "fails", do="fail")

    ran = bare.run("rmq_consume", "--burst", "--no-park")

    assert ran.returncode == 0
    assert "Attempts cannot be recorded" in ran.stdout + ran.stderr
    wait_until(lambda: amqp.queue_declare("shop.orders.parked", passive=True).method.message_count == 1)

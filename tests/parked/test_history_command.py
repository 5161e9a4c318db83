"""Attempt history within the command: consumers as processes, on every database."""

import json
import signal
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from pika import BasicProperties
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry.models import Attempt, ErrorGroup, ParkedMessage, State
from tests.parked.arrivals import ticket_header
from tests.parked.made import NOON
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


def test_failures_and_the_success_after_them_are_recorded(shop: Shop, amqp: BlockingChannel, tmp_path: Path) -> None:
    order(amqp, "fails", do="fail", why="none left")
    order(amqp, "mends", queue="shop.ledger", do="fail until", **{"for": str(tmp_path / "mended")})  # type: ignore[arg-type]  # "for" is a word of Python's
    order(amqp, "works", do="work")

    with shop.running("rmq_consume") as consumer:
        wait_until(lambda: attempts(message_id="mends", verdict="halt"))
        (tmp_path / "mended").touch()
        wait_until(lambda: attempts(verdict="ack") and attempts(verdict="park"))
        consumer.signal(signal.SIGTERM)
        assert consumer.code() == 0

    assert [(one.number, one.verdict) for one in attempts(message_id="fails")] == [(1, "retry"), (2, "park")]
    mended = attempts(message_id="mends")
    assert [one.number for one in mended] == list(range(1, len(mended) + 1))
    assert [one.verdict for one in mended] == ["halt"] * (len(mended) - 1) + ["ack"]
    assert not attempts(message_id="works")
    failed = attempts(message_id="fails")[0]
    assert (failed.error, failed.error_text, failed.handler) == ("OutOfStock", "none left", "tests.shop.handlers.order")
    assert [frame["function"] for frame in failed.chain[0]["frames"] if frame["own"]] == [
        *("order", "act", "<lambda>", "throw"),
    ]
    assert failed.fingerprint == attempts(message_id="fails")[1].fingerprint
    assert (failed.pid != 0, failed.thread.startswith("rmq-worker")) == (True, True)


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


def test_the_success_of_a_requeued_copy_closes_its_record(shop: Shop, amqp: BlockingChannel) -> None:
    record = requeued()
    order(amqp, "again", (record.pk, 2), do="work")

    assert shop.run("rmq_consume", "--burst").returncode == 0

    record.refresh_from_db()
    assert (record.state, record.group.processed, record.group.requeued) == (State.PROCESSED, 1, 0)
    assert [(one.identity, one.cycle, one.verdict) for one in attempts()] == [("copy:1", 2, "ack")]


def requeued() -> ParkedMessage:
    group = ErrorGroup.objects.using("own").create(
        fingerprint="f" * 40, title="OutOfStock", reason="r", first_seen=NOON, last_seen=NOON, requeued=1
    )
    return ParkedMessage.objects.using("own").create(
        identity="copy:1",
        state=State.REQUEUED,
        cycle=2,
        group=group,
        queue="shop.orders",
        parked_in="shop.orders.parked",
        body=b"{}",
        size=2,
        sha256="0" * 64,
        properties=b"\0\0",
        by="consumer",
        reason="r",
        copy="1" * 64,
        parked_at=NOON,
        recorded_at=NOON,
    )


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

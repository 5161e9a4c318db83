"""Consumers on a real broker and database: a handler that does not end costs attempts, and nothing else."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from django.contrib.auth.models import Group
from django.db import connections
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry.models import Attempt, ParkedMessage
from tests.shop.running import Shop
from tests.tooling.filled import Own
from tests.tooling.marks import NIGHTLY_BUT_ON_SQLITE, NIGHTLY_ON_SQLITE, nightly_but
from tests.tooling.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.database]
Send = Callable[..., None]
LATE = "DeadlineExceeded: Handler {} ran for longer than its timeout of 0.5 s"
STUCK = "DeadlineExceeded: Handler {} did not end within twice its timeout of 0.5 s"


class Slow(Shop):
    """The shop's commands in the project of handlers with a deadline."""

    def environment(self, **changed: str) -> dict[str, str]:
        return super().environment(**{"SHOP_APPS": "tests.deadlines", **changed})


@pytest.fixture
def slow(broker_url: str, tmp_path: Path, own_database: Own) -> Slow:
    return Slow(url=broker_url, notes=tmp_path / "notes", records=own_database.environment).declared()


@pytest.fixture
def send(amqp: BlockingChannel) -> Send:
    amqp.confirm_delivery()

    def send(do: str, *, queue: str = "deadlines.plain", **data: object) -> None:
        amqp.basic_publish("", queue, json.dumps({"do": do, **data}).encode(), mandatory=True)

    return send


def parked() -> list[tuple[str, int, str]]:
    """Of each parked message the reason, the attempts, and how it was said."""
    rows = list(ParkedMessage.objects.using("own").order_by("pk").values_list("reason", "attempts", "detail"))
    connections["own"].close()
    return [(reason, attempts, detail.split(": ", 1)[1]) for reason, attempts, detail in rows]


@pytest.mark.parametrize("do", nightly_but(["swallow"], ["turn", "swallow"]))
def test_an_endless_handler_is_retried_and_parked_while_others_continue(slow: Slow, send: Send, do: str) -> None:
    send(do)
    send("nothing")
    told = slow.run("rmq_consume", "--burst", "--threads", "1")
    again = slow.run("rmq_consume", "--burst", "--threads", "1") if not parked() else told

    assert (told.returncode, again.returncode) == (0, 0), told.stdout
    assert slow.noted(do) == [f"begin {do} 1", f"begin {do} 2"]
    assert slow.noted("nothing") == ["begin nothing 1", "end nothing"]
    assert slow.noted("swallowed") == []
    assert parked() == [("retries_exhausted", 2, LATE.format("tests.deadlines.handlers.plain"))]


def test_an_async_handler_is_cancelled(slow: Slow, send: Send) -> None:
    send("", queue="deadlines.async")
    with slow.running("rmq_consume") as consumer:
        wait_until(parked, 20, step=0.1)
        consumer.signal()
        assert consumer.code() == 0

    assert slow.noted("") == ["begin async 1", "cancelled", "begin async 2", "cancelled"]
    assert parked() == [("retries_exhausted", 2, LATE.format("tests.deadlines.handlers.asynchronous"))]


def test_the_writes_of_a_late_once_handler_are_rolled_back(slow: Slow, send: Send) -> None:
    send("turn", queue="deadlines.once", n=1)
    send("nothing", queue="deadlines.once", n=2)
    with slow.running("rmq_consume") as consumer:
        wait_until(parked, 20, step=0.1)
        consumer.signal()
        assert consumer.code() == 0

    assert [name.split()[0] for name in Group.objects.using("own").values_list("name", flat=True)] == ["2"]
    assert parked() == [("retries_exhausted", 2, LATE.format("tests.deadlines.handlers.once"))]


@pytest.mark.parametrize(
    ("queue", "handler"),
    [
        pytest.param("plain", "plain", marks=pytest.mark.nightly),
        pytest.param("line", "in_order", marks=NIGHTLY_BUT_ON_SQLITE),
        pytest.param("once", "once", marks=NIGHTLY_ON_SQLITE),
    ],
)
def test_a_handler_hanging_in_c_ends_its_process_and_uses_an_attempt(
    slow: Slow, send: Send, queue: str, handler: str
) -> None:
    name = f"tests.deadlines.handlers.{handler}"
    send("stand", queue=f"deadlines.{queue}", key="a", n=1)
    first = slow.run("rmq_consume", "--threads", "2")
    second = slow.run("rmq_consume", "--threads", "2")
    last = slow.run("rmq_consume", "--burst")

    assert (first.returncode, second.returncode, last.returncode) == (1, 1, 0)
    [line] = [line for line in first.stdout.splitlines() if "did not end" in line and "CRITICAL" in line.upper()]
    assert "handlers.py:" in line
    assert "(stand)" in line
    assert slow.noted("begin") == ["begin stand 1", "begin stand 2"]
    assert parked() == [("retries_exhausted", 2, STUCK.format(name))]
    # In SQLite the transaction of a handler that hangs keeps the history from being written.
    if queue != "once" or connections["own"].vendor != "sqlite":
        assert ["stand" in json.dumps(row.chain) for row in Attempt.objects.using("own")] == [True, True]
    assert not Group.objects.using("own").exists()


def test_a_hanging_process_is_replaced_once_its_other_handlers_end(slow: Slow, send: Send) -> None:
    with slow.running("rmq_consume", "--processes", "2", "--threads", "2") as consumer:
        consumer.says("Connected", times=2)
        send("stand")
        for _ in range(10):
            send("nothing")
        wait_until(parked, 30, step=0.1)
        consumer.says("has ended; a new one starts in", times=2)
        consumer.signal()
        assert consumer.code() == 0

    assert slow.noted("stand") == ["begin stand 1", "begin stand 2"]
    assert slow.noted("end") == ["end nothing"] * 10
    assert parked() == [("retries_exhausted", 2, STUCK.format("tests.deadlines.handlers.plain"))]

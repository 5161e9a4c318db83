"""A line that StopTheLine has halted is seen from another process, for as long as its consumer lives."""

import json
import signal
import subprocess
from datetime import timedelta
from typing import Any

import pytest

from django_rmq_retry import database_clock
from django_rmq_retry.models import QueueControl
from tests.breakers.bank import Bank
from tests.tooling.marks import NIGHTLY_ON_SQLITE
from tests.tooling.waiting import wait_until

pytestmark = [pytest.mark.database, *NIGHTLY_ON_SQLITE]


def halted(bank: Bank) -> list[dict[str, Any]]:
    told = bank.run("rmq_status", "--json")
    assert told.returncode == 0, told.stderr
    found: list[dict[str, Any]] = json.loads(told.stdout)["halted"]
    return found


def fails(bank: Bank, beginning: str) -> "subprocess.CompletedProcess[str] | None":
    """The check if it fails so: on a busy machine the database may not answer in time."""
    late = bank.run("rmq_status", "--check", "--max-oldest", "1s")
    return late if late.stdout.startswith(beginning) else None


def stands(bank: Bank) -> dict[str, Any]:
    wait_until(lambda: bool(halted(bank)), 60, what="the halted queue is reported", step=0.5)
    return halted(bank)[0]


def test_a_halted_queue_is_reported_with_its_error_until_it_resumes(bank: Bank) -> None:
    bank.goes_down()
    with bank.consuming("orders"):
        bank.publish("orders", 1, 2)
        seen = stands(bank)
        since = QueueControl.objects.using("own").get(queue="orders").halted_at
        assert (seen["queue"], seen["error"], seen["message_id"]) == ("orders", "BankDown: timeout", "orders-1")

        wait_until(lambda: halted(bank)[0]["attempt"] > seen["attempt"], 60, what="a later attempt", step=0.5)
        row = next(line for line in bank.run("rmq_status").stdout.splitlines() if line.startswith("orders\t"))
        assert row.split("\t")[4].startswith("! halted since 20")
        assert row.endswith(": BankDown: timeout")

        told = bank.run("rmq_status", "--check", "--max-oldest", "1h").stdout
        assert told.startswith("OK with ")
        assert "Queue 'orders' has been halted for" in told
        late = wait_until(lambda: fails(bank, "FAIL orders: halted for "), what="it fails for the halt")
        assert late.returncode == 8
        assert late.stdout.endswith(" s, longer than 1 s: BankDown: timeout\n")
        assert QueueControl.objects.using("own").get(queue="orders").halted_at == since

        bank.comes_back()
        wait_until(lambda: not halted(bank), 60, what="the queue resumes", step=0.5)
        wait_until(lambda: bank.did() == [1, 2], 60)


def test_a_killed_consumer_leaves_no_queue_halted_forever(bank: Bank) -> None:
    bank.goes_down()
    with bank.consuming("orders") as consumer:
        bank.publish("orders", 1)
        stands(bank)
        consumer.process.send_signal(signal.SIGKILL)
        consumer.process.wait(30)
    rows = QueueControl.objects.using("own").filter(queue="orders")
    since = rows.get().halted_at
    rows.update(halted_seen_at=database_clock.now("own") - timedelta(seconds=31))

    assert halted(bank) == []
    with bank.consuming("orders"):
        stands(bank)
        assert rows.get().halted_at == since


def test_a_consumer_that_stops_in_order_clears_its_halt(bank: Bank) -> None:
    bank.goes_down()
    with bank.consuming("orders") as consumer:
        bank.publish("orders", 1)
        stands(bank)
        consumer.process.send_signal(signal.SIGTERM)
        assert consumer.process.wait(60) == 0

    assert halted(bank) == []

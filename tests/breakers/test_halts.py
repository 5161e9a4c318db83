"""A line that StopTheLine has halted is seen from another process, until its first message is settled."""

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
    def told() -> tuple[list[dict[str, Any]]] | None:
        status = bank.run("rmq_status", "--json")
        found: list[dict[str, Any]] | None = json.loads(status.stdout)["halted"]
        # None is said if the database did not answer in time, as on a busy machine.
        return None if found is None else (found,)

    return wait_until(told, what="the database says what is halted")[0]


def fails(bank: Bank, beginning: str) -> "subprocess.CompletedProcess[str] | None":
    """The check if it fails so: on a busy machine the database may not answer in time."""
    late = bank.run("rmq_status", "--check", "--max-oldest", "1s")
    return late if late.stdout.startswith(beginning) else None


def stands(bank: Bank) -> dict[str, Any]:
    seen = wait_until(lambda: halted(bank), 60, what="the halted queue is reported", step=0.5)
    return seen[0]


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


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_a_halt_lasts_until_a_consumer_settles_its_message(bank: Bank, end: signal.Signals) -> None:
    """The halt vanished with the consumer that had reported it, and the page said that all was well."""
    bank.goes_down()
    with bank.consuming("orders") as consumer:
        bank.publish("orders", 1)
        stands(bank)
        consumer.process.send_signal(end)
        consumer.process.wait(60)
    rows = QueueControl.objects.using("own").filter(queue="orders")
    since = rows.get().halted_at
    rows.update(halted_seen_at=database_clock.now("own") - timedelta(seconds=31))

    assert [(one["queue"], one["error"]) for one in halted(bank)] == [("orders", "BankDown: timeout")]
    assert "Last known at" in bank.run("rmq_status").stdout
    with bank.consuming("orders"):
        wait_until(lambda: rows.get().halted_attempt, 60, what="another consumer has it", step=0.2)
        assert rows.get().halted_at == since
    bank.comes_back()
    with bank.consuming("orders"):
        wait_until(lambda: not halted(bank), 60, what="another consumer settles it", step=0.5)
        assert bank.did() == [1]

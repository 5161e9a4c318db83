"""Real consumers on a real broker and database: each effect happens once, whatever process is killed or stopped."""

import json
import signal
import sqlite3
from contextlib import closing
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from django.db import connections
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry.models import ParkedMessage, State
from tests.inbox.conftest import BY_NUMBER, Send, Till, done, left, wait_for_done
from tests.tooling import clocks, databases
from tests.tooling.filled import VARIABLE
from tests.tooling.proxy import Mode, Proxy, proxy_to
from tests.tooling.waiting import wait_until

pytestmark = [pytest.mark.database, pytest.mark.long]
QUIET = ("rmq_consume", "--burst", "--threads", "1")


def not_on(vendor: str) -> None:
    if connections["own"].vendor == vendor:
        pytest.skip(f"not on {vendor}")


def cut(proxy: Proxy) -> None:
    """Close all connections with their delayed data; new connections work."""
    proxy.refuse()
    wait_until(lambda: not any(pair._thread.is_alive() for pair in proxy._pairs), what="all are cut")
    proxy.set(Mode.PASS)
    proxy.accept()


def parked() -> list[tuple[str, str]]:
    return list(ParkedMessage.objects.using("own").order_by("pk").values_list("reason", "state"))


def test_a_kill_inside_the_handler_leaves_nothing_and_a_redelivery_handles_it(
    till: Till, send: Send, amqp: BlockingChannel, tmp_path: Path
) -> None:
    send(1, do="die once", mark=str(tmp_path / "mark"))
    killed = till.run(*QUIET)
    assert (killed.returncode, done()) == (-signal.SIGKILL, [])
    again = till.run(*QUIET)

    assert (again.returncode, done(), left(amqp)) == (0, [1], 0)


def test_a_chain_of_queues_and_databases_handles_each_message_once(
    till: Till, send: Send, amqp: BlockingChannel, tmp_path: Path
) -> None:
    send(1, do="forward")
    assert till.run(*QUIET, TILL_DIES=str(tmp_path / "mark")).returncode == -signal.SIGKILL
    with till.running("rmq_consume") as consumer:
        wait_for_done(1, 101)
        consumer.signal()
        assert consumer.code() == 0

    assert (done(), left(amqp), left(amqp, BY_NUMBER), parked()) == ([1, 101], 0, 0, [])


def test_two_consumers_handle_a_doubled_publish_once(till: Till, send: Send, amqp: BlockingChannel) -> None:
    numbers = list(range(15))
    with till.running("rmq_consume", "--threads", "4") as one, till.running("rmq_consume", "--threads", "4") as two:
        wait_until(lambda: all("Connected to" in consumer.text for consumer in (one, two)), 60, what="both consume")
        for number in numbers:
            for _twin in range(3):
                send(number, id=f"m{number}")
        wait_for_done(*numbers)
        wait_until(lambda: one.text.count("handled before") + two.text.count("handled before") == 30, 60, what="twins")
        for consumer in (one, two):
            consumer.signal()
            assert consumer.code() == 0

    assert (done(), left(amqp), parked()) == (numbers, 0, [])


def test_a_consumer_stalled_past_its_heartbeat_handles_the_message_once(
    till: Till, send: Send, amqp: BlockingChannel, tmp_path: Path
) -> None:
    gate, here = tmp_path / "gate", tmp_path / "here"
    send(1, do="wait", **{"for": str(gate), "here": str(here)})
    with till.running("rmq_consume", TILL_HEARTBEAT="1") as frozen:
        wait_until(here.exists, what="the handler has begun")
        frozen.signal(signal.SIGSTOP)
        wait_until(lambda: left(amqp) == 1, what="the broker has taken the message back")
        with till.running("rmq_consume") as other:
            wait_until(lambda: left(amqp) == 0, what="another consumer has it")
            gate.touch()
            frozen.signal(signal.SIGCONT)
            wait_for_done(1)
            wait_until(lambda: frozen.text.count("handled before") + other.text.count("handled before") == 1)
            for consumer in (frozen, other):
                consumer.signal()
                assert consumer.code() == 0

    assert (done(), left(amqp)) == ([1], 0)


def test_a_consumer_starts_while_another_holds_the_sqlite_lock(till: Till) -> None:
    if databases.chosen() != databases.SQLITE:
        pytest.skip("others lock rows")
    with closing(sqlite3.connect(connections["own"].settings_dict["NAME"], isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with till.running("rmq_consume") as consumer:
            consumer.says("event=connected")
            other.execute("ROLLBACK")
            consumer.signal()
            assert consumer.code() == 0


def test_a_connection_killed_in_the_transaction_costs_no_attempt(
    till: Till, send: Send, amqp: BlockingChannel, tmp_path: Path
) -> None:
    not_on("sqlite")
    send(1, do="be cut off once", mark=str(tmp_path / "mark"))
    ran = till.run(*QUIET)

    assert (ran.returncode, done(), left(amqp), parked()) == (0, [1], 0, [])
    assert "Database 'default' was lost while handler by id ran" in ran.stdout
    assert [line for line in ran.stdout.splitlines() if "event=ack" in line and " attempt=1 " in line], ran.stdout


def test_a_message_that_kills_its_connection_each_time_is_parked(
    till: Till, send: Send, amqp: BlockingChannel, tmp_path: Path
) -> None:
    not_on("sqlite")
    send(1, id="ends", do="end its connection", mark=str(tmp_path / "mark"))
    send(2, id="good")
    # Not --burst, which does not wait for a retry that is not due.
    with till.running("rmq_consume", "--threads", "1") as consumer:
        wait_until(lambda: bool(parked()), 60, what="it is parked", step=0.1)
        wait_for_done(2)
        consumer.signal()
        assert consumer.code() == 0

    assert (done(), left(amqp), parked()) == ([2], 0, [("retries_exhausted", State.PARKED)])
    # The policy has two attempts, and each tolerates two lost connections.
    assert (tmp_path / "mark").read_text() == "......"
    record = ParkedMessage.objects.using("own").get()
    assert (record.attempts, record.error.rpartition(".")[2]) == (2, "OperationalError")


def test_a_consumer_with_a_clock_years_ahead_forgets_and_doubles_nothing(
    till: Till, send: Send, amqp: BlockingChannel
) -> None:
    not_on("sqlite")
    for number in range(3):
        send(number, id=f"m{number}")
    assert till.run(*QUIET).returncode == 0
    with till.running("rmq_consume", **{clocks.VARIABLE: str(8 * clocks.YEAR)}) as wrong:
        wrong.says("is 2920 d ahead of the clock of database 'default'")
        for number in range(5):
            send(number, id=f"m{number}")
        wrong.says("handled before", times=3)
        wait_for_done(3, 4)
        wrong.signal()
        assert wrong.code() == 0
    for number in range(5):
        send(number, id=f"m{number}")
    ran = till.run(*QUIET)

    assert (ran.returncode, done(), left(amqp)) == (0, [0, 1, 2, 3, 4], 0)


def test_a_lost_commit_answer_is_resolved_at_the_redelivery(
    till: Till, send: Send, amqp: BlockingChannel, tmp_path: Path
) -> None:
    if connections["own"].vendor != "postgresql":
        pytest.skip("only there nothing is asked between the handler and its commit")
    settings = json.loads(till.records[VARIABLE])
    gate, here = tmp_path / "gate", tmp_path / "here"
    send(1, do="wait", **{"for": str(gate), "here": str(here)})
    with proxy_to(int(settings["PORT"] or 5432)) as proxy:
        through = {**settings, "HOST": "127.0.0.1", "PORT": str(proxy.port)}
        with till.running("rmq_consume", **{VARIABLE: json.dumps(through)}) as consumer:
            wait_until(here.exists, what="the handler has begun")
            proxy.set(Mode.BLACKHOLE_TO_CLIENT)
            gate.touch()
            wait_for_done(1)
            cut(proxy)
            consumer.says("database 'default' may have committed")
            consumer.says("handled before")
            consumer.signal()
            assert consumer.code() == 0

    assert (done(), left(amqp), parked()) == ([1], 0, [])


def test_an_unavailable_database_keeps_the_message_unacked(till: Till, send: Send, amqp: BlockingChannel) -> None:
    not_on("sqlite")
    settings = json.loads(till.records[VARIABLE])
    usual = 5432 if connections["own"].vendor == "postgresql" else 3306
    with proxy_to(int(settings["PORT"] or usual)) as proxy:
        through = {**settings, "HOST": "127.0.0.1", "PORT": str(proxy.port)}
        with till.running("rmq_consume", **{VARIABLE: json.dumps(through)}) as consumer:
            # Before the database stops: on MariaDB Django's own checks query the server version.
            consumer.says("event=connected")
            proxy.refuse()
            send(1)
            consumer.says("Database 'default' cannot be used", times=2)
            assert (done(), left(amqp)) == ([], 0)
            proxy.accept()
            consumer.says("event=ack")
            consumer.signal()
            assert consumer.code() == 0

    assert (done(), left(amqp), parked()) == ([1], 0, [])


def test_a_copy_parked_while_its_twin_runs_is_a_duplicate_when_requeued(
    till: Till, send: Send, amqp: BlockingChannel, tmp_path: Path
) -> None:
    told = {"do": "fail without", "mark": str(tmp_path / "mark")}
    send(1, **told)
    assert till.run(*QUIET).returncode == 0
    assert (done(), parked()) == ([], [("retries_exhausted", State.PARKED)])
    (tmp_path / "mark").touch()
    send(1, **told)
    assert till.run(*QUIET, "--no-park").returncode == 0
    assert done() == [1]

    requeue(till)
    assert till.run(*QUIET).returncode == 0
    assert (done(), parked(), left(amqp)) == ([1], [("retries_exhausted", State.PROCESSED)], 0)


def test_a_copy_parked_while_its_twin_runs_is_closed_by_itself(
    till: Till, send: Send, amqp: BlockingChannel, tmp_path: Path
) -> None:
    told = {"do": "fail without", "mark": str(tmp_path / "mark")}
    send(1, **told)
    assert till.run(*QUIET).returncode == 0
    (tmp_path / "mark").touch()
    send(1, **told)
    assert till.run(*QUIET, "--no-park").returncode == 0
    assert (done(), parked()) == ([1], [("retries_exhausted", State.PARKED)])

    with till.running("rmq_consume") as consumer:
        wait_until(lambda: parked() == [("retries_exhausted", State.PROCESSED)], 60, what="its record is closed")
        consumer.signal()
        assert consumer.code() == 0
    assert (done(), left(amqp)) == ([1], 0)


def requeue(till: Till) -> "CompletedProcess[str]":
    record = ParkedMessage.objects.using("own").get(state=State.PARKED)
    return till.run("rmq_parked", "requeue", str(record.pk), "--reason", "looked at", "--yes", "--wait", "0")


def test_an_id_with_another_body_is_parked_and_runs_when_requeued(
    till: Till, send: Send, amqp: BlockingChannel
) -> None:
    send(1)
    send(2)
    assert till.run(*QUIET).returncode == 0
    assert (done(), parked()) == ([1], [("identity_conflict", State.PARKED)])

    requeue(till)
    assert till.run(*QUIET).returncode == 0
    assert (done(), parked(), left(amqp)) == ([1, 2], [("identity_conflict", State.PROCESSED)], 0)


def test_two_equal_messages_without_an_id_are_parked_for_an_operator(
    till: Till, send: Send, amqp: BlockingChannel
) -> None:
    send(1, id=None)
    send(1, id=None)
    assert till.run(*QUIET).returncode == 0
    assert (done(), parked()) == ([1], [("possible_duplicate", State.PARKED)])

    requeue(till)
    assert till.run(*QUIET).returncode == 0
    assert (done(), parked(), left(amqp)) == ([1, 1], [("possible_duplicate", State.PROCESSED)], 0)

"""Each consuming process has a row with its messages in flight, for as long as it lives."""

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pika
import pytest
from django.utils import timezone
from pika.adapters.blocking_connection import BlockingChannel

import django_rmq_retry
from django_rmq_retry.consumer.attempt_state import AttemptState
from django_rmq_retry.models import ConsumerProcess
from tests.breakers.bank import Bank, Consumer
from tests.consumer.beating import heartbeat_of, running
from tests.handlers.factories import delivery
from tests.tooling.filled import ALIAS, Own
from tests.tooling.marks import NIGHTLY_ON_SQLITE
from tests.tooling.proxy import Proxy
from tests.tooling.waiting import longer, wait_until

pytestmark = [pytest.mark.database, *NIGHTLY_ON_SQLITE]
PAYMENT = {"payment": "PAY-1"}


@pytest.fixture
def bank(broker_url: str, tmp_path: Path, own_database: Own, amqp: BlockingChannel) -> Iterator[Bank]:
    more = {"DJANGO_SETTINGS_MODULE": "tests.consumer.project.settings"}
    bank = Bank(url=broker_url, folder=tmp_path, records=own_database.environment, amqp=amqp, more=more)
    declared = bank.run("rmq_declare")
    assert declared.returncode == 0, declared.stderr
    yield bank
    (tmp_path / "go").touch()


def rows() -> list[ConsumerProcess]:
    return list(ConsumerProcess.objects.using(ALIAS).order_by("number", "started_at"))


def row(wanted: Callable[[ConsumerProcess], object] = lambda one: one.connected) -> ConsumerProcess:
    """Wait for a row, the only one, that is as wanted."""
    wait_until(lambda: any(wanted(one) for one in rows()), 60, what=f"{[vars(one) for one in rows()]}", step=0.2)
    (one,) = rows()
    return one


def in_flight() -> ConsumerProcess:
    return row(lambda one: one.in_flight)


@contextmanager
def at_work(bank: Bank, queue: str, *data: Any, words: Sequence[str] = ()) -> Iterator[Consumer]:
    """A consumer whose handlers have begun with these messages."""
    with bank.consuming("--threads", "2", *words) as consumer:
        bank.publish(queue, *data)
        wait_until(lambda: len(bank.diary("began")) == len(data), 60, what=consumer.said)
        yield consumer


def _has_done(bank: Bank, count: int) -> bool:
    return len(bank.did()) >= count


def test_a_consumer_has_a_row_until_it_ends_in_good_order(bank: Bank) -> None:
    with bank.consuming("--threads", "3", "payments", "rates") as consumer:
        found = row()
        facts = (found.host, found.pid, found.number, found.version, found.deploy, found.threads, found.queues)
        host, version = socket.gethostname(), django_rmq_retry.__version__
        assert facts == (host, consumer.process.pid, 0, version, "2026.11", 3, ["payments", "rates"])
        assert (found.stopping, found.waiting, found.in_flight) == (False, 0, [])
        assert bank.url.rpartition("/")[2] in found.broker
        wait_until(lambda: row().beat_at > found.beat_at, 60, what="the next heartbeat")
        assert consumer.stopped() == 0

    assert rows() == []


def test_a_message_in_flight_is_in_the_row_until_its_handler_ends(bank: Bank) -> None:
    with at_work(bank, "payments", PAYMENT) as consumer:
        found = in_flight()
        (entry,) = found.in_flight
        since = datetime.fromisoformat(entry.pop("since"))
        # What died before it was published did not die of it.
        assert datetime.fromisoformat(entry.pop("published")) <= since
        assert entry == {
            "queue": "payments",
            "handler": "bank.pay",
            "key": "PAY-1",
            "message_id": f"payments-{PAYMENT}",
            "attempt": 1,
            "timeout": None,
            "auto_ack": False,
            "again": False,
            "blocks_since": None,
        }
        began = bank.diary("began")[0]["at"]
        assert abs(since.timestamp() - began) < 1
        assert timedelta() <= found.beat_at - since < timedelta(seconds=60)
        (bank.folder / "go").touch()
        row(lambda one: not one.in_flight)
        assert consumer.stopped() == 0

    assert rows() == []


def idle(one: ConsumerProcess, queue: str) -> datetime:
    return one.idle_in(queue) or one.started_at


def test_a_row_tells_when_its_consumer_last_had_nothing_of_a_queue(bank: Bank) -> None:
    """What another one had begun there does not wait any more: nobody has to pause the queue for it."""
    with bank.consuming("--threads", "2", "payments", "rates") as consumer:
        row(lambda one: one.idle_in("payments") and one.idle_in("rates"))
        bank.publish("payments", PAYMENT)
        begun = in_flight()
        later = row(lambda one: one.beat_at > begun.beat_at and idle(one, "rates") > begun.beat_at)
        # The clocks are read apart.
        assert abs(idle(later, "payments") - idle(begun, "payments")) < timedelta(seconds=0.3)
        (bank.folder / "go").touch()
        row(lambda one: idle(one, "payments") > idle(later, "payments") + timedelta(seconds=1))
        assert consumer.stopped() == 0


@pytest.mark.django_db(transaction=True)
def test_one_that_could_not_finish_was_heard_of_last_when_it_gave_its_messages_back() -> None:
    """Another one had begun a payment again a moment before the last heartbeat: nothing said so, and then twice."""
    arrival = delivery(message_id="slow")
    runs = running(in_flight=[AttemptState(arrival, arrival, began=time.monotonic() - 60)])
    heartbeat = heartbeat_of(runs)
    heartbeat.turn()
    runs.closing_since, runs.fault = time.monotonic() - 20, "exit 1: SIGTERM"
    heartbeat.at_end()
    ended = ConsumerProcess.objects.get()

    assert timedelta(seconds=20) <= timezone.now() - ended.beat_at < timedelta(minutes=10)
    assert (ended.told_all, [entry["message_id"] for entry in ended.in_flight]) == (True, ["slow"])


def test_one_that_is_told_to_end_looks_at_its_status_at_once() -> None:
    """The broker had lost it already, and it was called "gone or cut off" while it ended in good order."""
    heartbeat = heartbeat_of(running())
    waiting = threading.Thread(target=heartbeat.wait, args=(600,), daemon=True)
    waiting.start()
    heartbeat.wake()
    waiting.join(longer(10))

    assert not waiting.is_alive()


@pytest.mark.django_db(transaction=True)
def test_what_has_been_in_a_handler_for_a_second_is_in_the_row_before_the_next_heartbeat() -> None:
    """A consumer that was killed four seconds after it had begun four payments left a row without them."""
    runs = running()
    heartbeat = heartbeat_of(runs)

    def told(**seconds: float) -> list[str]:
        for name, ago in seconds.items():
            arrival = delivery(message_id=name)
            runs.in_flight.append(AttemptState(arrival, arrival, began=time.monotonic() - ago))
        heartbeat.turn()
        return [entry["message_id"] for entry in ConsumerProcess.objects.get().in_flight]

    assert told() == []
    assert told(now=-60) == []
    assert told(slow=1) == ["slow", "now"]
    assert told(later=-60) == ["slow", "now"]
    assert told(**{f"of-many-{number}": 1.0 for number in range(100)}) == ["slow", "now"]


def test_a_killed_consumer_leaves_its_row_and_another_one_gets_the_message(bank: Bank) -> None:
    with at_work(bank, "payments", PAYMENT) as consumer:
        found = in_flight()
        consumer.kill()
    assert [(one.pid, one.in_flight[0]["key"]) for one in rows()] == [(found.pid, "PAY-1")]
    with bank.consuming() as consumer:
        wait_until(lambda: [one for one in rows() if one.in_flight and one.pk != found.pk], 60, what=consumer.said)
        [entry] = next(one.in_flight for one in rows() if one.pk != found.pk)
        (bank.folder / "go").touch()
        assert entry["again"]
        assert timedelta() < datetime.fromisoformat(entry["since"]) - datetime.fromisoformat(entry["published"])
        wait_until(lambda: len(bank.did()) == 1, 60, what=consumer.said)

        assert found.name in [one.name for one in rows()]


def test_a_message_in_quarantine_was_with_a_consumer_that_did_not_acknowledge_it(bank: Bank) -> None:
    """The copy in quarantine is new to the broker: Live status did not say that the payment was made again."""
    with at_work(bank, "payments.quarantine", PAYMENT) as consumer:
        [entry] = in_flight().in_flight
        (bank.folder / "go").touch()
        assert (entry["queue"], entry["again"]) == ("payments.quarantine", True)
        assert consumer.stopped() == 0


def test_a_consumer_that_loses_the_broker_writes_when_it_did(bank: Bank) -> None:
    known = urlsplit(bank.url)
    with closing(Proxy(known.port or 5672)) as proxy:
        far = replace(bank, url=bank.url.replace(f":{known.port or 5672}/", f":{proxy.port}/"))
        with far.consuming() as consumer:
            assert row().lost_at is None
            before = timezone.now()
            proxy.refuse()
            lost = row(lambda one: not one.connected)
            later = row(lambda one: one.beat_at > lost.beat_at)
            proxy.accept()
            again = row()
            assert consumer.stopped() == 0

    assert lost.lost_at is not None
    assert before - timedelta(seconds=1) < lost.lost_at <= lost.beat_at
    # A later try to connect does not move it.
    assert later.lost_at is not None
    assert abs(later.lost_at - lost.lost_at) < timedelta(milliseconds=100)
    assert again.lost_at is None


def test_handlers_that_outlast_the_shutdown_leave_the_row_with_their_messages(bank: Bank) -> None:
    with at_work(bank, "payments", PAYMENT, words=("--shutdown-timeout", "0.5")) as consumer:
        row()
        consumer.process.send_signal(signal.SIGTERM)
        assert consumer.process.wait(60) == 1, consumer.said

    left = row(lambda one: one.stopping)
    assert [entry["key"] for entry in left.in_flight] == ["PAY-1"]
    assert (left.gave_back, left.fault) == (True, "exit 1: SIGTERM, but 1 handler did not finish within 0.5 s")
    assert bank.ready("payments") == 1


def test_a_handler_beyond_its_deadline_is_written_at_once_and_its_row_says_how_its_process_ended(bank: Bank) -> None:
    with at_work(bank, "reports", 1) as consumer:
        found = row(lambda one: one.in_flight and _age(one) > one.in_flight[0]["timeout"])
        assert (found.in_flight[0]["handler"], found.in_flight[0]["timeout"]) == ("bank.report", 2.0)
        assert found.stuck_at is None, "its other thread takes messages"
        late = {"queue": "reports", "handler": "bank.report", "count": 1, "timeout": 2.0, "ends_after": 4.0}
        assert found.late == [late]
        assert consumer.process.wait(60) == 1, consumer.said

    (left,) = rows()
    assert left.in_flight == [], "its message was settled as a failed attempt"
    assert left.fault.startswith("exit 1: Handler bank.report did not end within twice its timeout of 2 s: ")
    assert left.ended_at == left.beat_at


def test_a_process_is_stuck_once_all_of_its_threads_are_beyond_their_deadline(bank: Bank) -> None:
    with at_work(bank, "reports", 1, 2):
        stuck = row(lambda one: one.stuck_at)
        begun = max(datetime.fromisoformat(entry["since"]) for entry in stuck.in_flight)

        assert stuck.stuck_at is not None
        assert abs((stuck.stuck_at - begun).total_seconds() - 2.0) < 1


def _age(one: ConsumerProcess) -> float:
    return (one.beat_at - datetime.fromisoformat(one.in_flight[0]["since"])).total_seconds()


HOSTILE = {
    "0\0": ("\ud800\0", "\\ud800\\x00"),
    "1\u202e": ("K" * 999, "K" * 252 + "…"),
    "2" + "é" * 127: ({"a": 1}, "a"),
    "3<b>": (7, ""),
}
"""By message id: the business key and the text in the row."""


def test_hostile_keys_and_message_ids_are_in_the_row(bank: Bank) -> None:
    with bank.consuming("--threads", "4"):
        for name, (key, _shown) in HOSTILE.items():
            properties = pika.BasicProperties(message_id=name)
            bank.amqp.basic_publish("", "payments", json.dumps({"payment": key}).encode(), properties)
        found = row(lambda one: len(one.in_flight) == len(HOSTILE)).in_flight

    seen = {entry["message_id"]: entry["key"] for entry in found}
    assert seen == {name.replace("\0", "\\x00"): shown for name, (_key, shown) in HOSTILE.items()}


def test_a_hanging_keys_function_delays_neither_a_pause_nor_the_end(bank: Bank) -> None:
    with at_work(bank, "payments", {"payment": "PAY-HANGS"}, words=("--shutdown-timeout", "0.5")) as consumer:
        wait_until(lambda: bank.diary("asked"), 60, what=consumer.said)
        paused = bank.run("rmq_queue", "pause", "rates", "--reason", "outage")
        assert paused.returncode == 0, paused.stderr
        wait_until(lambda: bank.consumers("rates") == 0, 20, what=consumer.said)
        consumer.process.send_signal(signal.SIGTERM)
        assert consumer.process.wait(30) == 1, consumer.said

    assert bank.ready("payments") == 1


def test_each_child_of_a_supervisor_has_a_row_with_its_number(bank: Bank) -> None:
    with bank.consuming("--processes", "2") as consumer:
        wait_until(lambda: [one.number for one in rows()] == [1, 2], 60, what=consumer.said)
        assert len({one.pid for one in rows()} - {consumer.process.pid}) == 2
        assert consumer.stopped() == 0

    assert rows() == []


def test_a_child_that_died_has_its_signal_or_exit_code_in_its_row(bank: Bank) -> None:
    """It counted as one that starts, and was then "killed: its process is gone" whatever had ended it."""
    with bank.consuming("--processes", "2") as consumer:
        wait_until(lambda: sum(one.connected for one in rows()) == 2, 60, what=consumer.said)
        killed = rows()[0].pid
        os.kill(killed, signal.SIGKILL)
        wait_until(
            lambda: [one.pid for one in rows() if one.ended_at] == [killed] and rows()[2:], 60, what=consumer.said
        )
        dead, next_one, _other = rows()
        assert (dead.pid, dead.fault, dead.end_noticed, dead.stopping) == (killed, "SIGKILL", False, True)
        assert dead.ended_at
        assert dead.ended_at < next_one.started_at
        assert consumer.stopped() == 0


def test_a_consumer_without_records_writes_no_row(bank: Bank) -> None:
    bank.more["BANK_RECORDS"] = "no"
    (bank.folder / "go").touch()
    with at_work(bank, "payments", PAYMENT) as consumer:
        wait_until(lambda: len(bank.did()) == 1, 60)
        assert consumer.stopped() == 0

        assert rows() == []


def test_missing_tables_cost_one_warning_and_no_message(bank: Bank, tmp_path: Path) -> None:
    empty = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / "empty.sqlite3")}
    bank.records = Own(settings=empty).environment
    (bank.folder / "go").touch()
    with bank.consuming() as consumer:
        for number in range(12):
            bank.publish("payments", {"payment": f"PAY-{number}"})
            wait_until(partial(_has_done, bank, number + 1), 60, step=1.0)
        assert consumer.stopped() == 0

    assert consumer.said.count("event=heartbeat") == 1
    assert 'msg="The heartbeat of this process cannot be written' in consumer.said


def test_rows_of_vanished_consumers_are_deleted_by_age(bank: Bank) -> None:
    now, entry = timezone.now(), {"queue": "payments"}
    ages = {"new": (59, []), "old": (61, []), "kept": (61, [entry]), "older": (1441, [entry])}
    for name, (minutes, entries) in ages.items():
        at = now - timedelta(minutes=minutes)
        facts: dict[str, Any] = {"host": "h", "pid": os.getpid(), "started_at": at, "beat_at": at}
        ConsumerProcess.objects.using(ALIAS).create(name=name, in_flight=entries, **facts)
    with bank.consuming():
        names = {"old", "older"}
        wait_until(lambda: not names & {one.name for one in rows()}, 60, what="they are deleted", step=0.2)

    assert {one.name for one in rows()} >= {"new", "kept"}

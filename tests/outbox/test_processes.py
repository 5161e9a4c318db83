"""Real processes, a real broker and a real database: kills between the steps, an unreachable broker, the commands."""

import os
import queue
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.db import OperationalError, connections, transaction
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry import Message, publish
from django_rmq_retry.models import OutboxMessage
from django_rmq_retry.publishing import due_rows, outbox_rows, relay_thread, wake_ups
from django_rmq_retry.publishing.wake_ups import WakeUps
from tests.commands.running import Exit
from tests.outbox.dying import MANY as MESSAGES
from tests.outbox.dying import QUEUE
from tests.outbox.made import Post, due_again, emptied, insert_unsent, kept, left, relay, written_late
from tests.tooling import processes
from tests.tooling.brokers import change_broker, using_broker
from tests.tooling.filled import Own
from tests.tooling.proxy import proxy_to
from tests.tooling.results import RETURNED, UNSENT
from tests.tooling.waiting import wait_until

pytestmark = [pytest.mark.database, pytest.mark.long, pytest.mark.usefixtures("declared")]

ROOT = Path(__file__).parents[2]
MANY = 1000
ROWS = OutboxMessage.objects.using("own")
Start = Callable[..., "processes.Started"]


@pytest.fixture
def declared(amqp: BlockingChannel, broker_url: str, settings: Any, own_database: Own) -> Iterator[None]:  # noqa: ARG001 - in this order
    """Declare a queue on the broker to which the test publishes."""
    amqp.queue_declare(QUEUE)
    with using_broker(settings, broker_url):
        yield


@pytest.fixture
def start(own_database: Own, broker_url: str, tmp_path: Path) -> Iterator[Start]:
    """Start Python modules on that database and broker; they are ended with the test."""
    with ExitStack() as started:

        def begin(*words: str, url: str = broker_url) -> "processes.Started":
            own = {
                "FAULTS_URL": url,
                "FAULTS_FOLDER": str(tmp_path),
                "PYTHONPATH": str(ROOT),
                **own_database.environment,
            }
            env = {**os.environ, **own, "DJANGO_SETTINGS_MODULE": "tests.faults.project.settings"}
            pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
            process = processes.start([sys.executable, "-m", *words], env=env, **pipes)
            started.enter_context(process)
            started.callback(process.kill)
            return process

        yield begin


def arrived(amqp: BlockingChannel) -> list[str]:
    """Take all messages from the queue; return their ids."""
    found: list[str] = []
    while True:
        _method, properties, _body = amqp.basic_get(QUEUE, auto_ack=True)
        if properties is None:
            return found
        found.append(properties.message_id or "")


def bodies(amqp: BlockingChannel) -> list[bytes]:
    """Take all messages from the queue; return their bodies."""
    found: list[bytes] = []
    while (body := amqp.basic_get(QUEUE, auto_ack=True)[2]) is not None:
        found.append(body)
    return found


def killed(process: "processes.Started") -> None:
    said, _ = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL, said


def test_a_row_left_by_a_kill_before_its_send_is_sent_once(amqp: BlockingChannel, start: Start) -> None:
    killed(start("tests.outbox.dying", "before it is sent"))
    assert (arrived(amqp), kept("own")) == ([], [QUEUE])
    emptied(relay())
    assert arrived(amqp) == [], "its lease is not over"

    due_again()
    emptied(relay())
    assert (arrived(amqp), kept("own")) == (["mine"], [])


def test_a_row_left_by_a_kill_after_its_confirm_is_sent_again_with_its_id(amqp: BlockingChannel, start: Start) -> None:
    killed(start("tests.outbox.dying", "before it is forgotten"))
    due_again()
    emptied(relay())

    assert (arrived(amqp), kept("own")) == (["mine", "mine"], [])


def test_a_kill_on_the_way_leaves_exactly_the_rest_to_a_relay(amqp: BlockingChannel, start: Start) -> None:
    killed(start("tests.outbox.dying", "on its way"))
    rest = ROWS.count()
    due_again()
    emptied(relay())
    copies = Counter(arrived(amqp))

    assert (len(copies), kept("own")) == (MESSAGES, [])
    # What had been confirmed is sent again if its row was not deleted yet.
    assert sum(copies.values()) - MESSAGES <= rest
    assert max(copies.values()) <= 2


@pytest.mark.parametrize("step", ["at its end", "in a child"])
def test_a_process_that_ends_sends_what_it_has_committed(amqp: BlockingChannel, start: Start, step: str) -> None:
    """Like a management command; a child that it forks meanwhile sends its own."""
    process = start("tests.outbox.dying", step)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 0, said

    assert (sorted(arrived(amqp), key=int), kept("own")) == ([str(number) for number in range(MESSAGES)], [])


def unlocked() -> bool:
    """True if no transaction has a lock on the rows."""
    with transaction.atomic(using="own"):
        return bool(ROWS.select_for_update(skip_locked=True) if due_rows.skips_locked("own") else ROWS.all())


def test_rows_of_a_killed_relay_are_free_at_once_if_rows_are_locked(amqp: BlockingChannel, start: Start) -> None:
    left(QUEUE)
    killed(start("tests.outbox.dying", "a relay before it forgets"))
    if not due_rows.skips_locked("own"):
        emptied(relay())
        assert kept("own") == [QUEUE], "its lease is not over"
        due_again()
    # The server notices within a moment that its client is gone.
    wait_until(unlocked, 10, what="the killed relay's transaction is rolled back")
    emptied(relay())

    assert (arrived(amqp), kept("own")) == ([f"id of {QUEUE}"] * 2, [])


def test_during_an_outage_commits_wait_once_and_all_rows_arrive_in_order(
    amqp: BlockingChannel, broker_url: str, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    change_broker(settings, "amqp://guest:guest@127.0.0.1:1/")
    took: list[float] = []
    for number in range(20):
        began = time.monotonic()
        with transaction.atomic(using="own"):
            publish(number, routing_key=QUEUE, message_id=f"{number:02}", order_key="account:7")
        took.append(time.monotonic() - began)
    said = [record.getMessage() for record in caplog.records if "stay in the outbox" in record.getMessage()]
    assert took[0] < 3
    assert sum(took[1:]) < 3
    assert len(said) == 1

    change_broker(settings, broker_url)
    due_again()
    emptied(relay())
    assert (arrived(amqp), kept("own")) == ([f"{number:02}" for number in range(20)], [])


def test_a_late_confirm_still_deletes_the_row(amqp: BlockingChannel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_rmq_retry.publishing.outgoing.SILENT_SECONDS", 0.0)
    with transaction.atomic(using="own"):
        publish(1, routing_key=QUEUE, message_id="mine")
    written_late(lambda: not kept("own"))

    assert arrived(amqp) == ["mine"]


EVIL = b"the body that closes the connection"


@pytest.fixture
def poisoned(broker_url: str, settings: Any, declared: None) -> Iterator[None]:  # noqa: ARG001 - in this order
    """Publish through a proxy that closes the connection over each message with this body."""
    port = urlsplit(broker_url).port or 5672
    with proxy_to(port) as proxy:
        proxy.poison = EVIL
        with using_broker(settings, broker_url.replace(f":{port}/", f":{proxy.port}/")):
            yield


@pytest.mark.usefixtures("poisoned")
def test_a_row_that_closes_the_connection_doubles_the_others_at_most_once_and_fails(
    amqp: BlockingChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_rmq_retry.publishing.faults.MOST_FAILED_SENDS", 3)
    payments = [Message(body=b"%d" % number, routing_key=QUEUE) for number in range(300)]
    insert_unsent([*payments[:200], Message(body=EVIL, routing_key="evil"), *payments[200:]])
    for _ in range(20):
        # Each batch is that of another relay, or of one that was restarted.
        relay().turn()
        due_again()
    copies = Counter(bodies(amqp))

    assert kept("own") == ["evil"]
    row = ROWS.get()
    assert (row.attempts, row.failed_at is not None) == (3, True)
    assert len(copies) == 300
    assert max(copies.values()) <= 2


@pytest.mark.usefixtures("poisoned")
def test_a_commit_with_a_row_that_closes_the_connection_doubles_the_others_at_most_once(amqp: BlockingChannel) -> None:
    with transaction.atomic(using="own"):
        for number in range(300):
            publish({"payment": number}, routing_key=QUEUE)
        publish(EVIL.decode(), routing_key=QUEUE)
        publish({"payment": 300}, routing_key=QUEUE)
    due_again()
    one = relay()

    def left_alone() -> bool:
        one.turn()
        return ROWS.count() == 1 and ROWS.get().attempts > 0

    wait_until(left_alone, what="the payments have left")
    copies = Counter(bodies(amqp))

    assert len(copies) == 301
    assert max(copies.values()) <= 2


def test_a_notification_wakes_the_relay(amqp: BlockingChannel, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("POLL_SECONDS", "LISTENING_POLL_SECONDS"):
        monkeypatch.setattr(relay_thread, name, 600.0)
    monkeypatch.setattr(outbox_rows, "served", lambda: ["own"])
    asleep: list[float] = []
    listened = WakeUps.wait

    def wait(wake_ups: WakeUps, seconds: float) -> None:
        asleep.append(seconds)
        listened(wake_ups, seconds)

    monkeypatch.setattr(WakeUps, "wait", wait)
    relays = relay_thread.RelayThread()
    relays.start()
    wait_until(lambda: asleep, what="it sleeps")
    if connections["own"].vendor == "postgresql":
        # The relay is woken by the database, not by this process.
        outbox_rows.wakers.clear()
    left(QUEUE)
    outbox_rows.notify("own")
    wait_until(lambda: not kept("own"), what="the row was sent")

    assert asleep[0] == 600.0
    assert relays.stop(timeout=20)
    assert arrived(amqp) == [f"id of {QUEUE}"]


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The rounds of a relay that would next look for rows in ten minutes, and pauses as long after an error."""
    for module, name in (
        (relay_thread, "LISTENING_POLL_SECONDS"),
        (relay_thread, "RETRY_SECONDS"),
        (wake_ups, "ERROR_SECONDS"),
    ):
        monkeypatch.setattr(module, name, 600.0)
    found: list[float] = []

    def served() -> list[str]:
        found.append(time.monotonic())
        return []

    monkeypatch.setattr(outbox_rows, "served", served)
    return found


def woken_once(relays: relay_thread.RelayThread, rounds: list[float]) -> None:
    relays.start()
    wait_until(lambda: rounds, what="the first round")
    relays.wake()
    wait_until(lambda: len(rounds) > 1, what="the second round")
    assert relays.stop(timeout=20)


@pytest.fixture
def many_files() -> Iterator[None]:
    """Leave only file descriptors above 1023, which `select` cannot watch."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 2048:
        resource.setrlimit(resource.RLIMIT_NOFILE, (2048, hard))
    held = [os.open(os.devnull, os.O_RDONLY)]
    while held[-1] < 1100:
        held.append(os.dup(held[0]))
    yield
    for one in held:
        os.close(one)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_files")
def test_a_relay_with_many_open_files_still_waits_between_rounds(rounds: list[float]) -> None:
    woken_once(relay_thread.RelayThread(), rounds)

    assert len(rounds) == 2


@pytest.mark.parametrize("command", ["rmq_relay", "rmq_consume"])
def test_a_relay_process_runs_until_it_is_stopped(amqp: BlockingChannel, start: Start, command: str) -> None:
    assert start("django", "rmq_declare").wait(60) == 0
    process = start("django", command, "--max-runtime", "120")
    left(*[QUEUE] * 5)
    wait_until(lambda: not kept("own"), 60, what="the rows were sent")
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=30)

    assert process.returncode == 0, said
    assert len(arrived(amqp)) == 5


@pytest.mark.parametrize(("count", "line"), [(1, "sent 1 message from"), (3, "sent 3 messages from")])
def test_a_burst_ends_when_all_rows_are_sent(amqp: BlockingChannel, start: Start, count: int, line: str) -> None:
    left(*[QUEUE] * count)
    process = start("django", "rmq_relay", "--burst")
    said, _ = process.communicate(timeout=60)

    assert (process.returncode, len(arrived(amqp))) == (Exit.DONE, count), said
    assert line in said


def test_a_consumer_burst_ends_when_all_sendable_rows_are_sent(amqp: BlockingChannel, start: Start) -> None:
    assert start("django", "rmq_declare").wait(60) == 0
    left("nowhere")
    left(*[QUEUE] * MANY, order_key="account:7")
    process = start("django", "rmq_consume", "--burst")
    said, _ = process.communicate(timeout=120)

    assert (process.returncode, len(arrived(amqp)), kept("own")) == (Exit.DONE, MANY, ["nowhere"]), said


def test_a_relay_reports_idle_only_after_a_round_that_sent_nothing(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_rows, "served", lambda: ["own"])
    left("good", "bad")
    post.ends["bad"] = RETURNED
    relays, told = relay_thread.RelayThread(), queue.SimpleQueue[bool]()
    relays.report_emptiness(told.put)
    relays.start()
    first = told.get(timeout=30)
    post.ends["bad"] = UNSENT
    due_again()
    relays.report_emptiness(told.put)
    second = told.get(timeout=30)
    assert relays.stop(timeout=20)
    relays.report_emptiness(told.put)

    assert (first, second, told.get(timeout=30)) == (False, True, True)
    assert kept("own") == ["bad"]


def test_a_relay_survives_a_failing_router_and_an_unclosable_connection(
    post: Post, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(relay_thread, "RETRY_SECONDS", 0.01)
    routers = iter([RuntimeError("no tenant"), RuntimeError("no tenant")])
    losses = iter([OperationalError("gone"), OperationalError("gone")])
    exists = outbox_rows.table_exists

    def served() -> list[str]:
        if error := next(routers, None):
            raise error
        return ["own"]

    def away(using: str) -> bool:
        if error := next(losses, None):
            monkeypatch.setattr(connections[using], "close", partial(failing, connections[using].close))
            raise error
        return exists(using)

    def failing(close: Callable[[], None]) -> None:
        close()
        raise OperationalError("already closed")

    monkeypatch.setattr(outbox_rows, "served", served)
    monkeypatch.setattr(outbox_rows, "table_exists", away)
    left("good")
    relays = relay_thread.RelayThread()
    relays.start()
    wait_until(lambda: post.keys == ["good"], what="the row is sent")
    assert (relays.stop(timeout=20), relays.over.is_set()) == (True, True)

    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warnings == [
        "The relay cannot read from the database routers which outboxes it serves and retries every 0.01 s: no tenant",
        "The relay cannot serve the outbox of 'own' and retries every 0.01 s: gone",
    ]


def test_stopping_does_not_wait_for_a_relay_whose_database_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_thread, "PROGRESS_SECONDS", 0.0)
    monkeypatch.setattr(outbox_rows, "served", list)
    relays, told = relay_thread.RelayThread(), queue.SimpleQueue[bool]()

    def given_up() -> bool:
        relays.report_emptiness(told.put)
        return not told.empty()

    # No report arrives before the thread is started.
    relays.report_emptiness(told.put)
    wait_until(given_up, what="it is given up")
    relays.start()
    assert relays.stop(timeout=20)
    assert told.get() is True


def test_a_burst_without_a_broker_exits_with_unreachable(start: Start) -> None:
    left(QUEUE)
    process = start("django", "rmq_relay", "--burst", url="amqp://guest:guest@127.0.0.1:1/")
    said, _ = process.communicate(timeout=60)

    assert process.returncode == Exit.UNREACHABLE, said
    assert kept("own") == [QUEUE]


def test_a_burst_with_rows_left_exits_with_partly(amqp: BlockingChannel, start: Start) -> None:
    left(QUEUE, "nowhere")
    process = start("django", "rmq_relay", "--burst")
    said, _ = process.communicate(timeout=60)

    assert (process.returncode, len(arrived(amqp)), kept("own")) == (Exit.PARTLY, 1, ["nowhere"]), said

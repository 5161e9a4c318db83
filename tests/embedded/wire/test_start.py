"""The broker as its own process, and a project whose processes meet at it."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pika
import pytest

from django_rmq_retry import Delivery, handler
from django_rmq_retry.embedded.place import port_of
from django_rmq_retry.embedded.wire import server as starting
from django_rmq_retry.errors import MessageUnsent
from django_rmq_retry.management.commands.rmq_consume import bring_broker
from django_rmq_retry.testing import isolated_handlers
from tests.commands.running import Exit, run
from tests.embedded.wire.folders import connected, consumers, depth, end, running
from tests.tooling.brokers import disconnect, using_broker
from tests.tooling.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)  # what is declared is remembered in the database

ROOT = Path(__file__).parents[3]


@pytest.fixture
def project(folder: Path, settings: Any) -> Iterator[Any]:
    """One handler, and embedded:// in the settings."""
    with using_broker(settings, f"embedded://{folder}"), isolated_handlers():

        @handler("payments.charge")
        def charge(message: Delivery) -> None:
            """Nothing."""

        yield charge


@contextmanager
def command(folder: Path, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    """A command of the bank, whose broker is in that folder."""
    env = os.environ | {"RMQ_URL": f"embedded://{folder}", "DJANGO_SETTINGS_MODULE": "testproject.settings"}
    line = [sys.executable, str(ROOT / "testproject" / "manage.py"), *arguments]
    with subprocess.Popen(line, env=env, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def test_the_broker_starts_once_and_every_process_finds_it(folder: Path) -> None:
    ports = {starting.ensure(folder) for _ in range(3)}
    ports.add(port_of(folder))

    assert len(ports) == 1


@pytest.mark.slow
def test_the_broker_ends_when_no_client_is_connected(folder: Path) -> None:
    port = starting.ensure(folder)
    pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port)).close()

    wait_until(lambda: not running(folder), timeout=20, what="the broker's end")


def test_a_publish_without_a_running_broker_names_what_to_start(project: Any) -> None:
    with pytest.raises(MessageUnsent, match=r"Start `manage\.py rmq_consume`"):
        project.publish({"amount": 1})


def test_a_broker_started_by_a_consumer_has_the_projects_queues(project: Any, folder: Path) -> None:
    with pytest.raises(MessageUnsent):
        project.publish({"amount": 1})
    bring_broker()
    project.publish({"amount": 2})

    assert depth(folder, "payments.charge") == 1
    assert run("rmq_declare", "--check").code == Exit.DONE


def test_rmq_broker_runs_until_it_is_stopped(project: Any, folder: Path) -> None:
    with command(folder, "rmq_broker", "--like", "4.3") as process:
        wait_until(lambda: running(folder), what="the broker")
        assert run("rmq_declare").code == Exit.DONE
        project.publish({"amount": 1})
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=10)

    assert process.returncode == 0
    assert out.startswith("The embedded broker listens on amqp://guest:guest@127.0.0.1:")
    assert "behaves as RabbitMQ 4.3" in out
    assert f"It stores durable queues and persistent messages in {folder / 'broker.sqlite3'}." in out
    assert out.endswith("The embedded broker has ended.\n")
    assert not running(folder)


@pytest.mark.parametrize(("options", "left"), [((), 1), (("--memory",), 0)])
def test_rmq_broker_restores_durable_state_unless_memory_is_set(
    project: Any, folder: Path, options: tuple[str, ...], left: int
) -> None:
    for _ in range(2):
        with command(folder, "rmq_broker", *options) as process:
            wait_until(lambda: running(folder), what="the broker")
            run("rmq_declare")
            found = depth(folder, "payments.charge")
            project.publish({"amount": 1})
            disconnect()
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=10)

    assert found == left


def test_a_consumer_reports_a_restored_queue_with_an_older_definition(folder: Path) -> None:
    starting.ensure(folder)
    with connected(folder) as connection:
        connection.channel().queue_declare("payments.charge", durable=True, arguments={"x-max-priority": 3})
        # Inside: a broker that nobody uses ends, which a consumer that starts slowly would find.
        with command(folder, "rmq_consume", "--max-runtime", "1") as process:
            out, _ = process.communicate(timeout=30)

    assert "The embedded broker has queue payments.charge with an earlier definition (" in out
    assert "manage.py rmq_declare --recreate payments.charge" in out


@pytest.mark.parametrize("debug", [True, False])
def test_a_consumer_without_debug_warns_of_the_embedded_broker(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, debug: bool
) -> None:
    monkeypatch.setenv("DEBUG", str(debug))
    with command(folder, "rmq_consume", "--burst") as process:
        out, _ = process.communicate(timeout=60)

    assert ("This is the embedded broker, which is for development, and DEBUG is off." in out) is not debug
    assert process.returncode == 0


def test_a_consumer_restarts_a_killed_broker_with_its_messages(folder: Path) -> None:
    with command(folder, "rmq_consume"):
        wait_until(lambda: running(folder), what="the broker")
        with connected(folder) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.queue_declare("kept", durable=True)
            channel.basic_publish("", "kept", b"x", pika.BasicProperties(delivery_mode=2))
        wait_until(lambda: consumers(folder, "payments.charge"), what="the consumer")
        end(folder, signal.SIGKILL)
        wait_until(lambda: running(folder), what="the broker again")
        wait_until(lambda: consumers(folder, "payments.charge"), what="the consumer again")
        found = depth(folder, "kept")

    assert found == 1


@pytest.mark.usefixtures("project")
@pytest.mark.django_db
def test_a_command_without_a_running_broker_names_what_to_start() -> None:
    ran = run("rmq_status")

    assert ran.code == Exit.UNREACHABLE
    assert "manage.py rmq_broker" in ran.out

"""The broker as a process of its own, and a project whose processes meet at it."""

import json
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

from django_rmq_retry import handler, registry, wiring
from django_rmq_retry.core.errors import MessageUnsent
from django_rmq_retry.core.message import Delivery
from django_rmq_retry.embedded import starting
from django_rmq_retry.embedded.locating import NotRunning, port_of
from django_rmq_retry.management.base import Exit
from django_rmq_retry.management.commands.rmq_consume import bring_broker
from tests.commands.running import run
from tests.tooling.waiting import wait_until

ROOT = Path(__file__).parents[3]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A place for one broker, which is gone after the test."""
    folder = tmp_path / "broker"
    yield folder
    try:
        pid = pid_in(folder)
    except OSError:
        return
    os.kill(pid, signal.SIGTERM)
    wait_until(lambda: not running(folder), what="the broker's end")


@pytest.fixture
def project(folder: Path, settings: Any) -> Iterator[Any]:
    """One handler, and embedded:// in the settings."""
    settings.RMQ_RETRY = {"URL": f"embedded://{folder}"}
    with registry.isolated():

        @handler("payments.charge")
        def charge(message: Delivery) -> None:
            """Nothing."""

        yield charge
    wiring.close()


@contextmanager
def ended(process: "subprocess.Popen[str]") -> Iterator["subprocess.Popen[str]"]:
    with process:
        try:
            yield process
        finally:
            process.kill()


def pid_in(folder: Path) -> int:
    return int(json.loads((folder / "broker.json").read_text())["pid"])


def depth(folder: Path, queue: str) -> int:
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port_of(folder))) as connection:
        return int(connection.channel().queue_declare(queue, passive=True).method.message_count)


def running(folder: Path) -> bool:
    try:
        port_of(folder)
    except NotRunning:
        return False
    return True


def test_it_is_started_once_and_found_by_all(folder: Path) -> None:
    ports = {starting.ensure(folder) for _ in range(3)}
    ports.add(port_of(folder))

    assert len(ports) == 1


@pytest.mark.slow
def test_it_ends_by_itself_when_nobody_needs_it_any_more(folder: Path) -> None:
    port = starting.ensure(folder)
    pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port)).close()

    wait_until(lambda: not running(folder), timeout=20, what="the broker's end")


def test_a_killed_one_is_replaced(folder: Path) -> None:
    first = starting.ensure(folder)
    os.kill(pid_in(folder), signal.SIGKILL)
    wait_until(lambda: not running(folder))
    second = starting.ensure(folder)

    pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", second)).close()

    assert first
    assert port_of(folder) == second


def test_a_publish_with_nobody_running_it_says_what_to_start(project: Any) -> None:
    with pytest.raises(MessageUnsent, match=r"Start `manage\.py rmq_consume`"):
        project.publish({"amount": 1})


def test_what_a_consumer_brings_along_has_the_queues_of_the_project(project: Any, folder: Path) -> None:
    with pytest.raises(MessageUnsent):
        project.publish({"amount": 1})
    bring_broker()
    project.publish({"amount": 2})

    assert depth(folder, "payments.charge") == 1
    assert run("rmq_declare", "--check").code == Exit.DONE


def test_it_runs_alone_as_a_command_until_it_is_told_to_stop(project: Any, folder: Path) -> None:
    command = [sys.executable, str(ROOT / "testproject" / "manage.py"), "rmq_broker", "--like", "4.3"]
    env = os.environ | {"RMQ_URL": f"embedded://{folder}", "DJANGO_SETTINGS_MODULE": "testproject.settings"}
    with ended(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)) as process:
        wait_until(lambda: running(folder), what="the broker")
        assert run("rmq_declare").code == Exit.DONE
        project.publish({"amount": 1})
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=10)

    assert process.returncode == 0
    assert out.startswith("The embedded broker listens on amqp://guest:guest@127.0.0.1:")
    assert "behaves as RabbitMQ 4.3" in out
    assert "has ended" in out
    assert not running(folder)


@pytest.mark.usefixtures("project")
def test_a_command_with_nobody_running_it_says_what_to_start() -> None:
    ran = run("rmq_status")

    assert ran.code == Exit.UNREACHABLE
    assert "manage.py rmq_broker" in ran.err

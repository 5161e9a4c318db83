"""One I/O thread and one connection of each kind in a process, none of which survives a fork."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from django.test import override_settings
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry.errors import MessageUnsent
from django_rmq_retry.publishing import broker_connections
from tests.amqp.live import to
from tests.tooling.vhosts import Vhost
from tests.tooling.waiting import wait_until

ROOT = Path(__file__).parents[2]


@pytest.fixture
def wired(broker_url: str) -> Iterator[None]:
    with override_settings(RMQ_RETRY={"URL": broker_url, "PUBLISH_TIMEOUT": 5}):
        yield


def named(vhost: Vhost) -> list[str]:
    names: list[Any] = [one.get("client_properties", {}).get("connection_name", "") for one in vhost.connections()]
    return sorted(name.split()[1] for name in names if name)


@pytest.mark.usefixtures("wired")
def test_no_connection_is_opened_before_the_first_publish(vhost: Vhost) -> None:
    assert broker_connections.connections.publisher is not None
    assert broker_connections.connections.caller() is not None

    assert vhost.connections() == []


@pytest.mark.usefixtures("wired")
def test_all_threads_share_one_publisher() -> None:
    gate = threading.Barrier(8)

    def ask(_: int) -> int:
        gate.wait(5)
        return id(broker_connections.connections.publisher)

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(ask, range(8)))) == 1


@pytest.mark.usefixtures("wired")
def test_closed_connections_are_reopened(amqp: BlockingChannel) -> None:
    amqp.queue_declare("q")
    for _ in range(3):
        broker_connections.connections.publisher.publish(to("q"))
        broker_connections.close()

    assert amqp.queue_declare("q", passive=True).method.message_count == 3


@pytest.mark.usefixtures("wired")
def test_closing_unopened_connections_does_nothing() -> None:
    broker_connections.close()
    broker_connections.close()


@pytest.mark.usefixtures("wired")
def test_a_dead_io_thread_is_replaced_once_for_all_threads(amqp: BlockingChannel) -> None:
    amqp.queue_declare("q")
    before = broker_connections.connections.publisher
    broker_connections.connections.io("x").stop(timeout=5)
    with pytest.raises(MessageUnsent):
        before.publish(to("q"))
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda _: broker_connections.connections.publisher, range(8)))
    assert len(found) == 1
    found.pop().publish(to("q"))

    assert amqp.queue_declare("q", passive=True).method.message_count == 1


@pytest.mark.usefixtures("wired")
def test_publishing_and_calling_use_separate_connections(vhost: Vhost) -> None:
    with pytest.raises(MessageUnsent):
        broker_connections.connections.publisher.publish(to("k" * 300))
    caller: Any = broker_connections.connections.caller()
    caller._io.call(caller._link.open)

    assert wait_until(lambda: named(vhost) == ["call", "publish"])


FORK = """
import os, sys, django
from django.conf import settings
settings.configure(RMQ_RETRY={"URL": sys.argv[1]}, INSTALLED_APPS=["django_rmq_retry"])
django.setup()
from django_rmq_retry.publishing import broker_connections as wiring
from django_rmq_retry.messages.message import Message
send = lambda body: wiring.connections.publisher.publish(Message(body=body, routing_key="q"), timeout=5)
send(b"parent before")
child = os.fork()
if not child:
    send(b"child")
    sys.exit(0)
_, status = os.waitpid(child, 0)
send(b"parent after")
sys.exit(os.waitstatus_to_exitcode(status))
"""


def test_a_forked_child_has_its_own_connection_and_the_parents_continues(
    broker_url: str, amqp: BlockingChannel
) -> None:
    amqp.queue_declare("q")
    words = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORK, broker_url]
    done = subprocess.run(
        words, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=30, check=False
    )
    bodies = [amqp.basic_get("q", auto_ack=True)[2] for _ in range(3)]

    assert (done.returncode, done.stderr) == (0, "")
    assert bodies == [b"parent before", b"child", b"parent after"]

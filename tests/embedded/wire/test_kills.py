"""Brokers that are killed at the worst moments: what was confirmed is there, what was settled is not."""

import random
import signal
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.exceptions import AMQPError

from django_rmq_retry.embedded.place import NotRunning
from django_rmq_retry.embedded.wire import server
from django_rmq_retry.errors import ConfigurationError
from tests.embedded.wire.folders import connected, depth, end, running
from tests.tooling.waiting import wait_until

LASTING = pika.BasicProperties(delivery_mode=2)
CONFIRMED, KILLS = 800, 4


class Traffic:
    """A publisher and a consumer that continue whatever happens to their broker, and note its answers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.numbers = 0
        self.confirmed: list[bytes] = []
        self.arrived: Counter[bytes] = Counter()
        self.settled: set[bytes] = set()
        self.wrong: list[str] = []
        self.threads = [threading.Thread(target=self.persist, args=(one,)) for one in (self.publish, self.consume)]

    @property
    def done(self) -> bool:
        return len(self.confirmed) >= CONFIRMED

    def wait_for(self, confirms: int) -> None:
        wait_until(lambda: len(self.confirmed) >= confirms, timeout=60, step=0.001, what="confirms")

    def persist(self, activity: Callable[[], bool]) -> None:
        over = False
        while not over:
            wait_until(lambda: running(self.folder), what="a broker")
            try:
                over = activity()
            except (AMQPError, NotRunning, OSError):
                continue

    def publish(self) -> bool:
        with connected(self.folder) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            while not self.done:
                self.numbers += 1
                body = b"%d" % self.numbers
                channel.basic_publish("", "q", body, LASTING)
                self.confirmed.append(body)
        return True

    def consume(self) -> bool:
        acked: list[bytes] = []
        with connected(self.folder) as connection:
            channel = connection.channel()
            while True:
                done = self.done
                got: Any = channel.basic_get("q")
                method, _, body = got
                # The answer has left behind the commit of whatever was said before it.
                self.settled.update(acked)
                acked.clear()
                if method is None:
                    if done:
                        return True
                    continue
                if self.arrived[body] and not method.redelivered:
                    self.wrong.append(f"{body!r} was redelivered without the flag")
                if body in self.settled:
                    self.wrong.append(f"{body!r} was redelivered although it was settled")
                self.arrived[body] += 1
                channel.basic_ack(method.delivery_tag)
                acked.append(body)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_a_killed_broker_keeps_confirms_and_acks(folder: Path, kind: str) -> None:
    server.ensure(folder)
    with connected(folder) as connection:
        connection.channel().queue_declare("q", durable=True, arguments={"x-queue-type": kind})
    traffic = Traffic(folder)
    for thread in traffic.threads:
        thread.start()
    chance = random.Random(7)
    for kill in range(KILLS):
        traffic.wait_for((kill + 1) * CONFIRMED // (KILLS + 1) + chance.randrange(40))
        end(folder, signal.SIGKILL)
        server.ensure(folder)
    for thread in traffic.threads:
        thread.join(60)

    assert traffic.wrong == []
    assert set(traffic.confirmed) - traffic.arrived.keys() == set()
    assert depth(folder, "q") == 0


def test_a_waiting_message_keeps_its_ttl_through_a_kill(folder: Path) -> None:
    server.ensure(folder)
    letters = {"x-message-ttl": 1000, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "again"}
    with connected(folder) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("wait", durable=True, arguments=letters)
        channel.queue_declare("again", durable=True)
        channel.basic_publish("", "wait", b"x", LASTING)
    end(folder, signal.SIGKILL)
    server.ensure(folder)
    wait_until(lambda: depth(folder, "again") == 1, what="the end of the wait")
    with connected(folder) as connection:
        got: Any = connection.channel().basic_get("again", auto_ack=True)
    _, properties, body = got

    assert body == b"x"
    assert [(death["queue"], death["count"]) for death in properties.headers["x-death"]] == [("wait", 1)]


def test_a_damaged_file_is_reported_to_the_process_that_starts_it(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    (folder / "broker.sqlite3").write_text("damaged")

    with pytest.raises(ConfigurationError, match=r"broker\.sqlite3 was not written by it and was left unchanged"):
        server.ensure(folder)
    assert (folder / "broker.sqlite3").read_text() == "damaged"


def test_a_keeper_restarts_the_broker_it_started(folder: Path) -> None:
    keeper = server.Keeper()
    with pytest.raises(NotRunning):
        keeper.port(folder)
    server.ensure(folder)
    first = keeper.port(folder)
    with connected(folder) as connection:
        connection.channel().queue_declare("q", durable=True)
    end(folder, signal.SIGKILL)
    second = keeper.port(folder)

    assert (first, second) != (0, 0)
    assert depth(folder, "q") == 0

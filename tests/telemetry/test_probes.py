"""``rmq_consume --http``: the metrics and health of processes on a real broker."""

import http.client
import os
import re
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from pika.adapters.blocking_connection import BlockingChannel
from prometheus_client.parser import text_string_to_metric_families

from tests.commands.running import run
from tests.shop.running import Running, Shop
from tests.tooling.filled import Own
from tests.tooling.marks import nightly_on_sqlite
from tests.tooling.proxy import Mode, Proxy
from tests.tooling.waiting import wait_until

ORDERS = "shop.orders"
ORDER = "tests.shop.handlers.order"
AT_ONCE = 2.0
"""Seconds within which a change shows in /readyz."""
Publish = Callable[..., None]


@pytest.fixture
def shop(broker_url: str, tmp_path: Path) -> Shop:
    return Shop(url=broker_url, notes=tmp_path / "notes").declared()


@pytest.fixture
def publish(amqp: BlockingChannel) -> Publish:
    def publish(*words: str, **more: object) -> None:
        for word in words:
            body = str({"do": word, **more}).replace("'", '"').encode()
            amqp.basic_publish("", ORDERS, body)

    return publish


class Site:
    """The HTTP server of a running consumer."""

    def __init__(self, running: Running) -> None:
        running.says("Metrics and health: http://")
        found = re.search(r"http://127\.0\.0\.1:(\d+)/", running.text)
        assert found
        self.port = int(found[1])

    def get(self, path: str) -> tuple[int, str]:
        try:
            with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=3)) as connection:
                connection.request("GET", path)
                response = connection.getresponse()
                return response.status, response.read().decode()
        except OSError:
            return 0, ""

    def ready(self) -> bool:
        return self.get("/readyz")[0] == 200

    def samples(self) -> dict[str, float]:
        """The samples by name and labels, without empty ones."""
        families = text_string_to_metric_families(self.get("/metrics")[1])
        found = [sample for family in families for sample in family.samples]
        return {f"{one.name}{sorted(one.labels.items())}": one.value for one in found if one.value}

    def sum_of(self, name: str, **labels: str) -> float:
        families = text_string_to_metric_families(self.get("/metrics")[1])
        found = [sample for family in families for sample in family.samples if sample.name == f"rmq_retry_{name}"]
        return sum(one.value for one in found if labels.items() <= one.labels.items())

    def attempts(self, verdict: str) -> float:
        return self.sum_of("attempts_total", queue=ORDERS, handler=ORDER, verdict=verdict)


@contextmanager
def served(shop: Shop, *words: str) -> Iterator[tuple[Running, Site]]:
    with shop.running("rmq_consume", ORDERS, "--http", "0", *words) as running:
        site = Site(running)
        wait_until(site.ready, 20, what="the consumer is ready")
        yield running, site


def becomes(site: Site, ready: bool) -> float:
    """Wait until /readyz shows this; return the seconds."""
    began = time.monotonic()
    wait_until(lambda: site.ready() is ready, 20, what=f"ready is {ready}")
    return time.monotonic() - began


@pytest.mark.parametrize("processes", ["1", "2"])
def test_the_counts_equal_what_the_handlers_did(shop: Shop, publish: Publish, processes: str) -> None:
    with served(shop, "--processes", processes) as (_running, site):
        publish(*["work"] * 40, *["fail"] * 5, "park", "discard", "exit")
        wait_until(lambda: len(shop.noted("begin")) == 40 + 5 * 2 + 2 + 2, 30, what="all attempts")
        wait_until(lambda: site.attempts("park") == 7, 20, what="all verdicts")
        counts = {name: site.attempts(name) for name in ("ack", "retry", "park", "discard", "halt", "duplicate")}
        seconds = site.sum_of("handler_seconds_count", handler=ORDER)

    assert counts == {"ack": 40, "retry": 6, "park": 7, "discard": 1, "halt": 0, "duplicate": 0}
    assert seconds == sum(counts.values()) == len(shop.noted("begin"))


def test_a_killed_child_shows_in_readyz_and_loses_no_count(shop: Shop, publish: Publish) -> None:
    with served(shop, "--processes", "2") as (_running, site):
        publish(*["work"] * 20)
        wait_until(lambda: site.attempts("ack") == 20, 20, what="all are acked")
        child = shop.pids()[0]
        os.kill(child, signal.SIGKILL)
        shown = becomes(site, ready=False)
        named, alive = site.get("/readyz"), site.get("/livez")
        becomes(site, ready=True)

        assert shown < AT_ONCE
        assert re.fullmatch(r"process [12] is not ready\n", named[1])
        assert alive[0] == 200
        assert (site.attempts("ack"), site.sum_of("process_starts_total")) == (20, 3)


def test_a_child_that_has_done_its_work_is_missed_by_no_check(shop: Shop, publish: Publish) -> None:
    with served(shop, "--processes", "2", "--max-messages", "5") as (_running, site):
        publish(*["work"] * 9)
        wait_until(lambda: site.sum_of("attempts_total") == 9, 20, what="nine are handled")
        wait_until(lambda: site.sum_of("threads") == 4, 20, what="one process has ended")

        assert (site.get("/livez"), site.get("/readyz")) == ((200, "ok\n"), (200, "ok\n"))


def test_a_frozen_child_is_not_ready_until_it_continues(shop: Shop, publish: Publish) -> None:
    with served(shop, "--processes", "2") as (_running, site):
        publish("work")
        wait_until(lambda: len(shop.noted("end")) == 1, 20, what="one is handled")
        child = shop.pids()[0]
        os.kill(child, signal.SIGSTOP)
        try:
            assert becomes(site, ready=False) < AT_ONCE
        finally:
            os.kill(child, signal.SIGCONT)
        becomes(site, ready=True)


@pytest.mark.usefixtures("shop")
def test_a_cut_connection_shows_in_readyz_until_the_broker_is_back(broker_url: str, tmp_path: Path) -> None:
    known = urlsplit(broker_url)
    with closing(Proxy(known.port or 5672)) as proxy:
        behind = broker_url.replace(f":{known.port}/", f":{proxy.port}/")
        with served(Shop(url=behind, notes=tmp_path / "notes")) as (_running, site):
            proxy.refuse()
            assert becomes(site, ready=False) < AT_ONCE
            assert site.get("/livez") == (200, "ok\n")
            wait_until(lambda: site.sum_of("processes_connected") == 0, 5, what="the state is written")
            proxy.accept()
            becomes(site, ready=True)
            assert site.sum_of("connections_total") == 2


@pytest.mark.slow
@pytest.mark.usefixtures("shop")
def test_after_a_storm_of_cut_connections_the_counts_equal_the_attempts(
    broker_url: str, tmp_path: Path, publish: Publish
) -> None:
    known = urlsplit(broker_url)
    with closing(Proxy(known.port or 5672)) as proxy:
        behind = Shop(url=broker_url.replace(f":{known.port}/", f":{proxy.port}/"), notes=tmp_path / "notes")
        with served(behind, "--processes", "2") as (_running, site):
            for _ in range(12):
                publish(*["work"] * 30, *["fail"] * 3, "park")
                proxy.set(Mode.RST)
                proxy.rest(0.4)
            ended = lambda: site.attempts("park") >= 12 * 4 and site.attempts("ack") >= 12 * 30  # noqa: E731
            wait_until(ended, 90, what="every message is acked or parked", step=0.5)
            becomes(site, ready=True)

            def equal() -> bool:
                # The broker redelivers what was unacked when a connection was cut, so an attempt may begin at any time.
                figures = [site.sum_of(name) for name in ("attempts_total", "handler_seconds_count", "threads_busy")]
                attempts = len(behind.noted("begin"))
                return figures == [attempts, attempts, 0]

            wait_until(equal, 60, what="the counts equal the attempts", step=0.5)
            assert site.sum_of("connections_total") > 2
            assert len(behind.noted("begin")) >= 12 * (30 + 3 * 2 + 1)


def test_a_stopping_consumer_is_not_ready_and_alive(shop: Shop, publish: Publish, tmp_path: Path) -> None:
    file = tmp_path / "go"
    with served(shop) as (running, site):
        publish("wait", **{"for": str(file)})
        wait_until(lambda: site.sum_of("threads_busy") == 1, 20, what="one is in flight")
        running.signal()
        assert becomes(site, ready=False) < AT_ONCE
        assert site.get("/readyz") == (503, "process 1 is not ready\n")
        assert site.get("/livez") == (200, "ok\n")
        file.touch()
        assert running.code() == 0


def test_a_taken_port_ends_the_command_with_a_sentence(shop: Shop) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        sentence = f"The HTTP server cannot listen on 127.0.0.1:{port}: Address already in"
        for words, begin in ((), "CommandError: "), (("--processes", "2"), "CommandError: "), (("--reload",), ""):
            told = shop.run("rmq_consume", "--http", str(port), *words)

            assert told.returncode == 2
            assert begin + sentence in told.stderr
            assert "Traceback" not in told.stderr


@pytest.mark.parametrize("given", ["http", "127.0.0.1", "127.0.0.1:99999", "127.0.0.1:-1", "", "[::1:9464", "9" * 5000])
def test_an_invalid_address_is_refused(given: str) -> None:
    assert "takes HOST:PORT or PORT" in run("rmq_consume", "--http", given).err


@nightly_on_sqlite
@pytest.mark.database
def test_figures_of_database_and_broker_are_shown(broker_url: str, tmp_path: Path, own_database: Own) -> None:
    shop = Shop(url=broker_url, notes=tmp_path / "notes", records=own_database.environment).declared()
    told = shop.run("rmq_publish", "--handler", ORDER, given='{"do": "park"}')
    assert told.returncode == 0, told.stderr
    with served(shop) as (_running, site):
        wait_until(lambda: site.sum_of("parked_total") == 1, 20, what="it is parked")
        assert shop.run("rmq_queue", "pause", ORDERS, "--reason", "the bank is down").returncode == 0
        wait_until(lambda: site.sum_of("queue_paused", queue=ORDERS) == 1, 60, what="the next reading", step=0.5)
        known: dict[str, Any] = {
            name: site.sum_of(name) for name in ("database_up", "broker_up", "parked_messages", "outbox_messages")
        }
        oldest = site.sum_of("parked_oldest_seconds", queue=ORDERS)

    assert known == {"database_up": 1, "broker_up": 1, "parked_messages": 1, "outbox_messages": 0}
    assert 0 < oldest < 120

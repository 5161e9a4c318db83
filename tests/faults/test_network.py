"""Network faults: publishing keeps its timeout, consumers reconnect, no message is lost and few are duplicated."""

import json
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from django_rmq_retry import Message
from django_rmq_retry.amqp import PublishEnd, Publisher
from django_rmq_retry.amqp.contracts import ERRORS
from django_rmq_retry.errors import PublishError
from tests.amqp.live import publishing
from tests.faults.handlers import QUEUE
from tests.faults.scene import Scene
from tests.tooling.proxy import Mode, Proxy, proxy_to
from tests.tooling.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

DEADLINE, SLACK = 1.5, 1.0
UNACKED = 10
SLOW = {Mode.DELAY, Mode.TRICKLE}
DEAF = {Mode.BLACKHOLE, Mode.BLACKHOLE_TO_CLIENT}


@pytest.fixture
def proxy(scene: Scene) -> Iterator[Proxy]:
    with proxy_to(urlsplit(scene.vhost.url).port or 5672) as made:
        yield made


@pytest.fixture
def url(scene: Scene, proxy: Proxy) -> str:
    """Return the address of the proxy before the broker."""
    parts = urlsplit(scene.vhost.url)
    return scene.vhost.url.replace(f"{parts.hostname}:{parts.port}", f"127.0.0.1:{proxy.port}")


@pytest.fixture
def publisher(url: str) -> Iterator[Publisher]:
    with publishing(url, heartbeat=1, publish_timeout=DEADLINE) as made:
        yield made


def message(one: int) -> Message:
    return Message(body=json.dumps({"id": one}).encode(), routing_key=QUEUE)


def outcome(publisher: Publisher, one: int) -> PublishEnd:
    """Return the outcome of a publish, and check that it ended in time."""
    began = time.monotonic()
    try:
        publisher.publish(message(one))
        ended = PublishEnd.CONFIRMED
    except PublishError as error:
        ended = next(known for known, kind in ERRORS.items() if type(error) is kind)
    assert time.monotonic() - began < DEADLINE + SLACK
    return ended


@pytest.mark.parametrize("mode", [mode for mode in Mode if mode is not Mode.PASS])
def test_a_publish_keeps_its_deadline_whatever_the_network_does(
    scene: Scene, proxy: Proxy, publisher: Publisher, mode: Mode
) -> None:
    scene.declare()
    publisher.publish(message(0))

    proxy.set(mode)
    tried = {one: outcome(publisher, one) for one in range(1, 5)}
    proxy.set(Mode.PASS)
    wait_until(lambda: outcome(publisher, 5) is PublishEnd.CONFIRMED, 20, what="publishing works again")

    scene.finish({one for one, ended in tried.items() if ended is PublishEnd.CONFIRMED} | {0, 5}, scene.worker())
    if mode in SLOW:
        assert set(tried.values()) == {PublishEnd.CONFIRMED}
    if mode in DEAF:
        assert set(tried.values()) <= {PublishEnd.UNKNOWN, PublishEnd.UNSENT}


@pytest.mark.parametrize("mode", [mode for mode in Mode if mode is not Mode.PASS])
def test_a_consumer_comes_back_whatever_the_network_does(scene: Scene, proxy: Proxy, url: str, mode: Mode) -> None:
    scene.declare()
    scene.publish(range(10), fails=1)
    worker = scene.worker(url=url, HEARTBEAT=1, threads=2)
    wait_until(scene.did, 15, what="it works")
    if mode in DEAF:
        wait_until(lambda: len(scene.vhost.connections()) == 2, what="both connections are known", step=0.2)

    proxy.set(mode)
    scene.publish(range(10, 30), fails=1)
    if mode in DEAF:
        wait_until(lambda: not scene.vhost.connections(), 15, what="the broker has given the connections up", step=0.2)
    proxy.set(Mode.PASS if mode in DEAF else proxy.mode)
    scene.finish(range(30), worker)

    assert scene.lost(range(30)) == set()
    doubled = {one for one, count in scene.did().items() if count > 1}
    if mode in SLOW:
        assert doubled == set()
        assert worker.said.count("Connected to") == 1
    else:
        assert len(doubled) <= UNACKED
        assert worker.said.count("Connected to") >= 2

"""A process that sends waiting retries is killed, or the broker is: no message is lost, and few arrive twice."""

import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pika
import pytest
from django.utils import timezone
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry.handlers import registry
from django_rmq_retry.messages import Properties, encode_properties
from django_rmq_retry.messages.message import Delivery
from django_rmq_retry.messages.stamp import Stamp
from django_rmq_retry.models import EarlyRetry, ItemState, RequeueRun, RunState, RunWait
from django_rmq_retry.parked import early_runs
from django_rmq_retry.parked.requeue_options import RequeueOptions
from django_rmq_retry.parked.run_steps import RunSteps, send_run
from django_rmq_retry.policies.carriers import Hop
from django_rmq_retry.recurring import thread_name
from django_rmq_retry.testing import isolated_handlers
from tests.amqp.declared import declare, has, ready
from tests.operators.dying_early import STEPS, WAITING, WAITS_SECONDS, WORK, declared
from tests.operators.made import ANN
from tests.tooling import processes
from tests.tooling.brokers import publish_exactly, using_broker
from tests.tooling.filled import Own
from tests.tooling.marks import NIGHTLY_ON_SQLITE, nightly_but
from tests.tooling.node import Node
from tests.tooling.owned import routed
from tests.tooling.vhosts import Vhost
from tests.tooling.waiting import wait_until

pytestmark = [pytest.mark.database, pytest.mark.usefixtures("own", "project"), *NIGHTLY_ON_SQLITE]
NAMES = [f"m{number}" for number in range(12)]


@pytest.fixture
def own(own_database: Own, settings: Any) -> Own:
    routed(settings)
    return own_database


@pytest.fixture(params=nightly_but(["quorum"], ["quorum", "classic"]))
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def project(kind: Any) -> Iterator[None]:
    with isolated_handlers():
        declared(kind)
        yield


def waiting(channel: BlockingChannel) -> None:
    """Twelve retries wait, each with two failed attempts."""
    subscription = registry.subscriptions()[0]
    for name in NAMES:
        raw = encode_properties(Properties(message_id=name, delivery_mode=2))
        delivery = Delivery(queue=WORK, body=name.encode(), raw=raw)
        hop = Hop(delay=WAITS_SECONDS, stamp=Stamp(attempts=2, since=1, routing_key=WORK, queue=WORK))
        copy = subscription.policy.via.carry(subscription.route, delivery, hop).copy
        assert copy is not None
        publish_exactly(copy)
    has(channel, WAITING, len(NAMES))


def names_in(channel: BlockingChannel, queue: str) -> Counter[str]:
    found: Counter[str] = Counter()
    while True:
        method, properties, _body = channel.basic_get(queue, auto_ack=True)
        if method is None or properties is None:
            return found
        found[str(properties.message_id)] += 1


@pytest.fixture
def wired(vhost: Vhost, amqp: BlockingChannel, settings: Any) -> Iterator[BlockingChannel]:
    with using_broker(settings, vhost.url, PUBLISH_TIMEOUT=20):
        declare(vhost, registry.topology())
        waiting(amqp)
        yield amqp


@pytest.mark.parametrize("killing", [*((step, "1") for step in STEPS), ("after a copy", "5")])
def test_a_killed_sender_loses_nothing_and_the_next_one_goes_on(
    killing: tuple[str, str], own: Own, kind: str, broker_url: str, wired: BlockingChannel
) -> None:
    run = early_runs.start(WORK, ANN, RequeueOptions(rate=100, stop_at=None), count=len(NAMES))
    command = [sys.executable, "-m", "tests.operators.dying_early", str(run.pk), kind, *killing]
    ended = processes.run(command, env={**os.environ, **own.environment, "RMQ_URL": broker_url})
    assert ended.returncode == -signal.SIGKILL
    RequeueRun.objects.update(leased_until=timezone.now() - timedelta(seconds=1))
    wait_until(lambda: ready(wired, WORK) + ready(wired, WAITING) >= len(NAMES), what="all are back")

    run = send_run(run.pk, thread_name("heir"), for_seconds=20, outcomes=False)

    found = names_in(wired, WORK) + names_in(wired, WAITING)
    assert set(found) == set(NAMES)
    assert sum(found.values()) <= 2 * len(NAMES)
    assert (run.state, run.sent) == (RunState.WAITING, len(NAMES))
    assert set(EarlyRetry.objects.values_list("state", flat=True)) == {ItemState.SENT}


def test_a_broker_that_is_killed_and_restarted_pauses_the_run_and_loses_nothing(
    private_broker: Vhost, private_node: Node, settings: Any
) -> None:
    with using_broker(settings, private_broker.url, PUBLISH_TIMEOUT=20):
        declare(private_broker, registry.topology())
        with channel_on(private_broker.url) as channel:
            waiting(channel)
        private_node.flush()
        run = early_runs.start(WORK, ANN, RequeueOptions(rate=10, stop_at=None), count=len(NAMES))
        driver = RunSteps(run.pk, thread_name("test"))
        try:
            wait_until(lambda: driver.step() is not None and sent(run) >= 2, what="some are sent")
            private_node.kill()
            wait_until(lambda: driver.step() is not None and waits(run) == RunWait.BROKER_AWAY, what="the run waits")
            private_node.restart()
            wait_until(lambda: driver.step() is not None and state(run) == RunState.WAITING, timeout=60, what="all")
        finally:
            driver.end()

        with channel_on(private_broker.url) as channel:
            found = names_in(channel, WORK) + names_in(channel, WAITING)
        assert set(found) == set(NAMES)


@contextmanager
def channel_on(url: str) -> Iterator[BlockingChannel]:
    connection = pika.BlockingConnection(pika.URLParameters(url))
    yield connection.channel()
    connection.close()


def sent(run: RequeueRun) -> int:
    return RequeueRun.objects.get(pk=run.pk).sent


def waits(run: RequeueRun) -> str:
    return RequeueRun.objects.get(pk=run.pk).wait


def state(run: RequeueRun) -> str:
    return RequeueRun.objects.get(pk=run.pk).state

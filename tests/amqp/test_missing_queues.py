"""A source that waits for queues it cannot consume, and consumes the others meanwhile."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry.amqp import Line
from django_rmq_retry.amqp import source as patience
from django_rmq_retry.messages import DONE
from tests.amqp.line_between import between
from tests.amqp.live import Seen, io_thread, publisher_on, source_on
from tests.tooling.vhosts import Vhost
from tests.tooling.waiting import longer, wait_until

LINES = [Line(queue="there", prefetch=10), Line(queue="missing", prefetch=10)]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "LOOK_AGAIN_SECONDS", 0.3)


@contextmanager
def source(url: str, *lines: Line) -> Iterator[tuple[patience.PikaSource, Seen]]:
    with io_thread() as io:
        publisher = publisher_on(io, url)
        made, seen = source_on(io, url, publisher, patient=True), Seen(io)
        made.start(lines, seen)
        try:
            yield made, seen
        finally:
            made.stop()
            assert seen.has_closed.wait(longer(10))
            publisher.close()


@contextmanager
def reader(vhost: Vhost, pattern: str) -> Iterator[str]:
    """The address for a user who may read these queues only."""
    vhost.management.call("PUT", f"users/{vhost.name}", {"password": "p", "tags": ""})
    rights = {"configure": ".*", "write": ".*", "read": pattern}
    vhost.management.call("PUT", f"permissions/{vhost.name}/{vhost.name}", rights)
    try:
        yield vhost.url.replace("guest:guest", f"{vhost.name}:p")
    finally:
        vhost.management.call("DELETE", f"users/{vhost.name}")


def empty(made: patience.PikaSource) -> bool:
    answers: list[bool] = []
    made.report_emptiness(answers.append)
    return wait_until(lambda: answers, what="an answer")[0]


def test_a_missing_queue_is_reported_once_and_consumed_once_it_exists(
    broker_url: str, amqp: BlockingChannel, caplog: pytest.LogCaptureFixture
) -> None:
    amqp.queue_declare("there")
    with source(broker_url, *LINES) as (made, seen):
        amqp.basic_publish("", "there", b"1")
        one = seen.next()
        made.settle(one, DONE)
        wait_until(lambda: "Queue 'missing' cannot be consumed: it does not exist." in caplog.text)
        wait_until(lambda: empty(made), what="no caller waits for it")
        amqp.queue_declare("missing")
        amqp.basic_publish("", "missing", b"2")
        other = seen.next()

        assert ((one.queue, one.body), (other.queue, other.body)) == (("there", b"1"), ("missing", b"2"))
        assert (caplog.text.count("cannot be consumed"), seen.failures) == (1, [])
        made.settle(other, DONE)
        wait_until(lambda: empty(made))


def test_a_queue_without_read_right_delays_no_other_queue(
    vhost: Vhost, amqp: BlockingChannel, caplog: pytest.LogCaptureFixture
) -> None:
    amqp.queue_declare("there")
    amqp.queue_declare("missing")
    with reader(vhost, "^there$") as url, source(url, *LINES) as (_made, seen):
        amqp.basic_publish("", "there", b"1")

        assert seen.next().body == b"1"
        wait_until(lambda: "Queue 'missing' cannot be consumed: the broker says ACCESS_REFUSED" in caplog.text)
        assert seen.failures == []


def test_reconnects_do_not_shorten_the_wait_for_a_missing_queue(
    broker_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(patience, "LOOK_AGAIN_SECONDS", 600.0)
    waits: list[float] = []
    with between(broker_url) as way, source(way.url, Line(queue="missing", prefetch=1)) as (made, seen):
        later = made._io.later

        def counted(seconds: float, call: Callable[[], None]) -> Any:
            waits.append(seconds)
            return later(seconds, call)

        monkeypatch.setattr(made._io, "later", counted)
        wait_until(lambda: "cannot be consumed" in caplog.text)
        way.cut()
        wait_until(lambda: len(seen.servers) == 2)
        wait_until(lambda: made._lines == {} and made._tries["missing"] >= 2)

        assert (waits.count(600.0), caplog.text.count("cannot be consumed")) == (1, 1)


def test_a_source_without_queues_is_empty_once_connected(broker_url: str) -> None:
    with source(broker_url) as (made, _seen):
        wait_until(lambda: empty(made))

"""Messages that the broker forgets as it sends them: on a real broker."""

import logging

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry.amqp import Line, auto_ack_line
from django_rmq_retry.amqp.open_line import OpenLine
from django_rmq_retry.messages import DONE, Instruction, Settlement
from tests.amqp.declared import has, ready
from tests.amqp.line_between import between
from tests.amqp.live import consuming
from tests.tooling.waiting import longer, wait_until

pytestmark = [pytest.mark.contract, pytest.mark.on_both]
LINE = Line(queue="q", prefetch=10, auto_ack=True)
KINDS = ["quorum", "classic"]


def fill(amqp: BlockingChannel, count: int, *, kind: str = "classic", size: int = 0) -> None:
    amqp.queue_declare("q", durable=True, arguments={"x-queue-type": kind})
    amqp.confirm_delivery()
    for number in range(count):
        amqp.basic_publish("", "q", str(number).encode().ljust(size), mandatory=True)


@pytest.mark.parametrize("kind", KINDS)
def test_the_broker_forgets_a_message_as_soon_as_it_is_sent(broker_url: str, amqp: BlockingChannel, kind: str) -> None:
    fill(amqp, 3, kind=kind)
    with consuming(broker_url, LINE) as (source, seen):
        arrivals = [seen.next() for _ in range(3)]
        source.settle(arrivals[0], DONE)
        source.settle(arrivals[1], Settlement(instruction=Instruction.KEEP, hold=0.01))
        again = seen.next()
        source.settle(again, DONE)
        source.stop()
        assert seen.has_closed.wait(longer(5))

    assert again.token == arrivals[1].token
    assert ready(amqp, "q") == 0


@pytest.mark.parametrize("limits", [(20, 1 << 30, "quorum"), (1 << 30, 20_000, "classic")])
def test_a_process_buffers_messages_only_up_to_its_limits(
    broker_url: str, amqp: BlockingChannel, monkeypatch: pytest.MonkeyPatch, limits: tuple[int, int, str]
) -> None:
    messages, size, kind = limits
    monkeypatch.setattr(auto_ack_line, "MOST_WAITING_DELIVERIES", messages)
    monkeypatch.setattr(auto_ack_line, "MOST_WAITING_BYTES", size)
    fill(amqp, 1, kind=kind)
    amqp.queue_purge("q")
    with consuming(broker_url, LINE) as (source, seen):
        wait_until(lambda: source.ready)
        fill(amqp, 300, kind=kind, size=1000)
        taken = [seen.next()]
        line: OpenLine = taken[0].token[0]
        wait_until(lambda: line.quiet, what="no more is taken")
        left = ready(amqp, "q")
        source.settle(taken[0], DONE)
        while len(taken) < 300:
            taken.append(seen.next())
            source.settle(taken[-1], DONE)
        wait_until(lambda: not line.quiet, what="more is taken")
        source.stop()
        assert seen.has_closed.wait(longer(5))

    # No order is promised: RabbitMQ may give a queue back what it was sending as it was cancelled.
    assert sorted(int(one.body) for one in taken) == list(range(300))
    assert 200 < left < 300
    assert (ready(amqp, "q"), line.in_flight) == (0, 0)


def test_a_stop_logs_how_many_unstarted_messages_are_lost(
    broker_url: str, amqp: BlockingChannel, caplog: pytest.LogCaptureFixture
) -> None:
    fill(amqp, 5)
    with caplog.at_level(logging.WARNING, "django_rmq_retry"), consuming(broker_url, LINE) as (source, seen):
        arrivals = [seen.next() for _ in range(5)]
        source.settle(arrivals[0], DONE)
        source.settle(arrivals[1], Settlement(instruction=Instruction.KEEP, hold=60))
        source.quiesce()
        source.give_back(arrivals[2:])
        source.stop()
        assert seen.has_closed.wait(longer(5))

    assert caplog.messages == [
        "Queue 'q': 4 messages that had arrived and were not begun are lost (ack='auto')",
    ]
    assert ready(amqp, "q") == 0


def test_a_lost_connection_loses_nothing_that_has_arrived(broker_url: str, amqp: BlockingChannel) -> None:
    fill(amqp, 2)
    with between(broker_url) as wire, consuming(wire.url, LINE) as (source, seen):
        first, second = seen.next(), seen.next()
        source.settle(first, Settlement(instruction=Instruction.KEEP, hold=0.5))
        wire.cut()
        wait_until(lambda: not first.token[0].open)
        source.settle(second, Settlement(instruction=Instruction.KEEP, hold=0.01))

        assert (first.is_stale, [seen.next().body, seen.next().body]) == (False, [second.body, first.body])


def test_a_pause_loses_nothing(broker_url: str, amqp: BlockingChannel) -> None:
    fill(amqp, 2)
    with consuming(broker_url, LINE) as (source, seen):
        first, second = seen.next(), seen.next()
        source.pause("q")
        line: OpenLine = first.token[0]
        wait_until(lambda: line.quiet, what="the pause")
        fill(amqp, 1)
        has(amqp, "q", 1)
        source.settle(first, DONE)
        source.settle(second, DONE)
        source.resume("q")

        assert seen.next().body == b"0"

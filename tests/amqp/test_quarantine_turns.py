"""Quarantine queues of one connection are consumed one at a time, on a real broker."""

import time
from collections.abc import Callable
from queue import Empty
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry.amqp import Line, quarantine_turns
from django_rmq_retry.amqp.quarantine_turns import LONGEST_TURN_SECONDS, QuarantineTurns
from django_rmq_retry.messages import DONE
from tests.amqp.line_between import between
from tests.amqp.live import Seen, consuming
from tests.amqp.offline import ManualLoop
from tests.tooling.vhosts import Vhost
from tests.tooling.waiting import wait_until

NAMES = ("a.quarantine", "b.quarantine", "c.quarantine")
LINES = [Line(queue=name, prefetch=1, parks=True, quarantine=True) for name in NAMES]
LONGER_THAN_A_LOOK = 0.8
Fill = Callable[..., None]


@pytest.fixture
def fill(amqp: BlockingChannel, monkeypatch: pytest.MonkeyPatch) -> Fill:
    """Publish to one of the quarantine queues, which exist, and are looked at often."""
    monkeypatch.setattr(quarantine_turns, "TURN_LOOK_SECONDS", 0.2)
    arguments = {"x-queue-type": "quorum", "x-delivery-limit": 1_000_000}
    for name in NAMES:
        amqp.queue_declare(name, durable=True, arguments=arguments)
    amqp.confirm_delivery()

    def fill(name: str, *bodies: bytes) -> None:
        for body in bodies:
            amqp.basic_publish("", name, body, pika.BasicProperties(delivery_mode=2), mandatory=True)

    return fill


def nothing_arrives(seen: Seen) -> bool:
    try:
        seen.next(LONGER_THAN_A_LOOK)
    except Empty:
        return True
    return False


def depths(amqp: BlockingChannel) -> list[int]:
    return [amqp.queue_declare(name, passive=True).method.message_count or 0 for name in NAMES]


class FakeLine:
    """A quarantine line; the test answers its questions."""

    def __init__(self, ready: int = 0, questions: "list[FakeLine] | None" = None) -> None:
        self.ready, self.in_flight = ready, 0
        self.questions: list[FakeLine] = [] if questions is None else questions
        self.open, self.retired, self.subscribed = True, False, False
        self.asked: list[Callable[[int], None]] = []

    def depth(self, told: Callable[[int], None]) -> None:
        self.asked.append(told)
        self.questions.append(self)

    def answer(self) -> None:
        asked, self.asked = self.asked, []
        for told in asked:
            told(self.ready)

    def subscribe(self) -> None:
        self.subscribed = True


def turns(*lines: FakeLine) -> tuple[Any, ManualLoop, list[FakeLine]]:
    loop: Any = ManualLoop()
    over: list[Any] = []
    made: Any = QuarantineTurns(loop, exists=lambda _line: None, ended=over.append)
    for line in lines:
        made.join(line)
    return made, loop, over


def test_the_answer_of_a_closed_line_is_ignored() -> None:
    line = FakeLine(ready=1)
    _made, loop, over = turns(line)
    loop.tick()
    line.answer()
    assert line.subscribed
    loop.tick()
    line.ready, line.open = 0, False
    loop.tick()
    line.answer()
    loop.tick()

    assert (over, loop.timers) == ([], [])


def test_each_quarantine_queue_is_asked_once_at_a_time() -> None:
    lines = [FakeLine() for _ in range(50)]
    _made, loop, _over = turns(*lines)
    for _ in range(10):
        loop.tick()

    # The first question is whether the queue exists.
    assert [len(line.asked) for line in lines] == [2] * 50
    assert len(loop.timers) == 1


def test_a_quarantine_queue_that_never_empties_ends_its_turn_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    endless, other = FakeLine(ready=5), FakeLine(ready=0)
    _made, loop, over = turns(endless, other)
    loop.tick()
    endless.answer()
    endless.in_flight, other.ready = 1, 1
    loop.tick()
    assert over == []
    clock[0] = LONGEST_TURN_SECONDS + 1
    loop.tick()
    assert over == [endless]
    endless.retired = True
    loop.tick()
    other.answer()
    assert not other.subscribed
    endless.in_flight = 0
    loop.tick()
    other.answer()
    assert other.subscribed


def test_a_turn_does_not_end_while_its_message_is_on_its_way() -> None:
    line = FakeLine(ready=1)
    _made, loop, over = turns(line)
    loop.tick()
    line.answer()
    # The broker has sent the message, which is neither ready nor here.
    line.ready = 0
    loop.tick()
    line.answer()
    assert over == []
    line.in_flight = 1
    loop.tick()
    line.in_flight = 0
    for _ in range(2):
        assert over == []
        loop.tick()
        line.answer()

    assert over == [line]


def test_the_first_quarantine_turn_is_random() -> None:
    firsts = set()
    for _ in range(60):
        questions: list[FakeLine] = []
        lines = [FakeLine(ready=1, questions=questions) for _ in range(3)]
        _made, loop, _over = turns(*lines)
        questions.clear()
        loop.tick()
        firsts.add(lines.index(questions[0]))

    assert firsts == {0, 1, 2}


@pytest.mark.contract
def test_quarantine_takes_one_message_at_a_time_queue_by_queue(
    broker_url: str, amqp: BlockingChannel, fill: Fill
) -> None:
    for name in NAMES:
        fill(name, b"1", b"2")
    with consuming(broker_url, *LINES) as (source, seen):
        order: list[str] = []
        for _ in range(6):
            arrival = seen.next()
            assert sum(depths(amqp)) == 5 - len(order)
            order.append(arrival.queue)
            source.settle(arrival, DONE)

    assert order[0::2] == order[1::2]
    assert (sorted(order[0::2]), depths(amqp)) == (sorted(NAMES), [0, 0, 0])


@pytest.mark.contract
def test_a_lost_connection_counts_only_for_the_quarantined_message_in_turn(broker_url: str, fill: Fill) -> None:
    for name in NAMES:
        fill(name, b"1")
    with between(broker_url) as way, consuming(way.url, *LINES) as (source, seen):
        tried = seen.next()
        assert nothing_arrives(seen)
        way.cut()
        arrivals = {}
        for _ in NAMES:
            arrival = seen.next()
            arrivals[arrival.queue] = arrival.redelivered
            source.settle(arrival, DONE)

    assert arrivals == {name: name == tried.queue for name in NAMES}


@pytest.mark.contract
def test_a_paused_quarantine_queue_passes_its_turn_on(broker_url: str, fill: Fill) -> None:
    for name in NAMES[:2]:
        fill(name, b"1", b"2")
    with consuming(broker_url, *LINES[:2]) as (source, seen):
        first = seen.next()
        source.pause(first.queue)
        # The message whose queue is paused is still attempted; until it is settled, no other is.
        assert nothing_arrives(seen)
        source.settle(first, DONE)
        for _ in range(2):
            other = seen.next()
            assert other.queue != first.queue
            source.settle(other, DONE)
        assert nothing_arrives(seen)
        source.resume(first.queue)
        last = seen.next()

    assert (last.queue, last.body) == (first.queue, b"2")


@pytest.mark.contract
def test_a_message_that_enters_quarantine_later_is_delivered(broker_url: str, fill: Fill) -> None:
    with consuming(broker_url, *LINES) as (source, seen):
        for name in (*NAMES, *reversed(NAMES)):
            fill(name, b"1")
            arrival = seen.next()
            source.settle(arrival, DONE)
            assert arrival.queue == name


@pytest.mark.contract
def test_a_source_with_messages_in_quarantine_is_not_empty(broker_url: str, fill: Fill) -> None:
    fill("a.quarantine", b"1")
    fill("b.quarantine", b"2")
    with consuming(broker_url, *LINES[:2]) as (source, seen):
        answers: list[bool] = []

        def empty() -> bool:
            source.report_emptiness(answers.append)
            return bool(answers and answers[-1])

        source.settle(seen.next(), DONE)
        last = seen.next()
        for _ in range(3):
            source.report_emptiness(answers.append)
        assert wait_until(lambda: len(answers) == 3)
        assert answers == [False, False, False]
        source.settle(last, DONE)
        assert wait_until(empty)


@pytest.mark.contract
def test_a_user_without_the_right_to_read_a_quarantine_queue_is_named(vhost: Vhost, fill: Fill) -> None:
    api, user = vhost.management, vhost.name
    api.call("PUT", f"users/{user}", {"password": "pw", "tags": ""})
    api.call("PUT", f"permissions/{vhost.name}/{user}", {"configure": ".*", "write": ".*", "read": "^b"})
    try:
        with consuming(vhost.url.replace("guest:guest@", f"{user}:pw@"), *LINES[:2]) as (_source, seen):
            fill("a.quarantine", b"1")
            assert wait_until(lambda: bool(seen.failures))
    finally:
        api.call("DELETE", f"users/{user}")

    assert "a.quarantine" in str(seen.failures[0])
    assert "Give the user the right to read it" in str(seen.failures[0])

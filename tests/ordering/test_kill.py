"""Consumers killed or stopped with blocked keys: the next consumer keeps the order."""

import random
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from tests.ordering.bank import blocked, waiting
from tests.ordering.dying import steps
from tests.ordering.ledger import Ledger
from tests.shop.running import Running, Shop
from tests.tooling.waiting import wait_until

pytestmark = [pytest.mark.database, pytest.mark.long]
KILLED = -signal.SIGKILL


class Dying(Shop):
    """Run modules that are no commands."""

    @staticmethod
    def command(words: tuple[str, ...]) -> list[str]:
        return [sys.executable, "-W", "error", "-m", *words]


@contextmanager
def dying(ledger: Ledger, step: str, nth: int = 1) -> Iterator[Running]:
    """Start the active consumer, which is killed at a step."""
    shop = Dying(url=ledger.shop.url, notes=ledger.shop.notes, records=ledger.shop.records)
    with shop.running("tests.ordering.dying", step, str(nth)) as running:
        yield running


@pytest.mark.parametrize("step", steps())
def test_the_standby_consumer_keeps_the_order_after_a_kill_at_any_step(ledger: Ledger, step: str) -> None:
    with dying(ledger, step) as victim:
        ledger.subscribed(1)
        with ledger.consumer():
            ledger.subscribed(2)
            ledger.publish("A", 1, fails=1)
            ledger.publish("A", 2, 3, 4)
            ledger.publish("B", 1, 2)

            assert victim.code() == KILLED

            ledger.posts("A", 1, 2, 3, 4)
            ledger.posts("B", 1, 2)
            ledger.free()

    assert (ledger.overtaken("A"), ledger.overtaken("B")) == ([], [])


def test_the_standby_consumer_knows_keys_blocked_before_it_started(ledger: Ledger) -> None:
    with ledger.consumer("--no-park") as first, ledger.consumer():
        ledger.subscribed(2)
        ledger.publish("A", 1, closed=True)
        ledger.publish("A", 2)
        wait_until(lambda: waiting("own") == ["A2"], what="the second one waits")
        first.signal(signal.SIGKILL)
        ledger.publish("A", 3)
        ledger.publish("B", 1)
        ledger.posts("B", 1)
        wait_until(lambda: waiting("own") == ["A2", "A3"], what="the third one waits too")

    assert blocked("own") == {"A": ("A1", True, 2)}
    assert ledger.ended("A") == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "stopped"])
def test_equal_messages_without_an_id_both_wait_after_their_consumer_ended(
    ledger: Ledger, number: signal.Signals
) -> None:
    gate = ledger.shop.notes.with_name("gate")
    with ledger.consumer("--no-park", "--threads", "1") as first:
        ledger.publish("A", 1, closed=True)
        wait_until(lambda: blocked("own") == {"A": ("A1", True, 0)}, what="the first one blocks its key")
        ledger.publish("B", 1, holds=str(gate))
        wait_until(lambda: ledger.seen("B") == [("begin", 1)], what="the only thread is busy")
        ledger.publish("A", 2, 2, named=False)
        wait_until(lambda: ledger.counts() == (0, 3), what="both payments are prefetched")
        first.signal(number)
        if number is signal.SIGTERM:
            wait_until(lambda: "Stopping" in first.errors + first.text, what="it is about to stop")
        gate.touch()
        assert first.code() == (0 if number is signal.SIGTERM else KILLED)
    with ledger.consumer("--no-park"):
        ledger.posts("B", 1)
        wait_until(lambda: ledger.counts() == (0, 0), what="the queue is empty")

        assert blocked("own") == {"A": ("A1", True, 2)}

        unblocked = ledger.shop.run("rmq_blocked", "unblock", "ledger.post", "A", "--yes", "--reason", "booked by hand")
        assert unblocked.returncode == 0, unblocked.stderr
        wait_until(lambda: ledger.seen("A").count(("end", 2)) == 2, what="both payments are posted")
        ledger.free()


def test_a_lost_ack_stores_a_message_without_an_id_twice_and_loses_none(ledger: Ledger) -> None:
    with dying(ledger, "between the row and the ack") as victim:
        ledger.subscribed(1)
        ledger.publish("A", 1, closed=True)
        ledger.publish("A", 2, 2, named=False)
        ledger.publish("A", 3)
        assert victim.code() == KILLED
    with ledger.consumer("--no-park"):
        wait_until(lambda: blocked("own") == {"A": ("A1", True, 4)}, what="all wait, and one of them twice")


def test_a_consumer_with_a_hanging_order_by_stops_on_request(ledger: Ledger) -> None:
    with ledger.consumer("--shutdown-timeout", "1") as first:
        ledger.publish("A", 1, endless=True)
        ledger.publish("A", 2)
        wait_until(lambda: ledger.seen("A") == [("key", 1)], what="its order_by hangs")
        first.signal(signal.SIGTERM)

        assert first.code() == 1

    assert (
        "1 handler did not finish within 1 s; their messages return to their queues, or are lost with ack=auto"
        in first.errors + first.text
    )
    wait_until(lambda: ledger.counts() == (2, 0), what="both messages are in the queue")


def test_a_hanging_order_by_ends_its_process_and_other_queues_continue(ledger: Ledger) -> None:
    live = ledger.shop.notes.with_name("live")
    with ledger.consumer("--threads", "2", "--liveness-file", str(live)) as first:
        ledger.subscribed(1)
        wait_until(live.exists, what="the liveness file is written")
        ledger.publish("A", 1, endless=True)
        ledger.publish("A", 2)
        wait_until(lambda: ledger.seen("A") == [("key", 1)], what="its order_by hangs")
        ledger.amqp.basic_publish("", "ledger.report", b'{"account": "R"}', mandatory=True)
        wait_until(lambda: ledger.seen("R") == [("report", 0)], what="the other queue is consumed")

        assert first.code() == 1

    said = first.errors + first.text
    assert "The order_by of handler ledger.post did not end within twice its timeout of 10 s" in said
    assert not live.exists()
    with ledger.consumer():
        ledger.posts("A", 2)

    assert blocked("own") == {}
    assert ledger.seen("A") == [("key", 1), ("begin", 2), ("end", 2)]


def test_a_stopping_consumer_hands_over_in_order_under_load(ledger: Ledger) -> None:
    chance = random.Random(7)
    count = 60
    with ExitStack() as consumers:
        active = consumers.enter_context(ledger.consumer())
        ledger.subscribed(1)
        for number in range(1, count + 1):
            for account in "ABC":
                ledger.publish(account, number, fails=chance.choice((0, 0, 0, 0, 0, 1)))
            if number % 15 == 0:
                following = consumers.enter_context(ledger.consumer())
                ledger.subscribed(2)
                active.signal(signal.SIGTERM)
                assert active.code() == 0
                active = following
        for account in "ABC":
            ledger.posts(account, *range(1, count + 1), timeout=120)
        ledger.free()

    assert [ledger.overtaken(account) for account in "ABC"] == [[], [], []]
    assert [ledger.ended(account) for account in "ABC"] == [list(range(1, count + 1))] * 3


def test_no_message_overtakes_a_running_handler_of_a_stopping_consumer(ledger: Ledger) -> None:
    gate = ledger.shop.notes.with_name("gate")
    with ExitStack() as stack:
        first = stack.enter_context(ledger.consumer())
        ledger.subscribed(1)
        ledger.publish("A", 1, holds=str(gate))
        wait_until(lambda: ledger.seen("A") == [("begin", 1)], what="the first one is at work")
        stack.enter_context(ledger.consumer())
        ledger.subscribed(2)
        ledger.publish("A", 2, 3)
        first.signal(signal.SIGTERM)
        wait_until(lambda: "Stopping" in first.errors + first.text, what="it is about to stop")
        gate.touch()

        assert first.code() == 0

        ledger.posts("A", 1, 2, 3)

    assert ledger.seen("A") == [("begin", 1), ("end", 1), ("begin", 2), ("end", 2), ("begin", 3), ("end", 3)]

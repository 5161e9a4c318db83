"""Consumers killed or stopped with blocked keys: the next consumer keeps the order."""

import random
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from tests.ordering.bank import blocked, waiting
from tests.ordering.dying import STEPS
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


@pytest.mark.parametrize("step", STEPS)
def test_whenever_it_is_killed_the_one_that_stood_by_keeps_the_order(ledger: Ledger, step: str) -> None:
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


def test_the_one_that_stood_by_knows_what_was_blocked_before_its_time(ledger: Ledger) -> None:
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


def test_a_consumer_that_stops_hands_over_in_order_and_under_load(ledger: Ledger) -> None:
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


def test_nothing_passes_what_still_runs_in_a_consumer_that_stops(ledger: Ledger) -> None:
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

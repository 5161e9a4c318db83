"""Signals, raised in this very process; its own handlers are put back afterwards."""

import signal
from collections.abc import Iterator

import pytest

from django_rmq_retry.consumer import supervisor


@pytest.fixture(autouse=True)
def before() -> Iterator[None]:
    kept = {number: signal.getsignal(number) for number in supervisor.SIGNALS}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", supervisor.SIGNALS)
def test_the_first_signal_asks_by_its_name(number: signal.Signals) -> None:
    asked: list[str] = []
    supervisor.listen(asked.append, at_once=lambda _: pytest.fail("too early"))
    signal.raise_signal(number)

    assert asked == [number.name]


@pytest.mark.parametrize("second", supervisor.SIGNALS)
def test_the_second_ends_at_once_whichever_it_is(second: signal.Signals) -> None:
    asked: list[str] = []
    codes: list[int] = []
    supervisor.listen(asked.append, at_once=codes.append)
    signal.raise_signal(signal.SIGTERM)
    signal.raise_signal(second)

    assert (asked, codes) == (["SIGTERM"], [130])


def test_a_signal_that_was_held_back_is_heard_from_then_on() -> None:
    asked: list[str] = []
    signal.pthread_sigmask(signal.SIG_BLOCK, supervisor.SIGNALS)
    signal.raise_signal(signal.SIGTERM)
    supervisor.listen(asked.append)

    assert asked == ["SIGTERM"]

"""Back-offs: waits that jitter only lengthens."""

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_rmq_retry import (
    AckFirst,
    Exponential,
    Fixed,
    InPlace,
    NackRequeue,
    Republish,
    RetryThenPark,
    Schedule,
    Steps,
    StopTheLine,
    WaitQueue,
)
from django_rmq_retry.arguments import LONGEST_WAIT_SECONDS
from django_rmq_retry.errors import ConfigurationError
from django_rmq_retry.policies import Backoff

SECONDS = st.floats(min_value=0.001, max_value=LONGEST_WAIT_SECONDS)
JITTER = st.floats(min_value=0, max_value=1)
CHANCE = st.floats(min_value=0, max_value=1, exclude_max=True)
BACKOFFS = st.one_of(
    st.builds(Fixed, SECONDS, JITTER),
    st.builds(Steps, st.lists(SECONDS, min_size=1, max_size=9), JITTER),
    st.builds(Exponential, SECONDS, factor=st.floats(1, 100), jitter=JITTER),
)


def waits(backoff: Backoff, attempts: int, chance: float = 0.0) -> list[float]:
    return [backoff.delay(attempt, chance) for attempt in range(1, attempts + 1)]


def test_a_fixed_wait_is_always_the_same() -> None:
    assert waits(Fixed(30), 3) == [30, 30, 30]


def test_steps_are_taken_one_by_one_and_the_last_repeats() -> None:
    assert waits(Steps([10, 60, 600]), 5) == [10, 60, 600, 600, 600]


def test_an_exponential_wait_grows_by_its_factor_up_to_its_cap() -> None:
    assert waits(Exponential(10, factor=3), 5) == [10, 30, 90, 270, 810]
    assert waits(Exponential(10, factor=3, cap=100), 5) == [10, 30, 90, 100, 100]


def test_jitter_lengthens_a_wait_by_its_share_and_never_shortens_one() -> None:
    assert waits(Exponential(10, factor=3, jitter=0.2), 2, chance=0.0) == [10, 30]
    assert waits(Exponential(10, factor=3, jitter=0.2), 2, chance=0.5) == [11, 33]


@given(BACKOFFS, st.integers(1, 2**31), CHANCE)
def test_a_wait_lies_between_its_step_and_its_jitter_or_the_brokers_limit(
    backoff: Backoff, attempt: int, chance: float
) -> None:
    nominal = backoff.nominal(attempt)
    delay = backoff.delay(attempt, chance)

    assert 0 < nominal <= LONGEST_WAIT_SECONDS
    assert nominal <= delay <= min(nominal * (1 + backoff.spread), LONGEST_WAIT_SECONDS) * (1 + 1e-12)


@pytest.mark.parametrize("factor", [3, 3.0, 10**6])
def test_the_wait_of_attempt_two_billion_is_computed_at_once(factor: float) -> None:
    assert Exponential(10, factor=factor, cap=3600).nominal(2**31) == 3600
    assert Exponential(10, factor=factor).nominal(2**31) == LONGEST_WAIT_SECONDS


def test_the_steps_of_a_back_off_are_its_different_waits() -> None:
    assert Exponential(10, factor=3, jitter=0.2).steps(5) == (10, 30, 90, 270)
    assert Exponential(10, factor=3, cap=60).steps(None) == (10, 30, 60)
    assert Steps([60, 10, 60]).steps(9) == (10, 60)
    assert Fixed(30).steps(5) == (30,)
    assert Fixed(30).steps(1) == ()


def test_the_longest_wait_of_a_back_off_includes_its_jitter() -> None:
    assert Exponential(10, factor=3, jitter=0.2).longest(5) == 324
    assert Exponential(10, factor=3, cap=60).longest(None) == 60
    assert Exponential(10, factor=1).longest(None) == 10
    assert Exponential(10).longest(None) == LONGEST_WAIT_SECONDS
    assert Exponential(1, factor=1.1).longest(100) == pytest.approx(1.1**98)
    assert Steps([60, 10, 600]).longest(3) == 60
    assert Steps([*range(1, 71), 3600]).longest(None) == 3600
    assert Fixed(30, jitter=0.5).longest(2) == 45
    assert Fixed(30).longest(1) == 0


def test_a_back_off_of_a_million_attempts_is_checked_at_once() -> None:
    assert len(Exponential(1, factor=1.000001).steps(10**9)) == 64


@pytest.mark.parametrize("seconds", [0, -1, math.nan, math.inf, LONGEST_WAIT_SECONDS + 1, "30", None, True])
def test_an_invalid_wait_is_refused_by_the_constructor(seconds: float) -> None:
    for made in (Fixed, Exponential) if seconds != 0 else (Exponential,):
        with pytest.raises(ConfigurationError, match="takes seconds above 0 and up to ten years, not "):
            made(seconds)
    with pytest.raises(ConfigurationError, match="Steps takes seconds above 0 and up to ten years, not "):
        Steps([10, seconds])


def test_no_wait_at_all_is_for_carriers_that_keep_the_message_unacked() -> None:
    for via in (NackRequeue(), Republish(), AckFirst(), InPlace()):
        assert RetryThenPark(attempts=2, backoff=Fixed(0), via=via).waits == ((Fixed(0), 2),)
    refused: tuple[Callable[[], object], ...] = (
        lambda: RetryThenPark(backoff=Fixed(0)),
        lambda: RetryThenPark(backoff=Fixed(0), via=WaitQueue("away", "wait")),
        lambda: RetryThenPark(schedules={OSError: Schedule(attempts=2, backoff=Fixed(0))}),
        lambda: StopTheLine(backoff=Fixed(0)),
    )
    for make in refused:
        with pytest.raises(ConfigurationError, match=r"The first wait of Fixed\(…\) is 0 s"):
            make()
    with pytest.raises(ConfigurationError, match="takes seconds above 0"):
        Fixed(False)


@pytest.mark.parametrize("jitter", [-0.1, 1.1, math.nan])
def test_jitter_outside_zero_to_one_is_refused(jitter: float) -> None:
    with pytest.raises(ConfigurationError, match="jitter is a share of the wait from 0 to 1, not "):
        Fixed(30, jitter=jitter)


def test_empty_steps_a_factor_below_one_and_a_low_cap_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="Steps needs at least one number of seconds"):
        Steps([])
    with pytest.raises(ConfigurationError, match=r"Exponential's factor must be at least 1, not 0\.5"):
        Exponential(10, factor=0.5)
    with pytest.raises(ConfigurationError, match=r"Exponential's cap 5 is below its first wait 10"):
        Exponential(10, cap=5)


def test_back_offs_are_values() -> None:
    assert Steps([10, 60]) == Steps((10, 60))
    assert len({Fixed(30), Fixed(30), Exponential(30), Steps([30])}) == 3

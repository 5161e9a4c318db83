"""Each rule of each policy, and the reasons that it records."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_rmq_retry import (
    DeadLetter,
    Discard,
    Exponential,
    Fixed,
    Ladder,
    Native,
    OneShot,
    Park,
    Retry,
    RetryThenPark,
    Schedule,
    Steps,
    StopTheLine,
)
from django_rmq_retry.errors import ConfigurationError
from django_rmq_retry.messages import ErrorNote, Reason
from django_rmq_retry.policies import Failure, Kind, Policy, Verdict
from tests.handlers.factories import delivery
from tests.messages.exceptions import BankDown


class RateLimited(BankDown):
    pass


class AccountClosed(Exception):
    pass


TIMEOUT = BankDown("timeout")
FAST = RetryThenPark(attempts=5, backoff=Exponential(10, factor=3))
EVERY_POLICY: list[Policy] = [FAST, StopTheLine(), OneShot(), OneShot(park=True)]


def judged(policy: Policy, error: BaseException, attempt: int = 1, **facts: float) -> Verdict:
    return policy.judge(Failure(delivery=delivery(attempt=attempt), error=error, **facts))


def caused(error: BaseException, cause: BaseException) -> BaseException:
    """The error as ``raise error from cause`` leaves it."""
    error.__cause__ = cause
    return error


def named(policy: Policy) -> str:
    return repr(policy)[:30]


class TestRetryThenPark:
    def test_a_failure_is_retried_by_the_back_off(self) -> None:
        verdicts = [judged(FAST, TIMEOUT, attempt) for attempt in (1, 2, 3, 4)]

        assert [verdict.kind for verdict in verdicts] == [Kind.RETRY] * 4
        assert [verdict.after for verdict in verdicts] == [10, 30, 90, 270]
        assert verdicts[0].error == ErrorNote(kind="BankDown", text="timeout")
        assert verdicts[0].counted

    def test_after_the_last_attempt_it_is_parked_with_a_sentence(self) -> None:
        verdict = judged(FAST, TIMEOUT, 5)

        assert (verdict.kind, verdict.reason) == (Kind.PARK, Reason.EXHAUSTED)
        assert verdict.detail == "Gave up after 5 attempts: BankDown: timeout"
        assert verdict.error == ErrorNote(kind="BankDown", text="timeout")

    @pytest.mark.parametrize("attempt", [5, 6, 10**6])
    def test_a_count_beyond_the_limit_is_parked_too(self, attempt: int) -> None:
        assert judged(FAST, TIMEOUT, attempt).kind is Kind.PARK

    def test_attempts_none_never_ends(self) -> None:
        verdict = judged(RetryThenPark(attempts=None, backoff=Fixed(30)), TIMEOUT, 10**6)

        assert (verdict.kind, verdict.after) == (Kind.RETRY, 30)

    def test_the_default_policy_makes_five_attempts_in_seven_minutes(self) -> None:
        usual = RetryThenPark()

        assert [judged(usual, TIMEOUT, attempt).after for attempt in (1, 2, 3, 4)] == [10, 30, 90, 270]
        assert judged(usual, TIMEOUT, 5).kind is Kind.PARK
        assert judged(usual, TIMEOUT, 1, chance=0.5).after == 11

    def test_errors_in_park_on_are_parked_at_once(self) -> None:
        verdict = judged(RetryThenPark(park_on=AccountClosed), AccountClosed("since May"))

        assert (verdict.kind, verdict.reason) == (Kind.PARK, Reason.PERMANENT)
        assert verdict.detail == "Non-retryable: AccountClosed: since May"

    def test_subclasses_count_as_their_class(self) -> None:
        assert judged(RetryThenPark(park_on=[BankDown, OSError]), RateLimited()).reason is Reason.PERMANENT
        assert judged(RetryThenPark(retry_on=BankDown), RateLimited()).kind is Kind.RETRY

    def test_errors_outside_retry_on_are_parked_at_once(self) -> None:
        policy = RetryThenPark(retry_on=(BankDown, TimeoutError))

        assert judged(policy, TimeoutError()).kind is Kind.RETRY
        assert judged(policy, ValueError("bad")).detail == "Non-retryable: ValueError: bad"

    def test_park_on_wins_over_retry_on(self) -> None:
        policy = RetryThenPark(park_on=RateLimited, retry_on=BankDown)

        assert judged(policy, RateLimited()).reason is Reason.PERMANENT

    def test_retry_if_gets_the_error(self) -> None:
        policy = RetryThenPark(retry_if=lambda error: "timeout" in str(error))

        assert judged(policy, TIMEOUT).kind is Kind.RETRY
        assert judged(policy, BankDown("closed")).reason is Reason.PERMANENT

    @pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError()])
    def test_a_system_exit_or_cancellation_is_retried_despite_retry_on(self, error: BaseException) -> None:
        assert judged(FAST, error).kind is Kind.RETRY
        assert judged(RetryThenPark(retry_on=BankDown), error).kind is Kind.RETRY
        assert judged(RetryThenPark(park_on=type(error)), error).kind is Kind.PARK
        assert judged(FAST, error, 5).kind is Kind.PARK

    def test_a_schedule_has_its_own_attempts_and_back_off_for_an_error(self) -> None:
        policy = RetryThenPark(
            attempts=3, backoff=Fixed(60), schedules={RateLimited: Schedule(attempts=20, backoff=Steps([5, 7]))}
        )

        assert judged(policy, TIMEOUT, 2).after == 60
        assert judged(policy, RateLimited(), 2).after == 7
        assert judged(policy, RateLimited(), 19).kind is Kind.RETRY
        assert judged(policy, RateLimited("slow"), 20).detail == "Gave up after 20 attempts: RateLimited: slow"
        assert judged(policy, TIMEOUT, 3).kind is Kind.PARK

    def test_a_schedule_matches_the_cause_of_an_error(self) -> None:
        policy = RetryThenPark(schedules={RateLimited: Schedule(attempts=20, backoff=Fixed(7))})

        assert judged(policy, caused(ValueError(), RateLimited())).after == 7
        assert judged(policy, caused(Retry(), RateLimited())).after == 7
        assert judged(policy, caused(Retry(after=3), RateLimited()), 10).after == 3

    def test_the_first_schedule_that_fits_is_taken(self) -> None:
        policy = RetryThenPark(
            schedules={
                RateLimited: Schedule(attempts=None, backoff=Fixed(1)),
                BankDown: Schedule(attempts=None, backoff=Fixed(2)),
            }
        )

        assert [judged(policy, error).after for error in (RateLimited(), BankDown())] == [1, 2]

    def test_a_budget_parks_when_the_next_attempt_would_be_too_late(self) -> None:
        policy = RetryThenPark(attempts=None, backoff=Fixed(30), budget=120)

        assert judged(policy, TIMEOUT, 3, age=90).kind is Kind.RETRY
        verdict = judged(policy, TIMEOUT, 4, age=90.1)
        assert verdict.reason is Reason.EXHAUSTED
        assert (
            verdict.detail
            == "Gave up after 4 attempts: the next one would exceed the budget of 120 s: BankDown: timeout"
        )

    @given(st.integers(1, 100), st.floats(0, 1, exclude_max=True), st.floats(0, 10**9))
    def test_a_retry_never_begins_after_the_budget_nor_sooner_than_its_step(
        self, attempt: int, chance: float, age: float
    ) -> None:
        verdict = judged(
            RetryThenPark(attempts=50, backoff=Exponential(10, jitter=0.5), budget=3600),
            TIMEOUT,
            attempt,
            chance=chance,
            age=age,
        )

        if verdict.kind is Kind.RETRY:
            assert attempt < 50
            assert age + verdict.after <= 3600
            assert verdict.after >= 10 * 2 ** (attempt - 1)


class TestOverrules:
    def test_a_handler_may_choose_the_wait(self) -> None:
        verdict = judged(FAST, caused(Retry(after=77.5), RateLimited("later")))

        assert (verdict.kind, verdict.after) == (Kind.RETRY, 77.5)
        assert str(verdict.error) == "RateLimited: later"

    def test_a_handler_may_leave_the_wait_to_the_back_off(self) -> None:
        verdict = judged(FAST, Retry("bank is closed"), 2)

        assert (verdict.after, str(verdict.error)) == (30, "Retry: bank is closed")

    def test_a_retry_counts_as_an_attempt(self) -> None:
        assert judged(FAST, Retry(after=1), 5).detail == "Gave up after 5 attempts: Retry"
        assert judged(FAST, caused(Retry(after=1), TIMEOUT), 5).detail == "Gave up after 5 attempts: BankDown: timeout"

    def test_a_retry_wins_over_park_on_and_retry_if(self) -> None:
        policy = RetryThenPark(park_on=(AccountClosed, Exception), retry_if=lambda _: False)

        assert judged(policy, caused(Retry(after=5), AccountClosed())).after == 5
        assert judged(StopTheLine(park_on=Exception), Retry(after=5)).kind is Kind.HALT

    def test_a_wait_set_on_a_retry_subclass_is_cut_to_the_limit(self) -> None:
        class Busy(Retry):
            after = 1e300

            def __init__(self) -> None:
                """Not ours."""

        assert judged(FAST, Busy()).after == 315_360_000

    def test_a_retry_with_a_moment_waits_until_then_and_ten_years_at_most(self) -> None:
        assert judged(FAST, Retry(at=datetime.fromtimestamp(1090, UTC)), now=1000).after == 90
        assert judged(FAST, Retry(at=datetime.fromtimestamp(910, UTC)), now=1000).after == 0
        assert judged(FAST, Retry(at=datetime.max.replace(tzinfo=UTC)), now=1000).after == 315_360_000

    def test_a_carrier_with_a_fixed_wait_ignores_retry_after(self) -> None:
        policy = RetryThenPark(via=DeadLetter(exchange="retry", queue="wait", after=30))

        assert judged(policy, Retry(after=5)).after == 30
        assert judged(policy, Retry(at=datetime.max.replace(tzinfo=UTC))).after == 30

    @pytest.mark.parametrize("policy", EVERY_POLICY, ids=named)
    def test_a_handler_may_park_under_every_policy(self, policy: Policy) -> None:
        verdict = judged(policy, caused(Park("The account is frozen"), AccountClosed("May")))

        assert (verdict.kind, verdict.reason) == (Kind.PARK, Reason.REQUESTED)
        assert verdict.detail == "The account is frozen"
        assert str(verdict.error) == "AccountClosed: The account is frozen: May"

    @pytest.mark.parametrize("policy", EVERY_POLICY, ids=named)
    def test_a_handler_may_discard_under_every_policy(self, policy: Policy) -> None:
        verdict = judged(policy, Discard("Superseded"))

        assert (verdict.kind, verdict.detail, verdict.error) == (Kind.DISCARD, "Superseded", None)

    def test_an_overrule_without_reason_gets_a_default_reason(self) -> None:
        assert judged(FAST, Park()).detail == "The handler parked it."
        assert judged(FAST, Discard()).detail == "The handler discarded it."

    @pytest.mark.parametrize("reason", ["r" * 10**6, "a\0\ud800", ValueError("no text"), 7, None, b"\xff"])
    def test_an_overrules_reason_becomes_a_short_text(self, reason: Any) -> None:
        verdict = judged(FAST, Park(reason))

        assert 0 < len(verdict.detail.encode()) <= 600
        assert "\0" not in verdict.detail

    def test_an_overrule_subclass_without_super_init_still_overrules(self) -> None:
        class Frozen(Park):
            def __init__(self, account: int) -> None:
                self.account = account

        class Busy(Retry):
            def __init__(self, account: int) -> None:
                self.account = account

        assert judged(FAST, Frozen(7)).detail == "The handler parked it."
        assert judged(FAST, Busy(7)).after == 10


class TestStopTheLine:
    def test_a_failure_halts_the_line(self) -> None:
        verdict = judged(StopTheLine(), TIMEOUT, 3)

        assert (verdict.kind, verdict.after) == (Kind.HALT, 4)
        assert str(verdict.error) == "BankDown: timeout"

    def test_stop_the_line_never_gives_up_by_default(self) -> None:
        verdict = judged(StopTheLine(), TIMEOUT, 10**9)

        assert (verdict.kind, verdict.after) == (Kind.HALT, 60)

    def test_stop_the_line_parks_after_attempts_or_park_on(self) -> None:
        policy = StopTheLine(attempts=3, park_on=AccountClosed)

        assert judged(policy, TIMEOUT, 3).detail == "Gave up after 3 attempts: BankDown: timeout"
        assert judged(policy, AccountClosed("May")).detail == "Non-retryable: AccountClosed: May"
        assert judged(policy, TIMEOUT, 2).kind is Kind.HALT

    def test_a_handler_may_choose_the_wait(self) -> None:
        assert judged(StopTheLine(), Retry(after=0.5)).after == 0.5

    def test_a_system_exit_halts_the_line_too(self) -> None:
        assert judged(StopTheLine(), SystemExit()).kind is Kind.HALT

    def test_stop_the_line_keeps_order_and_takes_no_carrier(self) -> None:
        assert StopTheLine().ordered
        with pytest.raises(TypeError):
            StopTheLine(via=Ladder())  # type: ignore[call-arg]


class TestOneShot:
    def test_one_shot_answers_and_discards_a_failure(self) -> None:
        verdict = judged(OneShot(), TIMEOUT)

        assert (verdict.kind, verdict.detail) == (
            Kind.DISCARD,
            "One attempt, answered with the error: BankDown: timeout",
        )
        assert OneShot().answers

    def test_one_shot_with_park_parks_a_failure(self) -> None:
        verdict = judged(OneShot(park=True), TIMEOUT)

        assert (verdict.kind, verdict.reason) == (Kind.PARK, Reason.EXHAUSTED)
        assert verdict.detail == "Gave up after 1 attempt: BankDown: timeout"

    @pytest.mark.parametrize("error", [Retry(after=5), TIMEOUT, SystemExit()])
    @pytest.mark.parametrize("park", [False, True])
    def test_one_shot_never_retries(self, error: BaseException, park: bool) -> None:
        assert judged(OneShot(park=park), error).kind in {Kind.DISCARD, Kind.PARK}


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: RetryThenPark(attempts=0), "attempts is a whole number from 1, or None for no limit, not 0."),
        (lambda: RetryThenPark(attempts=True), "attempts is a whole number from 1, or None for no limit, not True."),
        (lambda: RetryThenPark(attempts=2.0), "attempts is a whole number from 1, or None for no limit, not 2.0."),  # type: ignore[arg-type]
        (lambda: StopTheLine(attempts=-1), "attempts is a whole number from 1, or None for no limit, not -1."),
        (lambda: Schedule(0, Fixed(1)), "attempts is a whole number from 1, or None for no limit, not 0."),
        (lambda: RetryThenPark(park_on=["x"]), "park_on takes exception classes, not 'x'."),  # type: ignore[list-item]
        (lambda: RetryThenPark(retry_on=[int]), "retry_on takes exception classes, not <class 'int'>."),  # type: ignore[list-item]
        (
            lambda: RetryThenPark(schedules={int: Schedule(1, Fixed(1))}),  # type: ignore[dict-item]
            "schedules takes exception classes, not <class 'int'>.",
        ),
        (
            lambda: RetryThenPark(budget=0),
            "RetryThenPark(budget=…) takes seconds above 0 and up to ten years, not 0.",
        ),
    ],
)
def test_an_invalid_policy_is_refused_by_the_constructor(make: Callable[[], object], sentence: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        make()

    assert str(caught.value) == sentence


def test_a_back_off_with_a_fixed_wait_carrier_is_refused() -> None:
    with pytest.raises(ConfigurationError) as caught:
        RetryThenPark(backoff=Fixed(10), via=DeadLetter(exchange="retry", queue="wait", after=30))

    assert str(caught.value) == ("DeadLetter always waits 30 s. Omit backoff and schedules, or use via=Ladder().")


def test_backoffs_lists_every_back_off_of_a_policy() -> None:
    policy = RetryThenPark(backoff=Fixed(60), schedules={BankDown: Schedule(attempts=2, backoff=Fixed(5))})

    assert policy.backoffs == (Fixed(60), Fixed(5))
    assert policy.waits == ((Fixed(60), 5), (Fixed(5), 2))
    assert RetryThenPark(via=Native(5)).backoffs == (Fixed(5),)
    assert StopTheLine().backoffs == ()

"""The exceptions with which a handler overrules its policy."""

import math
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from django_rmq_retry import Discard, Park, Retry
from django_rmq_retry.policies.verdict import Overrule


def test_a_delay_may_be_a_timedelta() -> None:
    assert Retry(after=timedelta(minutes=2)).after == 120


@pytest.mark.parametrize(
    "after",
    [True, -1, -0.001, math.inf, math.nan, "5", timedelta(seconds=-1), 315_360_001, 1e300, timedelta(days=3651)],
)
def test_an_invalid_delay_is_refused(after: Any) -> None:
    with pytest.raises(
        ValueError, match=r"Retry\(after=…\) takes seconds from 0 to ten years, or a timedelta such as "
    ):
        Retry(after=after)


NOON = datetime(2026, 12, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize("early", [timedelta(hours=2), timedelta(0), timedelta(hours=-2)])
def test_a_retry_waits_until_its_moment_and_not_at_all_once_that_is_past(early: timedelta) -> None:
    now = (NOON - early).timestamp()

    assert Retry(at=NOON).wait(now) == max(early.total_seconds(), 0)


def test_a_retry_without_a_time_leaves_its_wait_to_the_policy() -> None:
    assert Retry().wait(0) is None
    assert Retry(after=0).wait(0) == 0


@pytest.mark.parametrize("at", [datetime(2026, 12, 1), NOON.date(), timedelta(1), 60, "2026-12-01T12:00:00Z"])  # noqa: DTZ001 - that is refused
def test_a_moment_of_another_kind_is_refused(at: Any) -> None:
    with pytest.raises(
        ValueError, match=r"^Retry\(at=…\) takes a datetime with a time zone, .* use Retry\(after=…\)\.$"
    ):
        Retry(at=at)


def test_a_span_and_a_moment_exclude_each_other() -> None:
    with pytest.raises(ValueError, match=r"^Pass Retry\(after=…\) or Retry\(at=…\), not both\.$"):
        Retry(after=5, at=NOON)


def test_all_overrules_can_be_caught_as_one() -> None:
    assert all(issubclass(kind, Overrule) for kind in (Retry, Park, Discard))

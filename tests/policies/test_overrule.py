"""The exceptions with which a handler overrules its policy."""

import math
from datetime import timedelta
from typing import Any

import pytest

from django_rmq_retry import Discard, Park, Retry
from django_rmq_retry.policies.verdict import Overrule


def test_a_delay_may_be_a_timedelta() -> None:
    assert Retry(after=timedelta(minutes=2)).after == 120


@pytest.mark.parametrize(
    "after", [-1, -0.001, math.inf, math.nan, "5", timedelta(seconds=-1), 315_360_001, 1e300, timedelta(days=3651)]
)
def test_an_invalid_delay_is_refused(after: Any) -> None:
    with pytest.raises(ValueError, match=r"Retry\(after=…\) takes seconds from 0 to ten years, or a timedelta, not "):
        Retry(after=after)


def test_all_overrules_can_be_caught_as_one() -> None:
    assert all(issubclass(kind, Overrule) for kind in (Retry, Park, Discard))

"""A consumer tells when it last had nothing of a queue: what others had begun does not wait there."""

from typing import cast

import pytest

from django_rmq_retry import Queue, RetryThenPark
from django_rmq_retry.amqp.contracts import Source
from django_rmq_retry.consumer.lines import IdleQueues
from django_rmq_retry.handlers import Subscription, work_queues_of
from tests.consumer.taps import Tap


@pytest.mark.parametrize(
    ("first", "then", "apart", "idle"),
    [
        ("1", "1", 1.0, True),
        ("1", "2", 1.0, False),
        ("1", None, 1.0, False),
        (None, "1", 1.0, False),
        ("1", "1", 0.1, False),
    ],
    ids=["nothing came", "one came and went", "one is unacked", "one was", "two looks at once"],
)
def test_a_queue_is_idle_if_nothing_came_between_two_looks(
    first: str | None, then: str | None, apart: float, *, idle: bool
) -> None:
    """Between two messages of a busy queue a consumer has nothing either."""
    tap = Tap()
    pay = Subscription(name="pay", run=print, queue=Queue("payments"), policy=RetryThenPark(), park="payments.parked")
    looks = IdleQueues(work_queues_of([pay]), cast("Source", tap))
    for at, mark in ((100.0, first), (100.0 + apart, then)):
        tap.untouched_marks = {"payments": mark, "payments.quarantine": "x"}
        looks.look(at)
    for answered in tap.asked:
        answered(True)

    assert looks.at == ({"payments": 100.0 + apart} if idle else {})


@pytest.mark.parametrize(("known", "mark"), [(False, "1"), (True, "2"), (True, None)], ids=["none", "late", "unacked"])
def test_a_queue_is_not_idle_before_the_broker_has_answered(*, known: bool, mark: str | None) -> None:
    """A process that was frozen looks before it has read what came, and one that is cut off hears of nothing."""
    tap = Tap()
    pay = Subscription(name="pay", run=print, queue=Queue("payments"), policy=RetryThenPark(), park="payments.parked")
    looks = IdleQueues(work_queues_of([pay]), cast("Source", tap))
    tap.untouched_marks = {"payments": "1", "payments.quarantine": "x"}
    looks.look(100.0)
    looks.look(101.0)
    unanswered = dict(looks.at)
    tap.untouched_marks["payments"] = mark
    [answered] = tap.asked
    answered(known)
    looks.look(102.0)

    assert (unanswered, looks.at) == ({}, {})
    # Nor is it asked again at once.
    assert len(tap.asked) == 1

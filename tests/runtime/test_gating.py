"""Several gates as one: each hears of a run once, whatever another one meets."""

import pytest

from django_rmq_retry import RetryThenPark
from django_rmq_retry.handlers.attempt import Gates
from django_rmq_retry.handlers.subscription import Subscription
from django_rmq_retry.messages.message import Delivery, Settlement
from django_rmq_retry.policies.verdict import ACK, Verdict, retry
from tests.core.made import delivery, subscription

SPARED = retry(0.0, counted=False)


class One:
    """Notes the verdicts it is told, and fails so often."""

    def __init__(self, says: Verdict | None = None, failing: int = 0) -> None:
        self.says = says
        self.failing = failing
        self.heard: list[Verdict] = []

    def enter(self, delivery: Delivery, subscription: Subscription) -> Settlement | None:
        return None

    def leave(
        self, delivery: Delivery, subscription: Subscription, verdict: Verdict, error: BaseException | None
    ) -> Verdict:
        if self.failing:
            self.failing -= 1
            raise ConnectionError("the database is away")
        self.heard.append(verdict)
        return self.says or verdict


def test_who_has_heard_of_a_run_is_not_told_again_when_another_could_not_hear() -> None:
    first, second, third = One(SPARED), One(failing=2), One()
    gates, message, of = Gates((first, second, third)), delivery(), subscription(RetryThenPark())
    gates.enter(message, of)
    for _ in range(2):
        with pytest.raises(ConnectionError):
            gates.leave(message, of, ACK, None)
    told = gates.leave(message, of, ACK, None)

    assert told is SPARED
    assert (first.heard, second.heard, third.heard) == ([ACK], [SPARED], [SPARED])


def test_the_next_run_of_the_same_message_is_told_to_all() -> None:
    first, second = One(), One(failing=1)
    gates, message, of = Gates((first, second)), delivery(), subscription(RetryThenPark())
    gates.enter(message, of)
    with pytest.raises(ConnectionError):
        gates.leave(message, of, SPARED, None)
    gates.enter(message, of)
    gates.leave(message, of, ACK, None)

    assert (first.heard, second.heard) == ([SPARED, ACK], [ACK])

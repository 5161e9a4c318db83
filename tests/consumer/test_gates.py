"""Several gates: each receives the verdict on a run once, even if another gate fails."""

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest

from django_rmq_retry import Delivery, Queue, RetryThenPark
from django_rmq_retry.consumer.events import Events
from django_rmq_retry.handlers import Subscription
from django_rmq_retry.handlers.call import Unready
from django_rmq_retry.messages import DONE, Reason, Settlement
from django_rmq_retry.policies import ACK, Verdict, park, retry
from tests.consumer.attempts import pipeline_of
from tests.handlers.factories import delivery

SPARED = retry(0.0, counted=False)


class One:
    """Keep the verdicts that it receives, and fail a number of times."""

    def __init__(self, says: Verdict | None = None, failing: int = 0) -> None:
        self.says = says
        self.failing = failing
        self.heard: list[Verdict] = []

    def enter(self, delivery: Delivery, subscription: Subscription) -> Settlement | Verdict | None:
        return None

    def leave(
        self, delivery: Delivery, subscription: Subscription, verdict: Verdict, error: BaseException | None
    ) -> Verdict:
        if self.failing:
            self.failing -= 1
            raise ConnectionError("the database is away")
        self.heard.append(verdict)
        return self.says or verdict


def attempts(act: Callable[[Delivery], object], noted: list[Verdict], *gates: One) -> Callable[[Delivery], Settlement]:
    one = Subscription(
        name="h", run=act, queue=Queue("payments"), policy=RetryThenPark(), park="payments.parked", rate=100.0
    )
    events = Events(lambda: 1.0, [lambda attempt: noted.append(attempt.verdict)])
    return pipeline_of(one, journals=(events,), gates=gates).attempt


def test_a_gate_that_was_notified_is_not_notified_again() -> None:
    runs: list[Delivery] = []
    noted: list[Verdict] = []
    first, second, third = One(SPARED), One(failing=2), One()
    made, message = attempts(runs.append, noted, first, second, third), delivery()
    for _ in range(2):
        with pytest.raises(ConnectionError):
            made(message)
    made(message)

    assert (first.heard, second.heard, third.heard) == ([ACK], [SPARED], [SPARED])
    assert (len(runs), noted) == (1, [SPARED])


def test_the_next_attempt_of_a_message_is_reported_to_all_gates() -> None:
    runs: list[int] = []

    def act(_message: Delivery) -> None:
        runs.append(1)
        if len(runs) == 1:
            raise Unready("no database")

    first, second = One(), One(failing=1)
    made, message = attempts(act, [], first, second), delivery()
    with pytest.raises(ConnectionError):
        made(message)

    assert made(message) is DONE
    assert [(one.kind, one.counted) for one in first.heard] == [(SPARED.kind, False), (ACK.kind, True)]
    assert second.heard == [ACK]


def test_a_message_that_a_gate_parks_is_recorded_and_not_run() -> None:
    class Parking(One):
        def enter(self, delivery: Delivery, subscription: Subscription) -> Verdict:
            return replace(park(Reason.PERMANENT, "it cannot wait"), counted=False)

    runs: list[Delivery] = []
    noted: list[Verdict] = []
    gate = Parking()
    copy = attempts(runs.append, noted, gate)(delivery()).copy

    assert copy is not None
    assert (copy.routing_key, copy.headers["rmq-retry-detail"]) == ("payments.parked", "it cannot wait")
    assert "rmq-retry-attempts" not in copy.headers
    assert ([one.detail for one in noted], runs, gate.heard) == (["it cannot wait"], [], [])


def test_a_message_whose_connection_is_lost_at_a_gate_does_not_begin() -> None:
    """A gate may wait for its database longer than the connection lives: the broker delivers the message again."""
    line, runs = SimpleNamespace(stale=False, last_acks=deque()), list[Delivery]()

    class Hanging(One):
        def enter(self, delivery: Delivery, subscription: Subscription) -> None:
            line.stale = True

    gate, noted = Hanging(), list[Verdict]()
    settlement = attempts(runs.append, noted, gate)(replace(delivery(), token=(line, 1)))

    assert (settlement, runs, noted, gate.heard) == (DONE, [], [], [])

"""The condition of a queue: one decision for Live status, Queues and rmq_status."""

from typing import Any

import pytest

from django_rmq_retry.amqp.levels import Level
from django_rmq_retry.health.condition import Condition
from django_rmq_retry.health.problems import Queues
from django_rmq_retry.health.rules import Code, Problem, Severity
from django_rmq_retry.topology import Role

HALTED, HALTED_LONG = Problem(code=Code.HALTED, subject="q"), Problem(code=Code.HALTED_LONG, subject="q")
READ: dict[str, Any] = {"ready": 0, "consumers": 1}
SIGNS = {Severity.ERROR: "✕", Severity.WARNING: "!", Severity.INFORMATION: "✓"}

OF_THEIR_OWN = (Condition.STOPPED, Condition.UNKNOWN, Condition.WAITING)
"""Those whose sign is not that of their severity."""
CONDITIONS: list[tuple[dict[str, Any], dict[str, Any], Condition]] = [
    (READ, {}, Condition.RUNNING),
    (READ, {"waiting": 1}, Condition.WAITING),
    (READ, {"waiting": 1, "parked": 1}, Condition.PARKED),
    ({"ready": 0, "consumers": 0}, {"waiting": 1}, Condition.NOTED),
    ({"ready": 0, "consumers": 0, "unacked": 2}, {}, Condition.NOTED),
    ({"ready": 0, "consumers": 0}, {"halt": HALTED}, Condition.HALTED),
    (READ, {"halt": HALTED_LONG, "waiting": 1}, Condition.HALTED_LONG),
    (READ, {"halt": HALTED_LONG, "stopped": True}, Condition.STOPPED),
    ({"ready": 1, "consumers": 0}, {"halt": HALTED_LONG, "stopped": True}, Condition.FAULTY),
    ({"consumers": None}, {"waiting": 1}, Condition.UNKNOWN),
    ({"consumers": None}, {"waiting": 1, "parked": 1}, Condition.PARKED),
    (READ, {"waiting": 1, "current": False}, Condition.UNKNOWN),
    (READ, {"parked": 1, "current": False}, Condition.PARKED),
    ({"ready": 1, "consumers": 0}, {"parked": 1, "current": False}, Condition.FAULTY),
]


@pytest.mark.parametrize(("counts", "known", "expected"), CONDITIONS)
def test_of_several_conditions_the_first_one_holds(
    counts: dict[str, Any], known: dict[str, Any], expected: Condition
) -> None:
    queues = Queues(levels=[Level(queue="q", role=Role.WORK, **counts)]).judged()

    assert Condition.of(queues, **{"stopped": False, "halt": None, **known}) is expected


def test_of_a_queue_that_the_broker_has_not_told_of_nothing_is_known() -> None:
    assert Condition.of([], stopped=False, halt=None) is Condition.UNKNOWN


def test_only_errors_are_red() -> None:
    red = [condition for condition in Condition if condition.severity is Severity.ERROR]

    assert red == [Condition.FAULTY, Condition.HALTED_LONG]


@pytest.mark.parametrize("condition", [one for one in Condition if one not in OF_THEIR_OWN])
def test_the_sign_of_a_condition_is_that_of_its_severity(condition: Condition) -> None:
    assert condition.sign == SIGNS[condition.severity]

"""The delayed retry of RabbitMQ 4.3's quorum queues."""

from typing import Any

import pytest

from django_rmq_retry import Fixed, Native, Queue, RetryThenPark
from django_rmq_retry.errors import ConfigurationError
from django_rmq_retry.messages import Instruction, Settlement
from tests.handlers.factories import delivery, hop, route, subscription


def test_native_declares_a_linear_wait_up_to_the_cap() -> None:
    assert Native(5, cap=60).additions(route()).arguments == {
        "x-delayed-retry-type": "failed",
        "x-delayed-retry-min": 5000,
        "x-delayed-retry-max": 60_000,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "payments.parked",
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
    }
    assert Native(5).additions(route()).arguments["x-delayed-retry-max"] == 5000


def test_native_returns_a_message_by_a_counted_requeue() -> None:
    assert Native(5).carry(route(), delivery(), hop(5)) == Settlement(instruction=Instruction.COUNTED_REQUEUE)


@pytest.mark.parametrize(
    ("redelivered", "count", "attempt"),
    [
        (False, None, 1),
        (False, 50, 1),
        (True, None, 1),
        (True, 1, 2),
        (True, 4, 5),
        (True, "7", 1),
        (True, -3, 1),
        (True, True, 1),
    ],
)
def test_native_counts_attempts_only_on_a_redelivery(redelivered: bool, count: object, attempt: int) -> None:
    headers: dict[str, Any] = {} if count is None else {"x-delivery-count": count}

    assert Native(5).attempt(route(), delivery(redelivered=redelivered, headers=headers)) == attempt


def test_native_refuses_queues_that_are_not_quorum() -> None:
    with pytest.raises(ConfigurationError) as caught:
        subscription(RetryThenPark(via=Native(5)), queue=Queue("payments", type="classic"))

    assert str(caught.value) == (
        "Handler payments.handlers.charge: Native delayed retry is a feature of quorum queues; queue 'payments' has "
        "another type."
    )


def test_native_refuses_a_back_off() -> None:
    with pytest.raises(ConfigurationError, match="Native always waits 5 s"):
        RetryThenPark(via=Native(5), backoff=Fixed(30))


@pytest.mark.parametrize(("first", "cap"), [(0, None), (-1, None), (10, 5), (10, float("nan")), (10, 10**12)])
def test_invalid_waits_are_refused(first: float, cap: float | None) -> None:
    with pytest.raises(ConfigurationError, match=r"^Native"):
        Native(first, cap)

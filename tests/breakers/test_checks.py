"""The system checks of breakers and rates."""

import itertools
from typing import Any

import pytest
from django.core.checks import run_checks
from django.test import override_settings

from django_rmq_retry import Breaker, Delivery, OneShot, RetryThenPark, StopTheLine, handler
from tests.messages.exceptions import BankDown


class Timeout(BankDown): ...


numbers = itertools.count()


pytestmark = pytest.mark.usefixtures("no_handlers")


def handle(queue: str, **options: Any) -> None:
    def charge(message: Delivery) -> None: ...

    handler(queue, **{"name": f"handler {next(numbers)}", **options})(charge)


def found(**settings: Any) -> list[str]:
    with override_settings(RMQ_RETRY={"URL": "amqp://h", **settings}):
        return [f"{one.id} {one.msg}".removeprefix("rmq_retry.") for one in run_checks(tags=["rmq_retry"])]


def test_a_sound_project_gets_no_finding() -> None:
    handle("payments", breaker=Breaker(on=BankDown), rate=20)
    handle("ledger", policy=StopTheLine(), breaker=Breaker(share=0.5), rate="6/h")

    assert found() == []


def test_a_breaker_that_stops_other_handlers_is_reported() -> None:
    handle("payments", name="charge", breaker=Breaker(on=BankDown), type="charge")
    handle("payments", name="refund", type="refund")

    assert found() == [
        "W050 While the breaker of charge is open, queue 'payments' is paused, and so are refund.",
    ]


@pytest.mark.parametrize("policy", [RetryThenPark(park_on=BankDown), StopTheLine(park_on=BankDown)])
def test_a_policy_that_parks_and_spares_the_same_error_is_reported(policy: Any) -> None:
    handle("payments", policy=policy, breaker=Breaker(on=(Timeout, ValueError)))

    assert [one.partition(" is in")[0] for one in found()] == ["W051 Timeout"]


def test_a_rate_that_keeps_messages_unacked_for_long_is_reported() -> None:
    handle("payments", rate="30/h")

    assert [one.partition(";")[0] for one in found()] == [
        "W052 With a rate of 30 per hour 10 unacked messages take 1200 s"
    ]
    assert found(PREFETCH=5) == []


def test_a_default_policy_incompatible_with_a_breaker_is_reported() -> None:
    handle("payments", name="charge", breaker=Breaker(on=BankDown))
    told = found(POLICY=OneShot())

    assert [one.partition(":")[0] for one in told] == ["E002 Handler charge"]
    assert "a caller waits for each answer" in told[0]

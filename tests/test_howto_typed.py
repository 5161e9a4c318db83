"""The page "Typed messages": its handlers take what it says, and an old and a new producer share a queue."""

import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest

from django_rmq_retry import errors, publish
from django_rmq_retry.testing import RmqTest, isolated_handlers, message_of
from tests.tooling.pages import blocks, page

BLOCKS = [block.text for block in blocks(page("typed.md")) if block.kind == "python"]


@pytest.fixture
def project() -> Iterator[dict[str, Any]]:
    """The page's own code, with what its payments are; it publishes to the broker of the test."""
    with isolated_handlers():
        namespace: dict[str, Any] = {"__name__": __name__}
        defining = [text.partition("\n\n\ncharge_")[0] for text in BLOCKS if "@handler" in text]
        for text in defining:
            exec(compile(text, "typed.md", "exec"), namespace)  # noqa: S102 - our own page
        namespace["paid"] = []
        namespace["pay"] = lambda *payment: namespace["paid"].append(payment)
        yield namespace


@pytest.fixture(params=["embedded", "rabbitmq"])
def rmq(request: pytest.FixtureRequest, project: dict[str, Any]) -> Iterator[RmqTest]:  # noqa: ARG001 - its handlers first
    url = None if request.param == "embedded" else str(request.getfixturevalue("broker_url"))
    with RmqTest(url=url, patience=20) as kit:
        yield kit


def test_the_page_names_the_problem_that_the_caller_gets(project: dict[str, Any]) -> None:
    with pytest.raises(errors.InvalidData) as caught:
        project["charge_typed"].publish({"id": 7, "amount": "nine"})

    assert any(f"# {caught.value.misfit.problems}" in text for text in BLOCKS)


def test_an_old_and_a_new_producer_share_the_queue_during_a_deploy(project: dict[str, Any], rmq: RmqTest) -> None:
    old, new = project["charge_v1"], project["charge_v2"]
    # The old producers are other programs: they know neither the handler nor the type.
    publish({"id": 1, "amount": "9.90"}, routing_key="payments.versions", type="payment")
    new.publish(project["PaymentV2"](2, Decimal("9.90"), "CHF"))
    publish({"id": 3, "amount": "9.90"}, routing_key="payments.versions", type="payment")
    rmq.drain()

    assert project["paid"] == [
        (1, Decimal("9.90"), "EUR"),
        (2, Decimal("9.90"), "CHF"),
        (3, Decimal("9.90"), "EUR"),
    ]
    assert (len(rmq.attempts(old)), len(rmq.attempts(new))) == (2, 1)


def test_a_producer_ahead_of_the_workers_has_its_messages_parked(project: dict[str, Any], rmq: RmqTest) -> None:
    publish({"id": 1}, routing_key="payments.versions", type="payment.v3")
    rmq.drain()

    assert [one.code for one in rmq.all_parked(project["charge_v1"])] == ["no_handler"]


def test_the_kit_gives_a_handler_its_type_and_parks_what_does_not_fit(project: dict[str, Any], rmq: RmqTest) -> None:
    charge, payment = project["charge_typed"], project["Payment"](7, Decimal("9.90"))

    assert message_of(payment, handler=charge).data == payment
    publish(json.loads('{"id": "7"}'), routing_key="payments.typed")
    rmq.drain()

    parked = rmq.parked(charge)
    assert (parked.code, parked.attempts, parked.message.data) == ("invalid", 0, None)
    assert "$.id" in parked.reason


def test_a_typed_dict_and_a_model_are_checked_as_the_page_shows_them(project: dict[str, Any], rmq: RmqTest) -> None:
    project["refund"].publish({"id": 7, "amount": Decimal("9.90")})
    project["pay_out"].publish(project["Payout"](iban="DE89370400440532013000", amount=Decimal("9.90")))
    rmq.drain()

    assert [len(rmq.attempts(project[name])) for name in ("refund", "pay_out")] == [1, 1]
    with pytest.raises(errors.InvalidData, match=r"\$\.reason"):
        project["refund"].publish({"id": 7, "amount": "9.90", "reason": 5})
    with pytest.raises(errors.InvalidData, match=r"\$\.amount"):
        project["pay_out"].publish({"iban": "DE89370400440532013000", "amount": "-9.90"})

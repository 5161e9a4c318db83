"""The group of a parked message: written to headers of the parked copy and read back by the drainer."""

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from django_rmq_retry import Delivery, Fixed, Park, Queue, RetryThenPark, StopTheLine
from django_rmq_retry.consumer.deadlines import Deadlines
from django_rmq_retry.handlers import Match, Subscription, grouping, work_queues_of
from django_rmq_retry.handlers.call import guarded
from django_rmq_retry.handlers.subscription import Fingerprint
from django_rmq_retry.messages import Reason, Settlement, encode_properties
from django_rmq_retry.messages.parked_copy import ParkedCopy
from django_rmq_retry.messages.tracebacks import Grouping, named_fingerprint, untraced
from django_rmq_retry.policies import Kind, Policy, park
from tests.consumer.attempts import Book, pipeline_of
from tests.handlers.factories import delivery, subscription
from tests.messages.exceptions import BankDown, Unprintable, deep, odd_names, post
from tests.messages.parked_copies import read_back

HERE = "tests.consumer.test_groups"


def settled(
    act: Callable[[Delivery], object],
    arrival: Delivery,
    *,
    attempts: int = 1,
    fingerprint: Fingerprint | None = None,
    match: Match | None = None,
    book: Book | None = None,
) -> Settlement:
    made = Subscription(
        name="payments.handlers.charge",
        run=act,
        queue=Queue("payments"),
        policy=RetryThenPark(attempts=attempts, backoff=Fixed(3)),
        park="payments.parked",
        fingerprint=fingerprint,
        match=match or Match(),
    )
    return pipeline_of(made, journals=(book or Book(),)).attempt(arrival)


def parked(act: Callable[[Delivery], object], arrival: Delivery | None = None, **options: Any) -> ParkedCopy:
    copy = settled(act, arrival or delivery(), **options).copy
    assert copy is not None
    raw = encode_properties(copy.properties)
    assert len(raw) < 4096
    return read_back(copy)


def charge(_: Delivery) -> None:
    post()


def raising(error: BaseException) -> Callable[[Delivery], object]:
    def act(_: Delivery) -> object:
        raise error

    return act


def test_a_parked_copy_shows_its_group_and_code_location() -> None:
    found = parked(charge)

    assert found.culprit == "tests.messages.exceptions:post"
    assert len(found.fingerprint) == 40
    assert found.fingerprint == parked(charge, delivery(body=b"[7]")).fingerprint


def refund(_: Delivery) -> None:
    post()


class Transfer:
    def __call__(self, _: Delivery) -> None:
        post()


def test_one_cause_behind_several_handlers_is_one_group() -> None:
    found = [parked(act) for act in (charge, refund, Transfer(), guarded(refund, "refund"))]

    assert len({one.fingerprint for one in found}) == 1
    assert {one.culprit for one in found} == {"tests.messages.exceptions:post"}


@pytest.mark.parametrize(
    ("policy", "timeout"), [(RetryThenPark(attempts=1), 60), (StopTheLine(), None)], ids=["timeout", "strict"]
)
def test_a_handler_with_a_deadline_fails_in_the_group_of_its_cause(policy: Policy, timeout: float | None) -> None:
    made = replace(subscription(policy), run=refund, timeout=timeout)
    deadlines = Deadlines()
    deadlines.strict = 60
    [limited] = deadlines.limited(work_queues_of([made])[0]).subscriptions

    with pytest.raises(BankDown) as caught:
        limited.run(delivery())
    found = grouping.grouped(park(Reason.EXHAUSTED, ""), delivery(), limited, caught.value)

    assert found.fingerprint == parked(charge).fingerprint


def test_an_error_of_the_handlers_own_function_is_a_group_of_that_handler() -> None:
    def one(_: Delivery) -> None:
        raise BankDown("closed")

    def other(_: Delivery) -> None:
        raise BankDown("closed")

    assert parked(one).fingerprint == parked(one).fingerprint != parked(other).fingerprint
    assert parked(one).culprit.endswith(".one")


def test_two_causes_are_two_groups() -> None:
    prints = {parked(act).fingerprint for act in (charge, raising(BankDown("no")), raising(Park("no")))}

    assert len(prints) == 3


def test_an_overrule_is_grouped_by_its_cause() -> None:
    def act(cause: Exception) -> Callable[[Delivery], object]:
        def refuse(_: Delivery) -> object:
            raise Park("closed") from cause

        return refuse

    one, other = parked(act(KeyError("a"))), parked(act(ValueError("a")))

    assert one.fingerprint != other.fingerprint
    assert one.culprit.startswith(f"{HERE}:test_an_overrule")


def test_a_handler_names_its_groups() -> None:
    found = parked(charge, fingerprint=lambda message, error: f"{message.queue} {type(error).__name__}")

    assert found.fingerprint == named_fingerprint("payments BankDown")
    assert found.culprit == "tests.messages.exceptions:post"


def fails(*_: object) -> str:
    raise SystemExit(2)


@pytest.mark.parametrize("given", [fails, lambda *_: "", lambda *_: None, lambda *_: 7])
def test_a_failing_fingerprint_function_falls_back_to_the_default_rule(given: Any) -> None:
    assert parked(charge, fingerprint=given).fingerprint == parked(charge).fingerprint


def test_a_failing_fingerprint_function_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "django_rmq_retry"):
        parked(charge, fingerprint=fails)

    assert caplog.messages == [
        "fingerprint= of handler payments.handlers.charge raised SystemExit; the default rule groups this failure"
    ]


def test_undecodable_and_unhandled_messages_are_grouped_by_queue() -> None:
    undecodable = parked(print, delivery(body=b"{"))
    unhandled = parked(print, delivery(type="refund"), match=Match(type="charge"))

    by_body = untraced("UndecodableBody", reason="undecodable_body", queue="payments")
    by_type = untraced("", reason="no_handler", queue="payments")

    assert Grouping(fingerprint=undecodable.fingerprint, culprit=undecodable.culprit) == by_body
    assert Grouping(fingerprint=unhandled.fingerprint, culprit=unhandled.culprit) == by_type


@pytest.mark.parametrize(
    "act", [raising(Unprintable()), raising(odd_names()), lambda _: deep(10**6), raising(Exception("x" * 10**6))]
)
def test_any_exception_is_parked_with_a_group(act: Callable[[Delivery], object]) -> None:
    assert len(parked(act).fingerprint) == 40


def test_an_earlier_group_header_is_replaced() -> None:
    earlier = delivery(headers={"rmq-retry-fingerprint": "old", "rmq-retry-culprit": "old"}, body=b"{")

    found = parked(print, earlier)

    assert (found.fingerprint != "old", found.culprit) == (True, "")


def test_no_fingerprint_is_computed_for_a_retry(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(grouping, "traced", asked.append)
    book = Book()

    settled(charge, delivery(), attempts=2, book=book)

    assert (book.notes[0].verdict.kind, asked) == (Kind.RETRY, [])

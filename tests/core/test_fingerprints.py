"""Rule 1 of grouping."""

import hashlib
from collections.abc import Callable

import pytest

from django_rmq_retry.messages.tracebacks import Grouping, named, trace, traced, untraced
from tests.core.raising import BankDown, Unprintable, ask, caught, circle, deep, members, odd_names, own, post, syntax

REASON = "retries_exhausted"


def sha1(text: str) -> str:
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


def of(error: BaseException, reason: str = REASON) -> Grouping:
    found = traced(trace(error, own), reason=reason)
    assert found is not None
    return found


def test_the_rule_is_classes_places_and_reason() -> None:
    said = (
        '[1, ["tests.core.raising.BankDown", "TimeoutError"], ["tests.core.raising:caught", "tests.core.raising:post"],'
        ' "retries_exhausted"]'
    )

    assert of(caught(post)) == Grouping(fingerprint=sha1(said), culprit="tests.core.raising:post")


def test_the_text_of_an_error_does_not_matter_but_all_else_does() -> None:
    def say(error: Exception) -> Callable[[], None]:
        def act() -> None:
            raise error

        return act

    one, other = of(caught(say(BankDown("7")))), of(caught(say(BankDown("8"))))

    assert one == other
    assert len({one.fingerprint, of(caught(say(KeyError("7")))).fingerprint, of(caught(ask)).fingerprint}) == 3
    assert of(caught(ask)) != of(caught(ask), "permanent")


def test_the_depth_of_a_recursion_does_not_matter() -> None:
    assert of(caught(lambda: deep(3))) == of(caught(lambda: deep(700)))


def test_the_order_in_a_group_of_errors_does_not_matter() -> None:
    assert of(members(KeyError, ValueError)) == of(members(ValueError, KeyError))
    assert of(members(KeyError, ValueError)) != of(members(KeyError, TypeError))


def test_an_error_from_elsewhere_is_grouped_by_the_place_that_caused_it() -> None:
    outer = OSError("wrapped by a library")
    outer.__cause__ = caught(ask)

    assert of(outer).culprit == "tests.core.raising:ask"


def test_what_touched_no_code_of_the_project_has_no_trace() -> None:
    assert traced(trace(caught(post), lambda _: False), reason=REASON) is None


def test_without_a_trace_error_reason_and_queue_count() -> None:
    assert untraced("BankDown", reason=REASON, queue="payments") == Grouping(
        fingerprint=sha1('[1, "BankDown", "retries_exhausted", "payments"]')
    )


def test_a_group_named_by_a_handler_is_like_no_other() -> None:
    assert named("bank 7") == sha1('["named", "bank 7"]')


@pytest.mark.parametrize("make", [circle, lambda: caught(syntax), odd_names, lambda: caught(lambda: deep(10**6))])
def test_any_exception_has_a_group_that_a_header_holds(make: Callable[[], BaseException]) -> None:
    found = traced(trace(make(), lambda _: True), reason=REASON)

    assert found is not None
    assert len(found.fingerprint) == 40
    assert len(found.culprit.encode()) <= 255
    assert "\0" not in found.culprit


def test_an_exception_that_refuses_to_be_looked_at_is_no_harm() -> None:
    assert traced(trace(Unprintable(), own), reason=REASON) is None

"""Rule 1 of grouping."""

import hashlib
from collections.abc import Callable

import pytest

from django_rmq_retry.messages.tracebacks import Grouping, named_fingerprint, trace, traced, untraced
from tests.messages.exceptions import (
    BankDown,
    Unprintable,
    ask,
    caught,
    circle,
    deep,
    members,
    odd_names,
    own,
    post,
    syntax,
)

REASON = "retries_exhausted"


def sha1(text: str) -> str:
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


def of(error: BaseException, reason: str = REASON) -> Grouping:
    found = traced(trace(error, own), reason=reason)
    assert found is not None
    return found


def test_a_fingerprint_is_the_hash_of_classes_places_and_reason() -> None:
    said = (
        '[1, ["tests.messages.exceptions.BankDown", "TimeoutError"], '
        '["tests.messages.exceptions:caught", "tests.messages.exceptions:post"], "retries_exhausted"]'
    )

    assert of(caught(post)) == Grouping(fingerprint=sha1(said), culprit="tests.messages.exceptions:post")


def test_a_fingerprint_ignores_only_the_text_of_an_error() -> None:
    def say(error: Exception) -> Callable[[], None]:
        def act() -> None:
            raise error

        return act

    one, other = of(caught(say(BankDown("7")))), of(caught(say(BankDown("8"))))

    assert one == other
    assert len({one.fingerprint, of(caught(say(KeyError("7")))).fingerprint, of(caught(ask)).fingerprint}) == 3
    assert of(caught(ask)) != of(caught(ask), "permanent")


def test_a_fingerprint_ignores_the_depth_of_a_recursion() -> None:
    assert of(caught(lambda: deep(3))) == of(caught(lambda: deep(700)))


def test_a_fingerprint_ignores_the_order_in_an_exception_group() -> None:
    assert of(members(KeyError, ValueError)) == of(members(ValueError, KeyError))
    assert of(members(KeyError, ValueError)) != of(members(KeyError, TypeError))


def test_a_library_error_is_grouped_by_the_place_of_its_cause() -> None:
    outer = OSError("wrapped by a library")
    outer.__cause__ = caught(ask)

    assert of(outer).culprit == "tests.messages.exceptions:ask"


def test_an_error_outside_the_projects_code_has_no_trace_fingerprint() -> None:
    assert traced(trace(caught(post), lambda _: False), reason=REASON) is None


def test_without_a_trace_the_fingerprint_uses_error_reason_and_queue() -> None:
    assert untraced("BankDown", reason=REASON, queue="payments") == Grouping(
        fingerprint=sha1('[1, "BankDown", "retries_exhausted", "payments"]')
    )


def test_a_group_named_by_a_handler_has_its_own_fingerprint() -> None:
    assert named_fingerprint("bank 7") == sha1('["named", "bank 7"]')


@pytest.mark.parametrize("make", [circle, lambda: caught(syntax), odd_names, lambda: caught(lambda: deep(10**6))])
def test_any_exception_has_a_group_that_fits_into_a_header(make: Callable[[], BaseException]) -> None:
    found = traced(trace(make(), lambda _: True), reason=REASON)

    assert found is not None
    assert len(found.fingerprint) == 40
    assert len(found.culprit.encode()) <= 255
    assert "\0" not in found.culprit


def test_an_exception_that_raises_on_access_has_no_fingerprint() -> None:
    assert traced(trace(Unprintable(), own), reason=REASON) is None

"""An exception as plain values."""

from collections.abc import Callable
from types import FunctionType

import pytest

from django_rmq_retry.messages import tracebacks
from django_rmq_retry.messages.tracebacks import (
    INNERMOST,
    MOST_CHAINED_ERRORS,
    MOST_REMEMBERED,
    OUTERMOST,
    ChainedError,
    stack_of,
    trace,
)
from tests.messages.exceptions import (
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


def shown(causes: tuple[ChainedError, ...]) -> list[tuple[str, str, str]]:
    return [(cause.link, cause.kind.removeprefix("tests.messages.exceptions."), cause.text) for cause in causes]


def test_causes_are_listed_newest_first() -> None:
    found = trace(caught(post), own)

    assert shown(found) == [("", "BankDown", "no answer"), ("cause", "TimeoutError", "3 s")]
    assert [(frame.function, frame.own) for frame in found[0].stack.frames] == [("caught", True), ("post", True)]
    assert [frame.place for frame in found[1].stack.frames] == [
        "tests.messages.exceptions:post",
        "tests.messages.exceptions:ask",
    ]


def test_a_context_is_listed_unless_it_is_suppressed() -> None:
    def fail(*, hide: bool) -> None:
        try:
            ask()
        except TimeoutError:
            if hide:
                raise KeyError("rate") from None
            raise KeyError("rate")  # noqa: B904 - that is the point

    assert [one[:2] for one in shown(trace(caught(lambda: fail(hide=False)), own))] == [
        ("", "KeyError"),
        ("context", "TimeoutError"),
    ]
    assert [one[:2] for one in shown(trace(caught(lambda: fail(hide=True)), own))] == [("", "KeyError")]


def test_the_members_of_an_exception_group_are_listed() -> None:
    assert shown(trace(members(ValueError, KeyError), own))[1:] == [
        ("member", "ValueError", "x"),
        ("member", "KeyError", "'x'"),
    ]


def test_a_circle_of_causes_is_listed_once() -> None:
    assert [one[:2] for one in shown(trace(circle(), own))] == [("", "BankDown"), ("cause", "TimeoutError")]


def test_a_long_chain_is_cut() -> None:
    first = error = Exception("0")
    for number in range(1, 1000):
        error.__cause__ = Exception(str(number))
        error = error.__cause__

    assert len(trace(first, own)) == MOST_CHAINED_ERRORS


def test_a_deep_stack_keeps_its_first_and_last_frames() -> None:
    found = trace(caught(lambda: deep(800)), own)[0].stack

    assert (len(found.frames), found.left_out) == (OUTERMOST + INNERMOST, 804 - OUTERMOST - INNERMOST)
    assert (found.frames[0].function, found.frames[-1].function) == ("caught", "post")


def test_the_stack_of_a_known_place_is_cached() -> None:
    one, other, third = (caught(act) for act in (post, post, ask))

    assert stack_of(one, own) is stack_of(other, own)
    assert stack_of(one, own) is not stack_of(third, own)
    assert not any(frame.own for frame in stack_of(one, lambda _: False).frames)


def test_the_cache_of_stacks_is_limited() -> None:
    for number in range(2 * MOST_REMEMBERED):
        made = FunctionType(compile(f"{number}/0", f"/srv/{number}.py", "exec"), {"__name__": f"m{number}"})
        assert trace(caught(made), own)[0].stack.frames[-1].place == f"m{number}:<module>"

    assert len(tracebacks._stacks) <= MOST_REMEMBERED


def test_an_exception_that_raises_on_access_is_named_by_its_class() -> None:
    found = trace(Unprintable(), own)

    assert shown(found) == [("", "Unprintable", "(its text cannot be read: ValueError)")]
    assert found[0].stack.frames == ()


def test_a_long_text_is_cut() -> None:
    assert len(trace(Exception("€" * 1_000_000), own)[0].text.encode()) <= 4000


@pytest.mark.parametrize("make", [lambda: caught(syntax), odd_names, lambda: caught(lambda: deep(10**6))])
def test_every_text_of_a_trace_can_be_stored(make: Callable[[], BaseException]) -> None:
    for cause in trace(make(), own):
        for text in (cause.kind, cause.text, *(text for one in cause.stack.frames for text in (one.place, one.file))):
            assert "\0" not in text
            text.encode()

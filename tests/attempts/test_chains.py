"""An exception as the JSON that an attempt keeps."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from django_rmq_retry.attempts.rows import CHAIN_BYTES, chain_of
from django_rmq_retry.messages.tracebacks import projects_own, trace
from tests.messages import exceptions
from tests.messages.exceptions import Unprintable, caught, circle, deep, members, odd_names, post, syntax


def told(error: BaseException) -> str:
    return chain_of(trace(error, projects_own))


def test_each_cause_shows_its_frames_with_source_lines_of_the_project() -> None:
    first, second = json.loads(told(caught(post)))

    assert {name: first[name] for name in ("error", "link", "text", "left_out")} == {
        "error": "tests.messages.exceptions.BankDown",
        "link": "",
        "text": "no answer",
        "left_out": 0,
    }
    assert first["frames"][-1] == {
        "file": "tests/messages/exceptions.py",
        "line": line_of('raise BankDown("no answer")'),
        "module": "tests.messages.exceptions",
        "function": "post",
        "own": True,
        "code": 'raise BankDown("no answer") from error',
    }
    assert (second["error"], second["link"], second["frames"][-1]["function"]) == ("TimeoutError", "cause", "ask")


def line_of(text: str) -> int:
    lines = Path(exceptions.__file__).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


def test_installed_code_shows_only_the_line_that_raised() -> None:
    frames = json.loads(told(caught(lambda: json.loads("{"))))[0]["frames"]

    assert [frame["own"] for frame in frames] == [True, True, False, False, False]
    assert ["code" in frame for frame in frames] == [True, True, False, False, True]


@pytest.mark.parametrize(
    "make",
    [
        circle,
        odd_names,
        Unprintable,
        lambda: caught(syntax),
        lambda: caught(lambda: deep(10**6)),
        lambda: members(KeyError, ValueError),
        lambda: Exception("\0\udcff\U0001f4a9" * 10_000),
    ],
)
def test_any_exception_becomes_a_short_text_that_every_database_stores(make: Callable[[], BaseException]) -> None:
    text = told(make())

    assert text.isascii()
    assert r"\u0000" not in text
    assert '\\udcff"' not in text
    assert len(text) <= CHAIN_BYTES
    assert json.loads(text)[0]["error"]


def test_a_chain_of_long_texts_keeps_the_newest_causes() -> None:
    first = error = Exception("\U0001f4a9" * 2000)
    for _ in range(19):
        error.__cause__ = error = Exception("\U0001f4a9" * 2000)

    text = told(first)

    assert len(text) <= CHAIN_BYTES
    assert 5 <= len(json.loads(text)) < 20


def test_a_long_chain_loses_its_frames_first() -> None:
    first = error = caught(lambda: deep(60))
    for _ in range(30):
        error.__cause__ = error = caught(lambda: deep(60))

    text = told(first)
    found = json.loads(text)

    assert len(text) <= CHAIN_BYTES
    assert 1 < sum(bool(cause["frames"]) for cause in found) < len(found)
    assert (len(found[0]["frames"]), found[-1]["frames"], found[-1]["left_out"]) == (50, [], 64)
    assert [bool(one["frames"]) for one in found] == sorted([bool(one["frames"]) for one in found], reverse=True)

"""Style that can be counted: short functions, few positional parameters, few comments, no sleeps."""

from pathlib import Path

import pytest

from tests.tooling.style import comments, functions, late_constants, length, positional, python_files, sleeps

ROOT = Path(__file__).parents[1]
CODE = python_files(ROOT / "django_rmq_retry", ROOT / "testproject")
TESTS = python_files(ROOT / "tests")
LONGEST = 40
MOST_POSITIONAL = 5
MOST_COMMENTS = 0.05


def first(text: str) -> tuple[int, int]:
    function = next(functions(text))
    return length(function), positional(function)


def test_no_function_is_too_long() -> None:
    found = ((path.relative_to(ROOT), one) for path in CODE + TESTS for one in functions(path.read_text()))
    long = [f"{path}: {one.name} has {length(one)} lines" for path, one in found if length(one) > LONGEST]

    assert long == []


def test_no_function_takes_too_many_positional_parameters() -> None:
    found = ((path.relative_to(ROOT), one) for path in CODE for one in functions(path.read_text()))
    many = [f"{path}: {one.name} has {positional(one)}" for path, one in found if positional(one) > MOST_POSITIONAL]

    assert many == []


def test_no_test_sleeps() -> None:
    found = {str(path.relative_to(ROOT)): sleeps(path.read_text()) for path in TESTS}

    assert {name: lines for name, lines in found.items() if lines} == {}


def test_constants_stand_above_functions_and_classes() -> None:
    found = {str(path.relative_to(ROOT)): late_constants(path.read_text()) for path in CODE}

    assert {name: names for name, names in found.items() if names} == {}


def test_comments_are_few() -> None:
    texts = [path.read_text() for path in python_files(ROOT / "django_rmq_retry")]
    share = sum(map(comments, texts)) / sum(len(text.splitlines()) for text in texts)

    assert share <= MOST_COMMENTS


def test_a_function_is_measured_from_def_to_its_last_line_without_its_docstring() -> None:
    assert first("@decorated\ndef f(\n    a,\n):\n    '''Say.'''\n    return a\n\n\nb = 1\n") == (4, 1)


@pytest.mark.parametrize(("head", "count"), [("self, a, b", 2), ("cls, a", 1), ("a, /, b, *, c", 2), ("*a, **b", 0)])
def test_only_positional_parameters_are_counted(head: str, count: int) -> None:
    assert first(f"def f({head}): ...")[1] == count


@pytest.mark.parametrize("line", ["time.sleep(1)", "sleep(0.1)", "await asyncio.sleep(1)"])
def test_a_sleep_is_found_under_each_import_name(line: str) -> None:
    assert sleeps(f"async def f():\n    {line}\n") == [2]


def test_a_sleep_of_zero_seconds_is_allowed() -> None:
    assert sleeps("async def f():\n    await asyncio.sleep(0)\n") == []


def test_a_tool_directive_does_not_count_as_a_comment() -> None:
    assert comments("#!/usr/bin/python\na = 1  # why\n# noqa: E501\nb = '# text'\n") == 1


def test_a_constant_below_a_function_is_late_unless_it_is_computed() -> None:
    assert late_constants("FIRST = 1\n\n\ndef f(): ...\n\n\nLATE = -1, 'a'\nTABLE = {1: f}\nNEXT = f()\n") == ["LATE"]

"""The differences between two texts of any size."""

import time

from django_rmq_retry.parked.edit import Line, Sign, difference


def told(before: str, after: str) -> list[str]:
    return [f"{line.sign}{line.text}" for line in difference(before, after)]


def test_a_few_equal_lines_stand_around_each_change() -> None:
    before = "\n".join(str(number) for number in range(20))

    assert told(before, before.replace("\n8\n", "\neight\n")) == [
        " 5", " 6", " 7", "-8", "+eight", " 9", " 10", " 11",
    ]  # fmt: skip
    assert told(before, before.replace("\n3\n", "\n").replace("\n15", "\n15\nnew")) == [
        " 0", " 1", " 2", "-3", " 4", " 5", " 6", "…", " 13", " 14", " 15", "+new", " 16", " 17", " 18",
    ]  # fmt: skip


def test_a_change_in_each_of_many_lines_is_found_in_moments() -> None:
    before = "\n".join(f'  "rent": 1,\n  "id": {number},' for number in range(2000))
    begun = time.process_time()
    lines = told(before, before.replace('"id"', '"number"'))

    assert lines[:6] == [
        '   "rent": 1,', '-  "id": 0,', '+  "number": 0,', '   "rent": 1,', '-  "id": 1,', '+  "number": 1,',
    ]  # fmt: skip
    assert len(lines) == 6000
    assert time.process_time() - begun < 5


def test_of_a_long_line_only_what_differs_is_reported() -> None:
    before = '{"a": "' + "x" * 1000 + '", "note": "rent", "b": "' + "y" * 1000 + '"}'
    gone, new = told(before, before.replace("rent", "RENT"))

    assert gone == "-…" + "x" * 68 + '", "note": "rent", "b": "' + "y" * 71 + "…"
    assert new == "+…" + "x" * 68 + '", "note": "RENT", "b": "' + "y" * 71 + "…"


def test_texts_that_differ_in_the_ends_of_their_lines_only_are_distinguished() -> None:
    assert difference("a\n", "a\r\n") == [Line(sign=Sign.GONE, text="'a\\n'"), Line(sign=Sign.NEW, text="'a\\r\\n'")]
    assert difference("a", "a") == []

"""The differences between two texts of any size."""

import time

from django_rmq_retry.parked.difference import DiffLine, Sign, difference


def told(before: str, after: str) -> list[str]:
    return [f"{line.sign}{line.text}" for line in difference(before, after)]


def test_each_change_is_shown_with_three_lines_of_context() -> None:
    before = "\n".join(str(number) for number in range(20))

    assert told(before, before.replace("\n8\n", "\neight\n")) == [
        "…", " 5", " 6", " 7", "-8", "+eight", " 9", " 10", " 11", "…",
    ]  # fmt: skip
    assert told(before, before.replace("\n3\n", "\n").replace("\n15", "\n15\nnew")) == [
        " 0", " 1", " 2", "-3", " 4", " 5", " 6", "…", " 13", " 14", " 15", "+new", " 16", " 17", " 18", " 19",
    ]  # fmt: skip


def test_what_follows_a_line_that_is_gone_is_shown_once() -> None:
    """The review of an edit showed one closing brace more than the message had."""
    before = '{\n  "to": {\n    "iban": "DE1"\n  },\n  "closed": true\n}'

    assert told(before, before.replace(',\n  "closed": true', "")) == [
        " {", '   "to": {', '     "iban": "DE1"', "-  },", '-  "closed": true', "+  }", " }",
    ]  # fmt: skip


def test_thousands_of_changed_lines_are_compared_quickly() -> None:
    before = "\n".join(f'  "rent": 1,\n  "id": {number},' for number in range(2000))
    begun = time.process_time()
    lines = told(before, before.replace('"id"', '"number"'))

    assert lines[:6] == [
        '   "rent": 1,', '-  "id": 0,', '+  "number": 0,', '   "rent": 1,', '-  "id": 1,', '+  "number": 1,',
    ]  # fmt: skip
    assert len(lines) == 6000
    assert time.process_time() - begun < 5


def test_a_long_line_is_cut_around_its_difference() -> None:
    before = '{"a": "' + "x" * 1000 + '", "note": "rent", "b": "' + "y" * 1000 + '"}'
    gone, new = told(before, before.replace("rent", "RENT"))

    assert gone == "-…" + "x" * 68 + '", "note": "rent", "b": "' + "y" * 71 + "…"
    assert new == "+…" + "x" * 68 + '", "note": "RENT", "b": "' + "y" * 71 + "…"


def test_different_line_endings_are_shown() -> None:
    assert difference("a\n", "a\r\n") == [
        DiffLine(sign=Sign.GONE, text="'a\\n'"),
        DiffLine(sign=Sign.NEW, text="'a\\r\\n'"),
    ]
    assert difference("a", "a") == []

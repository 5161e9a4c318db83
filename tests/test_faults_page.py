"""Each fault stands once in docs/faults.md, with tests that exist, or a sentence on why there is none."""

import re

from tests.tooling.pages import ROOT

PAGE = (ROOT / "docs" / "faults.md").read_text()
ROW = re.compile(r"^\| ([A-E]-\d+) \| (.+?) \| (.+?) \|(.*)\|$", re.MULTILINE)
CATALOGUE = {"A": 20, "B": 37, "C": 27, "D": 28, "E": 19}
"""So many rows has each part."""
UNPROVEN = {"E-19"}
"""Those with a sentence instead of a test."""
CITED = re.compile(r"`(test_\w+)`")


def test_each_fault_of_the_catalogue_stands_there_once() -> None:
    wanted = [f"{part}-{number}" for part, last in CATALOGUE.items() for number in range(1, last + 1)]

    assert [row[0] for row in ROW.findall(PAGE)] == wanted
    assert len(re.findall(r"^\| [A-E]-\d", PAGE, re.MULTILINE)) == len(wanted)


def test_each_row_names_a_test_or_says_why_there_is_none() -> None:
    bare = {row for row, _fault, _what, proven in ROW.findall(PAGE) if not CITED.search(proven)}

    assert bare == UNPROVEN


def test_each_test_that_a_row_names_exists_and_is_run() -> None:
    written = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    defined = set(re.findall(r"^ *(?:async )?def (test_\w+)\(", written, re.MULTILINE))

    assert {name for name in CITED.findall(PAGE) if name not in defined} == set()

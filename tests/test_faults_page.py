"""Each failure stands once in the proofs, with tests that exist, and in the failure matrix if it changes something."""

import re

from tests.tooling.pages import DOCS, ROOT, page

MATRIX = page("failures.md").read_text()
PROOFS = page("proofs.md").read_text()
CATALOGUE = {"A": 50, "B": 47, "C": 37, "D": 35, "E": 22}
"""The number of rows of each letter."""
WANTED = [f"{part}-{number}" for part, last in CATALOGUE.items() for number in range(1, last + 1)]
HARMLESS = {
    *("A-4", "A-15", "A-16", "A-17", "A-19", "A-20", "A-27", "A-42", "A-45", "A-46", "A-47", "A-50"),
    *("B-9", "B-10", "B-11", "B-19", "B-21", "B-27", "B-28", "B-31", "B-33", "B-34", "B-35", "B-36", "B-37", "B-39"),
    *("B-43", "B-44", "B-46", "B-47"),
    *("C-2", "C-3", "C-4", "C-6", "C-11", "C-17", "C-19", "C-20", "C-26", "C-27", "C-35", "C-36"),
    *("D-7", "D-8", "D-9", "D-15", "D-16", "D-17", "D-18", "D-20", "D-21", "D-22", "D-23", "D-24", "D-25", "D-26"),
    *("D-27", "D-28", "D-32", "D-33", "D-34"),
    *(f"E-{number}" for number in range(1, 23) if number not in {14, 20, 21}),
}
"""Rows of the proofs alone: nothing happens to a message, and nobody has to do anything, what nobody can do, or an
error at the start that names its repair."""
UNPROVEN = {"E-19"}
"""Rows that describe an address that does not exist."""
CITED = re.compile(r"`(test_\w+)`")


ID = r"[A-E]-\d+"
IDS = rf"{ID}(?:, {ID})*"
"""Failures with the same result, or the same tests, share a row."""


def ids(cell: str) -> list[str]:
    """Return the ids of a row."""
    return cell.split(", ")


def rows() -> list[list[str]]:
    """Return the ids of each row of the matrix, the failure and the result."""
    found = re.findall(rf"^- \*\*({IDS}) (.+?)\*\*: (.+)$", MATRIX, re.MULTILINE)
    return [list(row) for row in found]


def proofs() -> list[tuple[str, list[str]]]:
    """Return each id with its tests."""
    found = re.findall(rf"^- ({IDS}): (.+)$", PROOFS, re.MULTILINE)
    return [(one, CITED.findall(tests)) for together, tests in found for one in ids(together)]


def test_each_failure_that_changes_something_is_in_the_matrix_once() -> None:
    assert set(WANTED) > HARMLESS
    assert sorted(one for cells in rows() for one in ids(cells[0])) == sorted(set(WANTED) - HARMLESS)


def test_each_row_of_the_matrix_states_a_failure_and_a_result() -> None:
    """No row of the matrix is without ids, and none is short."""
    listed = re.findall(r"^- .+", MATRIX, re.MULTILINE)

    assert [line for line in listed if not re.match(rf"- \*\*{IDS} [^*]+\*\*: .{{4}}", line)] == []


def test_each_failure_but_one_names_the_tests_that_prove_it() -> None:
    found = proofs()

    assert sorted(one for one, _ in found) == sorted(one for one in WANTED if one not in UNPROVEN)
    assert [one for one, tests in found if not tests] == []


def test_each_test_that_a_row_names_exists_and_is_run() -> None:
    written = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    defined = set(re.findall(r"^ *(?:async )?def (test_\w+)\(", written, re.MULTILINE))

    assert {name for name in CITED.findall(PROOFS) if name not in defined} == set()


def test_test_names_stay_out_of_concept_and_evidence_pages() -> None:
    pages = [*(DOCS / "concepts").glob("*.md"), *(DOCS / "evidence").glob("*.md")]
    citing = {path.name for path in pages if CITED.search(path.read_text())}

    assert citing == {"proofs.md"}

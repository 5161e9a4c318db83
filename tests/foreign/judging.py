"""The outcomes of a suite, held against the differences that are expected."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

EXPECTED = Path(__file__).with_name("expected.txt")


@dataclass(slots=True)
class Outcomes:
    """What became of each test; a second test of one name gets a number."""

    passed: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    """Sentences about what ended a run before its time."""


def expected(text: str) -> dict[str, dict[str, str]]:
    """The expected differences: suite, test, reason. Tests stand indented below ``suite: reason``."""
    found: dict[str, dict[str, str]] = {}
    suite = reason = ""
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        if line.startswith(" "):
            found.setdefault(suite, {})[line.strip()] = reason
        else:
            suite, _, reason = (part.strip() for part in line.partition(":"))
    return found


def problems(outcomes: Outcomes, differences: Mapping[str, str]) -> list[str]:
    """Whatever is not as expected, a sentence each."""
    found = [*outcomes.broken]
    found += [f"{test} fails, and is no expected difference." for test in outcomes.failed if test not in differences]
    for test in differences:
        if test in outcomes.failed:
            continue
        verb = "passes" if test in outcomes.passed else "was skipped" if test in outcomes.skipped else "was not run"
        found.append(f"{test} {verb}, but is an expected difference. Delete its line from {EXPECTED.name}.")
    return found

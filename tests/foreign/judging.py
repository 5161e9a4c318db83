"""Comparison of a suite's outcomes with the expected differences."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

EXPECTED = Path(__file__).with_name("expected.txt")


@dataclass(slots=True)
class Outcomes:
    """The outcome of each test; a second test with the same name gets a number."""

    passed: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    """Sentences about an early end of the run."""


def expected(text: str) -> dict[str, dict[str, str]]:
    """The expected differences: suite, test, reason. Tests are indented below ``suite: reason``."""
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
    """Yield a sentence for each unexpected outcome."""
    found = [*outcomes.broken]
    found += [f"{test} fails, and is no expected difference." for test in outcomes.failed if test not in differences]
    for test in differences:
        if test in outcomes.failed:
            continue
        verb = "passes" if test in outcomes.passed else "was skipped" if test in outcomes.skipped else "was not run"
        found.append(f"{test} {verb}, but is an expected difference. Delete its line from {EXPECTED.name}.")
    return found

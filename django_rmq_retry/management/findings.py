"""The findings of ``rmq_doctor`` and ``rmq_status``, and how both write them."""

import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum

from django_rmq_retry.arguments import plural
from django_rmq_retry.health.rules import Area, Problem, Severity
from django_rmq_retry.management.command import RmqCommand, columns
from django_rmq_retry.management.terminal import flat, local, utc

NARROWEST = 40


class Grade(StrEnum):
    OK = "ok"
    WARNING = "warning"
    ERROR = "error"
    UNKNOWN = "unknown"
    """The area, or a part of it, was not looked at."""


GRADES = {Severity.INFORMATION: Grade.OK, Severity.WARNING: Grade.WARNING, Severity.ERROR: Grade.ERROR}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A fact, a problem or a gap in one area, as the report shows it: each part is a sentence or empty."""

    area: Area
    level: Grade
    problem: str
    why: str = ""
    """The reason why the problem matters."""
    fix: str = ""
    """The command or the change that repairs it."""
    since: datetime | None = None
    """When it began, if that is known."""
    said: bool = False
    """True if its sentences say for how long it has lasted."""
    under_way: bool = False
    """True if somebody is at it, so that it needs nobody else."""

    def as_data(self) -> dict[str, object]:
        parts = asdict(self)
        return {name: parts[name] for name in parts if name not in ("said", "under_way")} | {"since": utc(self.since)}

    @classmethod
    def of(cls, problem: Problem) -> "Finding":
        grade, under_way = GRADES[problem.severity], problem.rule.under_way
        why, fix = ("", "") if grade is Grade.OK else (problem.why, problem.fix)
        return cls(
            area=problem.rule.area,
            level=Grade.OK if under_way else grade,
            problem=problem.text,
            why=why,
            fix=fix,
            since=problem.since,
            said=problem.untold_since is None,
            under_way=under_way,
        )

    @classmethod
    def unseen(cls, area: Area, reason: str, *, what: str = "", fix: str = "") -> "Finding":
        """Return a finding for an area, or the named part of it, that was not looked at."""
        head = f"{what} not looked at" if what else "Not looked at"
        return cls(area=area, level=Grade.UNKNOWN, problem=f"{head}, because {reason}.", fix=fix)


SIGNS = {
    Grade.OK: ("✓", "SUCCESS"),
    Grade.WARNING: ("!", "WARNING"),
    Grade.ERROR: ("✕", "ERROR"),
    Grade.UNKNOWN: ("?", ""),
}


def write(command: RmqCommand, findings: Sequence[Finding], *, by_area: bool) -> None:
    """Write a paragraph for each finding on a terminal, below its area if asked; elsewhere one line."""
    if not command.stdout.isatty():
        command.table([(one.area, one.level, one.problem, one.why, one.fix) for one in findings])
        return
    shown, indent = None, "  " if by_area else ""
    for finding in findings:
        if by_area and finding.area is not shown:
            shown = finding.area
            command.line(shown.value.capitalize())
        sign, style = SIGNS[finding.level]
        _paragraph(command, f"{indent}{'…' if finding.under_way else sign} ", finding.problem, style)
        since = f"Since {local(finding.since)}." if finding.since and not finding.said else ""
        _paragraph(command, f"{indent}  ", f"{finding.why} {since}".strip())
        if finding.fix:
            # Not wrapped, so that a command can be copied.
            command.line(f"{indent}  → {flat(finding.fix)}")


def _paragraph(command: RmqCommand, head: str, text: str, style: str = "") -> None:
    if not text:
        return
    width = columns(command.stdout) or len(text) + len(head)
    lines = textwrap.wrap(
        flat(text),
        max(width, NARROWEST),
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_long_words=False,
        break_on_hyphens=False,
    )
    for line in lines:
        command.line(line, style)


def conclusion(findings: Sequence[Finding], unseen: str = "") -> tuple[str, str]:
    """Return the sentence that counts the findings, and its colour; ``unseen`` names what was not examined."""
    counts = Counter(one.level for one in findings)
    problems, warnings = counts[Grade.ERROR], counts[Grade.WARNING]
    if problems or warnings:
        text = f"{plural(problems, 'problem')}, {plural(warnings, 'warning')}.{unseen}"
        return text, "ERROR" if problems else "WARNING"
    return f"No problems found.{unseen}", "SUCCESS"

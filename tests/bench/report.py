"""Tables of results: medians of the ratios to the reference in the same round."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from tests.bench.suites import Contender, Suite
from tests.bench.trials import Result

Round = dict[str, Result]
MOST_RESIDENT, MOST_IDLE, MOST_STOP = 60.0, 2.0, 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One target, and the flag that it was met."""

    what: str
    met: bool
    further: bool = True
    """True if the stretch goal was met as well."""

    @property
    def verdict(self) -> str:
        return "not met" if not self.met else "stretch goal met" if self.further else "met"


def timed(suite: Suite, rounds: Sequence[Round]) -> list[Finding]:
    """Print a suite's table; return the findings for its targets."""
    print(f"\n{suite.title} ({len(rounds)} rounds of {suite.task.messages * (suite.turns or 1)} messages)\n")
    rows: list[Sequence[str]] = [("contender", "messages/s", "CPU µs", "ratio", "lowest to highest", "target", "")]
    findings: list[Finding] = []
    for contender in suite.contenders:
        ratios = _ratios(suite.contenders[0], contender, rounds, "rate")
        results = _good(contender, rounds)
        finding = _finding(suite, contender, ratios, results)
        rows.append(_row(contender, results, ratios, finding))
        if finding is not None:
            findings.append(finding)
        if contender.most_cpu is not None and ratios:
            ratio = median(_ratios(suite.contenders[0], contender, rounds, "cpu_us"))
            what = f"{suite.title}: {contender.name}, CPU {ratio:.2f} of {contender.most_cpu:g}"
            findings.append(Finding(what=what, met=ratio <= contender.most_cpu))
    table(rows)
    _errors(suite, rounds)
    return findings


def at_rest(suite: Suite, rounds: Sequence[Round]) -> list[Finding]:
    """Print the table of idle processes; return the findings for the limits, which apply to our process."""
    print(f"\n{suite.title} ({len(rounds)} rounds)\n")
    rows: list[Sequence[str]] = [("contender", "start to first message", "memory", "CPU while idle", "stop, longest")]
    findings: list[Finding] = []
    for contender in suite.contenders:
        results = _good(contender, rounds)
        if not results:
            rows.append((contender.name, "failed", "", "", ""))
            findings.append(Finding(what=contender.name, met=False))
            continue
        start, memory = median(r.startup for r in results), median(r.resident for r in results)
        idle, stop = median(r.idle_cpu for r in results), max(r.stop for r in results)
        rows.append((contender.name, f"{start:.2f} s", f"{memory:.1f} MB", f"{idle:.2f} ms/s", f"{stop:.3f} s"))
        if contender is not suite.contenders[0]:
            findings += [
                Finding(what=f"memory {memory:.1f} MB of {MOST_RESIDENT:g}", met=memory <= MOST_RESIDENT),
                Finding(what=f"idle CPU {idle:.2f} ms/s of {MOST_IDLE:g}", met=idle < MOST_IDLE),
                Finding(what=f"stop {stop:.3f} s of {MOST_STOP:g}", met=stop < MOST_STOP),
            ]
    table(rows)
    _errors(suite, rounds)
    return findings


def summary(findings: Sequence[Finding]) -> None:
    """Print the last lines: the number of targets met, and those missed."""
    met = sum(finding.met for finding in findings)
    further = sum(finding.met and finding.further for finding in findings)
    print(f"\n{met} of {len(findings)} targets met, {further} of them with the stretch goal.")
    for finding in findings:
        if not finding.met:
            print(f"  not met: {finding.what}")
    for finding in findings:
        if finding.met and not finding.further:
            print(f"  stretch goal not met: {finding.what}")


def _finding(suite: Suite, contender: Contender, ratios: Sequence[float], results: Sequence[Result]) -> Finding | None:
    if not ratios:
        return Finding(what=f"{suite.title}: {contender.name} failed", met=False)
    if contender.at_least is None or contender.then is None:
        return None
    ratio, rate = median(ratios), median(one.rate for one in results)
    enough = contender.rate is None or rate >= contender.rate
    promised = "" if contender.rate is None else f", {rate:,.0f}/s of {contender.rate:,.0f}"
    aims = f"{contender.at_least:g}, then {contender.then:g}{promised}"
    return Finding(
        what=f"{suite.title}: {contender.name} {ratio:.2f} of {aims}",
        met=ratio >= contender.at_least and enough,
        further=ratio >= contender.then,
    )


def _row(
    contender: Contender, results: Sequence[Result], ratios: Sequence[float], finding: Finding | None
) -> Sequence[str]:
    if not ratios:
        return (contender.name, "failed", "", "", "", "", "")
    return (
        contender.name,
        f"{median(r.rate for r in results):,.0f}",
        f"{median(r.cpu_us for r in results):.1f}",
        f"{median(ratios):.2f}",
        f"{min(ratios):.2f} to {max(ratios):.2f}",
        "" if finding is None else f"{contender.at_least}, then {contender.then}",
        "" if finding is None else finding.verdict,
    )


def _good(contender: Contender, rounds: Iterable[Round]) -> list[Result]:
    return [one[contender.name] for one in rounds if not one[contender.name].error]


def _ratios(
    reference: Contender, contender: Contender, rounds: Iterable[Round], figure: Literal["rate", "cpu_us"]
) -> list[float]:
    pairs = ((one[contender.name], one[reference.name]) for one in rounds)
    return [
        getattr(ours, figure) / getattr(theirs, figure) for ours, theirs in pairs if not ours.error and not theirs.error
    ]


def _errors(suite: Suite, rounds: Sequence[Round]) -> None:
    for contender in suite.contenders:
        errors = [one[contender.name].error for one in rounds if one[contender.name].error]
        if errors:
            print(f"\n{contender.name} failed in {len(errors)} of {len(rounds)} rounds: {errors[-1]}")


def table(rows: Sequence[Sequence[str]]) -> None:
    """Print rows; the first is the header."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for number, row in enumerate(rows):
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        print(f"| {' | '.join(cells)} |")
        if number == 0:
            print(f"|{'|'.join('-' * (width + 2) for width in widths)}|")

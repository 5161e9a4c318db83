"""The report of a run, for engineers."""

import os
import shutil
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median

from tests.chaos.books import Books, Harm
from tests.chaos.gates import WINDOW, allowed, busiest
from tests.chaos.judge import Judgement, lane_counts

SECOND = 1000
ENOUGH = 0.5
"""Recovered means that handlers complete at least this share of the usual rate before the first nemesis."""


BEGAN = time.monotonic()


def say(text: str) -> None:
    """Print a line with the seconds since the start."""
    print(f"{time.monotonic() - BEGAN:6.1f} {text}", flush=True)


def judged(part: str, books: Books, verdict: Judgement, *, settled: float | None) -> None:
    """Print the report of one part."""
    say("")
    say(f"{part}: {verdict.line}")
    for name, (confirmed, handled) in lane_counts(books).items():
        say(f"  {name:<10} confirmed {confirmed:>9,}  handled {handled:>9,}")
    say(f"  {verdict.twofold} messages were handled and are also in a record (two copies ended differently)")
    for line in gate_lines(books):
        say(f"  {line}")
    say(f"  processes that exited without being stopped: {ended(books) or 'none'}")
    say(
        f"  all queues were empty after {settled:.1f} s" if settled is not None else "  the queues did not become empty"
    )
    table = recoveries(books)
    if table:
        say("  nemesis                times     recovery time, median   longest")
        for name, (times, middle, longest) in sorted(table.items()):
            say(f"  {name:<22} {times:>5}   {middle:>22.1f} s {longest:>7.1f} s")
    for finding in verdict.findings:
        say(f"  BROKEN {finding.rule}: {finding.said}")
    total(part, verdict)


def gate_lines(books: Books) -> Iterator[str]:
    """Yield how often each gate and each batch was used: a gate that never closed proves nothing."""
    for name, calls in books.calls.items():
        yield f"{name}: {len(calls):,} calls with up to {max(calls)} messages, {sum(calls) / len(calls):.1f} on average"
    yield f"{len(books.down):,} attempts failed because a dependency was down; {len(books.pauses)} pauses of queues"
    for name, lane in books.lanes.items():
        for quiet, (count, _) in busiest(books, name).items() if lane.rate is not None else ():
            when, most = "before the first nemesis" if quiet else "after it", allowed(lane.rate or 0, quiet=quiet)
            yield f"{name}: at most {count} attempts in {WINDOW // SECOND} s {when}, {most} are allowed"


def total(part: str, verdict: Judgement) -> None:
    """Append the totals of one part to the file for the final summary, if there is one."""
    if "CHAOS_TOTALS" in os.environ:
        with Path(os.environ["CHAOS_TOTALS"]).open("a") as file:
            file.write(f"{verdict.confirmed} {part}: {verdict.line}\n")


def ended(books: Books) -> str:
    counts = Counter((one.role, one.code) for one in books.exits if not one.requested)
    return ", ".join(f"{role} with {code} ({times} times)" for (role, code), times in sorted(counts.items()))


def recoveries(books: Books) -> Mapping[str, tuple[int, float, float]]:
    """Return for each nemesis how often it ran, and the median and longest recovery time in seconds."""
    pace = Counter(note.at // SECOND for note in books.did)
    seconds = range(books.began_at // SECOND + 1, books.quiet_until // SECOND)
    before = [pace[second] for second in seconds if pace[second]]
    if not before or not books.harms:
        return {}
    enough, last = median(before) * ENOUGH, max(pace, default=0)
    found: dict[str, list[float]] = defaultdict(list)
    for harm in books.harms:
        found[harm.name].append(recovered(harm, pace, enough, last))
    return {name: (len(times), median(times), max(times)) for name, times in found.items()}


def recovered(harm: Harm, pace: Mapping[int, int], enough: float, last: int) -> float:
    """Return the seconds from the end of a nemesis until the usual rate is reached again."""
    for second in range(harm.healed // SECOND, last + 1):
        if pace.get(second, 0) >= enough:
            return max(0.0, second - harm.healed / SECOND)
    return max(0.0, last - harm.healed / SECOND)


def keep(folder: Path) -> None:
    """Keep a copy of ledger and logs after a violation."""
    kept = Path(tempfile.mkdtemp(prefix="rmq-chaos-found-"))
    for name in ("ledger", "logs"):
        shutil.copytree(folder / name, kept / name)
    say(f"  ledger and logs: {kept}")

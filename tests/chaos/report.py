"""What a run has found, for people."""

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
from tests.chaos.judge import Judgement, lanes_told

SECOND = 1000
ENOUGH = 0.5
"""Recovered is who handles at least this share of what was usual before anything was done."""


BEGAN = time.monotonic()


def say(text: str) -> None:
    """With the seconds since the beginning."""
    print(f"{time.monotonic() - BEGAN:6.1f} {text}", flush=True)


def judged(part: str, books: Books, verdict: Judgement, *, settled: float | None) -> None:
    """The whole report of one part."""
    say("")
    say(f"{part}: {verdict.line}")
    for name, (confirmed, handled) in lanes_told(books).items():
        say(f"  {name:<10} confirmed {confirmed:>9,}  handled {handled:>9,}")
    say(f"  {verdict.twofold} were handled and are in a record besides: two lives of one message")
    for line in gates_told(books):
        say(f"  {line}")
    say(f"  processes that ended by themselves: {ended(books) or 'none'}")
    say(f"  all queues empty after {settled:.1f} s" if settled is not None else "  the queues were never empty")
    table = recoveries(books)
    if table:
        say("  nemesis                times   recovered after, median   longest")
        for name, (times, middle, longest) in sorted(table.items()):
            say(f"  {name:<22} {times:>5}   {middle:>22.1f} s {longest:>7.1f} s")
    for finding in verdict.findings:
        say(f"  BROKEN {finding.rule}: {finding.said}")
    total(part, verdict)


def gates_told(books: Books) -> Iterator[str]:
    """How often something stood before the handlers: a gate that never shut has proven nothing."""
    yield f"{len(books.down):,} runs met a dependency that was down; {len(books.pauses)} pauses"
    for name, lane in books.lanes.items():
        for quiet, (count, _) in busiest(books, name).items() if lane.rate is not None else ():
            when, most = "before anything was done" if quiet else "from then on", allowed(lane.rate or 0, quiet=quiet)
            yield f"{name}: at most {count} runs in {WINDOW // SECOND} s {when}, {most} are allowed"


def total(part: str, verdict: Judgement) -> None:
    """For the summary at the end, written where several processes each have a part."""
    if "CHAOS_TOTALS" in os.environ:
        with Path(os.environ["CHAOS_TOTALS"]).open("a") as file:
            file.write(f"{verdict.confirmed} {part}: {verdict.line}\n")


def ended(books: Books) -> str:
    counts = Counter((one.role, one.code) for one in books.exits if not one.told)
    return ", ".join(f"{role} with {code} ({times} times)" for (role, code), times in sorted(counts.items()))


def recoveries(books: Books) -> Mapping[str, tuple[int, float, float]]:
    """Of each nemesis: how often it came, and how long after it the usual pace was back, in seconds."""
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
    """Seconds from the end of one nemesis until the usual pace."""
    for second in range(harm.healed // SECOND, last + 1):
        if pace.get(second, 0) >= enough:
            return max(0.0, second - harm.healed / SECOND)
    return max(0.0, last - harm.healed / SECOND)


def keep(folder: Path) -> None:
    """Ledger and logs stay where something was found, for whoever looks."""
    kept = Path(tempfile.mkdtemp(prefix="rmq-chaos-found-"))
    for name in ("ledger", "logs"):
        shutil.copytree(folder / name, kept / name)
    say(f"  ledger and logs are kept in {kept}")

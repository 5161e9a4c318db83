"""The judge's rules for gates: a gate counts no attempt, a pause stops its queue, and a rate limit holds."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator

from tests.chaos.books import Books
from tests.chaos.finding import Finding, finding_of
from tests.chaos.naming import lane_of

HEED = 6_000
"""Milliseconds until all processes apply a pause on a busy machine; the documented time is two seconds."""
WINDOW = 5_000
"""Milliseconds in which attempts are counted against a rate."""
LATE = 500
"""Milliseconds after which a reserved start time expires; this bounds the burst."""
SLACK = 2_000
"""Milliseconds from the start of an attempt until its handler writes the ledger, on a busy machine."""
CONSUMERS = 2
"""Processes that each use the whole rate while the database is unreachable."""


def unburned(books: Books) -> Iterator[Finding]:
    """I7: only a failed handler counts an attempt; a pause, an outage, a shutdown or a kill does not."""
    failed = {(note.name, note.attempt) for note in books.failed}
    wrong = {
        f"{note.name} attempt {note.attempt}"
        for note in books.began
        if note.attempt > 1 and books.lane(note.name).counted and (note.name, note.attempt - 1) not in failed
    }
    yield from finding_of("I7: an attempt was counted although no handler had failed", wrong)


def pausing(books: Books) -> Iterator[Finding]:
    """I6: no attempt starts on a paused queue while consumers can read the pause from the database."""
    starts: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for note in books.began:
        starts[books.lane(note.name).queue].append((note.at, note.name))
    wrong = set()
    for pause in books.pauses:
        begins, ends = pause.began + HEED, min(pause.ended, books.quiet_until)
        wrong |= {name for at, name in starts[pause.queue] if begins <= at < ends}
    yield from finding_of("I6: an attempt started although the queue was paused", wrong)


def pacing(books: Books) -> Iterator[Finding]:
    """I16: in any five seconds all processes together stay below the rate limit; after the first nemesis, each does."""
    for name, lane in books.lanes.items():
        if lane.rate is None:
            continue
        for quiet, (count, at) in busiest(books, name).items():
            most = allowed(lane.rate, quiet=quiet)
            if count > most:
                said = (
                    f"more attempts than the rate allows: {name} {count} within {WINDOW} ms from {at}, at most {most}"
                )
                yield Finding(rule="I16", said=said)


def allowed(rate: float, *, quiet: bool) -> int:
    """Return the most attempts that the rate allows within the window."""
    return (int(rate * (WINDOW + LATE + SLACK) / 1000) + 1) * (1 if quiet else CONSUMERS)


def busiest(books: Books, name: str) -> dict[bool, tuple[int, int]]:
    """Return the most attempts of a lane within the window, and its start; before the first nemesis and after it."""
    times = sorted(note.at for note in books.began if lane_of(note.name) == name)
    most: dict[bool, tuple[int, int]] = {}
    for place, at in enumerate(times):
        quiet = at + WINDOW <= books.quiet_until
        count = bisect_left(times, at + WINDOW) - place
        most[quiet] = max(most.get(quiet, (0, 0)), (count, at))
    return most

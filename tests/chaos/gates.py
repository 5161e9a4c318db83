"""The judge's rules for what stands before a handler: no attempt is burned by it, a pause is kept, and a rate."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator

from tests.chaos.books import Books
from tests.chaos.finding import Finding, told
from tests.chaos.naming import lane_of

HEED = 6_000
"""Milliseconds until a pause is kept by everybody, on a machine with no core to spare; they promise two seconds."""
WINDOW = 5_000
"""Milliseconds in which runs are counted against a rate."""
LATE = 500
"""A moment that was given to a run holds for so long; it bounds the burst."""
SLACK = 2_000
"""Milliseconds from when a run is let in until its handler notes that it began, on such a machine."""
CONSUMERS = 2
"""While the database is away each keeps the whole rate by itself."""


def unburned(books: Books) -> Iterator[Finding]:
    """I7: an attempt is counted only when a handler failed; not for a pause, an outage, a stop or a kill."""
    failed = {(note.name, note.attempt) for note in books.failed}
    wrong = {
        f"{note.name} attempt {note.attempt}"
        for note in books.began
        if note.attempt > 1 and books.lane(note.name).counted and (note.name, note.attempt - 1) not in failed
    }
    yield from told("I7: an attempt was burned, and no handler had failed", wrong)


def pausing(books: Books) -> Iterator[Finding]:
    """I6: of a queue that is paused nothing is begun, while nothing keeps consumers from seeing that it is."""
    starts: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for note in books.began:
        starts[books.lane(note.name).queue].append((note.at, note.name))
    wrong = set()
    for pause in books.pauses:
        begins, ends = pause.began + HEED, min(pause.ended, books.quiet_until)
        wrong |= {name for at, name in starts[pause.queue] if begins <= at < ends}
    yield from told("I6: begun although its queue was paused", wrong)


def pacing(books: Books) -> Iterator[Finding]:
    """I16: in any five seconds all processes together run as many as the rate allows; each, once harm was done."""
    for name, lane in books.lanes.items():
        if lane.rate is None:
            continue
        for quiet, (count, at) in busiest(books, name).items():
            most = allowed(lane.rate, quiet=quiet)
            if count > most:
                said = f"more runs than its rate allows: {name} {count} within {WINDOW} ms from {at}, at most {most}"
                yield Finding(rule="I16", said=said)


def allowed(rate: float, *, quiet: bool) -> int:
    """The most runs within the window."""
    return (int(rate * (WINDOW + LATE + SLACK) / 1000) + 1) * (1 if quiet else CONSUMERS)


def busiest(books: Books, name: str) -> dict[bool, tuple[int, int]]:
    """Of one lane the most runs within the window, and from when; before anything was done to the system, and after."""
    times = sorted(note.at for note in books.began if lane_of(note.name) == name)
    most: dict[bool, tuple[int, int]] = {}
    for place, at in enumerate(times):
        quiet = at + WINDOW <= books.quiet_until
        count = bisect_left(times, at + WINDOW) - place
        most[quiet] = max(most.get(quiet, (0, 0)), (count, at))
    return most

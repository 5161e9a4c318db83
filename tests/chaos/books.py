"""The results of a run, read from the ledger, the database and the broker: the judge's only input."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tests.chaos import ledger
from tests.chaos.lanes import Lane
from tests.chaos.naming import lane_of
from tests.chaos.processes import Exit


class Note(NamedTuple):
    """One ledger line about an attempt; `at` is in milliseconds. A run has millions of them."""

    name: str
    attempt: int
    at: int


@dataclass(frozen=True, slots=True)
class Record:
    """The product's record of a parked message."""

    state: str
    attempts: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Harm:
    """One nemesis, with its start and end in milliseconds."""

    name: str
    began: int
    healed: int


@dataclass(frozen=True, slots=True)
class Pause:
    """The time in which a queue was certainly paused, in milliseconds."""

    queue: str
    began: int
    ended: int


@dataclass(slots=True, kw_only=True)
class Books:
    """All results of a run; messages are named as in ``naming``."""

    lanes: Mapping[str, Lane]
    attempted: set[str] = field(default_factory=set)
    confirmed: set[str] = field(default_factory=set)
    rolled: set[str] = field(default_factory=set)
    """Messages of transactions that were rolled back."""
    began: Sequence[Note] = ()
    failed: Sequence[Note] = ()
    calls: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """The numbers of messages of the calls, for each lane with batches."""
    did: Sequence[Note] = ()
    """Completed attempts of the lanes without a database."""
    effects: Sequence[str] = ()
    """Effects of the lanes with a database, in their order."""
    down: Sequence[Note] = ()
    """Attempts that failed because their dependency was down."""
    pauses: Sequence[Pause] = ()
    records: dict[str, Record] = field(default_factory=dict)
    waiting: set[str] = field(default_factory=set)
    """Messages that wait in the database behind a blocked key."""
    discarded: set[str] = field(default_factory=set)
    harms: Sequence[Harm] = ()
    results: Mapping[str, str] = field(default_factory=dict)
    """The status of each task with a stored result."""
    kept: set[str] = field(default_factory=set)
    """Tasks that succeeded in a process that was stopped in good order at the end, with a database."""
    left: Mapping[str, int] = field(default_factory=dict)
    """Queues that were not empty at the end, and waiting rows, with their counts."""
    vanished: Sequence[str] = ()
    """Rows of the history that were changed or deleted."""
    miscounted: Sequence[str] = ()
    """Numbers in /metrics that differ from the ledger once all is at rest."""
    exits: Sequence[Exit] = ()
    last: Mapping[str, int] = field(default_factory=dict)
    """Exit codes of the processes that were stopped at the end."""
    began_at: int = 0
    quiet_until: int = 0
    """The time of the first nemesis."""

    def handled(self) -> Counter[str]:
        """Return how often each message was handled."""
        return Counter([note.name for note in self.did]) + Counter(self.effects)

    def lane(self, name: str) -> Lane:
        """Return the lane of a message; the lane of an unknown one has no invariants."""
        return self.lanes.get(lane_of(name), NO_LANE)


NO_LANE = Lane(name="", share=0, attempts=None, innocent=False)


def read(folder: Path, lanes: Mapping[str, Lane]) -> Books:
    """Return the results that are in the ledger."""
    return Books(
        lanes=lanes,
        attempted=set(ledger.names(folder, ledger.ATTEMPTED)),
        confirmed=set(ledger.names(folder, ledger.CONFIRMED)),
        rolled=set(ledger.names(folder, ledger.ROLLED)),
        began=notes(ledger.lines(folder, ledger.BEGAN)),
        failed=notes(ledger.lines(folder, ledger.FAILED)),
        down=notes(ledger.lines(folder, ledger.DOWN)),
        pauses=pauses(folder),
        calls=calls(folder),
        did=sorted(notes(ledger.lines(folder, ledger.DID)), key=lambda note: note.at),
        discarded=set(ledger.names(folder, ledger.DISCARDED)),
        harms=[Harm(name, int(began), int(healed)) for name, began, healed in ledger.lines(folder, ledger.HARM)],
    )


def calls(folder: Path) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for lane, messages in ledger.lines(folder, ledger.CALLED):
        found[lane].append(int(messages))
    return found


def pauses(folder: Path) -> list[Pause]:
    """Return the pauses; each lasts until its own end or until an operator began to resume the queue."""
    resumed = [(queue, int(at)) for queue, at in ledger.lines(folder, ledger.RESUMED)]
    found = []
    for queue, began, until in ledger.lines(folder, ledger.PAUSED):
        ends = [at for one, at in resumed if one == queue and at >= int(began)]
        if int(until):
            ends.append(int(until))
        found.append(Pause(queue, int(began), min(ends, default=int(began))))
    return found


def notes(found: Iterable[list[str]]) -> list[Note]:
    return [Note(name, int(attempt), int(at)) for name, attempt, at in found]

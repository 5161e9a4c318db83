"""What a run has left behind, read from the ledger, the database and the broker: all that the judge looks at."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tests.chaos import ledger
from tests.chaos.lanes import Lane
from tests.chaos.naming import lane_of
from tests.chaos.processes import Exit


class Note(NamedTuple):
    """One line about one attempt; `at` is in milliseconds. There are millions of them."""

    name: str
    attempt: int
    at: int


@dataclass(frozen=True, slots=True)
class Record:
    """What the product has written about one parked message."""

    state: str
    attempts: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Harm:
    """One nemesis: from when to when, in milliseconds."""

    name: str
    began: int
    healed: int


@dataclass(frozen=True, slots=True)
class Pause:
    """When a queue was paused for certain, in milliseconds."""

    queue: str
    began: int
    ended: int


@dataclass(slots=True, kw_only=True)
class Books:
    """Everything; names are those of ``naming``."""

    lanes: Mapping[str, Lane]
    attempted: set[str] = field(default_factory=set)
    confirmed: set[str] = field(default_factory=set)
    rolled: set[str] = field(default_factory=set)
    """Their transaction was rolled back."""
    began: Sequence[Note] = ()
    failed: Sequence[Note] = ()
    did: Sequence[Note] = ()
    """Of the lanes without a database."""
    effects: Sequence[str] = ()
    """Of those with one, in their order."""
    down: Sequence[Note] = ()
    """Runs that failed because what they needed was down."""
    pauses: Sequence[Pause] = ()
    records: Mapping[str, Record] = field(default_factory=dict)
    waiting: set[str] = field(default_factory=set)
    """Waiting in the database behind one of their key that waits for a person."""
    discarded: set[str] = field(default_factory=set)
    harms: Sequence[Harm] = ()
    left: Mapping[str, int] = field(default_factory=dict)
    """Queues that were not empty in the end, and rows that wait."""
    vanished: Sequence[str] = ()
    """History that was there and is not, or is another."""
    exits: Sequence[Exit] = ()
    last: Mapping[str, int] = field(default_factory=dict)
    """Exit codes of those that were asked to end when all was over."""
    began_at: int = 0
    quiet_until: int = 0
    """When the first nemesis came."""

    def handled(self) -> Counter[str]:
        """How often each came to its end."""
        return Counter([note.name for note in self.did]) + Counter(self.effects)

    def lane(self, name: str) -> Lane:
        """The lane of a message; one that nobody knows holds it to nothing."""
        return self.lanes.get(lane_of(name), NO_LANE)


NO_LANE = Lane(name="", share=0, attempts=None, innocent=False)


def read(folder: Path, lanes: Mapping[str, Lane]) -> Books:
    """The part that stands in the ledger."""
    return Books(
        lanes=lanes,
        attempted=set(ledger.names(folder, ledger.ATTEMPTED)),
        confirmed=set(ledger.names(folder, ledger.CONFIRMED)),
        rolled=set(ledger.names(folder, ledger.ROLLED)),
        began=notes(ledger.lines(folder, ledger.BEGAN)),
        failed=notes(ledger.lines(folder, ledger.FAILED)),
        down=notes(ledger.lines(folder, ledger.DOWN)),
        pauses=pauses(folder),
        did=sorted(notes(ledger.lines(folder, ledger.DID)), key=lambda note: note.at),
        discarded=set(ledger.names(folder, ledger.DISCARDED)),
        harms=[Harm(name, int(began), int(healed)) for name, began, healed in ledger.lines(folder, ledger.HARM)],
    )


def pauses(folder: Path) -> list[Pause]:
    """Each until its own end, or until somebody began to resume its queue."""
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

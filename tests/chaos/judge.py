"""Says what became of every message, and whether each invariant held. It looks at books only and touches nothing."""

import signal
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from django_rmq_retry.messages.deaths import Reason
from tests.chaos.books import Books, Note
from tests.chaos.finding import Finding, told
from tests.chaos.gates import pacing, pausing, unburned
from tests.chaos.lanes import LINE_WAIT, WAITS, Lane
from tests.chaos.naming import NOT_TO_BE_HANDLED, lane_of, read

PROCESSED, DISCARDED = "processed", "discarded"
CLOCKS = 5
"""Milliseconds by which two clocks of one machine may be told apart."""
QUIET_SLACK = 20_000
"""Milliseconds later than asked that a retry may come before anything is done, on a machine with no core to spare."""
IMPATIENCE = "impatience"
"""The nemesis after which the broker takes back what is in hand for longer than a second."""
IN_ORDER = (0, -signal.SIGTERM)


@dataclass(slots=True, kw_only=True)
class Judgement:
    """The line of the report, and what is wrong."""

    attempted: int
    confirmed: int
    handled: int
    parked: int
    discarded: int
    lost: int
    unexpected: int
    effect_duplicates: int
    transport_duplicates: int
    recovered: int
    twofold: int
    """Handled, and parked or discarded besides: two lives of one message ended differently, which may be."""
    findings: list[Finding] = field(default_factory=list)

    @property
    def line(self) -> str:
        """As Jepsen writes it."""
        return (
            f"attempted {self.attempted} confirmed {self.confirmed} handled {self.handled} parked {self.parked}"
            f" discarded {self.discarded} lost {self.lost} unexpected {self.unexpected}"
            f" effect-duplicates {self.effect_duplicates} transport-duplicates {self.transport_duplicates}"
            f" recovered {self.recovered}"
        )


def judge(books: Books) -> Judgement:
    """Everything at once."""
    handled = books.handled()
    closed = {name for name, record in books.records.items() if record.state == DISCARDED} - handled.keys()
    settled = {name for name, record in books.records.items() if record.state == PROCESSED}
    parked = (books.records.keys() | books.waiting) - handled.keys() - closed - settled
    final = handled.keys() | parked | closed
    lost = books.confirmed - final
    unexpected = (final | settled) - books.attempted
    doubled = [name for name, times in handled.items() if times > 1]
    twice = [name for name in doubled if books.lane(name).once]
    verdict = Judgement(
        attempted=len(books.attempted),
        confirmed=len(books.confirmed),
        handled=len(handled),
        parked=len(parked),
        discarded=len(closed),
        lost=len(lost),
        unexpected=len(unexpected),
        effect_duplicates=len(twice),
        transport_duplicates=len(doubled) - len(twice),
        recovered=len((books.attempted - books.confirmed) & final),
        twofold=len((books.records.keys() - settled) & handled.keys()),
    )
    found = [
        *told("A, I1, I3: confirmed, and neither handled nor in a record", lost),
        *told("I2: nobody has published it", unexpected),
        *told("D, I4: handled more than once with once=True", twice),
        *told("I1: its record says processed, and no handler has done it", settled - handled.keys()),
    ]
    verdict.findings = [*found, *(finding for rule in RULES for finding in rule(books))]
    return verdict


def order(books: Books) -> Iterator[Finding]:
    """B, I12: what was confirmed later took effect later. What was discarded was resolved: a copy may come after."""
    ordered = {name for name, lane in books.lanes.items() if lane.by_life or lane.by_key}
    handled = chain((note.name for note in books.did), books.effects)
    # A dict keeps the order in which each came first.
    first = dict.fromkeys(name for name in handled if lane_of(name) in ordered)
    latest: dict[tuple[str, ...], tuple[int, str]] = {}
    wrong = []
    for name in first:
        lane = books.lane(name)
        if name not in books.confirmed or name in books.discarded:
            continue
        plan = read(name)
        line = (plan.lane, plan.life, plan.key if lane.by_key else "")
        number, before = latest.get(line, (0, ""))
        if plan.number < number:
            wrong.append(f"{name} after {before}")
        else:
            latest[line] = (plan.number, name)
    yield from told("B, I12: out of order", wrong)


def passing(books: Books) -> Iterator[Finding]:
    """B: nothing of a key is handled behind one that waits for a person in an open record."""
    stuck: dict[tuple[str, str, str], int] = {}
    for name, record in books.records.items():
        lane = books.lane(name)
        if lane.by_key and record.state not in {PROCESSED, DISCARDED} and name in books.confirmed:
            plan = read(name)
            place = (plan.lane, plan.life, plan.key)
            stuck[place] = min(stuck.get(place, plan.number), plan.number)
    plans = [(name, read(name)) for name in set(books.effects) if books.lane(name).by_key]
    wrong = [
        name
        for name, plan in plans
        if name in books.confirmed and plan.number > stuck.get((plan.lane, plan.life, plan.key), plan.number)
    ]
    yield from told("B: handled although one before it is parked", wrong)


def attempts(books: Books) -> Iterator[Finding]:
    """I7: never more than the policy says."""
    most = {name: lane.attempts for name, lane in books.lanes.items()}
    wrong = {
        note.name
        for note in books.began
        if (limit := most.get(lane_of(note.name))) is not None and note.attempt > limit
    }
    yield from told("I7: attempted more often than its policy allows", wrong)


def delays(books: Books) -> Iterator[Finding]:
    """C, I8: never earlier than asked; later only by the bound while nothing is done to the system."""
    ended: dict[tuple[str, int], list[Note]] = defaultdict(list)
    for note in books.failed:
        ended[note.name, note.attempt].append(note)
    early, late = [], []
    for note in books.began:
        before = [one.at for one in ended.get((note.name, note.attempt - 1), ()) if one.at <= note.at]
        if note.attempt == 1 or not before:
            continue
        lane = books.lane(note.name)
        wait = wait_of(lane, note.attempt - 1)
        # A message that was copied twice has two lives: any of them may be the one that goes on.
        if note.at - min(before) < wait - CLOCKS:
            early.append(f"{note.name} attempt {note.attempt} after {note.at - min(before)} ms")
        if note.at <= books.quiet_until and not lane.waits and note.at - max(before) > wait + QUIET_SLACK:
            late.append(f"{note.name} attempt {note.attempt} after {note.at - max(before)} ms")
    yield from told("C, I8: earlier than asked", early)
    yield from told("C, I8: later than its bound, before anything was done to the system", late)


def wait_of(lane: Lane, attempt: int) -> float:
    """Milliseconds that a lane asks for after an attempt."""
    return 1000 * (LINE_WAIT if lane.by_life else WAITS[min(attempt, len(WAITS)) - 1])


def innocents(books: Books) -> Iterator[Finding]:
    """I20: only what was made to fail is parked, where no database is needed to handle it."""
    impatient = any(harm.name == IMPATIENCE for harm in books.harms)
    wrong = [
        name
        for name, record in books.records.items()
        if books.lane(name).innocent
        and not NOT_TO_BE_HANDLED & {read(name).plan}
        # What waits for its turn waits in hand, for longer than a broker without patience allows: it came back.
        and not (impatient and books.lane(name).rate is not None and record.reason == Reason.CRASHED)
    ]
    yield from told("I20: parked, and nothing was wrong with it", wrong)


def transactions(books: Books) -> Iterator[Finding]:
    """I13: what was rolled back is nowhere."""
    there = books.handled().keys() | books.records.keys()
    yield from told("I13: published out of a transaction that was rolled back", books.rolled & there)


def decisions(books: Books) -> Iterator[Finding]:
    """I6: what a person has discarded stays so, unless it was handled after all."""
    handled = books.handled()
    wrong = [
        name
        for name in books.discarded
        if name not in handled and (name not in books.records or books.records[name].state not in FINAL_OR_AGAIN)
    ]
    yield from told("I6: discarded by the operator, and its record is gone", wrong)


FINAL_OR_AGAIN = (DISCARDED, PROCESSED, "parked", "on_hold", "requeueing", "requeued")


def ends(books: Books) -> Iterator[Finding]:
    """I18: no process says that all is well unless it was asked to end; those that were do so in good order.

    One that SIGTERM itself has ended had not begun: it heeds the signal from then on.
    """
    unasked = Counter(one.role for one in books.exits if one.code == 0 and not one.told)
    yield from told("I18: ended with 0 although nobody had asked it to", unasked)
    badly = (f"{name} with {code}" for name, code in books.last.items() if code not in IN_ORDER)
    yield from told("I18: did not end in good order", badly)


def quiescence(books: Books) -> Iterator[Finding]:
    yield from told("I1: not empty when all was over", (f"{name} holds {count}" for name, count in books.left.items()))


def history(books: Books) -> Iterator[Finding]:
    yield from told("E, I21: history was changed", books.vanished)


RULES: Sequence[Callable[[Books], Iterator[Finding]]] = (
    *(order, passing, attempts, delays, innocents),
    *(transactions, decisions, ends, quiescence, history),
    *(unburned, pausing, pacing),
)


def lanes_told(books: Books) -> Mapping[str, tuple[int, int]]:
    """Of each lane how many were confirmed and how many handled."""
    confirmed = Counter(map(lane_of, books.confirmed))
    handled = Counter(map(lane_of, books.handled()))
    return {name: (confirmed[name], handled[name]) for name in books.lanes}

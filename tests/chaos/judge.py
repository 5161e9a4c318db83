"""Determine the end of every message and check each invariant, from the collected books alone."""

import signal
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from django_rmq_retry.messages import Reason
from tests.chaos.books import Books, Note
from tests.chaos.finding import Finding, finding_of
from tests.chaos.gates import pacing, pausing, unburned
from tests.chaos.lanes import LINE_WAIT, WAITS, Lane
from tests.chaos.naming import NOT_TO_BE_HANDLED, lane_of, read

PROCESSED, DISCARDED = "processed", "discarded"
SUCCESSFUL, FAILED, READY = "SUCCESSFUL", "FAILED", "READY"
CLOCKS = 5
"""Milliseconds of clock difference allowed on one machine."""
QUIET_SLACK = 20_000
"""Milliseconds by which a retry may be late before the first nemesis, on a busy machine."""
IMPATIENCE = "impatience"
"""The nemesis that makes the broker requeue messages unacked for longer than a second."""
IN_ORDER = (0, -signal.SIGTERM)


@dataclass(slots=True, kw_only=True)
class Judgement:
    """The summary line of the report, and the violations."""

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
    """Messages handled, and also parked or discarded: two copies ended differently, which is allowed."""
    findings: list[Finding] = field(default_factory=list)

    @property
    def line(self) -> str:
        """The summary in the form that Jepsen uses."""
        return (
            f"attempted {self.attempted} confirmed {self.confirmed} handled {self.handled} parked {self.parked}"
            f" discarded {self.discarded} lost {self.lost} unexpected {self.unexpected}"
            f" effect-duplicates {self.effect_duplicates} transport-duplicates {self.transport_duplicates}"
            f" recovered {self.recovered}"
        )


def judge(books: Books) -> Judgement:
    """Check all invariants."""
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
        *finding_of("A, I1, I3: confirmed, but neither handled nor in a record", lost),
        *finding_of("I2: handled or recorded, but never published", unexpected),
        *finding_of("D, I4: handled more than once with once=True", twice),
        *finding_of("I1: recorded as processed, but not handled", settled - handled.keys()),
    ]
    verdict.findings = [*found, *(finding for rule in RULES for finding in rule(books))]
    return verdict


def order(books: Books) -> Iterator[Finding]:
    """B, I12: messages take effect in the order of their confirms, except discarded ones."""
    ordered = {name for name, lane in books.lanes.items() if lane.by_life or lane.by_key}
    handled = chain((note.name for note in books.did), books.effects)
    # A dict keeps the order of first occurrence.
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
    yield from finding_of("B, I12: out of order", wrong)


def passing(books: Books) -> Iterator[Finding]:
    """B: no message is handled while an earlier one with its ordering key is in an open record."""
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
    yield from finding_of("B: handled although an earlier message of its key is parked", wrong)


def attempts(books: Books) -> Iterator[Finding]:
    """I7: no message has more attempts than its policy allows."""
    most = {name: lane.attempts for name, lane in books.lanes.items()}
    wrong = {
        note.name
        for note in books.began
        if (limit := most.get(lane_of(note.name))) is not None and note.attempt > limit
    }
    yield from finding_of("I7: attempted more often than its policy allows", wrong)


def delays(books: Books) -> Iterator[Finding]:
    """C, I8: no retry is early; before the first nemesis, none is later than the bound."""
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
        # A message that was copied twice has two copies, and either may be the one that is retried.
        if note.at - min(before) < wait - CLOCKS:
            early.append(f"{note.name} attempt {note.attempt} after {note.at - min(before)} ms")
        if note.at <= books.quiet_until and not lane.waits and note.at - max(before) > wait + QUIET_SLACK:
            late.append(f"{note.name} attempt {note.attempt} after {note.at - max(before)} ms")
    yield from finding_of("C, I8: retried before its delay was over", early)
    yield from finding_of("C, I8: retried too late, before the first nemesis", late)


def wait_of(lane: Lane, attempt: int) -> float:
    """Return the retry delay of a lane after an attempt, in milliseconds."""
    return 1000 * (LINE_WAIT if lane.by_life else WAITS[min(attempt, len(WAITS)) - 1])


def innocents(books: Books) -> Iterator[Finding]:
    """I20: in lanes without a database, only messages that are meant to fail are parked.

    In a batch, only a message that kills its worker is parked for that.
    """
    impatient = any(harm.name == IMPATIENCE for harm in books.harms)
    wrong = [
        name
        for name, record in books.records.items()
        if (books.lane(name).innocent or (books.lane(name).in_batches and record.reason == Reason.CRASHED))
        and not NOT_TO_BE_HANDLED & {read(name).plan}
        # A message that waits for its rate stays unacked, so this broker requeues it, which looks like a crash.
        and not (impatient and books.lane(name).rate is not None and record.reason == Reason.CRASHED)
    ]
    yield from finding_of("I20: parked although its handler does not fail", wrong)


def transactions(books: Books) -> Iterator[Finding]:
    """I13: a message of a rolled-back transaction is neither handled nor recorded."""
    there = books.handled().keys() | books.records.keys()
    yield from finding_of("I13: published from a transaction that was rolled back", books.rolled & there)


def results(books: Books) -> Iterator[Finding]:
    """I23: the result of a task says how it ended; a success of a killed process may not have been recorded."""
    handled = books.handled()
    wrong = []
    for name in sorted(books.confirmed | handled.keys() | books.records.keys()):
        if not books.lane(name).results:
            continue
        status, record = books.results.get(name, "none"), books.records.get(name)
        if record is None:
            known = {SUCCESSFUL} if name in books.kept else {SUCCESSFUL, READY}
        elif record.state == PROCESSED:
            known = {SUCCESSFUL}
        elif name in handled:
            known = {SUCCESSFUL, FAILED, READY}
        else:
            known = {FAILED} if record.state in GIVEN_UP else {FAILED, READY}
        if status not in known:
            wrong.append(f"{name} is {status}, not {' or '.join(sorted(known))}")
    yield from finding_of("I23: the result of a task does not say how it ended", wrong)
    alien = (name for name in books.results if name not in books.attempted or name in books.rolled)
    yield from finding_of("I23: the result of a task that was never enqueued", alien)


GIVEN_UP = ("parked", "on_hold", DISCARDED)


def decisions(books: Books) -> Iterator[Finding]:
    """I6: a discarded message stays discarded, unless it was handled later."""
    handled = books.handled()
    wrong = [
        name
        for name in books.discarded
        if name not in handled and (name not in books.records or books.records[name].state not in FINAL_OR_AGAIN)
    ]
    yield from finding_of("I6: discarded by the operator, but its record is gone", wrong)


FINAL_OR_AGAIN = (DISCARDED, PROCESSED, "parked", "on_hold", "requeueing", "requeued")


def ends(books: Books) -> Iterator[Finding]:
    """I18: a process exits with 0 only after a stop request, and every stopped process exits cleanly.

    A process that SIGTERM killed had not yet installed its signal handler.
    """
    unasked = Counter(one.role for one in books.exits if one.code == 0 and not one.requested)
    yield from finding_of("I18: exited with 0 without a stop request", unasked)
    badly = (f"{name} with {code}" for name, code in books.last.items() if code not in IN_ORDER)
    yield from finding_of("I18: did not exit cleanly", badly)


def quiescence(books: Books) -> Iterator[Finding]:
    yield from finding_of("I1: not empty at the end", (f"{name} holds {count}" for name, count in books.left.items()))


def history(books: Books) -> Iterator[Finding]:
    yield from finding_of("E, I21: rows of the history were changed or deleted", books.vanished)


def metrics(books: Books) -> Iterator[Finding]:
    yield from finding_of("I22: /metrics and the ledger differ", books.miscounted)


RULES: Sequence[Callable[[Books], Iterator[Finding]]] = (
    *(order, passing, attempts, delays, innocents),
    *(transactions, results, decisions, ends, quiescence, history, metrics),
    *(unburned, pausing, pacing),
)


def lane_counts(books: Books) -> Mapping[str, tuple[int, int]]:
    """Return for each lane the numbers of confirmed and handled messages."""
    confirmed = Counter(map(lane_of, books.confirmed))
    handled = Counter(map(lane_of, books.handled()))
    return {name: (confirmed[name], handled[name]) for name in books.lanes}

"""The judge, with invented results: it finds each violated invariant, and nothing if all hold."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from django_rmq_retry.messages import Reason
from tests.chaos.books import Books, Harm, Note, Pause, Record, pauses
from tests.chaos.judge import judge
from tests.chaos.lanes import ALL
from tests.chaos.ledger import CONFIRMED, PAUSED, RESUMED, Counting, Ledger
from tests.chaos.processes import Exit

LANES = {lane.name: lane for lane in ALL}
FLOOD = [f"flood.1.{number}" for number in range(5)]
LINE = ["line.1.1", "line.1.2", "line.1.3"]
KEYED = ["keyed.1.1.-.k1", "keyed.1.2.-.k2", "keyed.1.3.-.k1"]
TASKS = ["task.1.1", "task.1.2.h", "task.1.3.h", "task.1.4", "task.1.5.x"]
FAILED_FIRST = ["keyed.1.1.h.k1", "keyed.1.2.-.k1"]
QUIET = 60_000


def did(*names: str, at: int = 0) -> list[Note]:
    return [Note(name, 1, at + place) for place, name in enumerate(names)]


def books(*confirmed: str, **more: Any) -> Books:
    attempted = {*confirmed, *more.pop("attempted", ())}
    return Books(lanes=LANES, attempted=attempted, confirmed=set(confirmed), **more)


def broken(found: Books) -> list[tuple[str, str]]:
    return [(finding.rule, finding.said) for finding in judge(found).findings]


def begun(*began: Note, **more: Any) -> Books:
    """Books of messages that have all been handled."""
    names = {note.name for note in began}
    return books(*names, began=began, did=did(*sorted(names)), **{"quiet_until": QUIET, **more})


def runs(count: int, *, every: int, lane: str = "metered", at: int = 0) -> list[Note]:
    return [Note(f"{lane}.1.{number}", 1, at + number * every) for number in range(count)]


def parked(*names: str) -> dict[str, Record]:
    return {name: Record("parked") for name in names}


FRAGILE = [Note("fragile.1.1", 1, 0), Note("fragile.1.1", 2, 10_000)]
BATCH = [Note(f"batch.1.{number}", attempt, attempt * 10_000) for attempt in (1, 2) for number in (1, 2)]
CRASHED = Reason.CRASHED.value
STUBBORN = [Note("flood.1.1.x", number, number * 10_000) for number in range(1, 6)]
COPIED = [Note("flood.1.1.f1", 1, 1000), Note("flood.1.1.f1", 1, 1400)]
EXITS = [Exit(role="a", code=0, requested=False), Exit(role="b", code=0, requested=True)]

CORRECT = {
    "an unconfirmed message is not lost": books(*FLOOD[:2], did=did(*FLOOD[:2]), attempted=FLOOD),
    "redelivered and unconfirmed messages break no order": books(
        *("line.1.1", "line.1.3", "line.2.1"),
        did=did("line.1.1", "line.1.3", "line.1.2", "line.1.1", "line.2.1"),
        attempted=["line.1.2"],
    ),
    "another key has another order": books(*KEYED, effects=[KEYED[1], KEYED[0], KEYED[2]]),
    "a discarded message may be passed": books(
        *FAILED_FIRST, effects=FAILED_FIRST[1:], records={FAILED_FIRST[0]: Record("discarded")}
    ),
    "a discarded message may be redelivered": books(
        *FAILED_FIRST, effects=FAILED_FIRST[::-1], discarded={FAILED_FIRST[0]}
    ),
    "a duplicated message is not an early retry": books(
        "flood.1.1.f1",
        began=[*COPIED, Note("flood.1.1.f1", 2, 1510)],
        failed=COPIED,
        did=[Note("flood.1.1.f1", 2, 1510)],
    ),
    "an attempt after a failure": begun(*FRAGILE, failed=FRAGILE[:1]),
    "redeliveries during an outage": begun(*(Note("fragile.1.1", 1, at) for at in range(0, 40_000, 1000))),
    "a pause under faults may be unread": begun(
        Note("gated.1.1", 1, QUIET), pauses=[Pause("chaos.gated", 0, 2 * QUIET)]
    ),
    "a pause of another queue": begun(Note("fragile.1.1", 1, 20_000), pauses=[Pause("chaos.gated", 11_000, 30_000)]),
    "a steady rate": begun(*runs(400, every=50)),
    "a full burst": begun(*runs(151, every=1)),
    "after a fault each process may use the whole rate": begun(*runs(302, every=1, at=QUIET)),
    "a result of each end": books(
        *TASKS,
        effects=[TASKS[0], TASKS[3], TASKS[4]],
        records={TASKS[1]: Record("parked"), TASKS[2]: Record("discarded"), TASKS[4]: Record("processed")},
        results=dict(zip(TASKS, ("SUCCESSFUL", "FAILED", "FAILED", "READY", "SUCCESSFUL"), strict=True)),
        kept={TASKS[0]},
    ),
    "a lane without a rate": begun(*runs(400, every=1, lane="gated")),
}


@pytest.mark.parametrize("found", CORRECT.values(), ids=CORRECT)
def test_what_is_allowed_has_no_findings(found: Books) -> None:
    assert broken(found) == []


VIOLATED = {
    "a message that was never published": (
        books(did=did("flood.9.9")),
        ("I2", "handled or recorded, but never published: flood.9.9"),
    ),
    "a second effect with once": (
        books("once.1.1", "sale.1.1", effects=["once.1.1", "sale.1.1", "once.1.1", "sale.1.1"]),
        ("D, I4", "handled more than once with once=True: once.1.1"),
    ),
    "out of order within a key": (
        books(*KEYED, effects=[KEYED[2], KEYED[1], KEYED[0]]),
        ("B, I12", "out of order: keyed.1.1.-.k1 after keyed.1.3.-.k1"),
    ),
    "a parked message is overtaken": (
        books(*FAILED_FIRST, effects=FAILED_FIRST[1:], records=parked(FAILED_FIRST[0])),
        ("B", "handled although an earlier message of its key is parked: keyed.1.2.-.k1"),
    ),
    "more attempts than allowed": (
        books("flood.1.1.x", began=STUBBORN, failed=STUBBORN, records=parked("flood.1.1.x")),
        ("I7", "attempted more often than its policy allows: flood.1.1.x"),
    ),
    "parked without a failing handler": (
        books(*(names := ["flood.1.1", "once.1.1", "poison.1.1.p", "hostile.1.1.w"]), records=parked(*names)),
        ("I20", "parked although its handler does not fail: flood.1.1"),
    ),
    "an innocent message of a batch is parked for the kill": (
        books(*(names := ["batch.1.1", "batch.1.2.p"]), records=dict.fromkeys(names, Record("parked", reason=CRASHED))),
        ("I20", "parked although its handler does not fail: batch.1.1"),
    ),
    "an attempt counted for another message of the batch": (
        begun(*BATCH, failed=BATCH[:1]),
        ("I7", "an attempt was counted although no handler had failed: batch.1.2 attempt 2"),
    ),
    "a rolled-back transaction": (
        books("sale.1.1", effects=["sale.1.1"], rolled={"sale.1.1"}),
        ("I13", "published from a transaction that was rolled back: sale.1.1"),
    ),
    "an attempt counted without a failure": (
        begun(*FRAGILE, down=FRAGILE[:1]),
        ("I7", "an attempt was counted although no handler had failed: fragile.1.1 attempt 2"),
    ),
    "more than the rate of two processes after a fault": (
        begun(*runs(303, every=1, at=QUIET)),
        ("I16", "more attempts than the rate allows: metered 303 within 5000 ms from 60000, at most 302"),
    ),
    "a result that misses a success": (
        books("task.1.1", effects=["task.1.1"], results={"task.1.1": "READY"}, kept={"task.1.1"}),
        ("I23", "the result of a task does not say how it ended: task.1.1 is READY, not SUCCESSFUL"),
    ),
    "a result that misses a failure": (
        books("task.1.1.h", records=parked("task.1.1.h"), results={"task.1.1.h": "READY"}),
        ("I23", "the result of a task does not say how it ended: task.1.1.h is READY, not FAILED"),
    ),
    "a success that is called a failure": (
        books("task.1.1", effects=["task.1.1"], results={"task.1.1": "FAILED"}),
        ("I23", "the result of a task does not say how it ended: task.1.1 is FAILED, not READY or SUCCESSFUL"),
    ),
    "a task without a result": (
        books("task.1.1", effects=["task.1.1"]),
        ("I23", "the result of a task does not say how it ended: task.1.1 is none, not READY or SUCCESSFUL"),
    ),
    "a result of nothing": (
        books(results={"task.1.1": "READY"}),
        ("I23", "the result of a task that was never enqueued: task.1.1"),
    ),
    "a process that ends by itself": (books(exits=EXITS), ("I18", "exited with 0 without a stop request: a")),
    "a process that does not end well": (books(last={"a": 0, "b": 1}), ("I18", "did not exit cleanly: b with 1")),
    "a queue that is not empty": (
        books(left={"chaos.flood": 3}),
        ("I1", "not empty at the end: chaos.flood holds 3"),
    ),
    "a changed history": (
        books(vanished=["rmq_retry_attempt 7 is gone"]),
        ("E, I21", "rows of the history were changed or deleted: rmq_retry_attempt 7 is gone"),
    ),
    "wrong metrics": (
        books(miscounted=["flood-1, line: 7 are counted, 8 are did"]),
        ("I22", "/metrics and the ledger differ: flood-1, line: 7 are counted, 8 are did"),
    ),
}


@pytest.mark.parametrize(("found", "finding"), VIOLATED.values(), ids=VIOLATED)
def test_each_violated_invariant_is_found(found: Books, finding: tuple[str, str]) -> None:
    assert broken(found) == [finding]


def test_correct_books_have_no_findings_and_full_counts() -> None:
    parked, discarded, hopeless = "flood.1.7.h", "flood.1.8.x", "once.1.1.h"
    found = books(
        *FLOOD,
        *(parked, discarded, hopeless),
        did=did(*FLOOD, FLOOD[0]),
        effects=[hopeless],
        records={parked: Record("parked"), discarded: Record("discarded"), hopeless: Record("processed")},
        discarded={discarded},
    )
    found.attempted |= {"flood.1.90", "flood.1.91"}
    found.did = [*found.did, *did("flood.1.90")]

    assert judge(found).line == (
        "attempted 10 confirmed 8 handled 7 parked 1 discarded 1 lost 0 unexpected 0"
        " effect-duplicates 0 transport-duplicates 1 recovered 1"
    )
    assert broken(found) == []


def test_a_confirmed_message_without_trace_is_lost() -> None:
    found = books(*FLOOD, did=did(*FLOOD[:3]))

    assert judge(found).lost == 2
    assert broken(found) == [("A, I1, I3", "confirmed, but neither handled nor in a record: flood.1.3, flood.1.4")]


def test_a_message_out_of_order_is_found() -> None:
    found = books(*LINE, did=did(LINE[0], LINE[2], LINE[1]))

    assert broken(found) == [("B, I12", "out of order: line.1.2 after line.1.3")]


def test_a_processed_record_without_a_handler_call_is_lost() -> None:
    found = books("flood.1.1.h", records={"flood.1.1.h": Record("processed")})

    assert [rule for rule, _ in broken(found)] == ["A, I1, I3", "I1"]


def test_a_message_waiting_behind_a_parked_one_counts_as_parked() -> None:
    names = ["keyed.1.1.h.k1", "keyed.1.2.-.k1"]
    found = books(*names, records={names[0]: Record("parked")}, waiting={names[1]})

    assert (judge(found).parked, judge(found).lost) == (2, 0)


def test_a_handled_message_with_a_record_is_counted_once_and_reported() -> None:
    found = books(*FLOOD[:3], did=did(*FLOOD[:3]))
    found.records = {FLOOD[0]: Record("parked"), FLOOD[1]: Record("discarded"), FLOOD[2]: Record("processed")}

    verdict = judge(found)

    assert (verdict.handled, verdict.parked, verdict.discarded, verdict.twofold) == (3, 0, 0, 2)


@pytest.mark.parametrize(
    ("second", "rule"),
    [(1490, ["C, I8"]), (1496, []), (1500, []), (21_500, []), (21_600, ["C, I8"]), (30_001, [])],
)
def test_an_early_retry_is_found_and_a_late_one_only_without_faults(second: int, rule: list[str]) -> None:
    name = "flood.1.1.f1"
    found = books(
        name,
        began=[Note(name, 1, 1000), Note(name, 2, second)],
        failed=[Note(name, 1, 1000)],
        did=[Note(name, 2, second)],
        quiet_until=30_000,
    )

    assert [one for one, _ in broken(found)] == rule


def test_a_rate_may_park_only_after_a_consumer_timeout() -> None:
    names = ["metered.1.1", "metered.1.2", "flood.1.1"]
    reasons = [Reason.CRASHED, Reason.EXHAUSTED, Reason.CRASHED]
    records = {name: Record("parked", reason=reason) for name, reason in zip(names, reasons, strict=True)}
    patient, impatient = (books(*names, records=records, harms=[Harm(one, 1, 2)]) for one in ("kill", "impatience"))
    for found in (patient, impatient):
        # Their attempts do not matter here.
        found.lanes = {name: replace(lane, counted=False) for name, lane in LANES.items()}

    said = "parked although its handler does not fail: "
    assert broken(patient) == [("I20", said + "flood.1.1, metered.1.1, metered.1.2")]
    assert broken(impatient) == [("I20", said + "flood.1.1, metered.1.2")]


def test_a_discard_without_a_record_is_found() -> None:
    found = books("flood.1.1.h", discarded={"flood.1.1.h"})

    assert ("I6", "discarded by the operator, but its record is gone: flood.1.1.h") in broken(found)


@pytest.mark.parametrize(
    ("at", "found"), [(11_999, False), (16_999, False), (17_000, True), (29_999, True), (30_000, False)]
)
def test_an_attempt_some_seconds_into_a_pause_is_found(at: int, found: bool) -> None:
    paused = [Pause("chaos.gated", 11_000, 30_000)]
    expected = [("I6", "an attempt started although the queue was paused: gated.1.1")] if found else []

    assert broken(begun(Note("gated.1.1", 1, at), pauses=paused)) == expected


def test_more_attempts_than_a_rate_allows_are_found() -> None:
    assert broken(begun(*runs(152, every=1, at=500))) == [
        ("I16", "more attempts than the rate allows: metered 152 within 5000 ms from 500, at most 151")
    ]


def test_a_pause_lasts_until_its_end_or_a_resume(tmp_path: Path) -> None:
    first, second = Ledger(tmp_path, "steering.1"), Ledger(tmp_path, "steering.2")
    first.note(PAUSED, "a", 100, 0)
    first.note(RESUMED, "a", 200)
    first.note(PAUSED, "a", 300, 350)
    first.note(PAUSED, "b", 400, 900)
    first.note(PAUSED, "c", 500, 0)
    second.note(RESUMED, "b", 600)

    assert pauses(tmp_path) == [
        *(Pause("a", 100, 200), Pause("a", 300, 350), Pause("b", 400, 600)),
        Pause("c", 500, 500),
    ]


def test_ledger_lines_are_counted_as_they_arrive(tmp_path: Path) -> None:
    one, counting = Ledger(tmp_path, "one"), Counting(tmp_path, CONFIRMED)
    one.note_all(CONFIRMED, ["a", "b"])
    seen = [counting.look(), counting.look()]
    Ledger(tmp_path, "two").note(CONFIRMED, "c")
    one.note(CONFIRMED, "d")

    assert [*seen, counting.look()] == [2, 2, 4]

"""The judge, with invented results: it finds each violated invariant, and nothing if all hold."""

from dataclasses import replace
from typing import Any

import pytest

from django_rmq_retry.messages import Reason
from tests.chaos.books import Books, Harm, Note, Record
from tests.chaos.judge import judge
from tests.chaos.lanes import ALL
from tests.chaos.processes import Exit

LANES = {lane.name: lane for lane in ALL}
FLOOD = [f"flood.1.{number}" for number in range(5)]


def did(*names: str, at: int = 0) -> list[Note]:
    return [Note(name, 1, at + place) for place, name in enumerate(names)]


def books(*confirmed: str, **more: Any) -> Books:
    return Books(lanes=LANES, attempted=set(confirmed), confirmed=set(confirmed), **more)


def broken(found: Books) -> list[tuple[str, str]]:
    return [(finding.rule, finding.said) for finding in judge(found).findings]


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


def test_an_unconfirmed_message_is_not_reported_as_lost() -> None:
    found = books(*FLOOD[:2], did=did(*FLOOD[:2]))
    found.attempted |= set(FLOOD)

    assert broken(found) == []


def test_a_message_that_was_never_published_is_unexpected() -> None:
    assert broken(books(did=did("flood.9.9"))) == [("I2", "handled or recorded, but never published: flood.9.9")]


def test_a_processed_record_without_a_handler_call_is_lost() -> None:
    found = books("flood.1.1.h", records={"flood.1.1.h": Record("processed")})

    assert [rule for rule, _ in broken(found)] == ["A, I1, I3", "I1"]


def test_a_duplicate_effect_is_a_finding_only_with_once() -> None:
    found = books("once.1.1", "sale.1.1", effects=["once.1.1", "sale.1.1", "once.1.1", "sale.1.1"])

    assert (judge(found).effect_duplicates, judge(found).transport_duplicates) == (1, 1)
    assert broken(found) == [("D, I4", "handled more than once with once=True: once.1.1")]


def test_a_message_out_of_order_is_found() -> None:
    found = books("line.1.1", "line.1.2", "line.1.3", did=did("line.1.1", "line.1.3", "line.1.2"))

    assert broken(found) == [("B, I12", "out of order: line.1.2 after line.1.3")]


def test_redelivered_and_unconfirmed_messages_break_no_order() -> None:
    found = books(
        "line.1.1", "line.1.3", "line.2.1", did=did("line.1.1", "line.1.3", "line.1.2", "line.1.1", "line.2.1")
    )
    found.attempted.add("line.1.2")

    assert broken(found) == []


def test_order_is_checked_per_ordering_key() -> None:
    names = ["keyed.1.1.-.k1", "keyed.1.2.-.k2", "keyed.1.3.-.k1"]

    assert broken(books(*names, effects=[names[1], names[0], names[2]])) == []
    assert broken(books(*names, effects=[names[2], names[1], names[0]])) == [
        ("B, I12", "out of order: keyed.1.1.-.k1 after keyed.1.3.-.k1")
    ]


def test_overtaking_a_parked_message_of_the_same_key_is_found() -> None:
    names = ["keyed.1.1.h.k1", "keyed.1.2.-.k1"]

    assert broken(books(*names, effects=names[1:], records={names[0]: Record("discarded")})) == []
    assert broken(books(*names, effects=names[1:], records={names[0]: Record("parked")})) == [
        ("B", "handled although an earlier message of its key is parked: keyed.1.2.-.k1")
    ]


def test_a_message_waiting_behind_a_parked_one_counts_as_parked() -> None:
    names = ["keyed.1.1.h.k1", "keyed.1.2.-.k1"]
    found = books(*names, records={names[0]: Record("parked")}, waiting={names[1]})

    assert (judge(found).parked, judge(found).lost) == (2, 0)


def test_a_redelivery_after_a_discard_breaks_no_order() -> None:
    names = ["keyed.1.1.h.k1", "keyed.1.2.-.k1"]

    assert broken(books(*names, effects=[names[1], names[0]], discarded={names[0]})) == []


def test_a_handled_message_with_a_record_is_counted_once_and_reported() -> None:
    found = books(*FLOOD[:3], did=did(*FLOOD[:3]))
    found.records = {FLOOD[0]: Record("parked"), FLOOD[1]: Record("discarded"), FLOOD[2]: Record("processed")}

    verdict = judge(found)

    assert (verdict.handled, verdict.parked, verdict.discarded, verdict.twofold) == (3, 0, 0, 2)


def test_more_attempts_than_allowed_are_found() -> None:
    name = "flood.1.1.x"
    began = [Note(name, number, number * 10_000) for number in range(1, 6)]

    assert broken(books(name, began=began, failed=began, records={name: Record("parked")})) == [
        ("I7", "attempted more often than its policy allows: flood.1.1.x")
    ]


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


def test_a_duplicated_message_is_not_taken_for_an_early_retry() -> None:
    name = "flood.1.1.f1"
    found = books(
        name,
        began=[Note(name, 1, 1000), Note(name, 1, 1400), Note(name, 2, 1510)],
        failed=[Note(name, 1, 1000), Note(name, 1, 1400)],
        did=[Note(name, 2, 1510)],
    )

    assert broken(found) == []


def test_a_parked_message_whose_handler_does_not_fail_is_found() -> None:
    names = ["flood.1.1", "once.1.1", "poison.1.1.p", "hostile.1.1.w"]

    assert broken(books(*names, records={name: Record("parked") for name in names})) == [
        ("I20", "parked although its handler does not fail: flood.1.1")
    ]


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


def test_a_message_of_a_rolled_back_transaction_is_found() -> None:
    found = books("sale.1.1", effects=["sale.1.1"], rolled={"sale.1.1"})

    assert broken(found) == [("I13", "published from a transaction that was rolled back: sale.1.1")]


def test_a_discard_without_a_record_is_found() -> None:
    found = books("flood.1.1.h", discarded={"flood.1.1.h"})

    assert ("I6", "discarded by the operator, but its record is gone: flood.1.1.h") in broken(found)


def test_wrong_exit_codes_are_found() -> None:
    exits = [
        Exit(role="a", code=0, requested=False),
        Exit(role="b", code=0, requested=True),
        Exit(role="c", code=1, requested=False),
    ]

    assert broken(books(exits=exits, last={"a": 0, "b": 1})) == [
        ("I18", "exited with 0 without a stop request: a"),
        ("I18", "did not exit cleanly: b with 1"),
    ]


def test_leftover_messages_changed_history_and_wrong_metrics_are_found() -> None:
    wrong = ["flood-1, line: 7 are counted, 8 are did"]
    assert broken(books(left={"chaos.flood": 3}, vanished=["rmq_retry_attempt 7 is gone"], miscounted=wrong)) == [
        ("I1", "not empty at the end: chaos.flood holds 3"),
        ("E, I21", "rows of the history were changed or deleted: rmq_retry_attempt 7 is gone"),
        ("I22", "/metrics and the ledger differ: flood-1, line: 7 are counted, 8 are did"),
    ]

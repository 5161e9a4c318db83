"""The judge's rules for breakers, pauses and rates, with invented results; and reading pauses."""

import random
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.books import Books, Note, Pause, pauses
from tests.chaos.judge import judge
from tests.chaos.lanes import ALL
from tests.chaos.ledger import CONFIRMED, PAUSED, RESUMED, Counting, Ledger
from tests.chaos.steering import Dependency

LANES = {lane.name: lane for lane in ALL}
QUIET = 60_000


def broken(*began: Note, **more: Any) -> list[tuple[str, str]]:
    names = {note.name for note in began}
    did = [Note(name, 1, 0) for name in sorted(names)]
    found = Books(lanes=LANES, attempted=names, confirmed=names, began=began, did=did, **{"quiet_until": QUIET, **more})
    return [(finding.rule, finding.said) for finding in judge(found).findings]


def runs(count: int, *, every: int, lane: str = "metered", at: int = 0) -> list[Note]:
    return [Note(f"{lane}.1.{number}", 1, at + number * every) for number in range(count)]


def test_an_attempt_counted_without_a_failure_is_found() -> None:
    name = "fragile.1.1"
    began = [Note(name, 1, 0), Note(name, 2, 10_000)]

    assert broken(*began, failed=[Note(name, 1, 0)]) == []
    assert broken(*began, down=[Note(name, 1, 0)]) == [
        ("I7", "an attempt was counted although no handler had failed: fragile.1.1 attempt 2")
    ]


def test_redeliveries_during_an_outage_count_no_further_attempt() -> None:
    assert broken(*(Note("fragile.1.1", 1, at) for at in range(0, 40_000, 1000))) == []


@pytest.mark.parametrize(
    ("at", "found"), [(11_999, False), (16_999, False), (17_000, True), (29_999, True), (30_000, False)]
)
def test_an_attempt_some_seconds_into_a_pause_is_found(at: int, found: bool) -> None:
    paused = [Pause("chaos.gated", 11_000, 30_000)]
    expected = [("I6", "an attempt started although the queue was paused: gated.1.1")] if found else []

    assert broken(Note("gated.1.1", 1, at), pauses=paused) == expected
    assert broken(Note("fragile.1.1", 1, at), pauses=paused) == []


def test_an_attempt_during_a_pause_under_faults_is_tolerated() -> None:
    assert broken(Note("gated.1.1", 1, QUIET), pauses=[Pause("chaos.gated", 0, 2 * QUIET)]) == []


def test_more_attempts_than_a_rate_allows_are_found() -> None:
    assert broken(*runs(400, every=50)) == []
    assert broken(*runs(151, every=1)) == []
    assert broken(*runs(152, every=1, at=500)) == [
        ("I16", "more attempts than the rate allows: metered 152 within 5000 ms from 500, at most 151")
    ]


def test_after_a_fault_two_processes_may_each_use_the_whole_rate() -> None:
    assert broken(*runs(302, every=1, at=QUIET)) == []
    assert broken(*runs(303, every=1, at=QUIET)) == [
        ("I16", "more attempts than the rate allows: metered 303 within 5000 ms from 60000, at most 302")
    ]


def test_a_lane_without_a_rate_has_none_to_exceed() -> None:
    assert broken(*runs(400, every=1, lane="gated")) == []


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


def test_the_handlers_dependency_goes_down_and_up(tmp_path: Path) -> None:
    dependency, chance = Dependency(tmp_path), random.Random(1)
    states = []
    for _ in range(4):
        assert dependency.turn(chance) > 0
        states.append(dependency.down)

    assert states == [True, False, True, False]

"""An alert begins, gets worse and ends; at most one of a finding leaves in one window."""

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from django_rmq_retry.alerts.found import AlertFinding, AlertFindings
from django_rmq_retry.alerts.ledger import LASTS_SECONDS, MOST_TRIES, Ledger
from django_rmq_retry.health.rules import Code, Problem, Severity
from tests.alerts.made import HALTED, IDLE

WINDOW = 900.0
START = 1_000_000.0


class Way:
    """One way that accepts everything, and the clock."""

    def __init__(self) -> None:
        self.rows: dict[str, Any] = {}
        self.ids: list[str] = []
        self.whys: list[str] = []

    def at(
        self, second: float, *found: AlertFinding, blind: bool = False, accepts: bool = True, following: str = ""
    ) -> list[str]:
        """Look at that second; return the alerts that left."""
        ledger = Ledger(json.loads(json.dumps(self.rows)), window=WINDOW)
        follow = frozenset(filter(None, [following]))
        alerts = ledger.due(AlertFindings(findings=found, blind=blind, following=follow), START + second)
        for alert in alerts:
            self.ids.append(alert.id)
            self.whys.append(alert.finding.why)
            if accepts:
                ledger.sent(alert, START + second)
            else:
                ledger.failed(alert, START + second)
        self.rows = ledger.rows()
        return [f"{alert.event} {alert.finding.code}" for alert in alerts]


def looks(way: Way, seconds: Sequence[float], *found: AlertFinding, **more: Any) -> list[str]:
    return [alert for second in seconds for alert in way.at(second, *found, **more)]


def test_a_finding_is_told_when_it_begins_and_when_it_ends_and_not_between() -> None:
    way = Way()

    assert looks(way, range(0, 3600, 15), IDLE) == ["begins IDLE"]
    assert looks(way, range(3600, 7200, 15)) == ["ends IDLE"]
    assert way.rows == {}


def test_a_restart_of_the_consumers_is_no_alert() -> None:
    way = Way()

    assert looks(way, (0, LASTS_SECONDS - 1), IDLE) == []
    assert looks(way, range(20, 2000, 15)) == []
    assert way.rows == {}


def test_a_finding_that_comes_and_goes_is_told_once_in_a_window() -> None:
    way = Way()
    told = looks(way, (0, 30), IDLE)
    for second in range(60, int(WINDOW) + 30, 30):
        told += way.at(second, *([IDLE] if second % 60 else []))

    assert told == ["begins IDLE"]
    assert looks(way, range(1000, 1800, 15)) == ["ends IDLE"]
    assert looks(way, range(1800, int(WINDOW) + 990, 15), IDLE) == []
    assert looks(way, range(int(WINDOW) + 1005, int(WINDOW) + 1100, 15), IDLE) == ["begins IDLE"]


def test_a_finding_that_becomes_an_error_is_worse_after_the_window() -> None:
    way = Way()
    looks(way, (0, 30), HALTED)
    error = replace(HALTED, code="HALTED_LONG", severity=Severity.ERROR)

    assert looks(way, range(45, int(WINDOW) + 30, 15), error) == []
    assert looks(way, range(int(WINDOW) + 30, 3600, 15), error) == ["worsens HALTED_LONG"]


def test_a_finding_with_ten_times_the_messages_is_worse_and_with_nine_times_is_not() -> None:
    way = Way()
    parked = replace(IDLE, count=40)
    looks(way, (0, 30), parked)

    assert looks(way, (2000, 2015), replace(parked, count=399)) == []
    assert looks(way, (2030, 2045), replace(parked, count=400)) == ["worsens IDLE"]
    assert looks(way, (4000, 4015), replace(parked, count=399)) == []


def test_another_error_or_queue_is_worse_once_in_a_window() -> None:
    way = Way()
    parked = replace(IDLE, causes=("BankDown in pay",), why="One waits.")
    looks(way, (0, 30), parked)
    more = replace(parked, causes=("BankDown in pay", "BankDown in refund", "KeyError in pay"))

    assert looks(way, range(45, int(WINDOW) + 15, 15), more) == []
    assert looks(way, range(int(WINDOW) + 30, 5000, 15), more) == ["worsens IDLE"]
    assert way.whys[-1] == "New: BankDown in refund, KeyError in pay. One waits."
    assert looks(way, range(5000, 7000, 15), parked, replace(more, key="x")) == ["begins IDLE"]
    assert looks(way, range(7000, 9000, 15), more) == ["ends IDLE"]


def test_of_many_new_causes_an_alert_names_three() -> None:
    way = Way()
    looks(way, (0, 30), IDLE)
    looks(way, (2000, 2015), replace(IDLE, causes=tuple(f"Error{number} in pay" for number in range(5))))

    assert way.whys[-1] == f"New: Error0 in pay, Error1 in pay, Error2 in pay and 2 more. {IDLE.why}"


def test_the_later_code_of_a_finding_is_the_same_finding() -> None:
    waiting = {"which": "", "waiting": " 1 message waits."}
    milder = AlertFinding.of(Problem(code=Code.IDLE, subject="pay"), of_queues=True)
    worse = AlertFinding.of(Problem(code=Code.NO_CONSUMER, subject="pay", values=waiting), of_queues=True)

    assert milder.key == worse.key == "IDLE"


def test_what_follows_from_another_finding_neither_begins_nor_is_over() -> None:
    """As the last consumer died, a mail said that the one of the first was over."""
    way = Way()
    looks(way, (0, 30), HALTED)

    assert looks(way, (2000, 2030), IDLE, following=HALTED.key) == ["begins IDLE"]
    assert looks(way, (4000, 4030), following="OUTBOX_OVERDUE ") == ["ends HALTED", "ends IDLE"]
    assert way.rows.keys() == {HALTED.key, IDLE.key}


def test_nothing_ends_while_the_broker_is_away_and_its_queues_are_unknown() -> None:
    way = Way()
    looks(way, (0, 30), IDLE, HALTED)

    assert looks(way, (2000, 2015), blind=True) == ["ends HALTED"]
    assert looks(way, (2030, 2045)) == ["ends IDLE"]


def test_a_way_that_fails_is_tried_five_times_and_then_again_in_the_next_window() -> None:
    way = Way()
    tries = [s for s in range(0, int(WINDOW), 5) if way.at(s, IDLE, accepts=False)]

    assert (len(tries), tries[0]) == (MOST_TRIES, LASTS_SECONDS)
    assert [later - earlier for earlier, later in pairwise(tries)] == [10, 20, 40, 80]
    assert len(set(way.ids)) == 1
    assert looks(way, range(int(WINDOW), 2000, 15), IDLE) == ["begins IDLE"]
    assert len(set(way.ids)) == 1


def test_a_finding_that_was_never_told_has_no_end() -> None:
    way = Way()
    looks(way, range(0, 300, 15), IDLE, accepts=False)

    assert looks(way, range(300, 3000, 15)) == []


def test_each_alert_of_a_finding_has_an_id_of_its_own() -> None:
    way = Way()
    looks(way, (0, 30), IDLE)
    looks(way, (2000, 2015), replace(IDLE, severity=Severity.ERROR))
    looks(way, (4000, 4015))
    looks(way, (6000, 6015, 6030), IDLE)

    assert len(way.ids) == len(set(way.ids)) == 4


def test_a_row_of_a_newer_version_is_read() -> None:
    way = Way()
    looks(way, (0, 30), IDLE)
    way.rows = {key: {**row, "of_tomorrow": 1} for key, row in way.rows.items()}

    assert looks(way, (2000, 2015)) == ["ends IDLE"]

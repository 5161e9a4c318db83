"""The command: exit codes, the sum of all messages, and its options."""

import signal
from pathlib import Path

import pytest

from tests.chaos import __main__ as suite
from tests.chaos import postgres

LINE = "storm on RabbitMQ 4.0.5: attempted 7 confirmed 6 handled 6"


@pytest.mark.parametrize(
    ("codes", "code"), [([0, 0], 0), ([0, 1, 2], 1), ([2, 0], 2), ([-9, 0], 2), ([1, -9], 1), ([0, 2, 0], 2)]
)
def test_the_worst_exit_code_is_a_finding_then_a_part_that_could_not_run(codes: list[int], code: int) -> None:
    assert suite.worst(codes) == code


def test_the_messages_of_all_parts_are_summed_and_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    totals = tmp_path / "totals"
    totals.write_text(f"1200 {LINE}\n34 cluster on RabbitMQ 4.0.5: attempted 40\n")

    assert suite.summed(totals) == 1234
    said = [line[7:] for line in capsys.readouterr().out.splitlines()]
    assert said == [LINE, "cluster on RabbitMQ 4.0.5: attempted 40", "1,234 messages were confirmed"]


@pytest.fixture
def by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the command in this process, without its environment."""
    # Set and deleted, so that monkeypatch removes it afterwards.
    monkeypatch.setenv("CHAOS_TOTALS", "")
    monkeypatch.delenv("CHAOS_TOTALS")
    monkeypatch.setattr(postgres, "lack", lambda: "")
    monkeypatch.setattr(signal, "signal", lambda *_: None)


@pytest.mark.usefixtures("by_itself")
@pytest.mark.parametrize(("confirmed", "code"), [(999_999, 3), (1_000_000, 0)])
def test_a_long_form_with_fewer_than_a_million_messages_reports_it(
    confirmed: int, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suite, "run_all", lambda *_: [0, 0])
    monkeypatch.setattr(suite, "summed", lambda *_: confirmed)

    assert suite.main(["--seed", "1"]) == code
    assert suite.main(["--seed", "1", "--short"]) == 0


def test_each_requested_version_runs_all_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []

    def run(name: str, _seed: int, version: str, _minutes: float) -> int:
        ran.append((name, version))
        return 0

    monkeypatch.setattr(suite, "in_a_process", run)
    suite.run_all(suite.parser().parse_args(["--broker", "3.10,4.3"]), 7)

    every = ("storm", "mariadb", "sweep", "cluster")
    assert ran == [(part, version) for version in ("3.10", "4.3") for part in every]


LANES = [("storm", ""), ("mariadb", ""), ("sweep", ""), ("storm", "4.0"), ("storm", "4.3"), ("cluster", "")]


def test_the_long_form_has_every_lane_and_names_missing_ones(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = suite.parser().parse_args([])
    monkeypatch.delenv("RMQ_TEST_BROKERS", raising=False)
    monkeypatch.setattr(suite, "lack", lambda _part, _version: "")
    assert suite.chosen(asked, 7) == [LANES]
    assert capsys.readouterr().out == ""

    monkeypatch.setattr(
        suite, "lack", lambda part, version: "It is not here." if (part, version) in LANES[1:4:2] else ""
    )
    assert suite.chosen(asked, 7) == [[LANES[0], LANES[2], *LANES[4:]]]
    said = [line[7:] for line in capsys.readouterr().out.splitlines()]
    assert said == ["NOT RUN: mariadb. It is not here.", "NOT RUN: storm on RabbitMQ 4.0. It is not here."]


def test_the_short_form_has_the_storm_and_one_lane_chosen_by_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = suite.parser().parse_args(["--short"])
    monkeypatch.delenv("RMQ_TEST_BROKERS", raising=False)
    monkeypatch.setattr(suite, "lack", lambda _part, _version: "")
    turns = [suite.chosen(asked, seed) for seed in range(5)]
    assert [turn[0][0] for turn in turns] == [("storm", "")] * 5
    assert [turn[0][1] for turn in turns] == [
        ("sweep", ""),
        ("mariadb", ""),
        ("storm", "4.0"),
        ("storm", "4.3"),
        ("sweep", ""),
    ]

    monkeypatch.setattr(suite, "lack", lambda part, version: "gone" if (part, version) != ("storm", "") else "")
    assert suite.chosen(asked, 3) == [[("storm", "")]]


def test_a_requested_part_that_cannot_run_exits_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(suite, "lack", lambda *_: "MariaDB is not on this machine.")

    assert suite.run_one(suite.parser().parse_args([]), "mariadb", 7, 1.0, "") == suite.UNABLE
    assert capsys.readouterr().err == "MariaDB is not on this machine.\n"

"""What the command makes of its parts: exit codes, the sum of all messages, and what it is started with."""

import signal
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.chaos import __main__ as suite
from tests.chaos import postgres

LINE = "storm on RabbitMQ 4.0.5: attempted 7 confirmed 6 handled 6"


@pytest.mark.parametrize(
    ("codes", "code"), [([0, 0], 0), ([0, 1, 2], 1), ([2, 0], 2), ([-9, 0], 2), ([1, -9], 1), ([0, 2, 0], 2)]
)
def test_what_was_found_counts_most_then_what_could_not_be_run(codes: list[int], code: int) -> None:
    assert suite.worst(codes) == code


def test_the_messages_of_all_parts_are_added_up_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    totals = tmp_path / "totals"
    totals.write_text(f"1200 {LINE}\n34 cluster on RabbitMQ 4.0.5: attempted 40\n")

    assert suite.summed(totals) == 1234
    said = [line[7:] for line in capsys.readouterr().out.splitlines()]
    assert said == [LINE, "cluster on RabbitMQ 4.0.5: attempted 40", "1,234 messages were confirmed"]


def test_where_no_part_came_to_its_end_there_is_nothing_to_add_up(tmp_path: Path) -> None:
    assert suite.summed(tmp_path / "totals") == 0


@pytest.mark.parametrize(("words", "less"), [([], False), (["--seed", "7"], False), (["--broker", "4.0"], False)])
def test_only_the_whole_long_form_has_a_million_to_send(words: list[str], less: bool) -> None:
    assert suite.restricted(suite.parser().parse_args(words)) is less
    assert suite.restricted(suite.parser().parse_args([*words, "--short"])) is True
    assert suite.restricted(suite.parser().parse_args([*words, "--minutes", "4"])) is True


@pytest.fixture
def by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command, in this process, with nothing around it."""
    # Set and deleted, so that it is gone afterwards too.
    monkeypatch.setenv("CHAOS_TOTALS", "")
    monkeypatch.delenv("CHAOS_TOTALS")
    monkeypatch.setattr(postgres, "lack", lambda: "")
    monkeypatch.setattr(signal, "signal", lambda *_: None)


@pytest.mark.usefixtures("by_itself")
@pytest.mark.parametrize(("confirmed", "code"), [(999_999, 3), (1_000_000, 0)])
def test_a_long_form_with_fewer_than_a_million_messages_says_so(
    confirmed: int, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suite, "run_all", lambda *_: [0, 0])
    monkeypatch.setattr(suite, "summed", lambda *_: confirmed)

    assert suite.main(["--seed", "1"]) == code
    assert suite.main(["--seed", "1", "--short"]) == 0


@pytest.mark.usefixtures("by_itself")
def test_one_that_is_interrupted_has_proved_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "run_all", Mock(side_effect=KeyboardInterrupt))

    assert suite.main(["--seed", "1", "--short"]) == suite.UNABLE


def test_each_version_that_was_asked_for_gets_all_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []

    def run(name: str, _seed: int, version: str, _minutes: float) -> int:
        ran.append((name, version))
        return 0

    monkeypatch.setattr(suite, "in_a_process", run)
    suite.run_all(suite.parser().parse_args(["--broker", "3.10,4.3"]), 7)

    assert ran == [("storm", "3.10"), ("cluster", "3.10"), ("storm", "4.3"), ("cluster", "4.3")]

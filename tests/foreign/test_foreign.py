"""The runner of other projects' suites: expected outcomes, and the end of hanging tests."""

import re
from pathlib import Path

import pytest

from tests.foreign import running
from tests.foreign.__main__ import NAMES
from tests.foreign.judging import EXPECTED, Outcomes, expected, problems
from tests.foreign.running import run
from tests.foreign.sources import PIKA
from tests.foreign.suites import NODE, PYTEST, Suite


def suite(*commands: list[str], line: re.Pattern[str] = NODE) -> Suite:
    return Suite(name="some", source=PIKA, prepare=lambda _folder, _port: None, commands=lambda: commands, line=line)


def shell(script: str) -> list[str]:
    return ["sh", "-c", script]


def test_each_expected_difference_names_a_known_suite_and_a_reason() -> None:
    listed = expected(EXPECTED.read_text())

    assert set(listed) <= set(NAMES)
    assert all(reason for tests in listed.values() for reason in tests.values())
    assert listed["amqplib"] == {
        "Connect > Connect API > ipv6": "The embedded broker listens on 127.0.0.1 only, not on ::1."
    }


def test_only_listed_failures_are_expected_and_they_must_fail() -> None:
    outcomes = Outcomes(passed=["a", "healed"], failed=["known", "new"], skipped=["left out"])
    differences = dict.fromkeys(["known", "healed", "left out", "gone"], "a reason")

    assert problems(outcomes, differences) == [
        "new fails, and is no expected difference.",
        "healed passes, but is an expected difference. Delete its line from expected.txt.",
        "left out was skipped, but is an expected difference. Delete its line from expected.txt.",
        "gone was not run, but is an expected difference. Delete its line from expected.txt.",
    ]


def test_tests_are_counted_each_once(tmp_path: Path) -> None:
    script = "printf 'start a\\npass a\\nstart a\\nfail a\\nnoise\\nskip b > c\\n'; exit 1"
    outcomes = run(suite(shell(script)), tmp_path, 1, tmp_path / "log")

    assert outcomes == Outcomes(passed=["a"], failed=["a #2"], skipped=["b > c"])


def test_the_lines_of_pytest_are_understood(tmp_path: Path) -> None:
    script = "printf 't.py::T::one PASSED [ 50%%]\\nt.py::T::two FAILED [100%%]\\nFAILED t.py::T::two - why\\n'; exit 1"
    outcomes = run(suite(shell(script), line=PYTEST), tmp_path, 1, tmp_path / "log")

    assert outcomes == Outcomes(passed=["t.py::T::one"], failed=["t.py::T::two"])


def test_a_test_that_hangs_is_killed_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "PATIENCE", 0.5)
    hanging = shell("printf 't.py::T::one PASSED\\nt.py::T::two '; exec tail -f /dev/null")
    outcomes = run(suite(hanging, shell("echo t.py::T::three PASSED"), line=PYTEST), tmp_path, 1, tmp_path / "log")

    assert outcomes.passed == ["t.py::T::one", "t.py::T::three"]
    assert [sentence.partition(":")[0] for sentence in outcomes.broken] == ["t.py"]
    assert outcomes.broken[0].startswith("t.py::T::two hangs: killed, and what follows it")


def test_a_suite_that_exits_with_an_error_without_a_failed_test_is_reported(tmp_path: Path) -> None:
    outcomes = run(suite(shell("echo start a; exit 3")), tmp_path, 1, tmp_path / "log")

    assert len(outcomes.broken) == 1
    assert "ended with code 3 at a, though no test had failed" in outcomes.broken[0]

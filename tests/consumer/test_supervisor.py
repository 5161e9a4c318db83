"""Real processes: a supervisor in its own process, controlled by signals."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.tooling.waiting import wait_until

ROOT = Path(__file__).parents[2]
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a supervisor with a number of children; read its output with ``communicate``."""
    started: list[subprocess.Popen[str]] = []

    def start(processes: int, *words: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "tests.consumer.children", str(tmp_path), str(processes), *words]
        started.append(subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True))
        return started[-1]

    yield start
    for one in started:
        if one.poll() is None:
            os.killpg(one.pid, signal.SIGKILL)
        one.communicate()


def pids(folder: Path, what: str = "start") -> list[int]:
    return [int(path.name.split("-")[2]) for path in folder.glob(f"{what}-*")]


def running(folder: Path, count: int) -> list[int]:
    return wait_until(lambda: found if len(found := pids(folder)) == count else [], what=f"{count} children")


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] == "Z"
    except OSError:
        return True


def said(supervisor: "subprocess.Popen[str]") -> tuple[int, str]:
    output, _ = supervisor.communicate(timeout=20)
    return supervisor.returncode, output


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_every_child_in_good_order(start: Start, tmp_path: Path, number: signal.Signals) -> None:
    supervisor = start(2, "wait")
    running(tmp_path, 2)
    supervisor.send_signal(number)
    code, _ = said(supervisor)

    assert (code, len(pids(tmp_path, "end"))) == (0, 2)


def test_a_signal_to_the_whole_group_counts_once_for_each(start: Start, tmp_path: Path) -> None:
    supervisor = start(2, "wait")
    running(tmp_path, 2)
    os.killpg(supervisor.pid, signal.SIGINT)
    code, _ = said(supervisor)

    assert (code, len(pids(tmp_path, "end"))) == (0, 2)


def test_a_second_signal_kills(start: Start, tmp_path: Path) -> None:
    supervisor = start(1, "stick")
    running(tmp_path, 1)
    supervisor.send_signal(signal.SIGTERM)
    assert supervisor.stdout is not None
    wait_until(lambda: supervisor.stdout and "Stopping" in supervisor.stdout.readline())
    supervisor.send_signal(signal.SIGTERM)
    code, _ = said(supervisor)

    assert code == 130


def test_a_child_over_its_shutdown_timeout_is_killed(start: Start, tmp_path: Path) -> None:
    supervisor = start(1, "stick")
    running(tmp_path, 1)
    supervisor.send_signal(signal.SIGTERM)
    code, output = said(supervisor)

    assert (code, "was ended by SIGKILL" in output) == (137, True)


def test_a_child_that_was_killed_is_replaced(start: Start, tmp_path: Path) -> None:
    supervisor = start(2, "wait")
    first = running(tmp_path, 2)
    os.kill(first[0], signal.SIGKILL)
    running(tmp_path, 3)
    supervisor.terminate()
    code, output = said(supervisor)

    assert (code, f"(pid {first[0]}) was ended by SIGKILL; a new one starts in" in output) == (0, True), output


def test_a_child_that_asks_for_a_restart_is_replaced(start: Start, tmp_path: Path) -> None:
    code, output = said(start(1, "75", "75", "0"))

    assert (code, len(pids(tmp_path)), "exit code" in output) == (0, 3, False)


def test_children_that_finished_are_not_replaced(start: Start, tmp_path: Path) -> None:
    code, _ = said(start(2, "0"))

    assert (code, len(pids(tmp_path))) == (0, 2)


def test_a_child_ended_by_its_handler_with_code_0_is_replaced(start: Start, tmp_path: Path) -> None:
    code, output = said(start(1, "leave", "0"))

    assert (code, len(pids(tmp_path))) == (0, 2)
    assert "ended with exit code 0; a new one starts in" in output


def test_children_repeatedly_ended_by_handlers_end_all_with_code_1(start: Start, tmp_path: Path) -> None:
    code, output = said(start(1, "leave"))

    assert (code, len(pids(tmp_path))) == (1, 5)
    assert "ended with exit code 0, 5 times in a row; stopping all processes" in output


def test_a_child_that_always_fails_ends_all_with_its_code(start: Start, tmp_path: Path) -> None:
    code, output = said(start(1, "1", "die", "1"))

    assert (code, len(pids(tmp_path))) == (1, 5)
    assert "ended with exit code 1, 5 times in a row; stopping all processes" in output


def test_children_that_reached_the_broker_may_die_more_often(start: Start, tmp_path: Path) -> None:
    code, output = said(start(1, *["reach"] * 8, "0"))

    assert (code, len(pids(tmp_path)), "stopping all processes" in output) == (0, 9, False)


def test_children_that_die_20_times_in_a_row_end_all(start: Start, tmp_path: Path) -> None:
    code, output = said(start(1, "reach"))

    assert (code, len(pids(tmp_path))) == (137, 20)
    assert "was ended by SIGKILL, 20 times in a row; stopping all processes" in output


def test_reaching_the_broker_counts_only_for_the_process_that_did(start: Start, tmp_path: Path) -> None:
    code, _ = said(start(1, "reach", "reach", "die"))

    assert (code, len(pids(tmp_path))) == (137, 5)


@pytest.mark.parametrize("hopeless", ["3", "4"])
def test_an_exit_code_that_no_restart_fixes_ends_all_at_once(start: Start, tmp_path: Path, hopeless: str) -> None:
    code, _ = said(start(1, hopeless))

    assert (code, len(pids(tmp_path))) == (int(hopeless), 1)


def test_children_do_not_outlive_a_supervisor_that_was_killed(start: Start, tmp_path: Path) -> None:
    supervisor = start(2, "wait")
    children = running(tmp_path, 2)
    supervisor.kill()

    wait_until(lambda: all(map(gone, children)), what="the children end")
    assert len(pids(tmp_path, "end")) == 2

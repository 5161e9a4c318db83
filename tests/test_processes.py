"""A forked command is like one that was started: its output, exit code, signals and surroundings."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tooling import processes
from tests.tooling.waiting import wait_until

SCRIPT = """
import os, sys, warnings, signal
print(sys.argv[1:], os.environ["WORD"], os.getcwd(), sys.stdin.read(), __name__)
print("problem", file=sys.stderr)
if "warn" in sys.argv:
    warnings.warn("careful")
if "pause" in sys.argv:
    sys.stdout.flush()
    signal.pause()
sys.exit(7)
"""
LATIN = "latin-1"
FULL = Path("/dev/full")


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "WORD": "ä", "DJANGO_SETTINGS_MODULE": "tests.settings", **more}


def both(command: list[str], env: dict[str, str], given: str = "") -> tuple[object, object]:
    """The results of a fork and of an interpreter of its own."""
    own = subprocess.run(
        command, env=env, cwd=processes.ROOT, input=given, capture_output=True, text=True, timeout=60, check=False
    )
    forked = processes.run(command, env=env, given=given)
    assert processes.forks(command, env, processes.ROOT)
    return tuple((one.args, one.returncode, one.stdout, one.stderr) for one in (own, forked))  # type: ignore[return-value]


def test_a_fork_has_the_same_arguments_environment_stdin_and_exit_code(script: Path) -> None:
    own, forked = both([sys.executable, str(script), "a", "b c"], environment(), "given ü")

    assert own == forked


def test_a_forked_django_command_prints_the_same_output() -> None:
    own, forked = both([sys.executable, "-W", "error", "-m", "django", "rmq_declare", "--help"], environment())

    assert own == forked


def test_a_fork_turns_warnings_into_errors_on_request(script: Path) -> None:
    ended = processes.run([sys.executable, "-W", "error", str(script), "warn"], env=environment())

    assert (ended.returncode, "UserWarning: careful" in ended.stderr) == (1, True)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_signal_ends_a_fork_and_its_children(script: Path, number: signal.Signals) -> None:
    command = [sys.executable, str(script), "pause"]
    devnull, piped = subprocess.DEVNULL, subprocess.PIPE
    with processes.start(command, env=environment(), stdin=devnull, stdout=piped, text=True, session=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("['pause']")
        assert os.getsid(process.pid) == process.pid
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.01)
        process.send_signal(number)

        assert process.wait(20) == -number
        process.kill()

    wait_until(lambda: not Path(f"/proc/{process.pid}").exists(), what="the end of the fork")


@pytest.mark.parametrize(
    ("command", "variables"),
    [
        (["sh", "-c", "true"], {}),
        ([sys.executable, "-c", "pass"], {}),
        ([sys.executable, "-X", "dev", "-m", "django"], {}),
        ([sys.executable, "-m", "django"], {"PYTHONWARNINGS": "error"}),
    ],
)
def test_an_unusual_command_starts_its_own_interpreter(command: list[str], variables: dict[str, str]) -> None:
    assert not processes.forks(command, environment(**variables), processes.ROOT)


def test_another_version_of_the_code_is_not_forked(tmp_path: Path) -> None:
    assert not processes.forks([sys.executable, "-m", "django"], environment(), tmp_path)


def test_a_fork_writes_in_the_encoding_of_its_environment(script: Path) -> None:
    env = environment(PYTHONIOENCODING=LATIN)
    ended = processes.run([sys.executable, str(script)], env=env, given=b"", text=False)

    assert " ä ".encode(LATIN) in ended.stdout


@pytest.mark.skipif(not FULL.exists(), reason="only Linux has a device that is always full")
def test_a_fork_with_an_unwritable_log_exits_with_the_same_code(tmp_path: Path) -> None:
    script = tmp_path / "logs.py"
    script.write_text(
        "import logging\n"
        "class Quiet(logging.StreamHandler):\n"
        "    def handleError(self, record): pass\n"
        "logging.getLogger().addHandler(Quiet(__import__('sys').stdout))\n"
        "logging.getLogger().warning('no room')\n"
    )
    command = [sys.executable, str(script)]
    with FULL.open("wb") as full, processes.start(command, env=environment(), stdout=full, stderr=full) as forked:
        own = subprocess.run(command, env=environment(), stdout=full, stderr=full, check=False)

        assert forked.wait(20) == own.returncode

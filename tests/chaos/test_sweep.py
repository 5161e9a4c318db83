"""The seed chooses the nemeses, and the function in which a process kills itself, among those that were executed."""

import os
import signal
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

from tests.chaos.ledger import Ledger, lines
from tests.chaos.nemeses import OFTEN, ONE_NODE, schedule
from tests.chaos.sweeping import ENDED, ENTRY, FATE, MONITORED, RETURN, Sweep, drawn, summary

KNOWN = {f"policies/backoff.py:f{number}" for number in range(100)}
SEEDS = [f"{seed}/sweep/others-1/2/1" for seed in range(100)]
WAYS = ["monitored", "profiled"] if MONITORED else ["profiled"]
PROGRAM = """
import os, sys, threading
from pathlib import Path
from tests.chaos.sweeping import Sweep
from django_rmq_retry.policies.backoff import Fixed
sweep = Sweep(Path(sys.argv[1]), "others-1", seed="7")
sweep.aim("policies/backoff.py:Fixed.nominal", sys.argv[2], 3)
sweep.start(monitored=sys.argv[4] == "monitored")
for number in range(int(sys.argv[3])):
    print(number, flush=True)
    Fixed(1.0).nominal(1)
"""


def first(seed: int, count: int) -> list[tuple[str, float, float]]:
    strikes = islice(schedule(seed, ONE_NODE, shortest=1, longest=5), count)
    return [(strike.name, strike.pause, strike.chance.random()) for strike in strikes]


def test_equal_seeds_give_equal_schedules() -> None:
    turn = first(7, len(ONE_NODE) + len(OFTEN))

    assert turn == first(7, len(turn))
    assert turn != first(8, len(turn))
    assert {name for name, _, _ in turn} == set(ONE_NODE)
    assert all(1 <= pause <= 5 for _, pause, _ in turn)


def test_equal_seeds_choose_the_same_place_to_kill() -> None:
    chosen = [drawn(KNOWN, seed) for seed in SEEDS]

    assert chosen == [drawn(KNOWN, seed) for seed in SEEDS]
    assert len({function for function, _, _ in chosen}) > 40
    assert {(where, left) for _, where, left in chosen} == {(w, n) for w in (ENTRY, RETURN) for n in (1, 2, 3)}


def test_each_wanted_place_ends_a_process_once_before_any_does_again(tmp_path: Path) -> None:
    (tmp_path / "census").mkdir()
    (tmp_path / "census" / "others").write_text("\n".join(KNOWN | {"a/batch.py:one", "a/batch.py:two"}) + "\n")

    chosen = []
    for life in range(4):
        Sweep(tmp_path, f"others-{life}", seed=str(life), places=["batch.py"])
        ((_, function, *_),) = (line for line in lines(tmp_path, FATE) if line[0] == f"others-{life}")
        Ledger(tmp_path, f"others-{life}").note(ENDED, function, ENTRY)
        chosen.append(function)

    assert set(chosen[:2]) == {"a/batch.py:one", "a/batch.py:two"}
    assert set(chosen[2:]) <= {"a/batch.py:one", "a/batch.py:two"}


def test_an_added_function_changes_few_choices() -> None:
    more = KNOWN | {"policies/backoff.py:another"}

    assert sum(drawn(KNOWN, seed) != drawn(more, seed) for seed in SEEDS) < 8


@pytest.mark.parametrize("where", [ENTRY, RETURN])
@pytest.mark.parametrize("how", WAYS)
def test_a_process_kills_itself_in_the_chosen_function(tmp_path: Path, where: str, how: str) -> None:
    (tmp_path / "census").mkdir()
    ended = run(tmp_path, where, "9", how)

    assert (ended.returncode, ended.stdout) == (-signal.SIGKILL, "0\n1\n2\n")
    assert list(lines(tmp_path, ENDED)) == [["policies/backoff.py:Fixed.nominal", where]]
    assert "policies/backoff.py:Fixed.nominal" in (tmp_path / "census" / "others").read_text().splitlines()
    assert summary(tmp_path).startswith("1 processes killed themselves at 1 places; ")


def test_no_process_kills_itself_after_the_faults_end(tmp_path: Path) -> None:
    (tmp_path / "census").mkdir()
    (tmp_path / "calm").touch()

    assert run(tmp_path, ENTRY, "4", "profiled").returncode == 0


def run(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", PROGRAM, str(folder), *words]
    env = {**os.environ, "PYTHONPATH": str(root)}
    return subprocess.run(command, env=env, cwd=root, capture_output=True, text=True, timeout=60, check=False)

"""The suite itself: its short form finds no violation, and finds each planted bug."""

import fcntl
import os
import re
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.tooling.services import Services, Unavailable, go_without

ROOT = Path(__file__).parents[2]
UNABLE = 2
Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(services: Services) -> Iterator[Run]:
    """Run the suite in its own process, one at a time, because each starts many processes."""
    seed = os.environ.get("RMQ_TEST_SEED") or str(secrets.randbelow(1_000_000))

    def run(*words: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "tests.chaos", "--seed", seed, *words]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
        print(f"{' '.join(command[1:])}\n{done.stdout}\n{done.stderr}")
        if done.returncode == UNABLE:
            go_without(Unavailable(None, done.stderr.strip() or "The suite of faults could not start."))
        return done.returncode, done.stdout

    with (services.folder / "chaos.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield run


@pytest.mark.long
def test_a_short_storm_of_faults_loses_nothing_and_doubles_nothing(run: Run) -> None:
    code, said = run("--only", "storm", "--minutes", "0.8", "--rate", "1000")

    assert (code, "BROKEN" in said) == (0, False), said
    assert "lost 0 unexpected 0 effect-duplicates 0" in said


@pytest.mark.long
def test_money_moves_exactly_once_while_processes_die_every_two_seconds(run: Run) -> None:
    code, said = run("--only", "soak", "--payments", "1000", "--minutes", "3")

    assert (code, "BROKEN" in said) == (0, False), said


@pytest.mark.long
def test_the_storm_catches_ack_first_and_a_handler_without_once(run: Run) -> None:
    code, said = run(
        *("--only", "storm", "--minutes", "1.3", "--rate", "1000", "--lanes", "flood,once"),
        *("--nemeses", "kill_consumer", "--plant", "ack_first,not_once"),
    )

    assert code == 1, said
    assert "BROKEN A, I1, I3: confirmed, but neither handled nor in a record: flood." in said
    assert "BROKEN D, I4: handled more than once with once=True: once." in said


@pytest.mark.long
def test_the_storm_catches_a_purge_by_the_host_clock(run: Run) -> None:
    # With this seed a consumer is soon restarted with a clock years ahead.
    code, said = run(
        *("--only", "storm", "--minutes", "2.5", "--rate", "200", "--lanes", "flood,once", "--seed", "1354"),
        *("--nemeses", "clock_jumps", "--plant", "host_clock"),
    )

    assert code == 1, said
    assert "BROKEN D, I4: handled more than once with once=True: once." in said


@pytest.mark.long
def test_the_sweep_catches_ack_first_and_a_handler_without_once(run: Run) -> None:
    code, said = run(
        *("--only", "sweep", "--minutes", "2", "--lanes", "flood,once", "--plant", "ack_first,not_once"),
    )

    assert code == 1, said
    assert "BROKEN A, I1, I3: confirmed, but neither handled nor in a record: flood." in said
    assert "BROKEN D, I4: handled more than once with once=True: once." in said


@pytest.mark.long
def test_the_mariadb_lane_catches_a_handler_without_once(run: Run) -> None:
    code, said = run(
        *("--only", "mariadb", "--minutes", "1.3", "--rate", "400", "--lanes", "flood,once"),
        *("--nemeses", "kill_consumer", "--plant", "not_once"),
    )

    assert code == 1, said
    assert "BROKEN D, I4: handled more than once with once=True: once." in said


@pytest.mark.long
def test_the_storm_catches_tasks_acked_first_or_sent_before_the_commit_and_lost_results(run: Run) -> None:
    code, said = run(
        *("--only", "storm", "--minutes", "1", "--rate", "200", "--lanes", "flood,task,awaited"),
        *("--nemeses", "kill_consumer", "--plant", "task_acked,task_at_once,no_results,not_once"),
    )

    assert code == 1, said
    assert "BROKEN A, I1, I3: confirmed, but neither handled nor in a record: task." in said
    assert "BROKEN I13: published from a transaction that was rolled back: task." in said
    assert "BROKEN I23: the result of a task does not say how it ended: task." in said
    assert "BROKEN D, I4: handled more than once with once=True: awaited." in said


@pytest.mark.long
def test_the_storm_catches_batches_counted_as_one_acked_after_a_rollback_or_doubled(run: Run) -> None:
    code, said = run(
        *("--only", "storm", "--minutes", "1", "--rate", "200", "--lanes", "flood,batch,batchonce"),
        *("--nemeses", "kill_consumer", "--plant", "batch_counted,batch_rolled,not_once"),
    )

    assert code == 1, said
    assert "BROKEN I7: an attempt was counted although no handler had failed: batch." in said
    assert "BROKEN A, I1, I3: confirmed, but neither handled nor in a record: batchonce." in said
    assert "BROKEN D, I4: handled more than once with once=True: batchonce." in said


@pytest.mark.long
def test_a_batch_survives_kills_at_its_steps(run: Run) -> None:
    code, said = run(
        *("--only", "sweep", "--minutes", "3", "--lanes", "flood,batch,batchonce"),
        *("--places", "batching.py,batch_attempt.py,batches.py,once_batch.py"),
    )

    assert (code, "BROKEN" in said) == (0, False), said
    assert len(re.findall(r"(?:entry|return): \d", said)) > 10, said


@pytest.mark.long
def test_the_storm_catches_ignored_breakers_pauses_and_rates(run: Run) -> None:
    code, said = run(
        *("--only", "storm", "--minutes", "1.2", "--rate", "200", "--lanes", "flood,fragile,gated,metered"),
        *("--nemeses", "kill_consumer", "--plant", "no_breaker,deaf,no_rate"),
    )

    assert code == 1, said
    assert "BROKEN I7: an attempt was counted although no handler had failed: fragile." in said
    assert "BROKEN I6: an attempt started although the queue was paused: gated." in said
    assert "BROKEN I16: more attempts than the rate allows: metered " in said

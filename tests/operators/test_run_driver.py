"""Consumers drive runs by themselves, as long as they can reach the database."""

import logging
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError
from django.utils import timezone

from django_rmq_retry.models import Attempt, RequeueRun, RunState, State
from django_rmq_retry.parked import run_driver as driving
from django_rmq_retry.parked.run_steps import RunSteps
from tests.operators.made import again, pause_run, record, requeue_run
from tests.tooling.filled import Own
from tests.tooling.owned import routed
from tests.tooling.waiting import wait_until

pytestmark = pytest.mark.usefixtures("own")


@pytest.fixture
def own(own_database: Own, settings: Any) -> Own:
    routed(settings)
    return own_database


@pytest.fixture
def driver() -> Iterator[driving.RunDriver]:
    one = driving.RunDriver(look=0.05, chores=0.05)
    yield one
    assert one.stop(timeout=30)


def test_two_containers_of_one_host_name_never_take_each_other_for_the_driver_of_a_run() -> None:
    """Each was thread 1 of process 1 of "worker", so the lease of one was the lease of the other."""
    same = "import os, threading; os.getpid = threading.get_native_id = lambda: 1"
    named = "from django_rmq_retry.recurring import thread_name; print(thread_name('rmq_consume'))"
    words = [sys.executable, "-c", f"{same}; {named}"]
    names = {subprocess.run(words, check=True, capture_output=True, text=True).stdout for _ in range(2)}

    assert len(names) == 2


@pytest.mark.usefixtures("wired")
def test_the_driver_picks_up_several_runs_and_drives_them_in_parallel(driver: driving.RunDriver) -> None:
    runs = [requeue_run([record().pk, record().pk], rate=50) for _ in range(3)]
    driver.start()

    wait_until(lambda: RequeueRun.objects.filter(state=RunState.WAITING, sent=2).count() == 3, what="three runs")
    assert driver.stop(timeout=30)
    assert set(RequeueRun.objects.values_list("leased_until", flat=True)) == {None}
    assert len(runs) == 3


def test_the_driver_ends_expired_holds_and_expired_claims(driver: driving.RunDriver) -> None:
    past = timezone.now() - timedelta(minutes=1)
    held = record(state=State.ON_HOLD, held_until=past)
    claimed = record(state=State.REQUEUEING, claimed_until=past)
    driver.start()

    wait_until(lambda: again(held).state == again(claimed).state == State.PARKED, what="both parked")
    assert again(claimed).unconfirmed


@pytest.mark.usefixtures("wired")
def test_the_driver_ends_a_paused_run_whose_retries_became_due(driver: driving.RunDriver) -> None:
    now = timezone.now()
    Attempt.objects.create(
        identity="i", queue="q", handler="q", message_id="m", number=1, started_at=now - timedelta(minutes=2),
        seconds=0.1, verdict="retry", wait=60, next_at=now + timedelta(seconds=0.5), host="h", pid=1, thread="t",
    )  # fmt: skip
    facts = {"by": "ann", "retries_of": "q", "total": 1, "selection": {"filter": {"queue": "q"}}}
    run = RequeueRun.objects.create(state=RunState.PAUSED, note="a look first", created_at=now, **facts)
    driver.start()

    wait_until(lambda: RequeueRun.objects.get(pk=run.pk).state == RunState.FINISHED, what="its end")
    run.refresh_from_db()
    assert (run.sent, run.skipped, run.explanation) == (0, 1, "")
    assert run.finished_at is not None
    assert run.finished_at >= now + timedelta(seconds=0.4)


def test_the_driver_takes_only_running_runs_without_a_driver() -> None:
    free, paused, driven = (requeue_run([record().pk]) for _ in range(3))
    pause_run(paused)
    RequeueRun.objects.filter(pk=driven.pk).update(leased_until=timezone.now() + timedelta(seconds=9))

    assert driving.undriven(10) == [free.pk]
    assert driving.undriven(0) == []


@pytest.mark.usefixtures("wired")
def test_a_failing_database_is_logged_once_and_retried(
    driver: driving.RunDriver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> int:
        raise OperationalError("gone")

    run = requeue_run([record().pk])
    with caplog.at_level(logging.WARNING):
        with monkeypatch.context() as breaking:
            breaking.setattr(driving, "end_expired_claims", broken)
            driver.start()
            wait_until(lambda: caplog.records, what="a failure")
        wait_until(lambda: RequeueRun.objects.get(pk=run.pk).sent == 1, what="the run")

    assert len([one for one in caplog.records if getattr(one, "event", "") == "runs"]) == 1


@pytest.mark.usefixtures("wired")
def test_a_run_whose_driver_failed_has_another_one_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It kept the lease: for 15 s nobody sent, and its page said that it was sent."""

    def fails(steps: RunSteps) -> float | None:
        step(steps)
        raise OperationalError("deadlock detected")

    run, step = requeue_run([record().pk, record().pk], rate=1), RunSteps.step
    driver = driving.RunDriver(look=0)
    with monkeypatch.context() as breaking:
        breaking.setattr(RunSteps, "step", fails)
        driver.turn()
    left = RequeueRun.objects.get(pk=run.pk)

    assert (left.sent, left.leased_until) == (1, None)
    assert driving.undriven(1) == [run.pk]


@pytest.mark.usefixtures("wired")
def test_a_run_that_always_fails_does_not_stop_those_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was the first one again a second later, and all others were left to the next driver before their turn."""
    failing, other = (requeue_run([record().pk, record().pk]) for _ in range(2))
    step = RunSteps.step

    def fails(steps: RunSteps) -> float | None:
        if steps.run_id == failing.pk:
            raise TypeError("a rule of the project")
        return step(steps)

    monkeypatch.setattr(RunSteps, "step", fails)
    driver = driving.RunDriver(look=0)
    for _ in range(4):
        driver.turn()

    assert RequeueRun.objects.get(pk=other.pk).sent > 0
    assert driving.undriven(2, without=[other.pk]) == [failing.pk]

"""A process that was killed on this machine is known to be gone; a frozen one is not."""

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from django_rmq_retry.health import process_place
from django_rmq_retry.health.processes import note_killed
from django_rmq_retry.models import ConsumerProcess
from django_rmq_retry.models.controls import KILLED
from tests.admin import made
from tests.tooling.waiting import wait_until

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.database,
    pytest.mark.skipif(not process_place.own_place(), reason="without /proc nobody knows where a process runs"),
]
SAYS_WHERE = "from django_rmq_retry.health.process_place import own_place; print(own_place(), flush=True); input()"


@pytest.fixture
def other() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Another process of this machine, and its place."""
    words = [sys.executable, "-c", SAYS_WHERE]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process, process.stdout.readline().strip()
        process.kill()


def noted(pid: int, place: str, **fields: object) -> str:
    """What is noted of a process that has been silent for ten seconds."""
    row = made.consumer(seconds=10, pid=pid, place=place, **fields)
    note_killed()
    row.refresh_from_db()
    assert (row.ended_at is None) is (not row.fault)
    return row.fault


def test_a_killed_process_is_noted_as_gone_and_a_frozen_one_is_not(other: tuple[subprocess.Popen[str], str]) -> None:
    """Each that ran out of memory was "perhaps frozen" for an hour, in red, and nothing ended it."""
    process, place = other
    process.send_signal(signal.SIGSTOP)
    frozen = noted(process.pid, place)
    process.kill()
    wait_until(lambda: process_place.has_ended(place, process.pid), what="it has ended, but its parent has not asked")
    unasked = noted(process.pid, place)
    process.wait()

    assert (frozen, unasked) == ("", KILLED)
    assert noted(process.pid, place) == KILLED


def test_another_process_with_the_same_number_is_not_taken_for_it(other: tuple[subprocess.Popen[str], str]) -> None:
    process, place = other
    earlier = place.rpartition("/")[0] + "/1"

    assert noted(process.pid, earlier) == KILLED
    assert noted(process.pid, place) == ""


@pytest.mark.parametrize(
    "place", ["", "another-boot/4026531836/77", "{boot}/1/77"], ids=["unknown", "host", "container"]
)
def test_of_a_process_elsewhere_nothing_is_noted(place: str) -> None:
    boot = process_place.own_place().partition("/")[0]

    assert noted(2**22, place.format(boot=boot)) == ""


def test_one_that_is_heard_of_is_not_looked_at() -> None:
    made.consumer(seconds=2, pid=2**22, place=process_place.own_place())
    note_killed()

    assert ConsumerProcess.objects.get().ended_at is None

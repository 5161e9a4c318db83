"""A process that was killed on this machine is known to be gone; a frozen one is not."""

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from django_rmq_retry.health import process_place
from django_rmq_retry.health.processes import note_gone
from django_rmq_retry.models import ConsumerProcess
from django_rmq_retry.models.controls import IS_GONE, SILENT_AFTER
from tests.admin import made
from tests.consumer.beating import heartbeat_of, running
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
    note_gone(silent_for=SILENT_AFTER)
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

    assert (frozen, unasked) == ("", IS_GONE)
    assert noted(process.pid, place) == IS_GONE


def test_another_process_with_the_same_number_is_not_taken_for_it(other: tuple[subprocess.Popen[str], str]) -> None:
    process, place = other
    earlier = place.rpartition("/")[0] + "/1"

    assert noted(process.pid, earlier) == IS_GONE
    assert noted(process.pid, place) == ""


@pytest.mark.parametrize(
    "place", ["", "another-boot/4026531836/77", "{boot}/1/77"], ids=["unknown", "host", "container"]
)
def test_of_a_process_elsewhere_nothing_is_noted(place: str) -> None:
    boot = process_place.own_place().partition("/")[0]

    assert noted(2**22, place.format(boot=boot)) == ""


def test_one_that_is_heard_of_is_not_looked_at() -> None:
    made.consumer(seconds=2, pid=2**22, place=process_place.own_place())
    note_gone(silent_for=SILENT_AFTER)

    assert ConsumerProcess.objects.get().ended_at is None


# On PostgreSQL a heartbeat ends the connection of its thread, and with it a transaction of the test.
@pytest.mark.django_db(transaction=True)
def test_the_one_that_is_started_in_its_place_notes_it_at_once() -> None:
    """In a crash loop each that had died counted as one that starts, for ten seconds."""
    died = made.consumer(seconds=1, pid=2**22, place=process_place.own_place())
    heartbeat_of(running(), queues=died.queues).turn()
    died.refresh_from_db()

    assert (died.fault, died.end_noticed) == (IS_GONE, True)

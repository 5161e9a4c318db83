"""``rmq_status --consumers``: exit codes, refusals, and a database that is away or has no tables."""

from contextlib import nullcontext
from datetime import timedelta

import pytest
from django.test import override_settings
from django.utils import timezone

from django_rmq_retry.amqp.levels import Gauged, Level
from django_rmq_retry.management.commands import rmq_status
from django_rmq_retry.models import State
from django_rmq_retry.topology import Role
from tests.admin.made import consumer, in_flight, message
from tests.commands.running import Exit, run

pytestmark = pytest.mark.django_db


def test_nothing_found_is_an_exit_code_of_its_own() -> None:
    told, data = run("rmq_status", "--consumers"), run("rmq_status", "--consumers", "--json")

    assert (told.code, told.out, data.code, data.data["items"]) == (Exit.NOTHING, "", Exit.NOTHING, [])
    assert told.err == "No consumer is running: none writes heartbeats. Start one: manage.py rmq_consume\n"


def test_a_large_installation_is_shown_by_its_troubled_part() -> None:
    for number in range(60):
        consumer(pid=number + 1, in_flight=[in_flight(seconds=9, timeout=3.0 if number == 59 else None)])
    told, most = run("rmq_status", "--consumers"), run("rmq_status", "--consumers", "--limit", "60")

    assert told.err == (
        "10 more processes. Raise --limit to see them.\n10 more messages in flight. Raise --limit to see them.\n"
    )
    assert (len(told.rows), len(most.rows), most.err) == (2 * 51, 2 * 61, "")
    assert [told.rows[row][0] for row in (1, 52)] == ["worker-3:60"] * 2
    assert len(run("rmq_status", "--consumers", "--json").data["items"]) == 60


def test_of_a_dead_process_each_message_says_what_became_of_it_as_the_page_does() -> None:
    entries = [in_flight(seconds=70, key="PAY-1"), in_flight(seconds=70, key="PAY-2", message_id="9f3c-8")]
    consumer(seconds=60, in_flight=[*entries, in_flight(seconds=70, key="PAY-3", message_id="9f3c-9")])
    message(message_id="9f3c-7", state=State.PROCESSED, succeeded_at=timezone.now())
    before = timezone.now() - timedelta(minutes=9)
    other = message(message_id="9f3c-8", state=State.PROCESSED, succeeded_at=before)
    told, data = run("rmq_status", "--consumers"), run("rmq_status", "--consumers", "--json").data["items"][0]
    states = {row[2]: row[-1] for row in told.rows[3:]}

    assert states == {
        "PAY-1": "processed since",
        "PAY-2": f"✕ record #{other.pk}: processed",
        "PAY-3": "✕ outcome unknown",
    }
    assert told.rows[-1][2] == "PAY-1"
    assert [one["processed_since"] for one in data["in_flight"]] == [True, False, False]


def test_a_process_whose_end_is_known_has_the_word_of_the_page() -> None:
    """The page said "ended" of the process that was "vanished" here."""
    consumer(seconds=60, pid=1, ended_at=timezone.now(), fault="its process is gone")
    consumer(seconds=60, pid=2)
    told, data = run("rmq_status", "--consumers"), run("rmq_status", "--consumers", "--json").data["items"]

    ended = "✕ ended: its process is gone"
    assert {row[0]: row[1] for row in told.rows[1:3]} == {"worker-3:1": ended, "worker-3:2": "✕ vanished"}
    assert {one["pid"]: (one["state"], one["end"]) for one in data} == {
        1: ("ended", "its process is gone"),
        2: ("vanished", None),
    }


def test_the_command_begins_with_what_is_wrong_as_the_page_does_and_only_counts_what_is_over() -> None:
    """Twelve dead processes of the night before stood above the two that ran."""
    for number in range(12):
        gone = consumer(pid=number + 1, seconds=4000, queues=["other"])
    consumer(pid=77, seconds=50, in_flight=[in_flight(seconds=60)])
    consumer(pid=99, queues=["other"], started_at=gone.beat_at + timedelta(seconds=9))
    for number in range(11):
        consumer(pid=100 + number, queues=["other"], started_at=gone.beat_at + timedelta(seconds=9))
    told, every = run("rmq_status", "--consumers"), run("rmq_status", "--consumers", "--all")

    assert told.out.startswith("! 1 message was in a handler when its consumer was heard of last, and may be handled a")
    assert told.lines[1][0].startswith("! 1 of 13 consumers without a heartbeat for 30 s: worker-3:77 (")
    assert told.lines[2] == ["12 processes are alive · 13 ended or vanished"]
    assert [row[0] for row in told.rows[1:14]] == [
        "worker-3:77",
        "worker-3:99",
        *(f"worker-3:{n}" for n in range(100, 111)),
    ]
    assert told.err == "12 that ended or vanished are over: --all shows them.\n"
    assert (every.out.count("↻ replaced"), every.err) == (12, "")


def test_the_dead_of_a_crash_loop_are_listed_below_those_that_live_or_may_be_frozen() -> None:
    """Eight of them, each restarted at once, stood above the one that was frozen and the one that ran."""
    beat = timezone.now() - timedelta(minutes=8)
    for place in range(8):
        born = beat + timedelta(seconds=2)
        beat = consumer(host=f"loop-{place}", started_at=born, beat_at=born + timedelta(seconds=40)).beat_at
    consumer(host="next", started_at=beat + timedelta(seconds=2))
    consumer(host="frozen", seconds=60, queues=["ledger"], in_flight=[in_flight(queue="ledger")])
    consumer(host="hangs", in_flight=[in_flight(seconds=200, timeout=30.0)])
    told = [row[0].partition(":")[0] for row in run("rmq_status", "--consumers", "--all").rows[1:12]]

    assert told == ["frozen", "hangs", "next", *(f"loop-{place}" for place in reversed(range(8)))]


def test_hostile_texts_are_printed_as_signs() -> None:
    consumer(host="\x1b[2J\thost\n", in_flight=[in_flight(key="\x1b[2J\t\n", handler="\u202e"), {}])
    told = run("rmq_status", "--consumers")

    assert (told.code, {len(row) for row in told.lines}) == (Exit.DONE, {9, 7, 1})
    assert "\x1b" not in told.out


def test_disabled_records_are_named() -> None:
    with override_settings(RMQ_RETRY={"URL": "amqp://guest:guest@127.0.0.1:1/", "RECORDS": False}):
        told = run("rmq_status", "--consumers")

    assert (told.code, told.err) == (Exit.NOTHING, "Consumers write no heartbeat while the setting RECORDS is False.\n")


@pytest.mark.parametrize("words", [(), ("--json",), ("--watch", "2")])
def test_settings_that_are_not_valid_are_named_before_anything_is_printed(words: tuple[str, ...]) -> None:
    consumer()
    with override_settings(RMQ_RETRY={"URL": "amqp://guest:guest@127.0.0.1:1/", "NOPE": 1}):
        told = run("rmq_status", "--consumers", *words)

    assert (told.code, told.out, "NOPE" in told.err) == (Exit.ERROR, "", True)


def test_consumers_and_check_exclude_each_other() -> None:
    told = run("rmq_status", "--consumers", "--check")

    assert (told.code, told.err) == (Exit.USAGE, "--consumers cannot be combined with --check. Omit one.")


def test_a_watch_repeats_the_tables_until_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("django_rmq_retry.management.commands.rmq_status.time.sleep", pause)
    consumer()
    told = run("rmq_status", "--consumers", "--watch", "2.5")

    assert (told.code, pauses, told.out.count("worker-3:4711\trunning")) == (Exit.DONE, [2.5, 2.5], 2)


def test_a_command_without_a_living_consumer_says_what_stands_still_as_the_page_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """ "2 of 2 consumers have ended" stood there, and on the page that none is alive and 45 messages wait."""
    level = Level(queue="payments.main", role=Role.WORK, ready=45, consumers=0)
    monkeypatch.setattr(rmq_status, "gauged", lambda *_args: Gauged(levels=(level,), api_set=False))
    monkeypatch.setattr(rmq_status, "open_declarer", lambda **_options: nullcontext())
    ended = timezone.now() - timedelta(seconds=20)
    consumer(seconds=25, ended_at=ended, fault="exit 3", stopping=True)
    told = run("rmq_status", "--consumers")

    assert told.lines[0][0].startswith("✕ No consumer is alive. 45 messages wait. Last heartbeat 2")
    assert told.lines[1] == ["manage.py rmq_consume"]
    assert told.rows[1][1] == "✕ ended: exit 3"

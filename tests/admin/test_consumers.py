"""The page of consumers: who runs, with which messages in flight, and who has vanished with some."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from django_rmq_retry.amqp.levels import Level
from django_rmq_retry.health.processes import tidy_vanished
from django_rmq_retry.models import ConsumerProcess, State
from django_rmq_retry.topology import Role
from tests.admin import made
from tests.admin.looking import Page
from tests.commands.running import run

pytestmark = [pytest.mark.django_db, pytest.mark.database]
CONSUMERS = "/admin/rmq_retry/consumerprocess/"
NOW = "/admin/rmq_retry/livestatus/"
GONE = "This process has ended, or it does not reach the database."
AGAIN = "These messages were in flight. If the process has ended, the broker delivers them again."


def shown(client: Client) -> str:
    return Page(client.get(CONSUMERS)).text


def test_a_running_process_is_shown_with_its_facts(page: Client) -> None:
    made.consumer(number=2, waiting=7, in_flight=[made.in_flight(seconds=245, attempt=3)], queues=["a", "b"])
    text = shown(page)

    assert "worker-3:4711 child 2 ✓ running Version 0.1.0 2026.11 Queues a , b Busy threads 1/4 Waiting 7" in text
    assert re.search(r"Started 3 h ago Last heartbeat \d s ago", text)
    assert "1 message in flight" in text
    assert re.search(r"transfer Key or id PAY-1 Attempt 3 In flight for 4 min ([5-9]|1\d) s", text)
    assert "beyond" not in text


def test_the_page_begins_with_what_is_wrong_and_the_command_if_none_is_alive(
    page: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all dead it had badges only; the command that starts consumers stood in rmq_status."""
    made.broker_seen(monkeypatch, Level(queue="pay", role=Role.WORK, ready=45, consumers=0))
    made.consumer(seconds=52, host="vm", pid=18494)
    text = shown(page)

    said = "✕ No consumer is alive. Last heartbeat 52 s ago: vm:18494. 1 queue stands still, 45 messages ready: pay 45."
    assert f"{said} manage.py rmq_consume Processes" in text


def test_a_process_without_the_broker_is_named_before_the_table(page: Client) -> None:
    made.consumer(host="vm", pid=1)
    made.consumer(host="vm", pid=2, connected=False)

    assert "! Without a connection to the broker: vm:2. These consumers take no messages. Processes" in shown(page)
    assert "manage.py rmq_consume" not in shown(page)


def test_queues_beyond_three_are_folded(page: Client) -> None:
    made.consumer(queues=[f"bank.{number}" for number in range(8)])

    assert "Queues bank.0 , bank.1 , bank.2 5 more bank.3 , bank.4" in shown(page)


@pytest.mark.parametrize(
    ("fields", "badge"),
    [
        ({"stopping": True}, "… stopping"),
        ({"connected": False}, "! no broker"),
        ({"connected": False, "stopping": True}, "… stopping"),
        ({"seconds": 8.0}, "✓ running"),
        ({"seconds": 20.0, "stopping": True}, "! no heartbeat for 20 s"),
        ({"seconds": 31.0}, "✕ vanished"),
        ({"seconds": 31.0, "stopping": True}, "✕ vanished"),
    ],
)
def test_each_state_has_its_badge(page: Client, fields: dict[str, Any], badge: str) -> None:
    made.consumer(**fields)

    assert f"worker-3:4711 {badge} Version" in shown(page)


def test_a_handler_beyond_its_deadline_stands_out_and_its_process_is_listed_first(page: Client) -> None:
    made.consumer(host="a", in_flight=[made.in_flight(seconds=20, timeout=30.0)])
    made.consumer(host="b", in_flight=[made.in_flight(seconds=31, timeout=30.0)])
    text = shown(page)

    assert text.index("b:4711") < text.index("a:4711")
    assert text.count("beyond its deadline") == 1
    assert ("b:4711 ! handler hangs" in text, "a:4711 ✓ running" in text) == (True, True)
    assert re.search(r"In flight for 3\d s ! beyond its deadline of 30 s", text)


def test_a_handler_that_blocks_the_event_loop_stands_out_and_its_process_is_listed_first(page: Client) -> None:
    """Only the log and rmq_status named it."""
    made.consumer(host="a", in_flight=[made.in_flight()])
    since = (timezone.now() - timedelta(seconds=75)).isoformat()
    made.consumer(host="b", in_flight=[made.in_flight(handler="bank.refund", seconds=80, blocks_since=since)])
    text, told = shown(page), run("rmq_status", "--consumers")

    assert text.index("b:4711") < text.index("a:4711")
    assert text.count("blocks the event loop") == 1
    blocks = "✕ blocks the event loop for 1 min"
    assert re.search(rf"bank\.refund Key or id PAY-1 Attempt 1 In flight for 1 min \d+ s {blocks} \d+ s", text)
    assert re.search(rf"bank\.refund\t.*\t{blocks}\n", told.out)
    [item, other] = run("rmq_status", "--consumers", "--json").data["items"]
    assert 75 <= item["in_flight"][0]["blocks"] < 100
    assert other["in_flight"][0]["blocks"] is None


def test_messages_in_flight_that_a_heartbeat_leaves_out_are_counted(page: Client) -> None:
    """A process with 1,000 async handlers was called busy with 100."""
    made.consumer(threads=1000, in_flight=[made.in_flight(), made.in_flight(key="PAY-2")], unlisted=998)
    text, told = shown(page), run("rmq_status", "--consumers")

    assert "Busy threads 1000/1000" in text
    assert "1,000 messages in flight" in text
    assert "Only the 2 oldest are listed." in text
    assert "1000/1000" in told.lines[1]
    assert "998 more in flight are not listed: a heartbeat has the oldest of its process." in told.err
    assert run("rmq_status", "--consumers", "--json").data["items"][0]["busy"] == 1000


def test_a_vanished_process_is_listed_with_its_messages(page: Client) -> None:
    made.consumer(host="a", in_flight=[made.in_flight(seconds=99, timeout=30.0)])
    made.consumer(host="z", seconds=60, in_flight=[made.in_flight(seconds=80, key="PAY-9")])
    text = shown(page)

    assert text.index("z:4711 ✕ vanished") < text.index("a:4711 ! handler hangs")
    assert f"{GONE} {AGAIN} 1 message was in flight at the last heartbeat" in text
    # What it has done since its last heartbeat is not known.
    assert re.search(r"PAY-9 Attempt 1 Started 1 min ago", text)


def test_a_process_whose_heartbeats_stop_is_not_called_running(page: Client) -> None:
    """A heartbeat comes every five seconds: beside "17 s ago" stood "✓ running" and "in flight for 0 s"."""
    made.consumer(seconds=17, in_flight=[made.in_flight(seconds=17)])
    text, told = shown(page), run("rmq_status", "--consumers")

    assert re.search(r"worker-3:4711 ! no heartbeat for 1[7-9] s Version", text)
    assert "1 message was in flight at the last heartbeat" in text
    assert re.search(r"PAY-1 Attempt 1 Started 1[7-9] s ago", text)
    assert "In flight for" not in text
    assert [told.lines[1][1][:18], told.lines[-1][-1]] == ["! no heartbeat for", "! at the last heartbeat"]
    assert run("rmq_status", "--consumers", "--json").data["items"][0]["state"] == "silent"


def test_of_a_dead_process_each_message_that_was_parked_has_its_state(page: Client) -> None:
    """22 minutes later its messages were still in flight, and others had handled them."""
    one = made.message(message_id="9f3c-7", queue="payments.main", state=State.PROCESSED)
    made.consumer(seconds=60, in_flight=[made.in_flight(), made.in_flight(message_id="9f3c-8", key="PAY-2")])
    answer = page.get(CONSUMERS)

    assert re.search(r"PAY-1 Attempt 1 Started \d+ \w+ ago Since then ✓ Processed", Page(answer).text)
    assert re.search(r"PAY-2 Attempt 1 Started \d+ \w+ ago Since then outcome unknown", Page(answer).text)
    assert f'href="/admin/rmq_retry/parkedmessage/{one.pk}/change/"' in answer.content.decode()


@pytest.mark.parametrize(("after", "settled"), [(5, True), (-5, False), (None, False)])
def test_of_a_dead_process_nothing_is_red_once_all_its_messages_were_processed(
    page: Client, after: int | None, settled: bool
) -> None:
    """What was processed before the attempt in flight began was another copy."""
    now = timezone.now()
    entries = [made.in_flight(seconds=70), made.in_flight(seconds=70, message_id="9f3c-8", key="PAY-2")]
    made.consumer(seconds=60, in_flight=entries)
    made.message(message_id="9f3c-7", state=State.PROCESSED, succeeded_at=now)
    if after is not None:
        handled = now - timedelta(seconds=70) + timedelta(seconds=after)
        made.message(message_id="9f3c-8", state=State.PROCESSED, succeeded_at=handled)
    answer = page.get(CONSUMERS)
    said = Page(answer).text

    assert ("All its messages were processed since." in said, AGAIN in said) == (settled, not settled)
    assert (b'class="rmq-error"' in answer.content) == (not settled)


def test_a_dead_process_that_was_replaced_is_one_grey_line_and_no_finding(page: Client) -> None:
    """The warning stood for a day, because messages had been in flight."""
    gone = made.consumer(host="z", seconds=600, in_flight=[made.in_flight(key="PAY-9")])
    alone, before = page.get(NOW), run("rmq_status", "--consumers")
    made.consumer(host="a", started_at=gone.beat_at + timedelta(seconds=9))
    text, told = shown(page), run("rmq_status", "--consumers")

    assert "1 consumer without a heartbeat for 30 s: z:4711 (10 min ago)." in Page(alone).text
    assert "without a heartbeat" not in Page(page.get(NOW)).text
    assert "z:4711 ↻ replaced Version" in text
    assert GONE not in text
    assert "PAY-9" in text
    assert "2026.11 Queues payments.main 1 was busy Waiting" in text
    assert (before.lines[1][1], [line[1] for line in told.lines[1:3]]) == ("✕ vanished", ["running", "↻ replaced"])


def test_a_dead_process_is_replaced_once_newer_ones_read_all_its_queues_together(page: Client) -> None:
    """It stayed red for a day after its queues were divided between two services."""
    both = ["payments.main", "statements"]
    gone = made.consumer(host="z", seconds=600, queues=both, in_flight=[made.in_flight()])
    later = gone.beat_at + timedelta(seconds=9)
    made.consumer(host="a", queues=["payments.main"], started_at=later)
    half = shown(page)
    made.consumer(host="b", queues=["statements"], started_at=later)
    text = shown(page)

    assert ("z:4711 ✕ vanished" in half, "z:4711 ↻ replaced" in text) == (True, True)
    assert "without a heartbeat" not in Page(page.get(NOW)).text


def test_a_dead_process_whose_replacement_died_too_is_grey_once_a_third_runs(page: Client) -> None:
    """It warned for a day beside a consumer that had taken its queues over."""
    first = made.consumer(host="a", seconds=600, in_flight=[made.in_flight()])
    second = made.consumer(host="b", seconds=300, started_at=first.beat_at + timedelta(seconds=9))
    without = Page(page.get(NOW)).text
    made.consumer(host="c", started_at=second.beat_at + timedelta(seconds=9))
    text, after = shown(page), Page(page.get(NOW)).text

    assert "1 consumer without a heartbeat for 30 s: b:4711 (5 min ago)." in without
    assert "without a heartbeat" not in after
    assert [f"{host}:4711 ↻ replaced" in text for host in "ab"] == [True, True]


def test_a_dead_process_stays_replaced_after_its_successor_has_ended(page: Client) -> None:
    """The row of a process that ends in good order is deleted: the dead one became an alarm again."""
    gone = made.consumer(host="a", seconds=800, in_flight=[made.in_flight()])
    alone = made.consumer(host="z", seconds=800, queues=["other"], in_flight=[made.in_flight()])
    heir = made.consumer(host="b", started_at=gone.beat_at + timedelta(seconds=9))
    tidy_vanished()
    heir.delete()
    text = shown(page)
    alone.delete()

    assert [badge in text for badge in ("a:4711 ↻ replaced", "z:4711 ✕ vanished")] == [True, True]
    assert "without a heartbeat" not in Page(page.get(NOW)).text


def test_fewer_consumers_after_a_deployment_are_no_finding_once_those_told_to_end_are_gone(page: Client) -> None:
    """Two of four stayed red for a day beside the two that did all the work."""
    told = [made.consumer(host=f"old{one}", seconds=60, stopping=True, in_flight=[made.in_flight()]) for one in "abcd"]
    unread = shown(page)
    for host in ("new1", "new2"):
        made.consumer(host=host, started_at=told[0].beat_at + timedelta(seconds=9))
    text, now = shown(page), Page(page.get(NOW)).text

    assert unread.count("✕ vanished") == 4
    assert (text.count("↻ replaced"), text.count("↻ taken over"), "✕ vanished" in text) == (2, 2, False)
    assert "It was told to end, and killed before it had." in text
    assert "without a heartbeat" not in now


def test_a_killed_process_that_others_stand_in_for_is_red_for_ten_minutes_and_says_so(page: Client) -> None:
    made.consumer(host="a")
    gone = made.consumer(host="z", seconds=500, in_flight=[made.in_flight()])
    red, now = shown(page), Page(page.get(NOW)).text
    until = timezone.localtime(gone.beat_at + timedelta(minutes=10))
    ConsumerProcess.objects.filter(pk=gone.pk).update(beat_at=gone.beat_at - timedelta(seconds=101))
    tidy_vanished()
    grey, told = shown(page), run("rmq_status", "--consumers", "--json").data["items"]
    later = Page(page.get(NOW)).text
    ConsumerProcess.objects.filter(host="a").delete()

    end = (
        f"Others read its queues. The warning ends with a process that replaces it, else at {until:%Y-%m-%d %H:%M:%S} ."
    )
    assert "z:4711 ✕ vanished" in red
    assert end in red
    assert ("1 consumer without a heartbeat" in now, "without a heartbeat" in later) == (True, False)
    assert "z:4711 ↻ taken over" in grey
    assert [one["state"] for one in told] == ["running", "taken over"]
    # Nobody reads its queues any more: it is missed again.
    alone = shown(page)
    assert "z:4711 ✕ vanished" in alone
    day = timezone.localtime(gone.beat_at + timedelta(days=1, seconds=-101))
    end = "No other consumer reads all its queues. Until one does, the warning stays, at the longest until"
    assert f"{end} {day:%Y-%m-%d %H:%M:%S} ." in alone


@pytest.mark.parametrize("seconds", [5, 1800])
def test_a_process_that_ended_with_a_fault_says_when_and_why(page: Client, seconds: int) -> None:
    """It was said to be stopping for half a minute, and then to have vanished."""
    made.consumer(host="a")
    at = timezone.now() - timedelta(seconds=seconds)
    fault = {
        "ended_at": at,
        "fault": "exit 1: a handler of statements hung",
        "stopping": True,
        "queues": ["statements"],
    }
    ended = made.consumer(host="z", seconds=seconds, in_flight=[made.in_flight(queue="statements")], **fault)
    text = shown(page)
    made.consumer(host="b", queues=["statements"], started_at=ended.beat_at + timedelta(seconds=9))
    said = f"Ended {timezone.localtime(at):%Y-%m-%d %H:%M:%S} , exit 1: a handler of statements hung"

    assert text.index("z:4711 ✕ ended") < text.index("a:4711 ✓ running")
    assert f"{said} These messages were in flight: the broker delivers them again." in text
    assert GONE not in text
    assert said in shown(page)
    assert ("z:4711 ↻ replaced" in shown(page)) == (seconds > 30)


def test_processes_that_need_somebody_are_listed_above_those_that_run(page: Client) -> None:
    gone = made.consumer(host="e", seconds=900)
    made.consumer(host="a", started_at=gone.beat_at + timedelta(seconds=9))
    made.consumer(host="b", seconds=400, queues=["other"])
    made.consumer(host="c", in_flight=[made.in_flight(seconds=60, timeout=30.0)])
    made.consumer(host="d", connected=False)
    text = shown(page).partition(" Processes ")[2]

    assert sorted("abcde", key=lambda host: text.index(f"{host}:4711")) == list("bcdae")


def test_a_crash_loop_warns_although_its_last_process_runs(page: Client) -> None:
    beat = made.consumer(host="a", seconds=900).beat_at
    for host, seconds in (("b", 600), ("c", 300)):
        beat = made.consumer(host=host, seconds=seconds, started_at=beat + timedelta(seconds=9)).beat_at
    made.consumer(host="d", started_at=beat + timedelta(seconds=9))

    assert "3 consumers without a heartbeat for 30 s: a:4711 (15 min ago), b:4711" in Page(page.get(NOW)).text


def test_findings_and_tables_write_an_age_in_the_same_way(page: Client) -> None:
    """ "119 s ago" stood above "1 min ago"."""
    made.consumer(seconds=110, host="gone")
    text, live = shown(page), Page(page.get(NOW)).text

    assert "Last heartbeat 1 min ago" in text
    assert "gone:4711 (1 min ago)" in live


def test_of_two_vanished_processes_the_one_with_messages_is_listed_first(page: Client) -> None:
    made.consumer(host="a", seconds=60)
    made.consumer(host="b", seconds=60, in_flight=[made.in_flight()])
    text = shown(page).partition(" Processes ")[2]

    assert text.index("b:4711") < text.index("a:4711")


def test_a_vanished_process_without_messages_says_so(page: Client) -> None:
    made.consumer(seconds=60)

    assert f"{GONE} No message was in flight." in shown(page)


def test_messages_of_a_queue_with_ack_auto_are_not_delivered_again(page: Client) -> None:
    lost = made.in_flight(queue="rates", handler="rate", key="EUR", auto_ack=True)
    made.consumer(seconds=60, in_flight=[made.in_flight(), lost])
    text = shown(page)

    assert (
        f'{AGAIN} It does not deliver messages of rates again, because ack="auto" has removed them from their queue.'
    ) in text
    assert re.search(r'rate Key or id EUR Attempt 1 Started \d \w+ ago ✕ ack="auto"', text)
    assert text.count('✕ ack="auto"') == 1
    assert re.search(r'ack="auto" Since then \N{EN DASH}', text)
    assert text.count("outcome unknown") == 1


def test_a_message_without_a_key_is_named_by_its_id(page: Client) -> None:
    made.consumer(in_flight=[made.in_flight(key=""), made.in_flight(key="", message_id="", handler="")])
    text = shown(page)

    assert "transfer Key or id 9f3c-7 Attempt" in text
    assert "payments.main Key or id \N{EN DASH} Attempt" in text


def test_hostile_texts_are_escaped_and_odd_entries_shown(page: Client) -> None:
    evil = "<script>alert(1)</script>\x1b[2J\u202e"
    texts = dict.fromkeys(("queue", "handler", "key", "message_id", "since"), evil)
    made.consumer(host=evil, version=evil[:32], deploy=evil, queues=[evil], in_flight=[texts, {}])
    answer = page.get(CONSUMERS)

    assert answer.status_code == 200
    for bad in (b"<script>alert", b"\x1b", "\u202e".encode()):
        assert bad not in answer.content


def test_only_the_processes_with_the_latest_heartbeats_are_listed(page: Client) -> None:
    ConsumerProcess.objects.bulk_create(
        ConsumerProcess(name=str(number), host=f"h{number}-", pid=1, started_at=one.beat_at, beat_at=one.beat_at)
        for one in [made.consumer(seconds=60)]
        for number in range(200)
    )
    made.consumer(host="latest")
    text = shown(page)

    assert "Only the 200 processes with the latest heartbeats are shown." in text
    assert "latest:4711" in text


def test_an_empty_page_says_how_to_start_a_consumer(page: Client, settings: Any) -> None:
    empty = shown(page)
    settings.RMQ_RETRY = {**settings.RMQ_RETRY, "RECORDS": False}

    assert "No consumer has written a heartbeat to the database. manage.py rmq_consume" in empty
    assert "Consumers write no heartbeat while the setting RECORDS is False." in shown(page)


def test_the_part_of_the_page_updates_alone(page: Client) -> None:
    made.consumer()
    whole, part = page.get(CONSUMERS).content.decode(), page.get(f"{CONSUMERS}?fragment=1").content.decode()

    assert f'data-rmq-live="{CONSUMERS}" data-rmq-every="5"' in whole
    assert ("worker-3:4711" in part, "<html" in part) == (True, False)

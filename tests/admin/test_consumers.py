"""The page of consumers: who runs, with which messages in flight, and who has vanished with some."""

import re
from contextlib import nullcontext
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db.models import F
from django.test import Client
from django.utils import timezone

from django_rmq_retry import Delivery, handler
from django_rmq_retry.admin import broker_look
from django_rmq_retry.amqp.levels import Gauged, Level
from django_rmq_retry.health.processes import tidy_vanished
from django_rmq_retry.management.commands import rmq_status
from django_rmq_retry.models import Attempt, ConsumerProcess, ParkedMessage, QueueControl, State
from django_rmq_retry.models.controls import IS_GONE
from django_rmq_retry.topology import Role
from django_rmq_retry.wording import minute, second
from tests.admin import made
from tests.admin.looking import Page
from tests.commands.running import Exit, run

pytestmark = [pytest.mark.django_db, pytest.mark.database]
CONSUMERS = "/admin/rmq_retry/consumerprocess/"
NOW = "/admin/rmq_retry/livestatus/"
GONE = "This process was killed, hangs, or does not reach the database."
AGAIN = (
    "If it hangs, end it before it goes on: the broker gives its messages to others meanwhile, so they may be handled "
    "twice."
)
UNKNOWN = (
    "One whose outcome is unknown was handled meanwhile, is in its queue again, or another consumer has it, unless the "
    "process hangs with it."
)


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

    # On a busy machine some seconds pass before the page is made.
    last, said = r"45 messages wait\. Last heartbeat 5\d s ago: vm:18494\.", r"1 queue stands still: pay 45\."
    assert re.search(rf"✕ No consumer is alive\. {last} {said} manage\.py rmq_consume Processes", text)


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
        ({"seconds": 5.0}, "✓ running"),
        ({"seconds": 9.0, "connected": False}, "! no heartbeat for 9 s"),
        ({"seconds": 20.0, "stopping": True}, "! no heartbeat for 20 s"),
        ({"seconds": 31.0}, "✕ vanished"),
        ({"seconds": 31.0, "stopping": True}, "✕ vanished"),
    ],
)
def test_each_state_has_its_badge(page: Client, fields: dict[str, Any], badge: str) -> None:
    made.consumer(**fields)

    assert f"worker-3:4711 {badge} Version" in shown(page)


def test_a_process_that_was_just_started_is_not_said_to_have_no_broker(page: Client) -> None:
    """Of one that died in its first second, "no broker" was the wrong cause."""
    made.consumer(connected=False, started_at=timezone.now() - timedelta(seconds=2))
    text, told = shown(page), run("rmq_status", "--consumers")

    assert "worker-3:4711 … starting Version" in text
    assert "Without a connection" not in text
    assert told.rows[1][1] == "starting"


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
    assert "1000/1000" in told.rows[1]
    assert "998 more in flight are not listed: a heartbeat has the oldest of its process." in told.err
    assert run("rmq_status", "--consumers", "--json").data["items"][0]["busy"] == 1000


def test_a_vanished_process_is_listed_with_its_messages(page: Client) -> None:
    made.consumer(host="a", in_flight=[made.in_flight(seconds=99, timeout=30.0)])
    made.consumer(host="z", seconds=60, in_flight=[made.in_flight(seconds=80, key="PAY-9", message_id="9f3c-9")])
    text = shown(page)

    assert text.index("z:4711 ✕ vanished") < text.index("a:4711 ! handler hangs")
    assert f"{GONE} {AGAIN} 1 message was in flight at the last heartbeat · outcome of 1 message unknown" in text
    assert text.count(UNKNOWN) == 1
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
    assert [told.rows[1][1][:18], told.rows[-1][-1]] == ["! no heartbeat for", "! at the last heartbeat"]
    assert run("rmq_status", "--consumers", "--json").data["items"][0]["state"] == "silent"


def test_of_a_dead_process_each_message_that_was_parked_has_its_state(page: Client) -> None:
    """22 minutes later its messages were still in flight, and others had handled them."""
    one = made.message(message_id="9f3c-7", queue="payments.main", state=State.PROCESSED)
    made.consumer(seconds=60, in_flight=[made.in_flight(), made.in_flight(message_id="9f3c-8", key="PAY-2")])
    answer = page.get(CONSUMERS)

    assert re.search(r"PAY-1 Attempt 1 Started \d+ \w+ ago Since then ✓ Processed", Page(answer).text)
    assert re.search(r"PAY-2 Attempt 1 Started \d+ \w+ ago Since then outcome unknown", Page(answer).text)
    assert f'href="/admin/rmq_retry/parkedmessage/{one.pk}/change/"' in answer.content.decode()


def test_of_a_frozen_process_each_message_that_another_one_has_names_it(page: Client) -> None:
    """It was said to hold them still, above the row of the process that handled them: woken, it paid as well."""
    made.consumer(host="z", seconds=66, in_flight=[made.in_flight(seconds=70), made.in_flight(message_id="9f3c-8")])
    made.consumer(host="a", in_flight=[made.in_flight(seconds=36)])
    text, told = shown(page), run("rmq_status", "--consumers")

    assert re.search(r"PAY-1 Attempt 1 Started 1 min ago Since then a:4711 has it now", text)
    assert (text.count("has it now"), text.count("outcome unknown"), AGAIN in text) == (1, 1, True)
    assert "another process has 1 message · outcome of 1 message unknown" in text
    assert "✕ 1 consumer may be frozen with messages that others got since: z:4711 (1 min ago). " in text
    assert told.out.count("✕ a:4711 has it now") == 1
    frozen = next(one for one in run("rmq_status", "--consumers", "--json").data["items"] if one["in_flight"][1:])
    assert [one["also"] for one in frozen["in_flight"]] == ["a:4711", None]


def test_of_a_killed_process_each_message_that_another_one_handled_again_is_a_doubt(page: Client) -> None:
    """Both payments were made twice, and both pages said "outcome unknown" of them."""
    entries = [made.in_flight(seconds=70), made.in_flight(seconds=70, message_id="9f3c-8", key="PAY-2")]
    gone = made.consumer(seconds=60, in_flight=entries)
    made.tried_again("9f3c-7", at=gone.beat_at + timedelta(seconds=1), verdict="ack")
    made.tried_again("9f3c-8", at=gone.beat_at + timedelta(seconds=1), verdict="retry")
    text, told = shown(page), run("rmq_status", "--consumers")
    data = run("rmq_status", "--consumers", "--json").data["items"][0]["in_flight"]

    assert re.search(r"PAY-1 .* Since then ! handled again at .* by worker-4:12: it may have been done twice", text)
    assert re.search(r"PAY-2 .* Since then tried again at .* by worker-4:12", text)
    assert ("outcome unknown" in text, UNKNOWN in text) == (False, False)
    assert told.out.count("! handled again by worker-4:12: perhaps done twice") == 1
    assert [one["perhaps_twice_by"] for one in data] == ["worker-4:12", None]


def test_of_a_killed_process_what_it_had_ended_itself_is_not_unknown(page: Client) -> None:
    """ "outcome unknown", and "in its queue again", was said of a message that it had acknowledged before it died."""
    keys = {"9f3c-1": "ack", "9f3c-2": "retry", "9f3c-3": "ack"}
    entries = [made.in_flight(seconds=70, message_id=one, key=f"PAY-{one[-1]}") for one in keys]
    gone = made.consumer(seconds=60, in_flight=entries)
    its: dict[str, Any] = {"host": gone.host, "pid": gone.pid, "redelivered": False, "seconds": 11}
    for one, verdict in keys.items():
        made.tried_again(one, at=gone.beat_at - timedelta(seconds=10), verdict=verdict, **its)
    again = Attempt.objects.get(message_id="9f3c-3")
    again.pk, again.host, again.pid, again.redelivered = None, "worker-4", 12, True
    again.started_at = gone.beat_at + timedelta(seconds=9)
    again.save()
    text, told = shown(page), run("rmq_status", "--consumers")

    assert re.search(r"PAY-1 .* Since then ended at [\d: -]+ by worker-3:4711", text)
    assert re.search(r"PAY-2 .* Since then failed at [\d: -]+, a retry follows", text)
    assert re.search(r"PAY-3 .* Since then ! handled again at .* by worker-4:12: it may have been done twice", text)
    assert ("outcome unknown" in text, UNKNOWN in text, "All that it had reported" in text) == (False, False, False)
    assert [row[-1].partition(" by")[0] for row in told.rows[3:]] == [
        "failed, a retry follows",
        "! handled again",
        "processed since",
    ]


def test_a_replaced_process_counts_its_messages_that_may_have_been_handled_twice(page: Client) -> None:
    for host in "xyz":
        gone = made.consumer(host=host, seconds=4000, in_flight=[made.in_flight(seconds=4010)])
    made.tried_again("9f3c-7", at=gone.beat_at + timedelta(seconds=1), verdict="ack")
    made.consumer(host="a")

    assert "3 messages perhaps done twice" in shown(page)
    # The command left out two of four that were paid twice, because another process had taken the queue over.
    assert run("rmq_status", "--consumers").out.count("! handled again by worker-4:12: perhaps done twice") == 3


def test_the_command_names_what_nobody_is_known_to_have_handled_of_a_replaced_process(page: Client) -> None:
    """Its page said "outcome of 1 message unknown", and the command left that message out."""
    gone = made.consumer(seconds=4000, in_flight=[made.in_flight(seconds=4010), made.in_flight(message_id="9f3c-8")])
    made.tried_again("9f3c-8", at=gone.beat_at + timedelta(seconds=1), verdict="retry")
    made.consumer(host="a")

    assert "outcome of 1 message unknown" in shown(page)
    assert [row[-1] for row in run("rmq_status", "--consumers").rows if "9f3c-7" in row] == ["✕ outcome unknown"]


def test_one_that_was_killed_just_now_is_not_over_although_it_had_reported_nothing(page: Client) -> None:
    """Killed inside three payments that it had begun since its last heartbeat, it was folded away with old ones."""
    now = timezone.now()
    gone = made.consumer(seconds=20, ended_at=now - timedelta(seconds=15), fault=IS_GONE, stopping=True)
    made.consumer(host="a", started_at=now - timedelta(seconds=14))
    fresh = shown(page)
    past = now - timedelta(minutes=9)
    ConsumerProcess.objects.filter(pk=gone.pk).update(beat_at=past, ended_at=past)

    assert "1 that ended or vanished is over" not in fresh
    assert "worker-3:4711" in fresh
    assert "1 that ended or vanished is over" in shown(page)


def test_what_was_in_quarantine_as_its_worker_died_has_the_state_of_its_record(page: Client) -> None:
    """It was parked because its worker died, and "outcome unknown" half an hour later."""
    one = made.message(message_id="9f3c-7", queue="payments.main", state=State.PARKED)
    made.consumer(seconds=60, in_flight=[made.in_flight(queue="payments.main.quarantine")])
    text, told = shown(page), run("rmq_status", "--consumers")

    assert re.search(r"PAY-1 Attempt 1 Started \d+ \w+ ago Since then . Parked", text)
    assert f"✕ record #{one.pk}: parked" in told.out


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

    assert ("All that it had reported was processed since." in said, AGAIN in said) == (settled, not settled)
    assert "may have begun others after its last heartbeat" in said
    assert (b'class="rmq-error"' in answer.content) == (not settled)


def test_a_dead_process_that_was_replaced_is_one_grey_line_and_no_finding(page: Client) -> None:
    """The warning stood for a day, because messages had been in flight."""
    gone = made.consumer(host="z", seconds=600, in_flight=[made.in_flight(key="PAY-9")])
    alone, before = page.get(NOW), run("rmq_status", "--consumers")
    made.consumer(host="a", started_at=gone.beat_at + timedelta(seconds=9))
    text, told = shown(page), run("rmq_status", "--consumers")

    assert "1 of 1 consumers without a heartbeat for 30 s: z:4711 (10 min ago)." in Page(alone).text
    assert "without a heartbeat" not in Page(page.get(NOW)).text
    assert "z:4711 ↻ replaced Version" in text
    assert GONE not in text
    assert "PAY-9" in text
    assert "A process may have begun others after its last heartbeat: " in text
    assert "2026.11 Queues payments.main 1 was busy Waiting" in text
    assert (before.rows[1][1], [row[1] for row in told.rows[1:3]]) == ("✕ vanished", ["running", "↻ replaced"])


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

    assert "1 of 1 consumers without a heartbeat for 30 s: b:4711 (5 min ago)." in without
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
    assert ("1 of 2 consumers without a heartbeat" in now, "without a heartbeat" in later) == (True, False)
    assert "z:4711 ↻ taken over" in grey
    assert [one["state"] for one in told] == ["running", "taken over"]
    # Nobody reads its queues any more: it is missed again.
    made.consumer(host="b", queues=["other"])
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
    assert f"{said} These messages were in flight as it ended." in text
    assert "One whose outcome is unknown was handled meanwhile, is in its queue again, or another consumer has" in text
    assert GONE not in text
    assert said in shown(page)
    assert "z:4711 ↻ replaced" in shown(page)


def test_a_replaced_process_that_had_reported_nothing_says_where_the_rest_is_told(page: Client) -> None:
    gone = made.consumer(host="z", seconds=600)
    made.consumer(host="a", started_at=gone.beat_at + timedelta(seconds=9))
    text = shown(page)

    assert "z:4711 ↻ replaced" in text
    assert "1 that ended or vanished is over · z:4711, last heartbeat 10 min ago" in text
    assert "Live status and the requeue run list what was perhaps handled twice." in text


def test_one_that_reported_its_messages_as_it_ended_has_begun_no_others(page: Client) -> None:
    now = timezone.now()
    fault: dict[str, Any] = {"beat_at": now, "ended_at": now, "fault": "exit 1: it hung", "stopping": True}
    made.consumer(in_flight=[made.in_flight(seconds=70)], **fault)
    before = shown(page)
    made.message(message_id="9f3c-7", state=State.PROCESSED, succeeded_at=now)
    after = shown(page)

    assert ["were in flight as it ended" in text for text in (before, after)] == [True, False]
    assert ["All its messages were processed since." in text for text in (before, after)] == [False, True]
    assert "Live status and the requeue run list" not in before + after


def test_an_end_that_others_noticed_says_when_and_when_it_was_heard_of_last(page: Client) -> None:
    """A consumer that had been killed at 03:11:58 "ended" at 03:12:10."""
    gone = made.consumer(host="z", seconds=40)
    at = gone.beat_at + timedelta(seconds=12)
    ConsumerProcess.objects.update(ended_at=at, fault=IS_GONE, stopping=True)
    text, live = shown(page), Page(page.get(NOW)).text

    noticed, heard = (f"{timezone.localtime(one):%Y-%m-%d %H:%M:%S}" for one in (at, gone.beat_at))
    assert f"Noticed at {noticed} to have ended, last heard of at {heard} : {IS_GONE}" in text
    assert "1 of 1 consumers has ended: its process is gone (z:4711, last heard of 4" in live


def test_processes_that_need_somebody_are_listed_above_those_that_run(page: Client) -> None:
    gone = made.consumer(host="e", seconds=900)
    made.consumer(host="a", started_at=gone.beat_at + timedelta(seconds=9))
    made.consumer(host="b", seconds=400, queues=["other"])
    made.consumer(host="c", in_flight=[made.in_flight(seconds=60, timeout=30.0)])
    made.consumer(host="d", connected=False)
    text = shown(page).partition(" Processes ")[2]

    assert sorted("abcde", key=lambda host: text.index(f"{host}:4711")) == list("bcdae")


def test_processes_that_vanished_with_nothing_or_were_replaced_are_one_fold_each_below_the_others(page: Client) -> None:
    """8 that a broken broker had ended stood above the 2 that ran."""
    for host in "abcd":
        made.consumer(host=host, seconds=400, queues=["other"])
    text = shown(page)
    gone = [made.consumer(host=host, seconds=600, in_flight=[made.in_flight()]) for host in "ghi"]
    for host in "xyz":
        made.consumer(host=host, started_at=gone[0].beat_at + timedelta(seconds=9))
    answer = page.get(CONSUMERS)
    folded = Page(answer).text

    assert "processes vanished with" not in text
    told = "4 processes vanished; none had reported a message in flight · a:4711, b:4711, c:4711, d:4711"
    assert f"{told}, last heartbeat 6 min ago" in folded
    told = "3 ended or vanished; others read their queues · g:4711, h:4711, i:4711, last heartbeat 10 min ago · "
    assert f"{told}outcome of 3 messages unknown" in folded
    order = ["x:4711", "4 processes vanished", "a:4711 ✕ vanished", "3 ended or vanished; others", "g:4711 ↻ replaced"]
    assert sorted(order, key=folded.index) == order
    assert re.findall(rb'<details data-rmq-fold="\w+"><summary>(\d)', answer.content) == [b"4", b"3"]
    assert "3 processes are alive · 7 ended or vanished" in folded


def test_many_processes_that_run_are_one_line_below_those_that_need_somebody_with_what_they_do(page: Client) -> None:
    """12 that ran, each with a table of its messages, were 3,000 pixels before the one that had vanished."""
    for number in range(6):
        some = [made.in_flight(seconds=30 * number, key=f"PAY-{number}")] if number else []
        made.consumer(host=f"run{number}", in_flight=some, waiting=number)
    alone = page.get(CONSUMERS)
    gone = made.message(message_id="m-1", state=State.PARKED, queue="other")
    lost = made.in_flight(message_id="m-1", queue="other", seconds=70)
    made.consumer(host="gone", seconds=60, queues=["other"], in_flight=[lost])
    answer = page.get(CONSUMERS)

    # On a busy machine some seconds pass before the page is made.
    said = r"6 processes run · 5 of 24 threads busy · the longest for 2 min [345]\d s · 15 messages wait for a thread"
    assert not re.search(said, Page(alone).text)
    assert re.search(f"{said} · the oldest has run for 3 h", Page(answer).text)
    assert [[row.process.row.host[:3] for row in first] for _table, first in answer.context["tables"]] == [
        ["gon"],
        ["run"] * 6,
    ]
    assert re.search(r"1 message in flight · the longest for 2 min \d+ s", Page(alone).text)
    assert answer.content.index(f"/parkedmessage/{gone.pk}/".encode()) < answer.content.index(b"6 processes run")


def test_a_crash_loop_warns_although_its_last_process_runs(page: Client) -> None:
    first = beat = made.consumer(host="a", seconds=900).beat_at
    for host, seconds in (("b", 600), ("c", 300)):
        gone = [made.in_flight(key="PAY-7")]
        last: dict[str, Any] = {"seconds": seconds, "started_at": beat + timedelta(seconds=9), "in_flight": gone}
        beat = made.consumer(host=host, **last).beat_at
    made.consumer(host="d", started_at=timezone.now() - timedelta(seconds=20))
    text = Page(page.get(NOW)).text

    assert f"✕ Consumers of payments.main die again and again: 3 since {minute(first)}, the last one 5 min ago." in text
    assert "In flight as they died, and how often: PAY-7 (2)." in text


NO_COMMON = "No message was in more than one of them at its last heartbeat: their logs say why they ended."


@pytest.mark.parametrize(
    ("keys", "runs", "said"),
    [
        (["PAY-7", "PAY-7", "PAY-8"], True, "In flight as they died, and how often: PAY-7 (2)."),
        (
            ["PAY-7", "PAY-8", ""],
            False,
            f"{NO_COMMON} Nobody reads payments.main now.",
        ),
        (["", "", ""], True, "None had reported a message of these queues in flight: their logs say why they ended."),
    ],
)
def test_a_crash_loop_is_one_line_with_what_its_processes_had_in_common_and_whether_another_reads(
    page: Client, keys: list[str], runs: bool, said: str
) -> None:
    """Nine equal red rows, and what ended them had to be found by comparing their tables."""
    beat = timezone.now() - timedelta(minutes=20)
    for place, key in enumerate(keys):
        gone = [made.in_flight(key=key, message_id=f"m-{key}")] if key else []
        host, seconds = f"h{place}", 900 - 300 * place
        beat = made.consumer(host=host, seconds=seconds, started_at=beat + timedelta(seconds=9), in_flight=gone).beat_at
    if runs:
        made.consumer(host="next", started_at=beat + timedelta(seconds=9))
    answer, first = page.get(CONSUMERS), ConsumerProcess.objects.earliest("beat_at").beat_at

    lead = f"✕ Consumers of payments.main die again and again: 3 since {minute(first)}, the last one 5 min ago."
    assert f"{lead} {said} " in Page(answer).text
    assert f"{lead} {said} " in Page(page.get(NOW)).text
    assert [len(first) for _table, first in answer.context["tables"]] == ([3, 1] if runs else [3])


def test_a_crash_loop_has_the_same_number_everywhere_for_as_long_as_it_is_told_of(page: Client) -> None:
    """Live status counted 230, Consumers the 200 that it lists; an hour later the first ones were deleted."""
    born = first = timezone.now() - timedelta(minutes=85)
    for number in range(230):
        times: dict[str, Any] = {"started_at": born, "beat_at": born + timedelta(seconds=18)}
        born = made.consumer(host=f"h{number}", **times).beat_at + timedelta(seconds=2)
    made.consumer(host="next", started_at=born)
    tidy_vanished()
    said = f"died again and again: 230 since {minute(first + timedelta(seconds=18))}, the last one"

    assert said in Page(page.get(NOW)).text
    assert said in Page(page.get(CONSUMERS)).text
    assert "died again and again: 230 since " in run("rmq_status").out
    earlier = {name: F(name) - timedelta(minutes=30) for name in ("started_at", "beat_at")}
    ConsumerProcess.objects.exclude(host="next").update(**earlier)
    tidy_vanished()
    assert ConsumerProcess.objects.count() < 200


def test_a_crash_loop_that_was_over_is_amber_after_a_deployment(page: Client) -> None:
    beat = timezone.now() - timedelta(minutes=9)
    for host in "abc":
        times: dict[str, Any] = {"started_at": beat + timedelta(seconds=2), "beat_at": beat + timedelta(seconds=30)}
        beat = made.consumer(host=host, **times).beat_at
    heir = made.consumer(host="heir", started_at=beat + timedelta(seconds=2))
    tidy_vanished()
    heir.delete()
    made.consumer(host="deployed", started_at=timezone.now())
    answer = page.get(CONSUMERS)

    assert "! Consumers of payments.main died again and again: 3 since " in Page(answer).text
    assert "! Consumers of payments.main died again and again: 3 since " in Page(page.get(NOW)).text


def test_a_crash_loop_names_what_it_has_parked_and_leads_to_its_group(page: Client) -> None:
    """Its killer was one of "5 messages parked: 4 Malformed; 1 other", and both pages named innocent ones."""
    beat = timezone.now() - timedelta(minutes=20)
    for host in "abc":
        born = beat + timedelta(seconds=9)
        beat = made.consumer(host=host, started_at=born, beat_at=born + timedelta(minutes=5)).beat_at
    group = made.group(title="worker_stopped", reason="worker_stopped")
    made.message(group, business_key="KILLER", parked_at=beat + timedelta(seconds=30))
    live = Page(page.get(NOW))

    assert "Parked meanwhile because their worker died: KILLER." in live.text
    assert "Parked meanwhile because their worker died: KILLER." in shown(page)
    assert "1 of them may have been handled, because its worker died: KILLER." in live.text
    assert f"/admin/rmq_retry/errorgroup/{group.pk}/change/" in live.links.values()

    ParkedMessage.objects.update(state="discarded", resolved_at=timezone.now())
    assert "Parked meanwhile because their worker died: KILLER (discarded)." in Page(page.get(NOW)).text


def test_the_fold_of_a_crash_loop_has_as_many_processes_as_its_head_says_and_older_loops_are_over(page: Client) -> None:
    """ "8 since 15:13" stood above "Show all 10", and beside it the loop of an hour before."""
    beat = timezone.now() - timedelta(minutes=29)
    for place, minutes in enumerate((0, 0, 0, 0, 12, 2, 0, 0, 0)):
        born = beat + timedelta(minutes=minutes, seconds=2)
        beat = made.consumer(host=f"h{place}", started_at=born, beat_at=born + timedelta(seconds=20)).beat_at
    killer = made.group(title="worker_stopped", reason="worker_stopped")
    came = ConsumerProcess.objects.get(host="h5").started_at + timedelta(seconds=10)
    made.message(killer, business_key="KILLER", published_at=came, parked_at=beat + timedelta(seconds=5))
    made.consumer(host="next", started_at=beat + timedelta(seconds=2))
    answer = page.get(f"{CONSUMERS}?all=1")
    tables = {table.what: [row.process.row.host for row in rows] for table, rows in answer.context["tables"]}

    assert tables == {"loop 0": ["h8", "h7", "h6", "h5"], "": ["next"], "over": ["h4", "h3", "h2", "h1", "h0"]}
    assert "died again and again: 4 since" in Page(answer).text
    assert "5 that ended or vanished are over" in Page(answer).text


def test_one_that_died_in_a_crash_loop_is_told_with_it_before_the_next_one_is_started(page: Client) -> None:
    """ "1 of 2 consumers has ended." stood beside the loop in which it had died."""
    ends: dict[str, Any] = {"fault": "exit 9", "stopping": True}
    beat = timezone.now() - timedelta(seconds=12)
    for place in range(3):
        born = beat + timedelta(seconds=2)
        beat = born + timedelta(seconds=1)
        made.consumer(host=f"h{place}", started_at=born, beat_at=beat, ended_at=beat, **ends)
    made.consumer(host="heir", started_at=beat + timedelta(seconds=1))
    made.consumer(host="beside", started_at=born, beat_at=beat, ended_at=beat, **ends)
    made.consumer(host="other", seconds=1, ended_at=timezone.now(), queues=["other"], **ends)
    text, live = shown(page), Page(page.get(NOW)).text

    for one in (text, live):
        assert "die again and again: 4 since" in one
        assert "2 consumers has ended: exit 9 (other:4711" in one


def test_a_loop_is_not_over_because_its_last_process_lived_some_seconds_longer(page: Client) -> None:
    """What ends each after about five minutes ends none to the second, and the last death is part of the loop."""
    born, now = timezone.now() - timedelta(minutes=20), timezone.now()
    first = born + timedelta(seconds=290)
    for place, lived in enumerate((290, 291, 299)):
        dies = born + timedelta(seconds=lived)
        made.consumer(host=f"h{place}", started_at=born, beat_at=dies)
        born = dies + timedelta(seconds=9)
    text = Page(page.get(CONSUMERS)).text

    assert now - dies > timedelta(minutes=4)
    assert f"die again and again: 3 since {minute(first)}, " in text


def test_a_loop_that_seems_over_is_amber_and_says_which_process_lives(page: Client) -> None:
    """Its fold stayed red under a finding that said it seemed over."""
    beat = timezone.now() - timedelta(minutes=20)
    for host in "abc":
        born = beat + timedelta(seconds=2)
        beat = made.consumer(host=host, started_at=born, beat_at=born + timedelta(seconds=30)).beat_at
    made.consumer(host="z", started_at=timezone.now() - timedelta(minutes=9))
    answer = page.get(CONSUMERS)

    said = "their logs say why they ended. It seems over: z:4711 has run for 9 min."
    assert said in Page(answer).text
    assert said in Page(page.get(NOW)).text
    assert [word in answer.content for word in (b"rmq-note rmq-warn", b"rmq-note rmq-bad")] == [True, False]


def test_processes_that_are_not_heard_are_not_called_alive(page: Client) -> None:
    """Three had been killed within half a minute, and "3 processes are alive" stood above them."""
    for host in "abc":
        gone = made.consumer(host=host, seconds=700, in_flight=[made.in_flight()])
    for host, seconds in (("x", 15), ("y", 0), ("z", 0)):
        made.consumer(host=host, seconds=seconds, started_at=gone.beat_at + timedelta(seconds=9))

    assert "2 processes are alive · 1 without a heartbeat · 3 ended or vanished" in shown(page)


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


def test_a_process_that_has_just_fallen_silent_is_not_folded_with_those_that_died_before(page: Client) -> None:
    """It hung, and paid when it went on; the page named three that had died minutes before, and been replaced."""
    for host in "abc":
        made.consumer(host=host, seconds=400, queues=["other"])
    made.consumer(host="z", seconds=45)
    rows, _line, folded = shown(page).partition("3 processes vanished;")

    assert "4 of 4 consumers without a heartbeat for 30 s: z:4711 (4" in Page(page.get(NOW)).text
    assert GONE in rows.rpartition("z:4711")[2]
    assert "z:4711" not in folded


def test_a_vanished_process_without_messages_says_so(page: Client) -> None:
    made.consumer(seconds=60)

    assert f"{GONE} It had reported no message in flight." in shown(page)


def test_messages_of_a_queue_with_ack_auto_are_not_delivered_again(page: Client) -> None:
    lost = made.in_flight(queue="rates", handler="rate", key="EUR", auto_ack=True)
    made.consumer(seconds=60, in_flight=[made.in_flight(), lost])
    text = shown(page)

    assert f'{AGAIN} Those of rates are in no queue again, because ack="auto" has removed them.' in text
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
    assert (text.count("✕ vanished"), "Show all 200" in text) == (15, True)
    assert Page(page.get(f"{CONSUMERS}?all=1")).text.count("✕ vanished") == 199


def test_an_empty_page_says_how_to_start_a_consumer(page: Client, settings: Any) -> None:
    empty = shown(page)
    settings.RMQ_RETRY = {**settings.RMQ_RETRY, "RECORDS": False}

    assert "! No consumer is running: none writes heartbeats. manage.py rmq_consume" in empty
    assert "Consumers write no heartbeat while the setting RECORDS is False." in shown(page)


def test_the_part_of_the_page_updates_alone(page: Client) -> None:
    made.consumer()
    whole, part = page.get(CONSUMERS).content.decode(), page.get(f"{CONSUMERS}?fragment=1").content.decode()

    assert f'data-rmq-live="{CONSUMERS}" data-rmq-every="5"' in whole
    assert ("worker-3:4711" in part, "<html" in part) == (True, False)


def test_a_paused_queue_is_told_above_the_processes_and_beside_its_name(page: Client) -> None:
    """Consumers that had nothing to do read as if all were read: the queue was paused until 03:40."""
    until = timezone.now() + timedelta(hours=1)
    pause = {"paused": True, "by": "anna", "reason": "the bank is closed", "since": timezone.now(), "until": until}
    QueueControl.objects.create(queue="bank.3", **pause)
    made.consumer(queues=[f"bank.{number}" for number in range(5)])
    made.consumer(host="z", seconds=60, queues=["bank.3"])
    text, told = shown(page), run("rmq_status", "--consumers")

    said = r"! Queue 'bank\.3' has been paused for \d+ s by anna: the bank is closed\. Its messages wait\. It resumes"
    assert re.search(rf"{said} automatically at {minute(until)}\. ", text)
    assert "Queues bank.3 ‖ paused , bank.0 , bank.1 2 more" in text
    assert text.count("‖ paused") == 1
    assert re.search(rf"^{said} automatically at ", told.out, re.MULTILINE)
    assert [row[4] for row in told.rows[1:3]] == ["bank.3", "bank.3 (paused),bank.0,bank.1,bank.2,bank.4"]


@pytest.mark.parametrize(("beat", "gone"), [(2.0, True), (-1.0, False)])
def test_a_process_is_not_called_running_once_the_broker_has_lost_it(
    page: Client, monkeypatch: pytest.MonkeyPatch, beat: float, gone: bool
) -> None:
    """Two seconds after all had been killed, Live status said that none runs, and Consumers that each does."""
    made.consumer(seconds=beat, in_flight=[made.in_flight(seconds=5)])
    made.consumer(host="a", queues=["mails"])
    pay, mails = (Level(queue=name, role=Role.WORK, ready=38, consumers=0) for name in ("payments.main", "mails"))
    made.broker_seen(monkeypatch, pay, replace(mails, consumers=1))
    text = shown(page)
    monkeypatch.setattr(rmq_status, "gauged", lambda *_args: Gauged(levels=(pay,), api_set=False))
    monkeypatch.setattr(rmq_status, "open_declarer", lambda **_options: nullcontext())
    told, [item, _other] = run("rmq_status", "--consumers"), run("rmq_status", "--consumers", "--json").data["items"]

    assert ("worker-3:4711 ! gone or cut off" in text, "worker-3:4711 ✓ running" in text) == (gone, not gone)
    first = "First pause payments.main: a consumer does again at once what a lost one had begun."
    assert (
        f"✕ Queue 'payments.main' has no consumer. 38 messages wait. New ones wait, too. {first} manage.py" in text
    ) is gone
    assert ("! 1 message was in a handler when its consumer was heard of last, and may be" in text) is gone
    assert ("1 was busy Waiting \N{EN DASH}" in text, "Busy threads 1/4 Waiting 0" in text) == (gone, not gone)
    assert ("1 message was in flight at the last heartbeat" in text) is gone
    # The command looks at the broker after it has read the heartbeats.
    assert (told.rows[1][1], item["state"]) == ("! gone or cut off", "cut off")
    assert told.rows[1][5:7] == ["had 1", "-"]
    assert told.out.startswith("✕ Queue 'payments.main' has no consumer. 38 messages wait.")
    assert "1 process is alive · 1 gone or cut off" in told.out
    ConsumerProcess.objects.filter(host="a").update(stopping=True)
    assert "1 stopping · 1 gone or cut off" in run("rmq_status", "--consumers").out


def test_what_was_begun_of_a_paused_queue_is_told_as_soon_as_its_consumer_is_lost(
    page: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pause excuses that nobody reads the queue: for half a minute its messages only waited until it is resumed."""
    handler("mails", name="mail")(lambda _mail: None)
    QueueControl.objects.create(queue="payments.main", paused=True, since=timezone.now())
    made.consumer(seconds=2, queues=["payments.main", "mails"], in_flight=[made.in_flight(seconds=5)])
    pay, mails = (Level(queue=name, role=Role.WORK, ready=0, consumers=0) for name in ("payments.main", "mails"))
    made.broker_seen(monkeypatch, replace(pay, ready=38), mails)
    begun = "1 message was in a handler when its consumer was lost, and may have been done: PAY-1. Find that out before"

    assert begun in shown(page)
    assert begun in Page(page.get(NOW)).text


def test_a_broker_that_does_not_answer_says_nothing_of_the_processes(
    page: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = timezone.now() - timedelta(seconds=1)
    level = Level(queue="payments.main", role=Role.WORK, ready=38, consumers=0)
    last = broker_look.Look(at=before, gauged=Gauged(levels=(level,), api_set=True))
    made.broker_seen(monkeypatch, away="refused", last=last)
    made.consumer(seconds=2)

    assert "worker-3:4711 ✓ running" in shown(page)


def test_what_a_lost_process_had_begun_is_marked_where_it_is_handled_again(page: Client) -> None:
    """A finding told of it, and the rows read like first deliveries."""

    @handler("postings", once=True, name="posting")
    def posting(payment: Delivery) -> None:
        """Nothing."""

    ended = timezone.now() - timedelta(seconds=50)
    begun = made.in_flight(seconds=90)
    made.consumer(seconds=60, ended_at=ended, fault=IS_GONE, stopping=True, in_flight=[begun], queues=["payments.main"])
    first = {"message_id": "9f3c-8", "key": "PAY-2"}
    others = [
        made.in_flight(seconds=5, again=True),
        made.in_flight(seconds=5, again=True, message_id="9f3c-9", key="PAY-3"),
        made.in_flight(seconds=5, **first),
        made.in_flight(seconds=5, again=True, message_id="9f3c-6", key="PAY-4", handler="posting"),
    ]
    made.consumer(pid=12, started_at=timezone.now() - timedelta(seconds=40), in_flight=others)
    text, told = shown(page), run("rmq_status", "--consumers")
    data = run("rmq_status", "--consumers", "--json").data["items"]
    at = second(datetime.fromisoformat(begun["since"]))

    assert re.search(rf"PAY-1 Attempt 1 In flight for \d+ s ! worker-3:4711 had begun it at {at}\. ", text)
    assert re.search(r"PAY-3 Attempt 1 In flight for \d+ s ! A lost consumer may have begun it\. ", text)
    assert text.count("begun it") == 2
    assert "! 1 message is being handled again: PAY-1. 1 message in a handler may have been begun by a" in text
    states = {row[2]: row[-1] for row in told.rows if "worker-3:12" in row and len(row) == 7}
    assert states["PAY-1"].startswith("! worker-3:4711 had begun it at ")
    assert (states["PAY-2"], states["PAY-3"]) == ("running", "! A lost consumer may have begun it")
    assert [one["begun_before_by"] for one in data[0]["in_flight"]] == [["worker-3:4711"], [], [], []]


def test_a_message_that_two_processes_have_is_marked_before_the_one_that_was_killed_is_missed(page: Client) -> None:
    """Two seconds after a kill it stood in both, without a remark, and nothing else told of it yet."""
    begun, again = made.in_flight(seconds=9), made.in_flight(seconds=1, again=True)
    made.consumer(in_flight=[begun])
    made.consumer(pid=12, in_flight=[again])
    text = shown(page)
    at = second(datetime.fromisoformat(begun["since"]))

    assert re.search(rf"PAY-1 Attempt 1 In flight for \d+ s ! worker-3:4711 had begun it at {at}\. ", text)
    assert text.count("had begun it") == 1


def test_a_retry_is_not_marked_for_the_seconds_in_which_another_row_has_the_attempt_before(page: Client) -> None:
    made.consumer(in_flight=[made.in_flight(seconds=4)])
    made.consumer(pid=12, in_flight=[made.in_flight(seconds=1, again=True, attempt=2)])

    assert "had begun it" not in shown(page)


def test_a_dead_process_whose_messages_were_processed_long_ago_stays_folded_as_others_die(page: Client) -> None:
    """It was grey while others read its queues, and red again, with nothing to do, as these were killed."""
    record = made.message(message_id="9f3c-7", queue="payments.main", state=State.PROCESSED)
    ParkedMessage.objects.filter(pk=record.pk).update(succeeded_at=timezone.now() - timedelta(minutes=14))
    made.consumer(host="old", seconds=900, in_flight=[made.in_flight(seconds=930)])
    made.consumer(host="new", seconds=60, in_flight=[made.in_flight(message_id="9f3c-1")])
    text, told = shown(page), run("rmq_status", "--consumers")

    assert "1 that ended or vanished is over · old:4711, last heartbeat 15 min ago · 1 message processed since" in text
    assert ("new:4711 ✕ vanished" in text, text.count(GONE)) == (True, 1)
    assert [row[0] for row in told.rows if row[1:2] == ["✕ vanished"]] == ["new:4711"]
    assert told.err == "1 that ended or vanished is over: --all shows it.\n"


def test_the_reason_and_the_advice_are_said_once_for_several_that_vanished(page: Client) -> None:
    """The same two paragraphs stood under each of them."""
    for host in ("a", "b"):
        made.consumer(host=host, seconds=60, in_flight=[made.in_flight(message_id=host)])
    text = shown(page)

    each = "a:4711, b:4711: each was killed, hangs, or does not reach the database. If one hangs, end it before it goes"
    assert (text.count(each), text.count(GONE), text.count(UNKNOWN)) == (1, 0, 1)
    assert text.index(each) < text.index("a:4711 ✕ vanished")
    assert text.count("1 was busy") == 2


def test_without_any_process_it_is_told_what_waits(page: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """ "No consumer is running" stood there, and not that 38 payments wait."""
    levels = [Level(queue=name, role=Role.WORK, ready=ready, consumers=0) for name, ready in (("mail", 0), ("pay", 38))]
    made.broker_seen(monkeypatch, *levels)
    several = shown(page)
    made.broker_seen(monkeypatch, levels[1])
    one = shown(page)
    monkeypatch.setattr(rmq_status, "gauged", lambda *_args: Gauged(levels=tuple(levels), api_set=False))
    monkeypatch.setattr(rmq_status, "open_declarer", lambda **_options: nullcontext())
    told = run("rmq_status", "--consumers")

    said = "✕ No consumer is running. 38 messages wait. 2 queues stand still: pay 38, mail 0."
    assert f"{said} manage.py rmq_consume" in several
    assert "✕ Queue 'pay' has no consumer. 38 messages wait. New ones wait, too. manage.py rmq_consume" in one
    assert "none writes heartbeats" not in several + one
    assert (told.lines, told.err, told.code) == ([[said], ["manage.py rmq_consume"]], "", Exit.NOTHING)

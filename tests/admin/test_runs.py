"""The page of a run: what it says of its guard, its speed, its broker and its outcome is so now."""

import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone
from django.utils.translation import override

from django_rmq_retry import Message
from django_rmq_retry.amqp.levels import Level
from django_rmq_retry.health.doubts import check, doubts_of
from django_rmq_retry.health.problems import in_runs
from django_rmq_retry.messages.reasons import Reason
from django_rmq_retry.models import (
    ConsumerProcess,
    ErrorGroup,
    ItemReason,
    ItemState,
    OperatorAction,
    ParkedMessage,
    QueueControl,
    RequeueItem,
    RequeueRun,
    RunState,
    RunWait,
)
from django_rmq_retry.parked.actions import hold
from django_rmq_retry.parked.edit import propose
from django_rmq_retry.parked.edit import store as store_edit
from django_rmq_retry.parked.key_lists import list_filter, store
from django_rmq_retry.parked.requeue import start
from django_rmq_retry.parked.run_steering import resume_run, stop_run
from django_rmq_retry.parked.selection import EXCEPT, Selection
from django_rmq_retry.topology.declarations import Role
from django_rmq_retry.wording import second
from tests.admin import made
from tests.admin.conftest import client_of, operating
from tests.admin.looking import Page, address_of
from tests.commands.running import parked
from tests.commands.running import run as command
from tests.operators.made import ANN, BOB, discard_messages, drive_run, pause_run, requeue_run
from tests.tooling.waiting import wait_until

pytestmark = pytest.mark.django_db
RUNS = "/admin/rmq_retry/requeuerun/"
SHARED = "2 of its messages are in another requeue run too, or were sent or changed meanwhile."


def run_of(**fields: Any) -> RequeueRun:
    return RequeueRun.objects.create(**({"by": "ann", "created_at": timezone.now(), "total": 9, "rate": 20} | fields))


def updated(run: RequeueRun, **fields: Any) -> RequeueRun:
    RequeueRun.objects.filter(pk=run.pk).update(**fields)
    return run


def shown(client: Client, run: RequeueRun, *, part: bool = False) -> str:
    return Page(client.get(f"{RUNS}{run.pk}/change/", {"fragment": "1"} if part else {})).text


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"stop_at": 20}, "guard: pauses when more than 20 % of at least 5 fail again"),
        (
            {"stop_at": None, "max_depth": 1000},
            "guard off: the requeue run continues however many messages fail again · waits while the queue",
        ),
        (
            {"stop_at": 20, "failed": 1, "processed": 3},
            "guard: pauses when more than 20 % of at least 5 fail again · 1 of 4 failed again",
        ),
        (
            {"stop_at": 20, "failed": 1, "processed": 4},
            "20 % failed again (guard: pauses above 20 %, from 5 outcomes on)",
        ),
        (
            {"stop_at": 20, "failed": 1, "processed": 594},
            "less than 1 % failed again (guard: pauses above 20 %, from 5 outcomes on)",
        ),
        (
            {"stop_at": 20, "failed": 5, "spared_failed": 5, "spared_processed": 0},
            "guard: pauses when more than 20 % of at least 5 fail again · counted since it was resumed",
        ),
        (
            {"stop_at": 20, "failed": 6, "processed": 10, "spared_failed": 5, "spared_processed": 9},
            "at least 5 fail again · 1 of 2 failed again · counted since it was resumed",
        ),
    ],
)
def test_the_run_page_explains_its_guard(page: Client, fields: dict[str, Any], said: str) -> None:
    assert said in shown(page, run_of(**fields))


@pytest.mark.parametrize("state", ["stopped", "running", "paused", "waiting"])
def test_the_bar_of_a_run_shows_what_was_sent_as_the_text_beside_it(page: Client, state: str) -> None:
    """It was 82 % full at "26 of 220 sent" of a paused run, and 12 % once that was stopped."""
    run = run_of(state=state, sent=3, unconfirmed=1, skipped=5)
    found = re.search(r'<progress max="9" value="(\d+)"', page.get(f"{RUNS}{run.pk}/change/").content.decode())

    assert found is not None
    assert int(found[1]) == 3


def test_a_paused_run_says_what_is_not_sent_yet_and_that_its_guard_paused_it(page: Client) -> None:
    run = run_of(state="paused", wait=RunWait.GUARD, total=220, sent=26, skipped=154)
    by_hand = run_of(state="paused", total=220, sent=26)

    assert "26 of 220 sent" in shown(page, run)
    assert "Rate 20 per second" in shown(page, run), "it offers to change it"
    assert "+ ↷ 154 left out" in shown(page, run)
    assert "+ ○ 40 not sent yet" in shown(page, run)
    assert "Paused by its guard More messages failed again than" in shown(page, run)
    assert "Paused by its guard" in Page(page.get(RUNS)).text
    assert "by its guard" not in shown(page, by_hand)


def test_the_live_part_of_a_run_shows_an_outage(page: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    made.consumer()
    run = run_of(sent=4, wait=RunWait.BROKER_AWAY, started_at=timezone.now())
    made.broker_seen(monkeypatch, away="Connection refused")
    during = shown(page, run, part=True)
    whole = shown(page, run)
    made.broker_seen(monkeypatch)
    RequeueRun.objects.filter(pk=run.pk).update(wait="")
    after = shown(page, run, part=True)

    assert "No connection to the broker (" in during
    assert "Waiting for the broker" in during
    assert (" left" in during.replace("left out", ""), "Sending" in during) == (False, False)
    assert whole.count("No connection to the broker (") == 1
    assert "broker" not in after
    assert "Sending" in after
    assert "1 s left" in after


def test_a_run_that_another_process_sends_does_not_wait_for_this_hosts_broker(
    page: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T14: its counter climbed beside "requeueing waits until it is back"."""
    now = timezone.now()
    driver = {"driver": "consumer-1", "beat_at": now, "leased_until": now + timedelta(seconds=15)}
    run = run_of(sent=4, started_at=now, sent_at=now, **driver)
    made.broker_seen(monkeypatch, away="Connection refused")
    shown_so = shown(page, run)

    assert "This web server has no connection to the broker (" in shown_so
    assert "Another process sends this requeue run." in shown_so
    assert ("waits until it is back" in shown_so, "Waiting for the broker" in shown_so) == (False, False)
    assert "Sending" in shown_so
    assert "● Sending" in Page(page.get(RUNS)).text
    assert "● Sending" in Page(page.get("/admin/rmq_retry/livestatus/")).text


@pytest.mark.parametrize("before", [timedelta(minutes=1), made.AWAY_FOR + timedelta(seconds=1)])
def test_a_lease_of_a_driver_that_sends_nothing_is_no_sign_of_a_broker(
    page: Client, monkeypatch: pytest.MonkeyPatch, before: timedelta
) -> None:
    """The run's page said "Another process sends" of a process that had just lost its connection, too."""
    now = timezone.now()
    driver = {"driver": "page vm:29259.1", "beat_at": now, "leased_until": now + timedelta(seconds=15)}
    run = run_of(sent=4, started_at=now, sent_at=now - before, **driver)
    made.consumer(seconds=1)
    made.broker_seen(monkeypatch, away="Connection refused")
    shown_so, listed, live = (
        shown(page, run),
        Page(page.get(RUNS)).text,
        Page(page.get("/admin/rmq_retry/livestatus/")).text,
    )

    assert "requeueing waits until it is back" in shown_so
    assert [text.count("Waiting for the broker") for text in (listed, live)] == [1, 1]
    untrue = ("Sending", "Another process sends", "Sent by", "send from this page")
    assert [words for words in untrue if words in shown_so] == []


@pytest.mark.parametrize(
    ("fields", "goes_on"),
    [
        ({"processed": 3}, True),
        ({"processed": 4}, False),
        ({"processed": 3, "finished_at": timedelta(hours=2)}, False),
        ({"processed": 3, "retries_of": "payments.main"}, True),
        ({"processed": 4, "perhaps_twice": 1}, True),
        ({"processed": 4, "perhaps_twice": 1, "finished_at": timedelta(minutes=4)}, False),
    ],
    ids=["an outcome is missing", "all have one", "for too long", "of waiting retries", "a doubt", "an old doubt"],
)
def test_a_stopped_run_updates_until_nothing_of_it_changes(page: Client, fields: dict[str, Any], goes_on: bool) -> None:
    """Its page stood at "143 waiting for outcome" for good, without a word that it no longer updates."""
    since = fields.pop("finished_at", timedelta())
    run = run_of(state=RunState.STOPPED, sent=4, finished_at=timezone.now() - since, **fields)
    content = page.get(f"{RUNS}{run.pk}/change/").content.decode()

    assert ("data-rmq-over" not in content, "data-rmq-pulse" in content) == (goes_on, goes_on)


def test_the_list_says_of_which_time_it_is_and_how_to_get_a_later_one(page: Client) -> None:
    """Left open it showed a run as paused that had been stopped, without a word of its age."""
    run_of(state=RunState.PAUSED)
    seen = Page(page.get(f"{RUNS}?state=paused"))

    assert re.search(r"As of \d\d:\d\d:\d\d", seen.text)
    assert seen.links["Update"] == f"{RUNS}?state=paused"


def test_the_list_updates_itself_and_keeps_its_filter(page: Client) -> None:
    """It was the only list that stood still while its runs went on."""
    paused = run_of(state=RunState.PAUSED)
    run_of(state=RunState.FINISHED)
    whole = page.get(f"{RUNS}?state=paused")
    live = next(given["data-rmq-live"] for _tag, given in Page(whole).tags if "data-rmq-live" in given)
    part = page.get(f"{live}&fragment=1")
    updated(paused, state=RunState.STOPPED)
    none = Page(page.get(f"{live}&fragment=1"))

    assert "data-rmq-pulse" in whole.content.decode()
    assert "<html" not in part.content.decode()
    assert f"{RUNS}{paused.pk}/change/" in part.content.decode()
    assert "1 requeue run" in Page(part).text
    assert re.fullmatch(r"\d\d:\d\d:\d\d", part["Rmq-Clock"])
    assert none.text == "No requeue run matches. Show all requeue runs", "some were requeued"


def test_the_list_says_when_each_run_began_and_ended_and_names_its_messages_in_full(page: Client) -> None:
    ended = timezone.now() - timedelta(days=3)
    causes = [made.group(title=f"{name}Amount", culprit="pay.amounts:read").pk for name in ("Unreadable", "Missing")]
    run_of(
        state=RunState.FINISHED,
        started_at=ended - timedelta(minutes=4),
        finished_at=ended,
        causes=[[causes[0], 12], [causes[1], 2]],
    )
    text = Page(page.get(RUNS)).text

    assert f"Started {timezone.localtime(ended - timedelta(minutes=4)):%Y-%m-%d %H:%M}" in text
    assert f"Ended {timezone.localtime(ended):%Y-%m-%d %H:%M} (4 min)" in text
    assert "12 UnreadableAmount · pay.amounts:read · 2 MissingAmount · pay.amounts:read" in text


def test_an_outage_is_no_time_of_sending(page: Client) -> None:
    since = timezone.now() - timedelta(seconds=1000)
    run = run_of(total=9000, sent=100, paced_sent=0, paced_at=since, started_at=since, rate=50, beat_at=timezone.now())
    during = {wait: shown(page, updated(run, wait=wait)) for wait in ("", RunWait.BROKER_AWAY)}

    assert ["measured" in text for text in during.values()] == [True, False]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "No consumer is alive: start one, or send from this page."),
        ({"seconds": 60}, "No consumer is alive: start one, or send from this page."),
        ({"seconds": 1}, "A consumer continues the requeue run automatically; you can also send from this page."),
    ],
    ids=["none", "killed", "alive"],
)
def test_a_run_that_nobody_sends_stands_still_and_tells_who_continues_it(
    page: Client, fields: dict[str, Any], said: str
) -> None:
    if fields:
        made.consumer(**fields)
    past = timezone.now() - timedelta(minutes=1)
    run = run_of(sent=4, started_at=past, paced_at=past, beat_at=past, created_at=past, driver="consumer-1")
    text, listed = shown(page, run), Page(page.get(RUNS)).text
    live = Page(page.get("/admin/rmq_retry/livestatus/")).text

    since = f"{timezone.localtime(past):%Y-%m-%d %H:%M:%S} ( 1 min ago )"
    assert f"Nothing has been heard of this requeue run since {since}" in text
    assert said in text
    assert ("! No consumer is alive" in text) == said.startswith("No consumer")
    assert "‖ Standing still" in text
    assert [words for words in ("Sending", "measured", " left") if words in text.replace("left out", "")] == []
    assert ("‖ Standing still" in listed, "‖ Standing still" in live) == (True, True)


@pytest.mark.parametrize("state", [RunState.RUNNING, RunState.WAITING])
def test_a_run_that_has_sent_all_needs_no_process_to_send_it(page: Client, state: str) -> None:
    """ "Nothing has been heard of this requeue run … no process sends it" was its alarm with 34 of 34 sent."""
    past = timezone.now() - timedelta(minutes=9)
    times = {"started_at": past, "sent_at": past, "beat_at": past, "created_at": past}
    run = run_of(state=state, total=34, sent=34, driver="consumer-1", **times)
    text, told = shown(page, run), [one.code for one in in_runs([run], timezone.now())]

    assert "Nothing has been heard" not in text
    assert "… Waiting for outcomes ! No consumer is alive" in text
    assert "No consumer is alive: what was sent waits in its queue." in text
    assert "Standing still" not in text
    assert told == []


def test_without_a_consumer_a_run_that_is_sent_says_so_beside_its_state_and_estimates_no_end(page: Client) -> None:
    now = timezone.now()
    run = run_of(sent=4, started_at=now, paced_at=now, beat_at=now)
    alone = shown(page, run)
    made.consumer()
    served = shown(page, run)

    assert ("● Sending ! No consumer is alive" in alone, "No consumer is alive" in served) == (True, False)
    assert ("1 s left" in alone, "1 s left" in served) == (False, True)


def test_the_live_part_of_the_groups_shows_an_outage(page: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    made.broker_seen(monkeypatch, away="Connection refused")
    part, whole = (page.get("/admin/rmq_retry/errorgroup/", words) for words in ({"fragment": "1"}, {}))

    assert Page(part).text.count("No connection to the broker (") == 1
    assert Page(whole).text.count("No connection to the broker (") == 1


def test_the_remaining_time_uses_the_measured_rate(page: Client) -> None:
    since = timezone.now() - timedelta(seconds=1000)
    run = run_of(
        total=12013, sent=10110, paced_sent=110, paced_at=since, started_at=since - timedelta(hours=1), rate=50
    )
    made.consumer()
    text = shown(page, run)

    assert "10,110 of 12,013 sent · 50 per second · measured: about 10.0 per second · 3 min 1" in text


def test_a_run_that_has_just_begun_uses_its_configured_rate(page: Client) -> None:
    began = timezone.now() - timedelta(seconds=3)
    made.consumer()
    run = run_of(total=5066, sent=33, paced_sent=0, paced_at=began, started_at=began, beat_at=began, rate=50)
    text = shown(page, run)

    assert ("1 min 41 s left" in text, "measured" in text) == (True, False)


@pytest.mark.parametrize(("total", "left"), [(20, True), (21, False)])
def test_a_run_that_will_wait_for_its_first_outcomes_estimates_no_end(page: Client, total: int, *, left: bool) -> None:
    """It said "5 s left", and a second later that the rest waits."""
    made.consumer()
    now = timezone.now()
    text = shown(page, run_of(total=total, sent=4, stop_at=20, started_at=now, paced_at=now, beat_at=now))

    assert ("● Sending" in text, " left" in text) == (True, left)


@pytest.mark.parametrize(
    ("counts", "badge"),
    [
        ({"sent": 174, "failed": 174}, "✕ 174 failed again"),
        ({"sent": 174, "failed": 3, "processed": 171}, "! 3 failed again"),
        ({"sent": 9, "failed": 3, "processed": 6, "unconfirmed": 2}, "! 3 failed again · 2 not confirmed"),
        ({"skipped": 30}, "↷ Nothing was sent"),
        ({"sent": 4, "processed": 4, "unconfirmed": 2}, "? 2 not confirmed"),
        ({"sent": 4, "processed": 3}, "… 1 without an outcome"),
        ({"sent": 4, "processed": 4, "skipped": 1}, "✓ Finished"),
    ],
)
def test_the_badge_of_a_finished_run_shows_its_result(page: Client, counts: dict[str, int], badge: str) -> None:
    run = run_of(state=RunState.FINISHED, **counts)
    RequeueItem.objects.create(run=run, message=made.message(), place=0, revision=1, state=ItemState.FAILED)

    assert badge in shown(page, run)
    assert badge in Page(page.get(RUNS)).text


def test_messages_that_another_run_had_sent_are_not_said_to_have_changed(page: Client, sent: list[Message]) -> None:
    cause = made.group()
    messages = [made.message(cause).pk for _ in range(3)]
    mine = requeue_run(messages, reason="mine")
    others = requeue_run(messages[:2], reason="theirs", include=["under_way"])
    wait_until(lambda: drive_run(others, for_seconds=0.5).sent == 2, what="theirs is sent")
    wait_until(lambda: drive_run(mine, for_seconds=0.5).skipped == 2, what="what was sent before is left out")
    wait_until(lambda: drive_run(mine, for_seconds=0.5).sent == 1, what="the rest is sent")
    answer = page.get(f"{RUNS}{mine.pk}/change/")
    text = Page(answer).text

    assert len(sent) == 3
    assert f"2 Another requeue run had sent it. Requeue run {others.pk} by {others.by}" in text
    assert Page(answer).links[f"Requeue run {others.pk}"] == f"{RUNS}{others.pk}/change/"
    assert "It was changed after it was chosen." not in text
    assert "3 GatewayTimeout · bank.gateway:post" in text


def test_a_run_names_and_links_the_run_that_was_about_to_send_what_it_left_out(page: Client) -> None:
    messages = [made.message(made.group()).pk for _ in range(2)]
    requeue_run([made.message().pk], reason="unrelated")
    theirs = requeue_run(messages, reason="theirs", by=BOB)
    mine = requeue_run(messages, reason="mine")
    drive_run(mine, for_seconds=0.5)
    answer = page.get(f"{RUNS}{mine.pk}/change/")

    assert f"2 Another requeue run was about to send it. Requeue run {theirs.pk} by {theirs.by}" in Page(answer).text
    assert Page(answer).links[f"Requeue run {theirs.pk}"] == f"{RUNS}{theirs.pk}/change/"


def test_the_sum_of_a_stopped_run_says_not_sent_as_its_button_does(page: Client) -> None:
    run = requeue_run([made.message(made.group()).pk for _ in range(2)], reason="x")
    stop_run(run.pk, ANN, reason="wrong rate")
    text = shown(page, run)

    listed = Page(page.get(RUNS)).text
    assert "2 messages = ✓ 0 processed + ✕ 0 failed again + ○ 2 not sent Show" in text
    assert "Show Not sent" in Page(page.get(f"{RUNS}{run.pk}/change/")).links, "it was waiting to be sent"
    assert "left out" not in text.lower()
    assert ("2 not sent" in listed, "left out" in listed) == (True, False)


def test_a_run_that_waits_for_outcomes_offers_no_speed_and_a_stop_comes_last(page: Client) -> None:
    """Between the buttons that send stood the one that stops, and a run that its guard held back could be sped up."""
    now = timezone.now()
    made.consumer(seconds=-3600)
    driven = {"sent": 20, "total": 60, "failed": 1, "leased_until": now + timedelta(hours=1), "beat_at": now}
    sending = run_of(**driven, started_at=now - timedelta(minutes=3))
    held = run_of(**driven, wait=RunWait.OUTCOMES_WAIT, stop_at=20)
    silent = run_of(total=60, sent=20, state=RunState.PAUSED, wait=RunWait.OUTCOMES_SILENT)
    pages = [Page(page.get(f"{RUNS}{one.pk}/change/")) for one in (sending, held, silent)]

    assert ["Speed up to" in one.text for one in pages] == [True, False, False]
    assert [one.text.index("Export CSV") < one.text.index("Stop…") for one in pages] == [True] * 3
    assert [tag for one in pages for tag, given in one.tags if "rmq-main" in given.get("class", "")] == []
    assert re.search(r"Started [\d: -]+ \( ?3 min ago ?\) · by ann", pages[0].text)


def test_a_run_that_stands_still_without_a_consumer_has_no_main_button_and_no_speed(page: Client) -> None:
    """Its main button filled a queue that nobody read."""
    past = timezone.now() - timedelta(minutes=1)
    run = run_of(sent=4, started_at=past, beat_at=past, created_at=past)
    alone = page.get(f"{RUNS}{run.pk}/change/").content.decode()
    made.consumer()
    served = page.get(f"{RUNS}{run.pk}/change/").content.decode()

    assert ("rmq-main" in alone, "rmq-main" in served) == (False, True)
    assert re.findall("Slow to|Speed up to", alone + served) == []
    assert "Pause" in alone


def test_a_run_that_sent_one_first_says_when_that_one_was_processed(page: Client) -> None:
    run = run_of(canary=True, wait=RunWait.CANARY_WAITS, started_at=timezone.now(), sent=1)
    at = timezone.now() - timedelta(minutes=3)
    for place, (state, ended) in enumerate([("failed", at), ("processed", at), ("processed", timezone.now())], start=1):
        item = {"run": run, "message": made.message(), "place": place, "revision": 1, "state": state}
        RequeueItem.objects.create(**item, ended_at=ended, sent_at=ended)
    before, after = shown(page, run), shown(page, updated(run, processed=2, sent=3, wait=""))
    over = shown(page, updated(run, state=RunState.FINISHED))
    plain = shown(page, updated(run, canary=False))

    assert "The first one was processed" not in before + plain
    assert "before the others were sent." in over
    assert "the others follow" not in over
    assert f"The first one was processed at {timezone.localtime(at):%Y-%m-%d %H:%M:%S} ; the others follow." in after


def test_a_test_that_was_processed_late_is_the_reason_to_resume(page: Client) -> None:
    """It said that the test had no outcome, and below that it had been processed before the others were sent."""
    run = run_of(state=RunState.PAUSED, canary=True, wait=RunWait.CANARY_SILENT, started_at=timezone.now(), sent=1)
    at = timezone.now() - timedelta(minutes=3)
    item = RequeueItem.objects.create(run=run, message=made.message(), place=1, revision=1, state="sent", sent_at=at)
    silent = page.get(f"/admin/rmq_retry/requeuerun/{run.pk}/change/")
    RequeueItem.objects.filter(pk=item.pk).update(state="processed", ended_at=at)
    updated(run, processed=1)
    late = page.get(f"/admin/rmq_retry/requeuerun/{run.pk}/change/")
    told = f"The test message was processed at {second(at)}, after the requeue run had paused: resume it."

    assert "The test message has no outcome after a minute." in Page(silent).text
    assert "Resume without a test…" in Page(silent).links
    assert told in Page(late).text
    assert told in Page(page.get("/admin/rmq_retry/requeuerun/")).text
    assert "no outcome after a minute" not in Page(late).text
    assert "The first one was processed" not in Page(late).text
    assert "Resume…" in Page(late).links
    assert "Send one again" not in Page(late).text


def test_a_run_whose_test_is_out_tells_no_rate_and_no_end(page: Client) -> None:
    run = run_of(canary=True, wait=RunWait.CANARY_WAITS, started_at=timezone.now(), sent=1, total=296)
    text = shown(page, run)

    assert "1 of 296 sent" in text
    assert "1 of 296 sent · " not in text


def test_a_run_that_sent_one_first_only_after_a_pause_does_not_say_that_it_began_so(page: Client) -> None:
    """It was slow, so that its first message was processed before it sent the next one; nobody had waited for that."""
    began = timezone.now() - timedelta(minutes=9)
    pause = {"at": began.isoformat(), "failed": 3, "ended": 5}
    counts = {"total": 60, "sent": 30, "processed": 11, "failed": 3, "started_at": began}
    run = run_of(state="paused", wait=RunWait.GUARD, guard_pauses=[pause], **counts)
    for place in (1, 2, 3):
        item = {"run": run, "message": made.message(), "place": place, "revision": 1, "state": "processed"}
        sent = began + timedelta(seconds=place)
        RequeueItem.objects.create(**item, sent_at=sent, ended_at=sent + timedelta(seconds=0.1))
    resumed = resume_run(run.pk, ANN, canary=True)
    waits = resumed.awaits_canary
    text = shown(page, updated(resumed, canary_since=None, guard_pauses=resumed.with_guard_test(timezone.now())))

    assert waits
    assert "The first one was processed" not in text
    assert "then one was sent alone and processed" in text


def test_a_run_that_its_guard_paused_says_when_and_that_nothing_follows(page: Client) -> None:
    """It said "the others follow", and after the resume only "0 % failed again, counted since it was resumed"."""
    at = timezone.now() - timedelta(minutes=3)
    pause = {"at": at.isoformat(), "failed": 3, "ended": 14}
    tested = {**pause, "tested": (at + timedelta(minutes=1)).isoformat()}
    made_as = {"canary": True, "total": 60, "sent": 30, "processed": 11, "failed": 3, "stop_at": 20, "started_at": at}
    run = run_of(state="paused", wait=RunWait.GUARD, guard_pauses=[pause], **made_as)
    item = {"run": run, "message": made.message(), "place": 1, "revision": 1, "state": "processed"}
    RequeueItem.objects.create(**item, ended_at=at, sent_at=at)
    paused = shown(page, run)
    going = shown(page, updated(run, state="running", wait="", guard_pauses=[tested], spared_failed=3))
    counts = {"sent": 60, "processed": 41, "failed": 19}
    ended = shown(page, updated(run, state="finished", finished_at=timezone.now(), **counts))
    when, then = (f"{timezone.localtime(one):%Y-%m-%d %H:%M:%S}" for one in (at, at + timedelta(minutes=1)))

    assert ("the others follow" in paused, "the others follow." in going) == (False, True)
    assert f"Paused by its guard {when} · 3 of 14 failed again" in paused
    assert f"3 of 14 failed again · then one was sent alone and processed; the others followed at {then}" in ended
    assert ("counted since" in going, "counted since" in ended, "guard: pauses" in ended) == (True, False, False)


def test_a_run_that_waits_for_outcomes_names_the_paused_queue_in_which_they_wait(page: Client) -> None:
    """The preview knew it; the page stood at "31 waiting for outcome" without a reason."""
    run = run_of(state="waiting", sent=9, total=9, started_at=timezone.now())
    for place, queue in enumerate(["payments.refund", "payments.charge"], start=1):
        item = {"run": run, "message": made.message(queue=queue), "place": place, "revision": 1}
        RequeueItem.objects.create(**item, state="sent", sent_at=timezone.now())
    QueueControl.objects.create(queue="payments.refund", paused=True, by="bob", reason="INC-553", since=timezone.now())
    text = shown(page, run)

    assert "payments.refund: paused by bob: what was sent there waits" in text
    assert "payments.charge:" not in text
    assert "what was sent there waits" not in shown(page, updated(run, processed=9))


def test_a_run_that_has_sent_all_says_not_that_its_page_sends(page: Client) -> None:
    run = run_of(state="waiting", sent=1, total=1, started_at=timezone.now())
    item = {"run": run, "message": made.message(), "place": 1, "revision": 1, "state": "sent"}
    RequeueItem.objects.create(**item, sent_at=timezone.now())
    sent = Page(page.post(f"{RUNS}{run.pk}/send/?fragment=1")).text

    for text in (sent, shown(page, run)):
        assert "No consumer is alive: what was sent waits in its queue." in text
        assert ("This page sends" in text, "send from this page" in text) == (False, False)


def test_the_act_that_began_a_run_says_how_many_more_its_checks_left_out(page: Client) -> None:
    """A run of 83 messages stood in the activity, and in the audit log, with 80."""
    cause = made.group()
    for reason in ("retries_exhausted", "retries_exhausted", "permanent"):
        made.message(cause, reason=reason)
    run = requeue_run(Selection.of_filter({"group": cause.pk, "state": ["parked"]}), ANN)
    text = shown(page, run)
    addresses = (f"/admin/rmq_retry/errorgroup/{cause.pk}/change/", "/admin/rmq_retry/operatoraction/")
    pages = [Page(page.get(address)).text for address in addresses]
    told = "(1 more left out by a check)"

    assert "3 messages = ✓ 0 processed" in text
    assert f"{told} Messages 2" in text
    assert f"Requeue run {run.pk} {told} Messages 2" in pages[0]
    assert f"Requeue run {run.pk} · 1 more left out by a check Messages 2" in pages[1]


def test_a_run_that_has_finished_has_no_bar(page: Client) -> None:
    """It was full beside "32 of 83 sent", and without those that were left out it would look unfinished for good."""
    run = run_of(state=RunState.FINISHED, total=83, sent=32, processed=6, failed=26, skipped=51)
    answer = page.get(f"{RUNS}{run.pk}/change/")

    assert "<progress" not in answer.content.decode()
    assert "32 of 83 sent" in Page(answer).text
    assert "= ✓ 6 processed" in Page(answer).text


def test_the_list_of_runs_says_why_a_run_stands(page: Client) -> None:
    run_of(state=RunState.STOPPED, reason="INC-553", note="the bank is down again")
    run_of(state=RunState.PAUSED, wait=RunWait.GUARD)
    text = Page(page.get(RUNS)).text

    assert "Stopped the bank is down again" in text
    assert "Paused by its guard More messages failed again than the requeue run allows." in text


def test_the_list_of_runs_says_what_was_handled_twice_and_a_page_no_zero(page: Client) -> None:
    run = run_of(state="finished", total=30, sent=30, processed=30, handled_twice=20)
    plain = run_of(state="finished", sent=30, processed=30, unconfirmed=2)
    listed = Page(page.get(RUNS)).text

    assert "30 processed · at least 20 twice" in listed
    assert ("! Finished" in listed, "✓ Finished" in listed) == (True, False)
    assert listed.count("0 twice") == 1
    assert "not confirmed" not in shown(page, run)
    assert "2 not confirmed" in shown(page, plain)


def test_the_list_of_runs_says_what_was_perhaps_handled_twice(page: Client) -> None:
    """Two of 46 were paid twice, and the run was a green "Finished"."""
    run_of(state="finished", total=400, sent=400, processed=400, perhaps_twice=46)
    listed = Page(page.get(RUNS)).text

    assert "400 processed · 46 perhaps twice" in listed
    assert "! Finished" in listed


def test_the_page_counts_messages_that_were_handled_twice_and_leads_to_them(page: Client) -> None:
    cause = made.group()
    twice, once = made.message(cause, business_key="PAY-2"), made.message(cause, business_key="PAY-1")
    run = run_of(sent=2, processed=2)
    before = shown(page, run)
    for place, (message, handled) in enumerate(((twice, 2), (once, 1))):
        RequeueItem.objects.create(run=run, message=message, place=place, revision=1, handled=handled)
    RequeueRun.objects.filter(pk=run.pk).update(handled_twice=1)
    seen = Page(page.get(f"{RUNS}{run.pk}/change/"))
    leads = next(link for words, link in seen.links.items() if words == "Show Handled twice")
    listed = Page(page.get(leads)).text

    assert "handled twice" not in before.lower()
    assert "at least 1 handled twice" in seen.text
    assert ("PAY-2" in listed, "PAY-1" in listed) == (True, False)


def test_a_screen_reader_hears_all_parts_of_a_run(page: Client) -> None:
    """It heard "6 processed, 1 failed again, 0 left out" of ten, and nothing of the others."""
    counts = {"total": 10, "sent": 8, "processed": 6, "failed": 1, "unconfirmed": 2}
    text = shown(page, run_of(state=RunState.FINISHED, **counts))

    assert "6 processed, 1 failed again, 1 without an outcome, 2 not confirmed." in text


def test_the_page_counts_messages_whose_first_consumer_was_killed_and_leads_to_them(page: Client) -> None:
    """One was paid at 17:33:07 by a worker that was killed, and again at 17:34:28: "Finished, 120 processed"."""
    cause = made.group()
    doubt, once = made.message(cause, business_key="PAY-2"), made.message(cause, business_key="PAY-1")
    begun = timezone.now() - timedelta(minutes=5)
    run = run_of(sent=2, processed=2, perhaps_twice=1, created_at=begun, started_at=begun)
    made.consumer(seconds=60)
    for place, message in enumerate((doubt, once)):
        facts = {"handled": 1, "redelivered": message is doubt}
        RequeueItem.objects.create(run=run, message=message, place=place, revision=1, **facts)
    seen = Page(page.get(f"{RUNS}{run.pk}/change/"))
    listed = Page(page.get(seen.links["Show Perhaps handled twice"])).text

    assert "1 perhaps handled twice" in seen.text
    assert ("PAY-2" in listed, "PAY-1" in listed) == (True, False)


def test_of_what_was_perhaps_handled_twice_that_comes_first_which_a_consumer_had_begun(page: Client) -> None:
    """Of 12 two were paid twice, and the list behind the number had twelve green rows."""
    cause, at = made.group(), timezone.now() - timedelta(minutes=5)
    two = [made.message(cause, business_key=key, state="processed") for key in ("PAY-1", "PAY-2")]
    run = run_of(sent=2, processed=2, perhaps_twice=2, started_at=at, created_at=at)
    for place, message in enumerate(two):
        facts = {"handled": 1, "redelivered": True, "state": ItemState.PROCESSED, "cycle": 2, "sent_at": at}
        RequeueItem.objects.create(run=run, message=message, place=place, revision=1, **facts)
        made.attempt(message, 1, cycle=2, verdict="ack", redelivered=True, at=at + timedelta(minutes=2))
    had = [made.in_flight(message_id=one.message_id, seconds=100) for one in two]
    lost = made.consumer(seconds=90, in_flight=had[1:])
    # It has handled this one to the end, and was lost a second later.
    made.consumer(seconds=90, in_flight=had[:1], pid=812)
    seen = Page(page.get(f"{RUNS}{run.pk}/change/"))
    listed = Page(page.get(seen.links["Show Perhaps handled twice"]))

    assert "1 of them was in a handler when its consumer was heard of last: check it first." in seen.text
    assert listed.text.count("! Perhaps handled twice") == 2
    assert listed.text.count("by worker-3:812, delivered before to a consumer that did not acknowledge it") == 2
    assert listed.text.count(f"{lost} had begun it at") == 1
    assert keys_on(page, listed.links["Show in the list of messages"]) == {"PAY-1", "PAY-2"}


def paid_in_a_crash_loop() -> tuple[RequeueRun, list[ConsumerProcess]]:
    """A run of one message that two consumers had begun before they were killed, and a third one has handled."""
    at = timezone.now() - timedelta(minutes=5)
    message = made.message(business_key="PAY-1", state="processed", cycle=2, succeeded_at=at + timedelta(minutes=4))
    run = run_of(total=1, sent=1, processed=1, perhaps_twice=1, started_at=at, created_at=at)
    handled = at + timedelta(minutes=4)
    facts = {"handled": 1, "redelivered": True, "state": ItemState.PROCESSED, "cycle": 2, "sent_at": at}
    RequeueItem.objects.create(run=run, message=message, place=0, revision=1, **facts, ended_at=handled)
    made.attempt(message, 1, cycle=2, verdict="ack", redelivered=True, at=handled)
    lost = [
        made.consumer(
            seconds=90 + ago, pid=ago, in_flight=[made.in_flight(message_id=message.message_id, seconds=100 + ago)]
        )
        for ago in (3, 6)
    ]
    return run, lost[::-1]


def test_each_consumer_that_had_begun_a_message_before_it_was_lost_is_named(page: Client) -> None:
    """One was paid three times, and the list named two: whoever gave one payment back left one too many."""
    run, lost = paid_in_a_crash_loop()
    seen = Page(page.get(f"{RUNS}{run.pk}/change/"))
    listed = Page(page.get(seen.links["Show Perhaps handled twice"])).text

    assert "! Perhaps handled 3 times" in listed
    times = [one.in_flight[0]["since"] for one in lost]
    named = [
        f"{one} had begun it at {second(datetime.fromisoformat(at))}." for one, at in zip(lost, times, strict=True)
    ]
    assert " ".join(named) in listed
    message = ParkedMessage.objects.get()
    text = Page(page.get(f"/admin/rmq_retry/parkedmessage/{message.pk}/change/")).text
    lost_too = "Perhaps handled 3 times: consumers that were lost had it, too."
    assert ("! Perhaps handled 3 times" in text, lost_too in text) == (True, True)
    assert text.count("Begun by") == 2
    assert lost_too in command("rmq_parked", "show", str(message.pk)).out


def test_a_consumer_that_dies_after_the_payments_of_a_run_were_made_raises_no_doubt_of_them(page: Client) -> None:
    """Eight were blamed ten seconds after their run had ended, because a consumer died in the next one."""
    run, _lost = paid_in_a_crash_loop()
    ConsumerProcess.objects.update(beat_at=timezone.now() - timedelta(seconds=40), in_flight=[])

    assert "1 perhaps handled twice" not in shown(page, run)
    assert "perhaps handled twice" not in Page(page.get("/admin/rmq_retry/livestatus/")).text


WORDS = ("1 perhaps handled twice", "1 perhaps twice", "1 perhaps handled twice")


def test_what_a_pause_gave_back_is_no_doubt_of_a_run_in_which_nobody_died(page: Client) -> None:
    """Six of 40 payments, each made once, were "perhaps handled twice" for two minutes after a queue was resumed."""
    run, _lost = paid_in_a_crash_loop()
    made.consumer(pid=9)
    died = shown(page, run), Page(page.get(RUNS)).text, command("rmq_parked", "requeue-run", str(run.pk)).out
    ConsumerProcess.objects.exclude(pid=9).delete()
    lived = shown(page, run), Page(page.get(RUNS)).text, command("rmq_parked", "requeue-run", str(run.pk)).out

    assert [word in text for text, word in zip(died, WORDS, strict=True)] == [True] * 3
    assert [word in text for text, word in zip(lived, WORDS, strict=True)] == [False] * 3
    run.refresh_from_db()
    assert run.perhaps_twice == 1


def test_what_somebody_has_checked_is_not_to_be_checked_first_any_more(page: Client) -> None:
    run, _lost = paid_in_a_crash_loop()
    updated(run, state=RunState.FINISHED, finished_at=timezone.now())
    bold = "<strong>1 of them was in a handler when its consumer was heard of last: check it first.</strong>"
    before = page.get(f"{RUNS}{run.pk}/change/").content.decode()
    asked = page.get(f"/admin/rmq_retry/livestatus/checked/?code=RUN_PERHAPS_TWICE&run={run.pk}")
    assert "PAY-1 Handled twice? Perhaps handled 3 times worker-3:6 had begun it at" in Page(asked).text
    check(doubts_of("RUN_PERHAPS_TWICE")[str(run.pk)], ANN, reason="INC-7")
    signed = page.get(f"{RUNS}{run.pk}/change/")
    after = signed.content.decode()

    assert (bold in before, bold in after) == (True, False)
    assert ("Checked…" in before, "Checked…" in after) == (True, False)
    assert ("What the first one had begun" in before, "What the first one had begun" in after) == (True, False)
    assert re.search("✓ Checked by ann, .*: INC-7 · 1 perhaps handled twice Show", Page(signed).text)


def test_the_list_of_runs_says_who_has_checked_its_doubts_until_a_new_one_comes(page: Client) -> None:
    run, _lost = paid_in_a_crash_loop()
    updated(run, state=RunState.FINISHED, finished_at=timezone.now())
    signed, told = "1 processed · 1 perhaps twice · ✓ Checked by ann", "Checked by ann at "
    before = Page(page.get(RUNS)).text, command("rmq_parked", "requeue-run", str(run.pk)).err
    check(doubts_of("RUN_PERHAPS_TWICE")[str(run.pk)], ANN, reason="INC-7")
    after = Page(page.get(RUNS)).text, command("rmq_parked", "requeue-run", str(run.pk)).err
    updated(run, handled_twice=1)
    later = Page(page.get(RUNS)).text

    assert ("perhaps twice" in before[0], signed in before[0], signed in after[0]) == (True, False, True)
    assert (told in before[1], told in after[1], "Checked by" in later) == (False, True, False)


def test_a_message_whose_worker_died_is_looked_at_before_it_is_requeued(page: Client) -> None:
    """It was paid eight times, was listed without an error, and the one bright button was to requeue it."""
    run = run_of(state=RunState.FINISHED, total=3, sent=3, failed=3, perhaps_twice=1)
    known = [
        ("PAY-1", "GatewayDown", "permanent"),
        ("PAY-2", "GatewayDown", "permanent"),
        ("PAY-3", "", "worker_stopped"),
    ]
    for place, (key, error, reason) in enumerate(known):
        message = made.message(business_key=key, error=error, reason=reason)
        facts = {"state": ItemState.FAILED, "redelivered": not error}
        RequeueItem.objects.create(run=run, message=message, place=place, revision=1, **facts)
    opened = page.get(f"{RUNS}{run.pk}/change/")
    seen = Page(opened)
    look = "Look at the 1 that may have been handled…"

    assert [one.label for one in opened.context["buttons"] if one.kind == "main"] == [look]
    assert "Requeue the 2 that failed again…" in seen.links
    assert keys_on(page, seen.links[look]) == {"PAY-3"}
    assert "1 of them is parked: find out where it takes effect whether it was handled" in seen.text
    assert "2 GatewayDown" in seen.text
    assert "1 worker died" in seen.text
    assert "PAY-3" in Page(page.get(seen.links["Show Perhaps handled twice"])).text


def test_the_page_names_who_stopped_a_run(page: Client) -> None:
    run = run_of()
    stop_run(run.pk, BOB, reason="wrong ones")

    assert "Stopped by bob" in shown(page, run)


def test_what_a_stopped_run_has_not_sent_is_called_so_everywhere(page: Client) -> None:
    """Its page said "2 not sent", the command "2 left out", and the timeline of each message "Left out"."""
    some = [made.message(business_key=f"PAY-{number}") for number in range(2)]
    run = requeue_run([one.pk for one in some])
    stop_run(run.pk, BOB, reason="wrong ones")

    assert "2 not sent" in shown(page, run)
    assert f"Not sent by the requeue · Requeue run {run.pk}" in Page(page.get(address_of(some[0]))).text
    assert parked("requeue-run", str(run.pk)).out.startswith(f"Requeue run {run.pk} (stopped): 2 not sent")
    [head, row] = [line.split("\t") for line in parked("requeue-runs").out.splitlines()]
    assert [row[head.index(name)] for name in ("LEFT OUT", "NOT SENT")] == ["0", "2"]


def test_the_page_counts_what_was_left_out_by_keys_and_names_keys_that_matched_nothing(page: Client) -> None:
    cause = made.group()
    for number in range(5):
        made.message(cause, keys=[f"PAY-{number}"], business_key=f"PAY-{number}")
    listed = list_filter(store(["PAY-0", "PAY-1", "PAY-X"], BOB))
    chosen = Selection.of_filter({"group": cause.pk, "state": ["parked"]}).leaving_out(listed)
    text = shown(page, start(chosen, BOB, reason="INC-553"))
    listed_page = Page(page.get(RUNS)).text

    assert "2 more left out by 3 keys" in text
    assert "3 messages = ✓ 0 processed + ✕ 0 failed again + ○ 3 not sent yet" in text
    assert "3 not sent yet · 2 more left out by their keys" in listed_page
    assert "1 key matches no parked message: PAY-X" in text
    assert "INC-553" in listed_page
    assert "3 GatewayTimeout · bank.gateway:post" in listed_page


def test_the_audit_record_of_a_run_tells_the_keys_left_out_from_what_a_check_left_out(page: Client) -> None:
    """ "Left out 0" and further down "Left out PAY-0" contradicted each other."""
    cause = made.group()
    for number in range(2):
        made.message(cause, keys=[f"PAY-{number}"], business_key=f"PAY-{number}")
    listed = list_filter(store(["PAY-0"], BOB))
    start(Selection.of_filter({"group": cause.pk, "state": ["parked"]}).leaving_out(listed), BOB, reason="INC-553")
    act = OperatorAction.objects.get(action="requeue")
    text = Page(page.get(f"/admin/rmq_retry/operatoraction/{act.pk}/change/")).text

    assert "Left out by a check 0" in text
    assert "Keys left out by the operator PAY-0" in text


def test_skip_reasons_are_shown_even_if_their_messages_are_hidden(settings: Any) -> None:
    operating(settings, PERMIT=lambda _user, _verb, _message: False)
    run = run_of(state=RunState.FINISHED, skipped=1)
    RequeueItem.objects.create(
        run=run, message=made.message(), place=1, revision=1, state=ItemState.SKIPPED, skip_code=ItemReason.REFUSED
    )

    assert str(ItemReason.REFUSED.label) in shown(client_of(made.person("support", "view_requeuerun")), run)


def test_the_run_page_shows_reasons_in_the_readers_language(page: Client, settings: Any) -> None:
    run = run_of(state=RunState.PAUSED, wait="guard", failed=5, sent=5, skipped=1)
    RequeueItem.objects.create(
        run=run, message=made.message(), place=1, revision=1, state=ItemState.SKIPPED, skip_code="changed"
    )
    english = shown(page, run)
    settings.LANGUAGE_CODE = "de"
    german = shown(page, run)

    assert "More messages failed again than the requeue run allows." in english
    assert "It was changed after it was chosen." in english
    assert "Mehr Nachrichten schlugen erneut fehl, als der Einreihungslauf zulässt." in german
    assert "Sie wurde nach der Auswahl geändert." in german


def test_messages_in_two_paused_runs_are_counted_once_on_the_live_status(page: Client) -> None:
    cause = made.group()
    some = [made.message(cause) for _ in range(3)]
    first = requeue_run([one.pk for one in some[:2]])
    second = requeue_run([one.pk for one in some], include=["under_way"])
    for run in (first, second):
        pause_run(run)
    both = needs(page)
    discard_messages([some[0].pk])
    changed = needs(page)

    assert both == [
        f"Requeue run {first.pk} has been paused by ann. 2 messages not sent yet.",
        f"Requeue run {second.pk} has been paused by ann: {SHARED} 1 message not sent yet.",
    ]
    assert [text.rpartition(". ")[2] for text in changed] == ["1 message not sent yet.", "1 message not sent yet."]
    assert "1 of its messages is in another requeue run too, or was sent or changed meanwhile" in changed[0]


def needs(client: Client) -> list[str]:
    """What the live status says of requeue runs, without its spans of time."""
    found = client.get("/admin/rmq_retry/livestatus/").context["needs"]
    texts = [f"{one.problem.text} {one.problem.why}" for one in found if one.problem.code.name.startswith("RUN_")]
    return [re.sub(r" for \d+ \w+", "", text) for text in texts]


@pytest.mark.parametrize("language", ["en", "de", "fr", "ru", "uk", "zh-hans"])
def test_a_stopped_run_says_why_it_stood_still_and_not_to_resume_it(page: Client, language: str) -> None:
    """ "Check them, then resume or stop it" stood there, and nothing can be resumed or stopped."""
    with override(language):
        run = run_of(state=RunState.PAUSED, wait=RunWait.GUARD, stop_at=20)
        asked = run.explanation
        run.state = RunState.STOPPED

        assert asked.startswith(run.explanation)
        assert 10 < len(run.explanation) < len(asked)
    updated(run, state=RunState.STOPPED)
    listed = Page(page.get(RUNS)).text
    assert "More messages failed again than the requeue run allows." in listed
    assert "resume or stop it" not in listed + shown(page, run)


def ended_run(**fields: Any) -> RequeueRun:
    """A finished run: two failed again and are parked, one was handled since; one was left out, one has no outcome."""
    now = timezone.now()
    times = {"started_at": now - timedelta(hours=3), "finished_at": now - timedelta(hours=2)}
    run = run_of(state=RunState.FINISHED, sent=4, failed=3, skipped=1, total=5, **times, **fields)
    items: list[tuple[str, ItemState, dict[str, Any], str]] = [
        ("PAY-1", ItemState.FAILED, {"error": "GatewayDown"}, ""),
        ("PAY-2", ItemState.FAILED, {"error": "GatewayDown"}, ""),
        ("PAY-3", ItemState.FAILED, {"error": "NoFunds", "state": "processed"}, ""),
        ("PAY-4", ItemState.SKIPPED, {}, ItemReason.LATE),
        ("PAY-5", ItemState.SENT, {"state": "requeued"}, ""),
    ]
    for place, (key, state, known, code) in enumerate(items):
        message = made.message(business_key=key, **known)
        RequeueItem.objects.create(run=run, message=message, place=place, revision=1, state=state, skip_code=code)
    return run


def keys_on(client: Client, address: str) -> set[str]:
    """The messages in the list at this address."""
    return {row.business_key for row in client.get(address).context["cl"].result_list}


def test_the_page_of_an_ended_run_says_when_by_whom_and_why(page: Client) -> None:
    run = ended_run(reason="INC-553", approved_by="bob")
    started, ended = (timezone.localtime(at) for at in (run.started_at, run.finished_at))
    text = shown(page, run)

    assert f"Started {started:%Y-%m-%d %H:%M:%S} · by ann, approved by bob" in text
    assert f"Ended {ended:%Y-%m-%d %H:%M:%S} · took 1 h" in text
    assert "Reason INC-553" in text
    assert ("1 without an outcome" in text, "1 waiting for outcome" in text) == (True, False)


def test_the_page_of_a_run_says_where_its_failures_are_now_and_requeues_those_still_parked(page: Client) -> None:
    """It offered to requeue 70 the day after, of which another requeue run had sent 58."""
    run = ended_run()
    seen = Page(page.get(f"{RUNS}{run.pk}/change/"))
    preview = page.get(seen.links["Requeue the 2 that failed again…"], follow=True)
    discard_messages(ParkedMessage.objects.filter(state="parked").values_list("pk", flat=True))
    later = shown(page, run)

    assert "Now: 2 Parked · 1 Processed . Next automatic attempt: none. An operator decides." in seen.text
    assert "Requeue 2 messages" in Page(preview).text
    assert "Now: 1 Processed · 2 Discarded" in later
    assert "An operator decides" not in later
    assert "that failed again…" not in later


def test_a_run_whose_failures_were_all_resolved_since_calls_for_nobody(page: Client) -> None:
    """The list of runs kept "28 failed again" in amber, although a later run had sent all of these."""
    run, badge = ended_run(), "3 failed again · all resolved since"
    discard_messages(ParkedMessage.objects.filter(state="parked").values_list("pk", flat=True))
    # Of one nobody knows yet what became of it.
    before = [shown(page, run), Page(page.get(RUNS)).text]
    ParkedMessage.objects.filter(business_key="PAY-5").update(state="processed")

    assert ["✕ 3 failed again" in text for text in before] == [True, True]
    assert "resolved since" not in "".join(before)
    assert f"✓ {badge}" in shown(page, run)
    assert f"✓ {badge}" in Page(page.get(RUNS)).text


@pytest.mark.database
def test_the_page_of_a_run_says_what_to_do_about_messages_that_were_not_confirmed(page: Client) -> None:
    """It ended "2 not confirmed", and that was all."""
    run = run_of(state=RunState.FINISHED, unconfirmed=3, total=3, finished_at=timezone.now())
    for place, state in enumerate(("parked", "parked", "processed")):
        message = made.message(business_key=f"PAY-{place}", state=state, unconfirmed=state == "parked")
        unsure = ItemState.UNCONFIRMED
        RequeueItem.objects.create(run=run, message=message, place=place, revision=1, state=unsure)
    opened = page.get(f"{RUNS}{run.pk}/change/")
    seen = Page(opened)
    check = "Check the 2 that were not confirmed…"

    assert "a copy of each may have been delivered" in seen.text
    assert "Now: 2 Parked · 1 Processed" in seen.text
    assert check in [one.label for one in opened.context["buttons"] if one.kind == "main"]
    assert keys_on(page, seen.links[check]) == {"PAY-0", "PAY-1"}
    discard_messages(ParkedMessage.objects.filter(state="parked").values_list("pk", flat=True))
    assert "that were not confirmed…" not in shown(page, run)


@pytest.mark.database
def test_the_page_of_a_run_leads_to_the_messages_of_each_outcome(page: Client) -> None:
    run = ended_run()
    links = Page(page.get(f"{RUNS}{run.pk}/change/")).links
    late = f"Show {ItemReason.LATE.label}"
    listed = Page(page.get(links[late])).text

    shows = [said for said in links if said.startswith("Show ") and "#" not in links[said]]
    assert {said: keys_on(page, links[said]) for said in ["Parked", "Check the 1 without an outcome…", *shows]} == {
        "Parked": {"PAY-1", "PAY-2"},
        "Show Failed again": {"PAY-1", "PAY-2", "PAY-3"},
        "Show GatewayDown": {"PAY-1", "PAY-2"},
        "Show NoFunds": {"PAY-3"},
        "Check the 1 without an outcome…": {"PAY-5"},
        late: {"PAY-4"},
    }
    assert f"Left out of requeue run: {run.pk} · {ItemReason.LATE.label}" in listed


def test_a_reason_of_many_messages_is_one_selection(page: Client) -> None:
    run = ended_run()
    other = made.message()
    RequeueItem.objects.create(
        run=run, message=other, place=9, revision=1, state=ItemState.SKIPPED, skip_code=ItemReason.LATE
    )
    ticked = {"action": "discard", "select_across": "1", "_selected_action": "1"}
    address = f"/admin/rmq_retry/parkedmessage/?state=all&left_out_of_run={run.pk}:{ItemReason.LATE}"
    asks = page.post(address, ticked, follow=True)

    again = start(asks.context["selection"], BOB, reason="INC-553")

    assert asks.context["count"] == 2
    assert f"left out of requeue run {run.pk} · {ItemReason.LATE.label}" in shown(page, again)


def test_the_list_of_runs_names_who_started_each_on_a_narrow_screen_too(page: Client) -> None:
    run_of()

    assert "By ann" in Page(page.get(RUNS)).text


def test_a_run_tells_from_when_to_when_it_waited_for_the_broker(page: Client) -> None:
    begun = timezone.now() - timedelta(minutes=5)
    ended, later = begun + timedelta(seconds=40), begun + timedelta(minutes=2)
    run = run_of(outages=[[begun.isoformat(), ended.isoformat()], [later.isoformat(), None]])
    times = " \u2013 ".join(f"{timezone.localtime(at):%Y-%m-%d %H:%M:%S}" for at in (begun, ended))

    assert f"Waited for the broker {times} · 40 s" in shown(page, run)
    assert "Waited for the broker" not in shown(page, run_of())


def test_a_run_of_a_preview_that_had_shrunk_names_who_took_which_message_out(page: Client) -> None:
    """It said "9 of 9 sent, 0 left out" of ten that were shown; ticked messages and approvals told it."""
    cause = made.group()
    some = [made.message(cause, business_key=f"PAY-{number}") for number in range(4)]
    chosen = Selection.of_filter({"group": cause.pk, "state": ["parked"]})
    discard_messages([some[0].pk], BOB, category="duplicate")
    hold(Selection.of_ids([some[1].pk]), BOB, until=timezone.now() + timedelta(hours=1), reason="bank asks to wait")
    run = drive_run(requeue_run(chosen, reason="the bank is back"))
    answer = page.get(f"{RUNS}{run.pk}/change/")
    whole = Page(answer)

    assert "2 of 4 sent" in whole.text
    assert "2 left out" in whole.text
    assert re.search(r"1 It is no longer open.* PAY-0 Discarded \S+ by bob \(Duplicate\)", whole.text)
    assert re.search(r"1 It is on hold\. .*PAY-1 On hold until [^,]+, by bob: bank asks to wait", whole.text)
    assert whole.links["PAY-0"] == f"/admin/rmq_retry/parkedmessage/{some[0].pk}/change/"
    assert answer.content.decode().count("…</p>") == 0


def test_who_resumes_a_run_is_told_what_was_edited_since_it_chose_its_messages(page: Client, settings: Any) -> None:
    """ "3 messages are sent", said the page; it left out the one that had been corrected meanwhile."""
    operating(settings, EDITABLE={"*": True})
    some = [made.message(business_key=f"PAY-{number}") for number in range(3)]
    store_edit(some[0].pk, BOB, propose(some[0], text="{}"), version=1, reason="before it was chosen")
    run = pause_run(requeue_run([one.pk for one in some]), ANN)
    asked = [f"{RUNS}{run.pk}/control/?action={action}" for action in ("resume", "stop")]
    before = Page(page.get(asked[0])).text
    store_edit(some[1].pk, BOB, propose(some[1], text="{}"), version=1, reason="amount")
    resume, stop = (Page(page.get(address)).text for address in asked)
    resume_run(run.pk, ANN)
    left = drive_run(run)

    assert "3 messages are sent" in before
    assert "edited since" not in before + stop
    assert "1 of the messages not sent yet was edited since: it is left out." in resume
    assert left.skipped == 1


def test_who_resumes_a_run_is_told_of_another_one_and_of_what_was_decided_on_meanwhile(page: Client) -> None:
    """ "50 messages are sent. Nothing shows yet that the cause is gone", while another run had paid 29."""
    cause = made.group(title="BankDown")
    some = [made.message(cause, business_key=f"PAY-{number}").pk for number in range(5)]
    failing = pause_run(requeue_run(some), ANN)
    sent = {"sent_at": timezone.now() - timedelta(minutes=2), "causes": [[cause.pk, 5]], "wait": RunWait.GUARD}
    failing = updated(failing, **sent)
    address = f"{RUNS}{failing.pk}/control/?action=resume"
    alone = Page(page.get(address)).text
    discard_messages([some[0]], ANN)
    hold(Selection.of_ids([some[1]]), ANN, until=timezone.now() + timedelta(hours=1))
    other = requeue_run(some[3:], BOB)
    ErrorGroup.objects.update(last_handled=timezone.now())
    told = Page(page.get(address)).text
    test, stop = (Page(page.get(f"{RUNS}{failing.pk}/control/?action={action}")).text for action in ("test", "stop"))

    assert "Send one again, the other 2 after it was processed" in test
    assert "3 messages were not sent and stay parked." in stop
    assert "5 messages are sent, at" in alone
    assert "Nothing shows yet that the cause is gone." in alone
    assert "3 messages are sent, at" in told
    assert "2 of the messages not sent yet were sent, discarded or put on hold since: they are left out." in told
    assert f"Requeue run {other.pk} by bob is to send 2 of these." in told
    assert "Messages with the same errors were handled since then." in told
    assert "Nothing shows yet" not in told
    assert "Messages with the same errors were handled since then. This would" in (
        command("rmq_parked", "requeue-run", str(failing.pk), "--resume").err
    )


def test_a_run_names_who_edited_a_message_that_it_left_out(page: Client, settings: Any) -> None:
    operating(settings, EDITABLE={"*": True})
    cause = made.group()
    some = [made.message(cause, business_key=f"PAY-{number}") for number in range(2)]
    run = requeue_run([one.pk for one in some])
    store_edit(some[0].pk, BOB, propose(some[0], text="{}"), version=1, reason="amount")
    drive_run(run)

    assert re.search(r"1 It was changed after it was chosen\. .*PAY-0 Edit by bob, ", shown(page, run))


def test_a_run_says_how_many_it_has_sent_as_edited(page: Client, settings: Any) -> None:
    operating(settings, EDITABLE={"*": True})
    cause = made.group()
    some = [made.message(cause, business_key=f"PAY-{number}") for number in range(3)]
    for one in some[:2]:
        store_edit(one.pk, BOB, propose(one, text='{"amount": 1}'), version=1, reason="amount")
    run = drive_run(requeue_run([one.pk for one in some]))

    assert "2 sent as edited" in shown(page, run)
    assert "sent as edited" not in shown(page, run_of())
    assert "2 sent as edited" in command("rmq_parked", "requeue-run", str(run.pk)).out


@pytest.mark.parametrize(("away", "said"), [(400, True), (5, False)])
def test_a_run_that_waits_for_outcomes_names_dead_consumers_of_its_queues(page: Client, away: int, said: bool) -> None:
    """Its consumers died again and again, and it said "waiting for outcomes" for a minute."""
    at = timezone.now() - timedelta(minutes=12)
    made.consumer(seconds=away, in_flight=[made.in_flight()])
    made.consumer(queues=["mail"])
    run = run_of(state=RunState.WAITING, sent=9, total=9, processed=8, started_at=at, beat_at=timezone.now())
    RequeueItem.objects.create(run=run, message=made.message(), place=1, revision=1, state="sent", sent_at=at)
    seen = Page(page.get(f"{RUNS}{run.pk}/change/"))

    assert ("consumers without a heartbeat" in seen.text) is said


def test_a_run_tells_of_dead_consumers_of_its_queues_that_had_other_messages_in_flight(page: Client) -> None:
    """Its worker read another queue, too, whose messages it had in flight as it died."""
    at = timezone.now() - timedelta(minutes=20)
    beat = at
    for place in range(3):
        held = [made.in_flight(key=f"MAIL-{place}", message_id=f"m-{place}", queue="mail")]
        more: dict[str, Any] = {"queues": ["payments.main", "mail"], "in_flight": held}
        started = beat + timedelta(seconds=9)
        beat = made.consumer(host=f"h{place}", seconds=900 - 300 * place, started_at=started, **more).beat_at
    # One for each queue has taken over from the last: only both together read what it did.
    made.consumer(host="next", started_at=beat + timedelta(seconds=9))
    made.consumer(host="mailer", started_at=beat + timedelta(seconds=9), queues=["mail"])
    run = run_of(state=RunState.WAITING, sent=9, total=9, processed=8, started_at=at, beat_at=timezone.now())
    RequeueItem.objects.create(run=run, message=made.message(), place=1, revision=1, state="sent", sent_at=at)
    text = Page(page.get(f"{RUNS}{run.pk}/change/")).text

    assert "No message was in more than one of them at its last heartbeat: their logs say why they ended." in text


def killed(*, times: int = 3, ended: int = 300, queues: Sequence[str] = ("payments.card", "payments.main")) -> datetime:
    """Let a message of payments.card kill consumers of these queues, one after another; return when the last died."""
    beat = timezone.now() - timedelta(minutes=20)
    for place in range(times):
        facts: dict[str, Any] = {"queues": [*queues], "host": f"h{place}"}
        seconds, started = ended + 60 * (times - 1 - place), beat + timedelta(seconds=9)
        beat = made.consumer(seconds=seconds, started_at=started, **facts).beat_at
    group = made.group(title="worker died", reason=Reason.CRASHED.value)
    made.message(group, queue="payments.card", parked_at=beat, business_key="PAY-7")
    return beat


@pytest.mark.parametrize("over", [False, True])
def test_a_run_names_the_other_queue_whose_message_killed_the_consumers_that_it_waits_for(
    page: Client, *, over: bool
) -> None:
    """Three of payments.card killed 19, and a run of payments.standing said that nothing was known of its queue."""
    last = killed(ended=600 if over else 30)
    made.consumer(queues=["payments.card", "payments.main"], started_at=last + timedelta(seconds=9))
    at = timezone.now()
    run = run_of(state=RunState.WAITING, sent=9, total=9, processed=8, started_at=at, beat_at=at)
    RequeueItem.objects.create(run=run, message=made.message(), place=1, revision=1, state="sent", sent_at=at)
    text = shown(page, run)

    assert ("Consumers of payments.card die again and again: 3 since " in text) is not over
    assert ("They also read payments.main. Parked meanwhile because their worker died: PAY-7." in text) is not over
    assert ("again and again" in text) is not over


def test_a_run_that_sends_as_its_queue_empties_says_so(page: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """It said "Sends nothing now" and "more messages than the limit" with 15 of 100 sent, and 3 ready of at most 3."""
    made.consumer()
    made.broker_seen(monkeypatch, Level(queue="payments.main", role=Role.WORK, ready=3, consumers=1))
    now = timezone.now()
    counts = {"total": 100, "sent": 19, "paced_sent": 4, "processed": 14}
    times = {"started_at": now - timedelta(seconds=20), "paced_at": now - timedelta(seconds=20), "beat_at": now}
    run = run_of(wait=RunWait.QUEUE_DEEP, max_depth=3, target="payments.main", sent_at=now, **counts, **times)
    text, listed = shown(page, run), Page(page.get(RUNS)).text
    live = Page(page.get("/admin/rmq_retry/livestatus/")).text

    assert "● Sending It sends whenever payments.main has at most 3 ready: now 3." in text
    assert re.search(r"19 of 100 sent · measured: about 0.7\d per second · 1 min [45]\d s left", text)
    assert "waits while the queue" not in text
    assert "● Sending It sends whenever its queue has at most 3 ready." in listed
    assert ("● Sending" in live, "waits" in live) == (True, False)


@pytest.mark.parametrize(
    ("fields", "since"),
    [
        # A handler of 3 s, and one of 20 s.
        ({"sent_at": 8, "paced_at": 38, "paced_sent": 9}, None),
        ({"sent_at": 12, "paced_at": 42, "paced_sent": 9}, 12),
        ({"sent_at": 50, "paced_at": 110, "paced_sent": 16}, None),
        ({"sent_at": 61, "paced_at": 121, "paced_sent": 16}, 61),
        # The queue has been full from the start, or since an operator resumed the run.
        ({"started_at": 2}, 2),
        ({"sent_at": 900, "paced_at": 2, "paced_sent": 19}, 2),
        ({"sent_at": 3, "paced_at": 2, "paced_sent": 19}, None),
    ],
)
def test_a_run_whose_queue_does_not_empty_says_since_when_it_has_sent_nothing(
    page: Client, monkeypatch: pytest.MonkeyPatch, fields: dict[str, int], since: int | None
) -> None:
    made.consumer()
    made.broker_seen(monkeypatch, Level(queue="payments.main", role=Role.WORK, ready=214, consumers=1))
    now = timezone.now()
    ago = {name: now - timedelta(seconds=value) for name, value in fields.items() if name.endswith("_at")}
    deep = {"wait": RunWait.QUEUE_DEEP, "max_depth": 3, "target": "payments.main", "sent": 19, "total": 100}
    run = run_of(**{**deep, "started_at": now - timedelta(hours=1), "beat_at": now, **fields, **ago})
    text, listed = shown(page, run), Page(page.get(RUNS)).text
    live = Page(page.get("/admin/rmq_retry/livestatus/")).text
    rule = "It sends whenever payments.main has at most 3 ready: now 214."

    if since is None:
        assert f"● Sending {rule}" in text
        assert ("Nothing has been sent" in listed, "waits: " in live) == (False, False)
    else:
        idle = f"Nothing has been sent since {second(now - timedelta(seconds=since))}."
        assert f"◔ Sends nothing now {idle} {rule}" in text
        assert (" left" in text.replace("left out", ""), "measured" in text) == (False, False)
        assert f"◔ Sends nothing now {idle} It sends whenever its queue has at most 3 ready." in listed
        assert f"Requeue run {run.pk} waits: {idle} It sends whenever its queue has at most 3 ready." in live


@pytest.mark.parametrize("wait", [RunWait.KEYS_WAIT, RunWait.QUEUE_FULL])
def test_a_run_that_sends_as_outcomes_or_room_come_is_green_until_none_comes(page: Client, wait: RunWait) -> None:
    """It was "Sends nothing now" and "Sending, 20 per second" by turns, four times a second."""
    made.consumer()
    now = timezone.now()
    counts = {"total": 100, "sent": 19, "paced_sent": 4, "processed": 14}
    times = {"started_at": now - timedelta(seconds=20), "paced_at": now - timedelta(seconds=20), "beat_at": now}
    run = run_of(wait=wait, sent_at=now, **counts, **times)
    text, listed, live = shown(page, run), Page(page.get(RUNS)).text, needs(page)
    updated(run, sent_at=now - timedelta(seconds=15), paced_at=now - timedelta(seconds=30))
    stands = f"◔ Sends nothing now Nothing has been sent since {second(now - timedelta(seconds=15))}. {wait.label}"

    assert f"● Sending {wait.label}" in text
    assert re.search(r"19 of 100 sent · measured: about 0.7\d per second · 1 min [45]\d s left", text)
    assert f"● Sending {wait.label}" in listed
    assert live == []
    assert stands in shown(page, run)
    assert stands in Page(page.get(RUNS)).text
    # The outcome that comes next may be that of a retry which waits for an hour.
    assert bool(needs(page)) is (wait == RunWait.QUEUE_FULL)


def test_a_run_that_is_held_back_by_a_deep_queue_names_it_and_who_paused_it(
    page: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It said "the queue", and "12 s left", though the queue was paused for an hour."""
    made.consumer()
    main = Level(queue="payments.main", role=Role.WORK, ready=20, consumers=1)
    made.broker_seen(monkeypatch, main, Level(queue="mail", role=Role.WORK, ready=90, consumers=1))
    now = timezone.now()
    QueueControl.objects.create(queue="payments.main", paused=True, by="bob", reason="INC-553", since=now)
    run = run_of(wait=RunWait.QUEUE_DEEP, max_depth=5, total=1, started_at=now, beat_at=now)
    RequeueItem.objects.create(run=run, message=made.message(), place=1, revision=1)
    text = shown(page, run)

    assert "It sends whenever payments.main has at most 5 ready: now 20." in text
    assert "payments.main: paused by bob" in text
    assert "mail" not in text
    assert " left" not in text


def test_a_run_of_all_waiting_retries_but_some_begins_with_those_left_out(page: Client) -> None:
    """It was "Messages · 1 more left out by 1 key"."""
    chosen = {"queue": "payments.main", EXCEPT: list_filter(store(["PAY-0"], BOB))}
    run = run_of(retries_of="payments.main", excluded=1, selection={"filter": chosen})

    assert "Messages 1 more left out by 1 key" in shown(page, run)


def test_a_run_that_stood_still_does_not_deny_outcomes_that_were_counted_meanwhile(page: Client) -> None:
    """ "Nothing was counted then" stood beside outcomes of that very time."""
    begun = timezone.now() - timedelta(minutes=5)
    ended = begun + timedelta(seconds=15)
    text = shown(page, run_of(silences=[[begun.isoformat(), ended.isoformat()]]))
    times = " \u2013 ".join(f"{timezone.localtime(at):%Y-%m-%d %H:%M:%S}" for at in (begun, ended))

    assert f"Nothing was heard of it {times} · 15 s" in text
    assert "The outcomes of what was sent before count all the same" in text
    assert "counted then" not in text


@pytest.mark.parametrize(("failed", "said"), [(5, True), (1, False)])
def test_a_run_that_had_sent_all_before_its_guard_could_act_leads_to_the_queue(
    page: Client, failed: int, said: bool
) -> None:
    """Of 80 all were sent in 6 s, and the first failed after 54 s: "100 % failed again", and no button was left."""
    made.consumer()
    at = timezone.now()
    counts = {"sent": 80, "total": 80, "failed": failed, "processed": 5 - failed, "stop_at": 20}
    run = run_of(state=RunState.WAITING, started_at=at, beat_at=at, **counts)
    RequeueItem.objects.create(run=run, message=made.message(), place=1, revision=1, state="sent", sent_at=at)
    seen = Page(page.get(f"{RUNS}{run.pk}/change/"))

    assert ("but all were sent by then" in seen.text) is said
    assert (seen.links.get("payments.main") == "/admin/rmq_retry/queuecontrol/?q=payments.main") is said


def test_a_run_leads_to_its_messages_without_an_outcome_and_each_can_be_discarded(page: Client) -> None:
    """They stayed requeued for good, and no page had a button for them."""
    ago = timezone.now() - timedelta(hours=3)
    run = run_of(state=RunState.FINISHED, wait=RunWait.NO_OUTCOME, sent=2, total=2, started_at=ago, finished_at=ago)
    times = ago, timezone.now()
    lost, late = (made.message(state="requeued", requeued_at=at, business_key=f"P-{at:%H}") for at in times)
    for place, message in enumerate((lost, late)):
        RequeueItem.objects.create(run=run, message=message, place=place, revision=1, state="sent", sent_at=ago)
    seen = Page(page.get(f"{RUNS}{run.pk}/change/"))
    listed = keys_on(page, seen.links["Check the 2 without an outcome…"])
    buttons = [Page(page.get(f"/admin/rmq_retry/parkedmessage/{one.pk}/change/")).links for one in (lost, late)]
    asked = Page(page.get(buttons[0]["Discard…"], follow=True))
    form, values = asked.form_with("Discard")
    page.post(form.action or "/admin/rmq_retry/parkedmessage/discard/", values | {"category": "handled elsewhere"})

    assert "The queue may have been purged, or another program took them" in seen.text
    assert listed == {lost.business_key, late.business_key}
    assert "Discard…" not in buttons[1]
    assert "1 of these was requeued and has no outcome. A discard does not take its copy away" in asked.text
    assert [ParkedMessage.objects.get(pk=one.pk).state for one in (lost, late)] == ["discarded", "requeued"]


@pytest.mark.parametrize("wait", [RunWait.DEPTH_UNKNOWN, RunWait.CANARY_WAITS, RunWait.OUTCOMES_WAIT])
def test_a_run_that_sends_nothing_now_is_not_green_and_says_why(page: Client, wait: RunWait) -> None:
    """ "● Sending, 20 per second" stood beside the reason that it waits for."""
    made.consumer()
    now = timezone.now()
    run = run_of(sent=4, wait=wait, canary=wait == RunWait.CANARY_WAITS, started_at=now, beat_at=now)
    text, listed = shown(page, run), Page(page.get(RUNS)).text

    for place in (text, listed):
        assert f"◔ Sends nothing now {wait.label}" in place
        assert ("● Sending" in place, "per second ·" in place) == (False, False)


def test_who_resumes_a_run_that_its_guard_paused_is_not_told_to_resume_it(page: Client) -> None:
    """ "… the cause is gone: More messages failed again than … Check them, then resume or stop it." """
    run = run_of(state=RunState.PAUSED, wait=RunWait.GUARD, sent=20, failed=20, total=100, stop_at=20)
    RequeueItem.objects.create(run=run, message=made.message(), place=1, revision=1)
    asked = Page(page.get(f"{RUNS}{run.pk}/control/?action=resume")).text

    said = "More messages failed again than the requeue run allows. Nothing shows yet that the cause is gone."
    assert said in asked
    assert "then resume" not in asked


@pytest.mark.parametrize("wait", [RunWait.OUTCOMES_WAIT, RunWait.NO_CONSUMER])
def test_the_rest_of_a_run_that_waits_for_its_first_outcomes_can_be_sent(page: Client, wait: RunWait) -> None:
    run = run_of(state=RunState.RUNNING, wait=wait, sent=20, total=100, rate=20, stop_at=20)
    RequeueItem.objects.create(run=run, message=made.message(), place=1, revision=1)
    address = f"{RUNS}{run.pk}/control/?action=resume"
    buttons, asked = shown(page, run), Page(page.get(address)).text
    page.post(address, {"action": "resume", "reason": "the bank answers late"})
    run.refresh_from_db()
    action = OperatorAction.objects.get(run=run.pk)

    assert "Send the rest without waiting…" in buttons
    assert "80 messages are sent, at 20 per second. The rest waits" in asked
    assert "Nothing shows yet that the cause is gone." in asked
    assert (run.state, run.wait, run.room_before_outcomes) == (RunState.RUNNING, "", None)
    assert (action.action, action.reason, action.actor_name) == ("resume", "the bank answers late", "lead")
    assert "without waiting…" not in shown(page, run)


def test_a_run_that_waits_for_outcomes_says_since_when_and_what_a_missing_one_means(page: Client) -> None:
    """It waited for a message whose worker had died after the payment, without a word of that."""
    made.consumer()
    at = timezone.now() - timedelta(minutes=12)
    run = run_of(state=RunState.WAITING, sent=9, total=9, processed=8, started_at=at, beat_at=timezone.now())
    RequeueItem.objects.create(run=run, message=made.message(), place=1, revision=1, state="sent", sent_at=at)
    text = shown(page, run)

    assert f"The last one was sent at {timezone.localtime(at):%Y-%m-%d %H:%M:%S} ( 12 min ago )." in text
    assert "may have been handled: its worker may have died before it could say so" in text
    assert "per second" not in text

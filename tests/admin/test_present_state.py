"""The pages show the present state of a message, a queue or an action: no handled message is shown as unhandled."""

import re
from datetime import timedelta
from threading import Event
from time import sleep
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.test import Client
from django.utils import timezone
from django.utils.html import escape

from django_rmq_retry import database_clock
from django_rmq_retry.admin import broker_look
from django_rmq_retry.amqp.levels import Gauged, Level
from django_rmq_retry.health.facts import parked_origins, survey
from django_rmq_retry.health.rules import Code, Problem
from django_rmq_retry.management.examination import growing
from django_rmq_retry.markup import NOTHING
from django_rmq_retry.models import (
    Action,
    Attempt,
    ErrorGroup,
    FormerName,
    ItemState,
    OperatorAction,
    ParkedMessage,
    ParkedMinute,
    QueueControl,
    RequeueItem,
    RequeueRun,
    State,
)
from django_rmq_retry.parked.audit import verify
from django_rmq_retry.parked.groups import minute_of
from django_rmq_retry.parked.key_lists import list_filter, look_up, store
from django_rmq_retry.parked.retention import delete_resolved, purge, purge_audit
from django_rmq_retry.parked.selection import LISTED, Selection
from django_rmq_retry.parked.transfer import export
from django_rmq_retry.topology import Role
from django_rmq_retry.wording import minute
from tests.admin import made
from tests.admin.conftest import client_of, operating
from tests.admin.looking import Page
from tests.commands.running import run
from tests.operators.made import (
    ANN,
    BOB,
    discard_messages,
    hold_messages,
    logged,
    pause_run,
    requeue_run,
    unhold_messages,
)
from tests.parked.made import copy_succeeded
from tests.tooling.marks import NIGHTLY_BUT_ON_SQLITE

pytestmark = [pytest.mark.django_db, pytest.mark.database, *NIGHTLY_BUT_ON_SQLITE]
ADMIN = "/admin/rmq_retry/"
CLOCK = r"(\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d( \w+)?"


def shown(client: Client, address: str) -> str:
    return Page(client.get(ADMIN + address)).text


def requeued(cause: ErrorGroup) -> RequeueRun:
    """All messages of a cause, in one run."""
    return requeue_run(Selection.of_filter({"group": cause.pk}), reason="bank is back")


def sent(run: RequeueRun, one: ParkedMessage, state: State, **fields: Any) -> None:
    now = timezone.now()
    RequeueItem.objects.filter(run=run, message=one).update(state=ItemState.SENT, sent_at=now, cycle=2)
    ParkedMessage.objects.filter(pk=one.pk).update(state=state, cycle=2, requeued_at=now, **fields)


def test_a_processed_message_shows_no_stale_requeue_failure(page: Client, settings: Any) -> None:
    operating(settings, ERROR_LABELS={"GatewayTimeout": "The payment was not sent."})
    one = made.message(attempts=3)
    before = shown(page, f"parkedmessage/{one.pk}/change/")
    run = requeued(one.group)
    sent(run, one, State.REQUEUED)
    under_way = shown(page, f"parkedmessage/{one.pk}/change/")
    sent(run, one, State.PROCESSED, succeeded_at=timezone.now())
    after = shown(page, f"parkedmessage/{one.pk}/change/")

    assert "It failed 3 times, then it was parked: retries exhausted. Last error:" in before
    assert ("The payment was not sent." in before, "Earlier:" in before) == (True, False)
    assert f"in requeue run {run.pk} by ann; its outcome is not known yet." in under_way
    assert f"after requeue run {run.pk} by ann. Earlier: It failed 3 times, then it was parked" in after
    assert "Processed " in after
    assert ("The payment was not sent." in under_way, "The payment was not sent." in after) == (False, False)


def test_a_message_that_failed_again_counts_its_failures_since_the_requeue(page: Client) -> None:
    """T13: "It failed 3 times" after six failures."""
    now = timezone.now()
    one = made.message(attempts=3, cycle=2, requeued_at=now - timedelta(hours=1), parked_at=now)
    again = shown(page, f"parkedmessage/{one.pk}/change/")
    later = now + timedelta(minutes=1)
    ParkedMessage.objects.filter(pk=one.pk).update(state=State.REQUEUED, cycle=3, requeued_at=later)
    under_way = shown(page, f"parkedmessage/{one.pk}/change/")

    assert "It failed 3 times after a requeue, then it was parked again: retries exhausted." in again
    assert "Earlier: It failed 3 times after a requeue" in under_way


def test_a_discarded_message_shows_its_discard_before_earlier_failures(page: Client) -> None:
    one, other = made.message(), made.message()
    discard_messages([one.pk, other.pk], category="duplicate")
    text = shown(page, f"parkedmessage/{one.pk}/change/")

    assert re.search(
        r"Discarded \d\d:\d\d by ann \(Duplicate\): no requeue sends it. It can be restored until \S+ "
        r"Earlier: It failed 5 times",
        text,
    )


STILL = [
    ({"paused": True, "by": "lead", "since": timezone.now()}, "‖ paused by lead", "paused by lead: messages will wait"),
    (
        {"opened": True, "handler": "transfer", "opened_at": timezone.now(), "probe_at": timezone.now()},
        "✕ breaker open",
        "breaker open: messages will wait",
    ),
]


@pytest.mark.parametrize(("switch", "badge", "warned"), STILL)
def test_a_stalled_queue_is_healthy_on_no_page(
    page: Client, monkeypatch: pytest.MonkeyPatch, switch: dict[str, Any], badge: str, warned: str
) -> None:
    level = Level(queue="payments.main", role=Role.WORK, ready=3, consumers=1)
    made.broker_seen(monkeypatch, level)
    one = made.message()
    preview = f"requeuerun/preview/?sel={made.selected(one)}"
    fine = shown(page, "livestatus/"), shown(page, preview)
    QueueControl.objects.create(queue="payments.main", **switch)
    still = shown(page, "livestatus/"), shown(page, preview)

    assert ("! parked" in fine[0], "✓ payments.main: 1 message goes there" in fine[1]) == (True, True)
    assert (badge in still[0], "✓ OK" in still[0]) == (True, False)
    assert warned in still[1]
    assert "✓ payments.main" not in still[1]


def test_an_overdue_probe_does_not_hide_missing_consumers(page: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    made.broker_seen(monkeypatch, Level(queue="payments.main", role=Role.WORK, ready=3, consumers=0))
    addresses = "livestatus/", f"requeuerun/preview/?sel={made.selected(made.message())}"
    said, now = r"has no consumer\. 3 messages wait\.|no consumer reads this queue", timezone.now()
    control = QueueControl.objects.create(queue="payments.main", opened=True, opened_at=now, probe_at=now)
    in_time = [len(re.findall(said, shown(page, address))) for address in addresses]
    QueueControl.objects.filter(pk=control.pk).update(probe_at=now - timedelta(seconds=90))
    overdue = [len(re.findall(said, shown(page, address))) for address in addresses]

    assert (in_time, overdue) == ([0, 0], [1, 1])


def test_the_end_of_a_pause_uses_the_database_clock(page: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    now = timezone.now()
    monkeypatch.setattr(database_clock, "now", lambda _using: now - timedelta(hours=1))
    level = Level(queue="payments.main", role=Role.WORK, ready=3, consumers=0)
    made.broker_seen(monkeypatch, level)
    until = now - timedelta(minutes=30)
    QueueControl.objects.create(
        queue="payments.main", paused=True, by="lead", since=now - timedelta(hours=2), until=until
    )
    status, queues = shown(page, "livestatus/"), shown(page, "queuecontrol/")

    assert ("‖ paused by lead" in status, "no consumer reads" in status) == (True, False)
    assert "Paused by lead since" in queues


def test_all_missing_queues_are_one_problem_and_each_is_in_the_table(
    page: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    levels = tuple(Level(queue=f"q{one}", role=Role.WORK, missing=True) for one in range(5))
    made.broker_seen(monkeypatch, *levels)
    text = shown(page, "livestatus/")

    assert "1 thing needs you" in text
    assert "✕ 5 queues do not exist: q0, q1, q2 and 2 more." in text
    assert text.count("✕ missing") == 5
    assert text.count("Messages that should pass through them are returned or dropped.") == 1


def test_the_status_is_not_green_after_all_consumers_were_killed(page: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """T2: a night without traffic is exactly when nobody notices."""
    work = [Level(queue=name, role=Role.WORK, ready=0, consumers=0) for name in ("payments.main", "mail")]
    made.broker_seen(monkeypatch, *work)
    for pid in (18494, 18496):
        made.consumer(seconds=64, host="vm", pid=pid)
    text = shown(page, "livestatus/")

    assert "1 thing needs you" in text
    assert re.search(r"✕ No consumer is alive\. Last heartbeat 1 min ago: vm:18496, vm:18494\.", text)
    assert "2 queues stand still: " in text
    assert "No problems found." not in text
    assert "✓ OK" not in text


def test_what_is_parked_needs_somebody_for_as_long_as_it_is_parked(page: Client) -> None:
    """T4: hours after the last failure."""
    long_ago = timezone.now() - timedelta(hours=2)
    cause = made.group(title="BankDown", last_seen=long_ago)
    made.message(cause, parked_at=long_ago)
    text = shown(page, "livestatus/")

    said = "! 1 message parked: BankDown, no new failure for 2 h. In payments.main 1. The oldest 2 h ago."
    assert said in text
    assert f'href="{ADMIN}errorgroup/{cause.pk}/change/"' in page.get(f"{ADMIN}livestatus/").content.decode()


def test_a_requeued_message_without_an_outcome_is_one_click_away(page: Client) -> None:
    gone = made.message(state=State.REQUEUED, requeued_at=timezone.now() - timedelta(hours=3), message_id="9f3c-77")
    text = shown(page, "livestatus/")
    address = f"{ADMIN}parkedmessage/?state=requeued&no_outcome=1"

    assert "1 message was requeued 3 h ago and has no outcome." in text
    assert f'href="{escape(address)}"' in page.get(f"{ADMIN}livestatus/").content.decode()
    assert f"{ADMIN}parkedmessage/{gone.pk}/change/" in page.get(address).content.decode()


def test_the_alarm_names_the_largest_cause_and_not_the_last(page: Client) -> None:
    """T5: thousands of timeouts in two handlers, and one mail that failed last."""
    now = timezone.now()
    cause = made.group(title="GatewayTimeout", last_seen=now - timedelta(seconds=20))
    for queue, count in (("transfer", 3), ("card", 2)):
        for _ in range(count):
            made.message(cause, queue=queue, parked_at=now - timedelta(seconds=20))
    held = made.group(title="Held")
    for _ in range(9):
        made.message(held, state=State.ON_HOLD)
    made.message(made.group(title="RateLimited", last_seen=now), queue="mail", parked_at=now)

    text = shown(page, "livestatus/")

    said = "! 6 messages parked: 5 GatewayTimeout, growing; 1 RateLimited. GatewayTimeout: transfer 3, card 2. "
    assert f"{said}RateLimited: mail 1. The oldest" in text
    assert "6 messages parked: 5 GatewayTimeout, growing; 1 RateLimited." in shown(page, "")


def test_the_alarm_names_the_cause_that_fails_now_before_a_larger_one_that_is_over(page: Client) -> None:
    """The bank went down, and the alarm named 82 closed accounts of an hour ago."""
    now = timezone.now()
    past, noise = now - timedelta(minutes=11), made.group(title="Noise", muted=True, last_seen=now, last_new=now)
    over = made.group(title="AccountClosed", last_seen=past, last_new=past)
    down = made.group(title="GatewayTimeout", last_seen=now, last_new=now)
    mail = made.group(title="RateLimited", last_seen=now, last_new=now)
    for cause, count, at in ((over, 9, past), (down, 4, now), (mail, 2, now), (noise, 12, now)):
        for _ in range(count):
            made.message(cause, queue="card", parked_at=at)

    text = shown(page, "livestatus/")

    said = "27 messages parked: 4 GatewayTimeout, growing; 9 AccountClosed; 14 others. GatewayTimeout: card 4. The rest"
    assert said in text
    ParkedMinute.objects.all().delete()
    said = r"27 messages parked: 9 AccountClosed, no new failure for 11 min; 18 others, the last \d+ s ago\."
    assert re.search(said, shown(page, "livestatus/"))


def test_a_small_cause_that_is_over_too_does_not_stand_for_the_largest(page: Client) -> None:
    """1,790 of one outage were "1,940 others" behind five of another cause, none of which had failed for minutes."""
    lately = timezone.now() - timedelta(minutes=3)
    down = made.group(title="BankDown", last_seen=lately, last_new=lately)
    for state in (*[State.PARKED] * 9, State.PROCESSED):
        made.message(down, parked_at=lately, state=state)
    died = made.group(title="worker died", last_seen=lately, last_new=lately)
    for _ in range(2):
        made.message(died, parked_at=lately)

    assert "11 messages parked: 9 BankDown, no new failure for 3 min; 2 worker died." in shown(page, "livestatus/")


def test_a_burst_that_was_worked_off_is_neither_the_headline_nor_its_number(page: Client) -> None:
    """ "+296 since 15:42" was said of 11 messages, after the 285 others had been processed."""
    now = timezone.now()
    past, lately = now - timedelta(minutes=11), now - timedelta(minutes=2)
    over = made.group(title="AccountClosed", last_seen=past)
    down = made.group(title="GatewayTimeout", last_seen=lately)
    for state in (State.PARKED, *[State.PROCESSED] * 3):
        made.message(down, parked_at=lately, state=state)
    alone = shown(page, "livestatus/")
    for _ in range(2):
        made.message(over, parked_at=past)

    assert "1 message parked: GatewayTimeout, no new failure for 2 min." in alone
    began = minute(minute_of(past))
    said = f"3 messages parked: 2 AccountClosed, +2 new since {began}, none for 11 min; 1 GatewayTimeout."
    assert said in shown(page, "livestatus/")


def test_the_card_of_a_group_tells_of_no_burst_that_was_worked_off(page: Client) -> None:
    """ "+296 since 15:42" stood on the card of a group of which 11 messages were left."""
    lately = timezone.now() - timedelta(minutes=2)
    down = made.group(title="GatewayTimeout", last_seen=lately)
    for state in (State.PARKED, *[State.PROCESSED] * 3):
        made.message(down, parked_at=lately, state=state)
    [card] = [card for card, *_rest in page.get(f"{ADMIN}errorgroup/").context["cards"]]

    assert (card.growing, card.lull) == ("", "no new failure for 2 min")


def test_a_card_tells_of_the_last_failure_once(page: Client) -> None:
    """ "the last 17 s ago · first 12 min ago · failed again 17 s ago"."""
    now = timezone.now()
    first = now - timedelta(minutes=12)
    down = made.group(title="BankDown", failed_again=2, last_new=first, last_seen=now - timedelta(seconds=17))
    for _ in range(3):
        made.message(down, cycle=2, parked_at=first)
    text = shown(page, "errorgroup/")

    assert re.search(r"first \S+ \S+ ago · failed again 1\d s ago", text)
    assert "the last 1" not in text


def test_a_card_does_not_say_that_none_failed_where_one_failed_again(page: Client) -> None:
    """ "no new failure for 5 min · first 9 min ago · failed again 1 min ago": what failed now is what counts."""
    new, again = (timezone.now() - timedelta(minutes=ago, seconds=5) for ago in (5, 2))
    down = made.group(title="BankDown", failed_again=1, last_new=new, last_seen=again)
    for state in (State.PARKED, *[State.PROCESSED] * 3):
        made.message(down, parked_at=new, state=state)
    made.message(down, cycle=2, parked_at=again)
    address = f"errorgroup/{down.pk}/change/"

    for told in (shown(page, "errorgroup/"), shown(page, address)):
        assert "failed again 2 min ago" in told
        assert "no new failure" not in told
    assert "2 parked (1 of these failed again)" in shown(page, address)


def test_the_index_tells_of_consumers_by_the_look_of_live_status(page: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its look was up to a minute old: it said nothing of consumers that were dead, and "no consumer" of new ones."""
    counts = {"consumers": 2}

    def asked(_known: object) -> broker_look.Look:
        level = Level(queue="payments.main", role=Role.WORK, ready=6, consumers=counts["consumers"])
        return broker_look.Look(at=timezone.now(), gauged=Gauged(levels=(level,), api_set=True))

    monkeypatch.setattr(broker_look, "_ask_broker", asked)
    monkeypatch.setattr(broker_look, "PAGE_PATIENCE_SECONDS", 10.0)
    monkeypatch.setattr(broker_look, "FRESH_LOOK_SECONDS", 0.0)
    told = []
    for counts["consumers"] in (2, 0, 2):
        pages = [Page(page.get(address)).text for address in (ADMIN, "/admin/", f"{ADMIN}livestatus/")]
        told.append(["no consumer" in text.lower() for text in pages])
        assert all(re.search(rf"checked {CLOCK}", text) for text in pages)

    assert told == [[False] * 3, [True] * 3, [False] * 3]


def test_the_index_tells_what_may_have_been_done_in_a_paused_queue(page: Client) -> None:
    """ "Queue payments.main is paused" was all: its four payments were paid, and waited to be paid again."""
    ended = timezone.now() - timedelta(seconds=20)
    made.consumer(seconds=25, ended_at=ended, in_flight=[made.in_flight(seconds=60)])
    QueueControl.objects.create(queue="payments.main", since=timezone.now(), paused=True)

    for address in (ADMIN, "/admin/"):
        assert "and may have been done: PAY-1. Find that out before the queue resumes." in Page(page.get(address)).text


def test_an_index_waits_less_than_a_second_for_a_broker_that_hangs(
    page: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = Event()

    def hangs(_known: object) -> broker_look.Look:
        answered.wait(10)
        return broker_look.Look(at=timezone.now())

    monkeypatch.setattr(broker_look, "_ask_broker", hangs)
    monkeypatch.setattr(broker_look, "PAGE_PATIENCE_SECONDS", 0.01)
    text = Page(page.get(ADMIN)).text
    hung = not answered.is_set()
    answered.set()

    assert hung
    assert "The broker has not answered yet" in text


def test_a_consumer_that_was_heard_of_since_is_not_missed_by_an_older_look(
    page: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ "No consumer reads this queue" stood there in red for 23 s after a pause, and it was true at no time."""
    made.consumer()
    level = Level(queue="payments.main", role=Role.WORK, ready=6, consumers=0)
    gauged = Gauged(levels=(level,), api_set=True)
    told = []
    for seconds in (28, -1):
        seen = broker_look.Look(at=timezone.now() - timedelta(seconds=seconds), late=True, gauged=gauged)
        monkeypatch.setattr(broker_look, "look", lambda seen=seen: seen)
        told += ["no consumer" in Page(page.get(address)).text for address in (ADMIN, f"{ADMIN}livestatus/")]

    assert told == [False, False, True, True]


def test_the_card_the_alarm_and_error_groups_count_the_same_groups(page: Client) -> None:
    """The card said "5 causes" and Error groups "6 groups", because two handlers had failed with one error."""
    for culprit in ("bank.transfer:pay", "bank.card:pay"):
        for queue in ("transfer", "card"):
            made.message(made.group(title="AccountClosed", culprit=culprit), queue=queue)
    for title in ("BankDown", "RateLimited", "RateLimited"):
        made.message(made.group(title=title))
    text, listed, card = shown(page, "livestatus/"), shown(page, "errorgroup/"), Page(page.get(ADMIN)).text
    [found] = re.findall(r"(\d+) groups", listed)

    assert int(found) == ErrorGroup.objects.count()
    assert card.count("7 messages parked") == 1
    assert "7 messages parked: 4 AccountClosed" in text
    others = int(found) - ErrorGroup.objects.filter(title="AccountClosed").count()
    assert f"The rest in {others} other error groups." in text


def test_the_alarm_adds_up_the_groups_of_a_cause_and_counts_the_others(page: Client) -> None:
    """Also where the groups of one error are many, and a muted one is larger."""
    for place in range(12):
        made.message(made.group(title="GatewayTimeout", culprit=f"bank.gateway:post{place}"), queue=f"q{place % 2}")
    muted = made.group(title="Noise", muted=True)
    for _ in range(20):
        made.message(muted)
    made.message(made.group(title="expired", reason="expired"))
    known = survey(page=True)

    assert known.cause is not None
    assert (known.cause.title, known.cause.count, known.cause.others) == ("GatewayTimeout", 12, 2)
    assert (dict(known.cause.places), known.cause.only) == ({"q0": 6, "q1": 6}, None)
    assert sum(known.parked_in.values()) == known.parked.count == 33
    assert "33 messages parked: 12 GatewayTimeout" in shown(page, "livestatus/")


def test_the_only_group_of_the_largest_cause_is_named_and_a_cause_without_an_error_by_its_reason(page: Client) -> None:
    given_up = made.group(title="retries_exhausted", reason="retries_exhausted")
    made.message(given_up)
    known = survey(page=True)

    assert known.cause is not None
    assert (known.cause.title, known.cause.only) == ("retries exhausted", given_up.pk)
    live = page.get("/admin/rmq_retry/livestatus/").content.decode()
    assert f'href="/admin/rmq_retry/errorgroup/{given_up.pk}/change/"' in live


def test_the_live_status_reads_a_row_for_each_cause_and_queue_and_not_for_each_group() -> None:
    for place in range(12):
        made.message(made.group(title="GatewayTimeout", culprit=f"bank.gateway:post{place}"), queue=f"q{place % 2}")

    assert len(parked_origins().counts) == 2


def test_a_group_of_which_all_is_on_hold_does_not_grow_anywhere(page: Client) -> None:
    """ "0 parked · 4 on hold" stood beside "growing"."""
    now = timezone.now()
    cause = made.group(title="BankDown", last_new=now, last_seen=now)
    rows = [made.message(cause, parked_at=now).pk for _ in range(3)]

    def told() -> tuple[bool, bool, int]:
        [card] = [card for card, *_rest in page.get(f"{ADMIN}errorgroup/").context["cards"]]
        [group] = run("rmq_parked", "groups", "--json").data["items"]
        return bool(card.growing), group["growing"], len(list(growing(now)))

    before = told()
    hold_messages(rows)

    assert (before, told()) == ((True, True, 1), (False, False, 0))


def test_copies_of_a_requeue_that_fail_again_are_no_growth_but_failures(page: Client) -> None:
    now = timezone.now()
    cause = made.group(title="BankDown", last_new=now - timedelta(minutes=7), last_seen=now - timedelta(minutes=4))
    ErrorGroup.objects.update(failed_again=3)
    for _ in range(3):
        made.message(cause, cycle=2, copies=2, parked_at=now - timedelta(minutes=4))
    [card] = [card for card, *_rest in page.get(f"{ADMIN}errorgroup/").context["cards"]]

    assert (card.growing, card.lull, card.failed_again) == ("", "", True)
    assert "BankDown, failed again 4 min ago. In payments.main 3. The oldest" in shown(page, "livestatus/")


def failing(*, new: int = 0, again: int = 0) -> None:
    """Messages of one cause that failed this moment."""
    now = timezone.now()
    cause = made.group(title="BankDown", last_new=now if new else now - timedelta(hours=1), last_seen=now)
    ErrorGroup.objects.update(failed_again=again)
    for number in range(new + again):
        made.message(cause, **({} if number < new else {"cycle": 2, "copies": 2}), parked_at=now)


FAILING = [
    ({"new": 1}, r"BankDown, the last \d+ s ago\."),
    ({"again": 1}, r"BankDown, failed again \d+ s ago\."),
    ({"again": 3}, r"BankDown, failed again \d+ s ago\."),
]


@pytest.mark.parametrize(("counts", "said"), FAILING)
def test_while_payments_fail_nothing_says_no_new_failure(page: Client, counts: dict[str, int], said: str) -> None:
    failing(**counts)
    live = shown(page, "livestatus/")

    assert re.search(said, live), live
    assert "no new failure" not in live


def test_what_failed_again_and_was_discarded_since_is_not_told_of_what_was_never_sent_again(page: Client) -> None:
    """ "1 message parked: parked by the handler, failed again 7 s ago" although that one had never been sent again."""
    failing(again=2)
    [sent, left] = ParkedMessage.objects.all()
    ParkedMessage.objects.filter(pk=left.pk).update(cycle=1, parked_at=timezone.now() - timedelta(hours=1))
    pages = ("livestatus/", "errorgroup/", f"errorgroup/{left.group_id}/change/")
    before = [re.search(r"failed again \d+ s ago", shown(page, address)) is not None for address in pages]
    discard_messages([sent.pk])

    assert before == [True] * 3
    for address in pages:
        assert not re.search(r"failed again \d+ s ago", shown(page, address))


def test_a_large_quiet_cause_does_not_hide_that_others_fail(page: Client) -> None:
    """ "5 others" had failed a minute ago, and the head line said "no new failure for 3 min"."""
    before, now = timezone.now() - timedelta(minutes=3), timezone.now() - timedelta(seconds=5)
    quiet = made.group(title="UnknownAccount", last_new=before, last_seen=before)
    other = made.group(title="GatewayTimeout", fingerprint="b" * 64, last_new=before, last_seen=now)
    for number in range(5):
        made.message(quiet if number else other, parked_at=before)

    said = (
        r"5 messages parked: 4 UnknownAccount, \S+ new since \S+, none for 3 min; 1 GatewayTimeout, the last \d+ s ago"
    )
    assert re.search(f"{said}\\.", shown(page, "livestatus/"))


def test_a_group_grows_since_its_first_new_message_and_not_since_before_it(page: Client) -> None:
    now = timezone.now()
    cause = made.group(title="BankDown", first_seen=now, last_seen=now)
    for _ in range(3):
        made.message(cause, parked_at=now)
    [card] = [card for card, *_rest in page.get(f"{ADMIN}errorgroup/").context["cards"]]
    preview = page.get(f"{ADMIN}requeuerun/preview/", {"group": cause.pk}, follow=True)

    assert card.growing == f"growing (+3 since {minute(now)})"
    assert preview.context["growing_since"] == minute_of(now)
    known = survey(page=True).cause
    assert known is not None
    assert known.newest_since == minute_of(now)


def test_a_later_failure_is_called_one_after_a_requeue_only_where_one_failed_again(page: Client) -> None:
    """ "failed again 47 s ago" stood beside "0 failed again"."""
    now = timezone.now()
    cause = made.group(last_new=now - timedelta(minutes=9), last_seen=now - timedelta(minutes=4))
    made.message(cause)
    before, address = shown(page, "errorgroup/"), f"errorgroup/{cause.pk}/change/"
    alone = shown(page, address)
    ParkedMessage.objects.update(cycle=2)

    for text in (before, alone):
        assert "last 4 min ago" in text
        assert "failed again 4 min ago" not in text
    assert "failed again 4 min ago" in shown(page, address)


def test_a_cause_grows_no_longer_once_nothing_fails(page: Client) -> None:
    """It was "growing" for five minutes after its last failure."""
    cause, now = made.group(title="BankDown", last_seen=timezone.now() - timedelta(minutes=2)), timezone.now()
    for _ in range(3):
        made.message(cause, parked_at=now - timedelta(minutes=2))
    [card] = [card for card, *_rest in page.get(f"{ADMIN}errorgroup/").context["cards"]]
    preview = page.get(f"{ADMIN}requeuerun/preview/", {"group": cause.pk}, follow=True)

    lull = f"+3 new since {minute(card.trend.newest_since)}, none for 2 min"
    assert (card.growing, card.lull) == ("", lull)
    live = shown(page, "livestatus/")
    assert re.search(r"BankDown, \+3 new since [\d:]+, none for 2 min\. In payments\.main 3\. The oldest", live)
    assert "Still failing" not in Page(preview).text


def test_the_number_of_a_burst_gets_no_smaller_as_it_passes(page: Client) -> None:
    """ "+209 since 10:01" was "+2 since 10:04" a minute later, which hid the outage."""
    now = timezone.now()
    cause = made.group(title="BankDown", last_seen=now - timedelta(minutes=3))
    for minutes in (20, 9, 9, 8, 8, 5, 3):
        made.message(cause, parked_at=now - timedelta(minutes=minutes))
    [card] = [card for card, *_rest in page.get(f"{ADMIN}errorgroup/").context["cards"]]
    began = minute(minute_of(now - timedelta(minutes=9)))

    assert card.lull == f"+6 new since {began}, none for 3 min"
    assert f"7 messages parked: BankDown, +6 new since {began}, none for 3 min." in shown(page, "livestatus/")


def test_a_burst_begins_anew_when_an_error_occurs_again_after_all_was_resolved(page: Client) -> None:
    """ "growing (+78 since 14:56)" with 12 parked, beside "occurred again at 15:06, after all …"."""
    now = timezone.now()
    again = now - timedelta(seconds=50)
    cause = made.group(title="BankDown", last_seen=now, last_new=now, regressed_at=again)
    for minutes in (4, 2):
        made.message(cause, state=State.PROCESSED, parked_at=now - timedelta(minutes=minutes))
    for at in (again, now, now):
        made.message(cause, parked_at=at)
    began = minute(minute_of(again))
    [card] = [card for card, *_rest in page.get(f"{ADMIN}errorgroup/").context["cards"]]
    preview = Page(page.get(f"{ADMIN}requeuerun/preview/", {"group": cause.pk}, follow=True)).text
    known = survey().cause

    assert card.growing == f"growing (+3 since {began})"
    assert known is not None
    assert (known.newest, known.newest_since) == (3, minute_of(again))
    assert "Still failing: 3 new failures since " in preview


@pytest.mark.parametrize(("ago", "growing"), [(40, False), (3, True)])
def test_a_cause_grows_no_longer_once_what_was_requeued_is_handled(page: Client, ago: int, *, growing: bool) -> None:
    """ "growing (+133 since 01:05)" after 36 of 36 were processed; between two failures it shows nothing yet."""
    failed = timezone.now() - timedelta(seconds=ago)
    cause = made.group(title="BankDown", last_new=failed, last_seen=failed)
    first, *_others = [made.message(cause, parked_at=failed, requeued_at=None) for _ in range(4)]
    requeue_run([first.pk], BOB)
    RequeueItem.objects.update(state="sent", cycle=2)
    ParkedMessage.objects.filter(pk=first.pk).update(state=State.REQUEUED, cycle=2)
    copy_succeeded(first.pk, 2)
    RequeueRun.objects.update(state="finished", finished_at=timezone.now())
    preview = Page(page.get(f"{ADMIN}requeuerun/preview/", {"group": cause.pk}, follow=True)).text
    pages = [shown(page, address) for address in ("errorgroup/", f"errorgroup/{cause.pk}/change/", "livestatus/")]

    assert ParkedMessage.objects.get(pk=first.pk).state == State.PROCESSED
    assert ["growing" in told for told in pages] == [growing] * 3
    assert ("Still failing" in preview) == growing
    assert run("rmq_parked", "groups", "--json").data["items"][0]["growing"] == growing


def test_new_failures_that_were_requeued_meanwhile_still_count(page: Client) -> None:
    """Otherwise a cause would look calm because somebody has sent its messages."""
    cause, now = made.group(title="BankDown"), timezone.now()
    made.message(cause, parked_at=now - timedelta(seconds=20))
    for _ in range(2):
        made.message(cause, state=State.REQUEUED, parked_at=now - timedelta(seconds=20))

    assert "BankDown, growing. In payments.main 1." in shown(page, "livestatus/")


@pytest.mark.parametrize(
    ("wait", "said"),
    [("guard", "paused itself: More messages failed again"), ("", "has been paused for")],
)
def test_a_paused_run_needs_somebody(page: Client, wait: str, said: str) -> None:
    """T7: whoever or whatever has paused it."""
    cause = made.group()
    made.message(cause)
    run = requeued(cause)
    RequeueRun.objects.filter(pk=run.pk).update(state="paused", wait=wait)
    response = page.get(f"{ADMIN}livestatus/")

    assert f"! Requeue run {run.pk} {said}" in Page(response).text
    assert f'href="{ADMIN}requeuerun/{run.pk}/change/"' in response.content.decode()


def test_a_paused_run_names_who_paused_it_and_not_only_who_started_it(page: Client) -> None:
    """ "Requeue run 3 by lead is paused" read as if lead had paused it: anna had."""
    cause = made.group()
    made.message(cause)
    run = requeued(cause)
    pause_run(run, BOB)
    text = shown(page, "livestatus/")

    assert re.search(rf"Requeue run {run.pk} has been paused for \d+ s by bob\.", text)
    assert f"Requeue run {run.pk} is paused with 1 of them." in text


def test_a_button_that_a_user_may_not_press_says_why(page: Client) -> None:
    made.message()
    viewer = client_of(made.person("viewer", "view_livestatus"))
    response = viewer.get(f"{ADMIN}livestatus/")

    assert "Open the group: You need the permission “Can view error group”." in Page(response).text
    assert "/errorgroup/" not in Page(response).links.get("Open the group", "")
    assert "Open the group" in " ".join(Page(page.get(f"{ADMIN}livestatus/")).links)


def test_the_last_known_queues_stay_while_the_broker_is_away_but_nothing_is_green(
    page: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T11, T12: one miss is enough, and its age is said."""
    now = timezone.now()
    known = Gauged(levels=(Level(queue="payments.main", role=Role.WORK, ready=3, consumers=1),), api_set=True)
    last = broker_look.Look(at=now - timedelta(seconds=64), gauged=known)
    seen = {
        "away": broker_look.Look(
            at=now,
            away=Problem(code=Code.BROKER_AWAY, values={"address": "amqp://rabbit", "reason": "connection refused"}),
            since=now,
            last=last,
        )
    }
    seen["late"] = broker_look.Look(at=last.at, late=True, gauged=known)
    said = {}
    for name, look in seen.items():
        monkeypatch.setattr(broker_look, "look", lambda look=look: look)
        said[name] = shown(page, "livestatus/").partition("Latest actions")[0]

    for text in said.values():
        assert "The queues are shown as of" in text
        assert "checked" not in text
        assert f"Ready 3 Consumers 1 {NOTHING}" in text
        assert "✓" not in text
    assert ["No connection to the broker (" in text for text in said.values()] == [True, False]


def test_empty_queues_without_a_problem_are_one_folded_line(page: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    quiet = [Level(queue=f"q{one}", role=Role.WORK, ready=0, consumers=1) for one in range(29)]
    made.broker_seen(monkeypatch, *quiet, Level(queue="busy", role=Role.WORK, ready=3, consumers=1))
    response = page.get(f"{ADMIN}livestatus/")
    content = response.content.decode()
    before, _tag, folded = content.partition('<details class="rmq-fine rmq-fresh" data-rmq-fold="fine">')

    assert "Fine: nothing waits in 29 queues · database " in Page(response).text
    assert (">busy<" in before, ">q7<" in before, ">q7<" in folded) == (True, False, True)


def test_the_index_of_the_app_begins_with_what_is_parked(page: Client) -> None:
    index = Page(page.get(ADMIN)).text
    cause = made.group(title="BankDown")
    made.message(cause)
    made.message(cause)
    made.message(made.group(title="RateLimited"))
    told = Page(page.get(ADMIN))
    viewer = client_of(made.person("viewer", "view_parkedmessage"))

    assert "Nothing is parked. Live status" in index
    assert told.text.count("3 messages parked") == 1
    assert "3 messages parked: 2 BankDown" in told.text
    assert f"{ADMIN}livestatus/" in [given.get("href") for tag, given in told.tags if tag == "a"]
    assert "messages parked" not in Page(viewer.get(ADMIN)).text


def test_a_broker_that_is_slow_once_is_not_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """T12: the next look has its answer."""
    answered = Event()
    there = broker_look.Look(at=timezone.now())

    def slow(_known: object) -> broker_look.Look:
        answered.wait(10)
        return there

    monkeypatch.setattr(broker_look, "_ask_broker", slow)
    monkeypatch.setattr(broker_look, "PAGE_PATIENCE_SECONDS", 0.01)
    late = broker_look.look()
    answered.set()
    monkeypatch.setattr(broker_look, "PAGE_PATIENCE_SECONDS", 10.0)

    assert (late.late, late.unreachable) == (True, "")
    assert broker_look.look() == there


def test_a_broker_that_is_back_is_there_at_the_next_update(page: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    there = broker_look.Look(at=timezone.now())
    refused: list[Exception | None] = [OSError("connection refused")]

    def seen(_known: object) -> broker_look.Look:
        if refused[0]:
            raise refused[0]
        return there

    monkeypatch.setattr(broker_look, "_ask_broker", seen)
    monkeypatch.setattr(broker_look, "PAGE_PATIENCE_SECONDS", 10.0)
    monkeypatch.setattr(broker_look, "FRESH_LOOK_SECONDS", 0.0)
    away = page.get(f"{ADMIN}livestatus/")
    refused[0] = None
    back = page.get(f"{ADMIN}livestatus/?fragment=1")

    assert "No connection to the broker (" in Page(away).text
    assert b'data-rmq-every="5"' in away.content
    assert "No connection to the broker" not in Page(back).text


def test_a_slow_database_is_waited_for_and_its_numbers_are_right(page: Client) -> None:
    for _ in range(3):
        made.message()

    def slowly(execute: Any, *query: Any) -> Any:
        sleep(0.02)
        return execute(*query)

    with connection.execute_wrapper(slowly):
        response = page.get(f"{ADMIN}livestatus/")

    assert response.status_code == 200
    assert "3 messages parked" in Page(response).text
    assert "does not answer" not in Page(response).text


@pytest.mark.parametrize("name", ["livestatus", "errorgroup", "parkedmessage", "requeuerun"])
def test_a_database_that_is_away_is_said_on_a_page_of_its_own(page: Client, name: str) -> None:
    """T11: it was "Server Error (500)"."""

    def lost(*_query: Any) -> None:
        raise OperationalError from OSError("connection refused")

    def broken(*_query: Any) -> None:
        raise OperationalError from ValueError(1205)

    with connection.execute_wrapper(lost):
        asked, acted = page.get(f"{ADMIN}{name}/"), page.post(f"{ADMIN}{name}/", {})
    with connection.execute_wrapper(broken), pytest.raises(OperationalError):
        page.get(f"{ADMIN}{name}/")

    assert (asked.status_code, acted.status_code) == (503, 503)
    assert asked["Rmq-Away"] == "database"
    assert "The database does not answer" in Page(asked).text
    assert Page(asked).links["Load the page again"] == f"{ADMIN}{name}/"
    unknown = "It is not known whether your last action was done."
    assert (unknown in Page(asked).text, unknown in Page(acted).text) == (False, True)


def test_beside_the_alarm_of_a_wrong_clock_ages_are_those_of_the_database(
    page: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = timedelta(minutes=7)
    right = timezone.now() - wrong
    monkeypatch.setattr(database_clock, "ahead", lambda _using: -wrong)
    for name in ("now", "reckoned"):
        monkeypatch.setattr(database_clock, name, lambda _using: right)
    made.message(parked_at=right - timedelta(hours=3))
    text = shown(page, "livestatus/")

    assert "✕ The clock of this host is 7 min ahead of the clock of database 'default'." in text
    assert "The oldest 3 h ago." in text
    assert "Parked 1 oldest 3 h ago" in text
    # An age would stand still in an open page while the server does not answer.
    assert re.search(rf"checked {CLOCK}", text)
    assert "checked 0 s ago" not in text


def test_rates_unknown_to_the_broker_are_dashes_or_no_column(page: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    level = Level(queue="payments.main", role=Role.WORK, ready=3, consumers=1)
    made.broker_seen(monkeypatch, level)

    text = shown(page, "livestatus/")
    assert ("✓ OK" in text, "In/s" in text) == (True, False)

    other = Level(queue="mail", role=Role.WORK, ready=1, consumers=1, arriving=0.0, leaving=0.2)
    made.broker_seen(monkeypatch, level, other)
    assert f"Out/s {NOTHING} ✓ OK" in shown(page, "livestatus/")


def test_an_action_on_a_queue_names_the_queue_and_counts_no_messages(page: Client) -> None:
    logged(Action.PAUSE, reason="the bank is closed", subject="payments.main", facts={"until": None})

    assert f"Pause queue · payments.main Messages {NOTHING} Reason the bank is closed" in shown(page, "livestatus/")
    assert f"Pause queue payments.main Messages {NOTHING} Reason the bank is closed" in shown(page, "operatoraction/")


def test_a_message_requeued_in_bulk_shows_its_operator(page: Client) -> None:
    cause = made.group()
    one = made.message(cause, business_key="PAY-1", correlation_id="order-1")
    made.message(cause, business_key="PAY-2")
    other = made.message(business_key="PAY-3")
    run = requeued(cause)
    requeued(other.group)
    detail = shown(page, f"parkedmessage/{one.pk}/change/")

    assert "No operator has acted yet." not in detail
    assert f"ann Requeue · Requeue run {run.pk}" in detail.replace("Action ", "").replace("Operator ", "")
    for asked in ("PAY-1", one.message_id, "order-1", f"%23{one.pk}"):
        found = page.get(f"{ADMIN}operatoraction/?q={asked}").context["cl"].result_list
        assert [act.run for act in found] == [run.pk], asked
    assert list(page.get(f"{ADMIN}operatoraction/?q=PAY-9").context["cl"].result_list) == []
    assert len(page.get(f"{ADMIN}operatoraction/?q=ann").context["cl"].result_list) == 2


@pytest.mark.parametrize("by", ["numbers", "keys", "filter"])
def test_a_message_discarded_or_put_on_hold_in_bulk_shows_its_operator(page: Client, by: str) -> None:
    one = made.message(business_key="PAY-1", correlation_id="order-1")
    two, three = made.message(business_key="PAY-2"), made.message(business_key="PAY-3")

    def chosen(*some: ParkedMessage) -> Selection:
        if by == "numbers":
            return Selection.of_ids([each.pk for each in some])
        if by == "filter":
            return Selection.of_filter({"message_id": [each.message_id for each in some]})
        keys = [each.business_key for each in some]
        return Selection.of_filter({LISTED: list_filter(store(keys, ANN, look_up(keys)))})

    hold_messages(chosen(one, two))
    discard_messages(chosen(one, three))
    discard_messages(chosen(two))

    def found(asked: object, client: Client = page) -> list[str]:
        return [act.action for act in client.get(f"{ADMIN}operatoraction/?q={asked}").context["cl"].result_list]

    assert [found(asked) for asked in ("PAY-1", one.message_id, "order-1", f"%23{one.pk}")] == [["discard", "hold"]] * 4
    assert [found(asked) for asked in ("PAY-2", "PAY-3", "PAY-9")] == [["discard", "hold"], ["discard"], []]
    assert found("PAY-1", client_of(made.person("clerk", "view_operatoraction"))) == []
    told = shown(page, f"parkedmessage/{one.pk}/change/")
    assert "No operator has acted yet." not in told
    assert told.index("Discarded by ann") < told.index("Put on hold by ann") < told.index("Activity When")
    assert shown(page, f"operatoraction/?message={one.pk}").count("Discard") == 2
    ParkedMessage.objects.update(resolved_at=timezone.now() - timedelta(days=9000))
    purge(ANN, older_than=timedelta(days=1), dry=False)
    assert [found(asked) for asked in (f"%23{one.pk}", "PAY-1", one.message_id, "PAY-9")] == [
        ["discard", "hold"]
    ] * 3 + [[]]
    assert "PAY-1" in shown(page, f"parkedmessage/{one.pk}/change/")
    purge_audit(ANN, older_than=timedelta(0), dry=False)
    assert (found("PAY-1"), FormerName.objects.count()) == ([], 0)
    assert list(verify()) == []


def test_the_audit_log_names_the_messages_of_a_run_that_were_chosen_by_hand(page: Client) -> None:
    rows = [made.message(business_key=key) for key in ("PAY-1", "PAY-2", "<i>PAY-3")]
    run_of_them = requeue_run([row.pk for row in rows])
    hold_messages([made.message(rows[0].group, business_key=key).pk for key in ("PAY-8", "PAY-9")])

    assert f"Requeue run {run_of_them.pk} · PAY-1, PAY-2, <i>PAY-3" in shown(page, "operatoraction/")
    assert f"{rows[0].group} · PAY-8, PAY-9" in shown(page, "operatoraction/")
    act = Page(page.get(f"{ADMIN}operatoraction/{OperatorAction.objects.get(run=run_of_them.pk).pk}/change/"))
    assert f"Subject Requeue run {run_of_them.pk} · PAY-1, PAY-2, <i>PAY-3 Messages 3" in act.text
    assert f"Record numbers {' '.join(str(row.pk) for row in rows)} " in act.text
    assert act.links[str(rows[1].pk)] == f"{ADMIN}parkedmessage/{rows[1].pk}/change/"
    assert "Selection" not in act.text


@pytest.mark.parametrize("count", [12, 51])
def test_an_act_on_a_few_messages_leads_to_each_of_them(page: Client, count: int) -> None:
    """Of ranges only the ends were links: of twelve discarded messages eight were not reached."""
    cause = made.group()
    numbers = [made.message(cause, business_key=f"PAY-{number}").pk for number in range(count)]
    hold_messages(numbers)
    act = Page(page.get(f"{ADMIN}operatoraction/{OperatorAction.objects.get().pk}/change/"))

    linked = [number for number in numbers if str(number) in act.links]
    assert linked == (numbers if count == 12 else [numbers[0], numbers[-1]])


@pytest.mark.parametrize("chosen", ["group", "numbers"])
def test_a_message_taken_off_hold_in_bulk_shows_its_operator(page: Client, chosen: str) -> None:
    cause = made.group()
    rows = [made.message(cause, business_key=f"PAY-{number}") for number in range(3)]
    others = made.message(business_key="PAY-9")
    hold_messages(Selection.of_ids([row.pk for row in (*rows, others)]))
    numbers = Selection.of_ids([row.pk for row in rows])
    held = Selection.of_filter({"group": cause.pk, "state": "on_hold"})
    done = unhold_messages(numbers if chosen == "numbers" else held)

    assert done.changed == 3
    assert [found_for(page, row.business_key) for row in rows] == [["unhold", "hold"]] * 3
    assert found_for(page, "PAY-9") == ["hold"]
    assert "Taken off hold by ann" in shown(page, f"parkedmessage/{rows[1].pk}/change/")


def test_a_processed_message_that_retention_deleted_still_shows_who_requeued_it(page: Client) -> None:
    one = made.message(business_key="PAY-1")
    run_of_it = requeued(one.group)
    ParkedMessage.objects.filter(pk=one.pk).update(state=State.PROCESSED, resolved_at=timezone.now() - timedelta(9000))
    delete_resolved(timezone.now())

    assert [act.run for act in page.get(f"{ADMIN}operatoraction/?q=PAY-1").context["cl"].result_list] == [run_of_it.pk]
    assert "PAY-1" in shown(page, f"parkedmessage/{one.pk}/change/")


def test_an_export_of_many_messages_is_told_for_each_of_them(page: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_rmq_retry.parked.transfer.LOGGED_AT_ONCE", 2)
    rows = [made.message(business_key=f"PAY-{number}") for number in range(5)]
    list(export(Selection.of_filter({"state": "parked"}), ANN))

    assert [found_for(page, row.business_key) for row in rows] == [["export"]] * 5
    assert sorted(OperatorAction.objects.values_list("count", flat=True)) == [1, 2, 2]


def found_for(client: Client, asked: object) -> list[str]:
    """The verbs of the actions that a search of the audit log finds."""
    return [act.action for act in client.get(f"{ADMIN}operatoraction/?q={asked}").context["cl"].result_list]


def listed(*keys: str) -> dict[str, int]:
    """A stored list of these keys."""
    return list_filter(store(keys, ANN, look_up(keys)))


@pytest.mark.parametrize("by", ["numbers", "keys"])
@pytest.mark.parametrize("keys", [["PAY-1"], ["PAY-1", "PAY-2"]])
def test_a_message_exported_alone_or_in_bulk_shows_its_operator(page: Client, by: str, keys: list[str]) -> None:
    rows = [made.message(business_key=key) for key in keys]
    made.message(business_key="PAY-3")
    by_keys = Selection.of_filter({LISTED: listed(*keys)})
    list(export(Selection.of_ids([row.pk for row in rows]) if by == "numbers" else by_keys, ANN))

    assert [found_for(page, key) for key in (*keys, "PAY-3")] == [*[["export"]] * len(keys), []]


def test_a_deleted_message_shows_the_export_of_which_it_was_the_only_one(page: Client) -> None:
    one = made.message(business_key="PAY-1", queue="payments.large")
    list(export(Selection.of_filter({"queue": "payments.large"}), ANN))
    ParkedMessage.objects.filter(pk=one.pk).delete()

    assert [found_for(page, asked) for asked in ("PAY-1", f"%23{one.pk}")] == [["export"]] * 2


@pytest.mark.parametrize("by", ["numbers", "filter"])
def test_a_message_left_out_of_an_export_does_not_show_it(page: Client, by: str) -> None:
    rows = [made.message(business_key=f"PAY-{number}") for number in (1, 2, 3)]
    chosen = Selection.of_ids([row.pk for row in rows]) if by == "numbers" else Selection.of_filter({"state": "parked"})
    list(export(chosen.leaving_out(listed("PAY-1")), ANN))

    assert [found_for(page, row.business_key) for row in rows] == [[], ["export"], ["export"]]


ODD: list[Any] = [
    *([1], "text", "messages", 5, {"selection": None}, {"selection": {"ids": ["x"]}}, {"messages": 5}),
    *({"messages": {"a": 1}}, {"messages": [[1], None]}, {"selection": {"ids": {"x": 1, "9" * 5000: 1}}}),
    *({"selection": {"filter": {"keys": 5, "except_keys": {"list": "x"}}}}, {"selection": {"filter": 5, "ids": 7}}),
]
"""Facts that no version of ours writes."""


@pytest.mark.parametrize("facts", ODD)
def test_an_audit_row_with_unusual_facts_breaks_no_page(page: Client, facts: Any) -> None:
    one, two = made.message(business_key="PAY-1"), made.message(business_key="PAY-2")
    hold_messages([one.pk, two.pk])
    odd = OperatorAction(number=99, at=timezone.now(), actor_name="ann", action=Action.UNHOLD, count=2, facts=facts)
    OperatorAction.objects.bulk_create([odd])

    assert found_for(page, "PAY-1") == ["hold"]
    assert found_for(page, "") == ["unhold", "hold"]
    assert page.get(f"{ADMIN}operatoraction/{OperatorAction.objects.get(number=99).pk}/change/").status_code == 200
    assert run("rmq_audit", "verify").code == 1


def test_an_action_on_a_deleted_message_is_found_by_its_name(page: Client) -> None:
    act = logged(Action.DISCARD, message=991, subject="PAY-77", reason="duplicate")

    assert [one.pk for one in page.get(f"{ADMIN}operatoraction/?q=PAY-77").context["cl"].result_list] == [act.pk]


def test_the_live_status_does_not_count_a_success_as_a_failure(page: Client) -> None:
    one = made.message()
    for number, verdict in enumerate(("retry", "park", "ack"), start=1):
        made.attempt(one, number, at=timezone.now(), verdict=verdict)

    assert page.get(f"{ADMIN}livestatus/").context["counts"]["failed"] == 2


@pytest.mark.parametrize("skew", [timedelta(), timedelta(milliseconds=40), -timedelta(milliseconds=40)])
def test_the_timeline_orders_events_despite_different_clocks(page: Client, skew: timedelta) -> None:
    one = made.message(attempts=1)
    made.attempt(one, 1)
    run = requeued(one.group)
    at = timezone.now()
    Attempt.objects.create(
        identity=one.identity, queue=one.queue, cycle=2, number=1, started_at=at, seconds=0.01, verdict="ack",
        host="worker-4", pid=9, thread="t",
    )  # fmt: skip
    sent(run, one, State.PROCESSED, succeeded_at=at + timedelta(milliseconds=10) + skew)
    RequeueItem.objects.filter(run=run).update(sent_at=at - skew)
    text = shown(page, f"parkedmessage/{one.pk}/change/")
    places = [text.index(said) for said in ("Handled by its consumer", "Attempt 1 succeeded", "Requeued by ann")]

    assert places == sorted(places)


def test_who_sees_only_own_actions_reads_so_and_not_that_nobody_acted(page: Client) -> None:
    one = made.message()
    run = requeued(one.group)
    support = client_of(made.person("support", "view_parkedmessage", "view_operatoraction", "view_requeuerun"))

    for address in (f"parkedmessage/{one.pk}/change/", f"requeuerun/{run.pk}/change/"):
        assert "You see only your own actions." in shown(support, address)
        assert "No operator has acted yet." not in shown(support, address)
        assert "You see only your own actions." not in shown(page, address)


def ruled(settings: Any, allows: Any) -> Client:
    operating(settings, PERMIT=allows)
    verbs = ("view_parkedmessage", "view_errorgroup", "view_requeuerun", "requeue", "bulk_requeue", "export")
    return client_of(made.person("support", *verbs))


def test_the_preview_counts_messages_hidden_by_project_rules(settings: Any) -> None:
    cause = made.group()
    for number in range(3):
        made.message(cause, queue="payments.large" if number else "payments.main")
    client = ruled(settings, lambda _user, verb, message: verb != "requeue" or message.queue != "payments.large")
    preview = client.get(f"{ADMIN}requeuerun/preview/?group={cause.pk}", follow=True)

    assert (
        "2 are excluded because the project's rules do not allow you to requeue them \N{EN DASH} left out"
        in Page(preview).text
    )
    assert preview.context["report"].sendable == 1


@pytest.mark.parametrize("verb", ["view", "export"])
@pytest.mark.parametrize("chosen", ["group", "message"])
def test_an_export_with_every_message_hidden_states_why_and_has_no_button(
    settings: Any, verb: str, chosen: str
) -> None:
    one = made.message()
    client = ruled(settings, lambda _user, asked, _message: asked != verb or "Only leads take data away.")
    number = one.group_id if chosen == "group" else one.pk
    form = client.get(f"{ADMIN}parkedmessage/export/?{chosen}={number}", follow=True)
    answer = client.post(form.redirect_chain[-1][0], {"form": "csv"})

    assert "Only leads take data away." in Page(form).text
    assert 'class="rmq-button rmq-main"' not in form.content.decode()
    assert answer.status_code == 403
    assert "Only leads take data away." in Page(answer).text


def test_an_export_with_some_messages_hidden_has_its_button(settings: Any) -> None:
    cause = made.group()
    kept, given = made.message(cause), made.message(cause)
    client = ruled(settings, lambda _user, verb, message: verb != "export" or message.pk != kept.pk)
    form = client.get(f"{ADMIN}parkedmessage/export/?group={cause.pk}", follow=True)
    _form, values = Page(form).form_with("Export 2 messages")
    answer: Any = client.post(form.redirect_chain[-1][0], values)
    lines = b"".join(answer.streaming_content).decode().splitlines()

    assert [line.split(",")[0] for line in lines] == ["id", str(given.pk)]


def test_the_preview_of_a_large_selection_estimates_the_hidden_messages(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_rmq_retry.admin.choice.MOST_CHECKED", 2)
    cause = made.group()
    for _ in range(3):
        made.message(cause)
    client = ruled(settings, lambda _user, verb, _message: verb != "requeue")
    preview = client.get(f"{ADMIN}requeuerun/preview/?group={cause.pk}", follow=True)

    assert "The project's rules were checked for the 2 oldest messages." in Page(preview).text
    assert preview.context["report"].sendable == 1


def test_an_attempt_counts_as_failed_lately_by_its_end(page: Client) -> None:
    """Two payments timed out 26 s ago after two minutes, and the page counted none in the last minute."""
    one, now = made.message(), timezone.now()
    for seconds, ended in ((120, 26), (0.1, 26), (120, 90)):
        made.attempt(one, at=now - timedelta(seconds=seconds + ended), seconds=seconds)

    assert page.get(f"{ADMIN}livestatus/").context["counts"]["failed"] == 2

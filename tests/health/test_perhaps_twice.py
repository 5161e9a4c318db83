"""Messages that two consumers had, one of which was killed: whoever looks is told that they were perhaps done twice."""

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from django.utils import timezone

from django_rmq_retry import Batch, Delivery, NackRequeue, RetryThenPark, handler
from django_rmq_retry.amqp.levels import Gauged, Level
from django_rmq_retry.health.begun import all_begun, begun_by
from django_rmq_retry.health.facts import survey
from django_rmq_retry.health.look import Health
from django_rmq_retry.health.problems import Limits, in_survey
from django_rmq_retry.health.rules import Code, Severity
from django_rmq_retry.models import (
    Attempt,
    AttemptName,
    ConsumerProcess,
    EarlyRetry,
    ItemState,
    QueueControl,
    RequeueItem,
    RequeueRun,
)
from django_rmq_retry.models.controls import IS_GONE
from django_rmq_retry.policies.verdict import ACK
from django_rmq_retry.testing import isolated_handlers
from django_rmq_retry.topology import Role
from tests.admin import made
from tests.admin.conftest import client_of
from tests.admin.looking import Page
from tests.commands.running import run
from tests.consumer.attempts import PLAIN, finished
from tests.handlers.factories import delivery, subscription

pytestmark = [pytest.mark.django_db, pytest.mark.database]
STATUS, LIST = "/admin/rmq_retry/livestatus/", "/admin/rmq_retry/parkedmessage/"
CONSUMERS = "/admin/rmq_retry/consumerprocess/"
RETRIED = {"rmq-retry-attempts": 1, "rmq-retry-unacked": 1}


@pytest.fixture(autouse=True)
def no_handlers() -> Any:
    with isolated_handlers():
        yield


def handled(message_id: str, **ago: float) -> Attempt:
    """A message that was handled after it came back from another consumer; half a second later it had been."""
    return made.tried_again(message_id, at=timezone.now() - timedelta(seconds=1, **ago), verdict=ACK.name)


def told() -> list[str]:
    codes = (Code.DONE_TWICE, Code.PERHAPS_TWICE)
    return [one.text for one in in_survey(survey(), Limits()) if one.code in codes]


def test_what_a_killed_worker_had_is_named_on_live_status_with_a_list_of_it(admin_user: Any) -> None:
    """It was paid twice, and Live status was green: only a search for its key told it."""
    made.consumer(seconds=600)
    for number in (1, 2):
        handled(f"9f3c-{number}", minutes=3 - number)
    page = client_of(admin_user)
    shown = Page(page.get(STATUS))
    listed = Page(page.get(shown.links["Show these messages"]))

    said = "2 messages were perhaps handled twice, the last 1 min ago: 9f3c-1, 9f3c-2."
    assert told() == [said]
    assert said in shown.text
    assert said.removesuffix(".") in run("rmq_status").out
    assert listed.text.count("! perhaps: a consumer that is gone had it, and may not have begun it") == 2
    assert "perhaps done twice" in Page(page.get(listed.links["9f3c-2"])).text


def test_a_command_lists_all_that_were_perhaps_handled_twice() -> None:
    """`rmq_parked show` was advised for one of four, and ended in "There is no record of P-11"."""
    made.consumer(seconds=600)
    for number in (1, 2):
        handled(f"9f3c-{number}", minutes=3 - number)
    told = run("rmq_parked", "list", "--handled-again")
    listed = run("rmq_parked", "list", "--handled-again", "--json").data

    given = "one that is gone had it, and may not have begun it"
    assert (told.code, told.err) == (0, "")
    assert [line[:3] for line in told.lines[1:]] == [
        ["9f3c-1", f"! perhaps twice: {given}", "payments.main"],
        ["9f3c-2", f"! perhaps twice: {given}", "payments.main"],
    ]
    assert [(one["name"], one["certain"], len(one["handled"])) for one in listed["items"]] == [
        ("9f3c-1", False, 1),
        ("9f3c-2", False, 1),
    ]


def test_a_message_is_named_by_its_first_key() -> None:
    """The line named the customers of the payments, and its link led to all messages of these."""
    made.consumer(seconds=600)
    tried = handled("9f3c-1", minutes=1)
    for value in ("PAY-1", "CUST-7"):
        AttemptName.objects.create(identity=tried.identity, value=value, folded=value.lower(), at=tried.started_at)

    assert told() == ["1 message was perhaps handled twice, 1 min ago: PAY-1."]


@pytest.mark.parametrize(("state", "said"), [(ItemState.PROCESSED, False), (ItemState.SKIPPED, True)])
def test_what_a_run_of_waiting_retries_has_sent_is_told_by_the_run_alone(state: ItemState, *, said: bool) -> None:
    """Once the run had taken its doubt back, as no consumer had died in it, the same doubt came up outside of runs."""
    made.consumer(seconds=600)
    tried = handled("9f3c-1", minutes=1)
    facts = {"by": "ann", "state": "finished", "total": 1, "retries_of": "payments.main"}
    run = RequeueRun.objects.create(created_at=tried.started_at, **facts)
    EarlyRetry.objects.create(run=run, identity=tried.identity, sent_at=tried.started_at, state=state)

    assert bool(told()) is said


def test_what_a_worker_gave_back_before_it_ended_in_good_order_is_no_finding() -> None:
    handled("9f3c-1", minutes=1)
    made.consumer(seconds=5)

    assert told() == []


@pytest.mark.parametrize(
    ("published", "ended", "said"),
    [(200, 300, False), (225, 228, False), (225, 220, True), (280, 300, True), (200, None, True), (None, 300, True)],
    ids=["long after", "its end was noticed late", "before it was noticed", "clocks differ", "not known", "no time"],
)
def test_what_was_published_after_the_only_lost_worker_had_ended_is_no_finding(
    published: int | None, ended: int | None, *, said: bool
) -> None:
    """After a worker was killed, each deployment asked for a look at the payments that it had given back."""

    def ago(seconds: int | None) -> datetime | None:
        return None if seconds is None else timezone.now() - timedelta(seconds=seconds)

    made.consumer(seconds=305, ended_at=ago(ended))
    made.tried_again("9f3c-1", at=timezone.now() - timedelta(seconds=60), verdict=ACK.name, published_at=ago(published))

    assert bool(told()) is said


ALL = ["9f3c-1", "9f3c-2", "9f3c-3"]


@pytest.mark.parametrize(
    ("let_go", "ended", "doubtful"),
    [
        ({"payments.main": []}, 295, []),
        ({"payments.main": ["9f3c-3"]}, 295, ["9f3c-3"]),
        ({"mails": []}, 295, ALL),
        (None, 295, ALL),
        ({"payments.main": ["9f3c-3"]}, 230, ALL),
        ({"payments.main": ["9f3c-3"]}, None, ALL),
    ],
    ids=["none left", "one begun", "of another", "flows", "seen to be gone later", "its end is not known"],
)
def test_what_a_pause_gave_back_before_a_worker_died_in_it_is_no_finding(
    let_go: dict[str, list[str]] | None, ended: float | None, doubtful: list[str]
) -> None:
    """The operator who had paused the queue was sent to the bank with 19 payments that were paid once."""
    ended_at = None if ended is None else timezone.now() - timedelta(seconds=ended)
    made.consumer(seconds=300, ended_at=ended_at, queues=["payments.main", "mails"], let_go=let_go)
    for name in ALL:
        handled(name, minutes=1)

    assert [re.findall(r"9f3c-\d", text) for text in told()] == [doubtful] * bool(doubtful)


def lost(*, seconds: float = 60, **fields: Any) -> ConsumerProcess:
    """A consumer that was killed, as another one noted ten seconds later."""
    ended = timezone.now() - timedelta(seconds=seconds - 10)
    return made.consumer(seconds=seconds, ended_at=ended, fault=IS_GONE, stopping=True, **fields)


def given_again(levels: Sequence[Level] = ()) -> list[str]:
    return [f"{one.text} {one.why}" for one in in_survey(survey(), Limits(), levels) if one.code is Code.GIVEN_AGAIN]


NOW = "1 message is being handled again: PAY-1."
WAITS = "1 message was in a handler when its consumer was heard of last, and may be handled again: PAY-1."
PAUSE = "The work may be done already, and that of others begun since: pause the queue until you know."


def test_what_a_killed_worker_had_begun_is_told_from_its_end_on_until_it_was_handled_again(admin_user: Any) -> None:
    """Its successor ran, and Live status was green for half a minute: then the payment had been made twice."""
    gone = lost(in_flight=[made.in_flight(seconds=70)])
    made.consumer(started_at=gone.beat_at + timedelta(seconds=9))
    heir = made.consumer(pid=12, started_at=gone.beat_at + timedelta(seconds=9))
    waits, page = given_again(), client_of(admin_user)
    shown, command = Page(page.get(STATUS)), run("rmq_status").out
    ConsumerProcess.objects.filter(pk=heir.pk).update(in_flight=[made.in_flight(seconds=5, again=True)])
    runs, then = given_again(), run("rmq_status").out
    ConsumerProcess.objects.filter(pk=heir.pk).update(in_flight=[])
    made.tried_again("9f3c-7", at=timezone.now() - timedelta(seconds=5), verdict=ACK.name)

    assert waits == [f"{WAITS} {PAUSE}"]
    assert waits[0] in shown.text
    assert shown.links["Open the queue payments.main"].endswith("/queuecontrol/?q=payments.main")
    assert "manage.py rmq_queue pause payments.main keeps what waits from being handled" in command
    assert runs == [f"{NOW} The work may be done already."]
    # Nothing of it waits that a pause could keep.
    assert ("--consumers shows where they are" in then, "rmq_queue pause" in then) == (True, False)
    assert given_again() == []
    [doubt] = told()
    assert re.fullmatch(r"1 message was perhaps handled twice, \d+ s ago: 9f3c-7\.", doubt)


def test_what_the_worker_that_was_lost_last_had_begun_is_named_first() -> None:
    """Four payments of two minutes before were named, which were done; the two in doubt were among "3 more"."""
    for number, seconds in ((1, 100), (2, 40)):
        lost(seconds=seconds, in_flight=[made.in_flight(message_id=f"9f3c-{number}", key=f"PAY-{number}", seconds=120)])
    made.consumer()

    assert "and may be handled again: PAY-2, PAY-1." in given_again()[0]


def test_what_a_killed_worker_had_begun_since_its_last_heartbeat_is_told_as_it_is_handled_again() -> None:
    lost(in_flight=[made.in_flight(message_id="9f3c-9", key="PAY-9", seconds=70)])
    again = [made.in_flight(seconds=3, again=True), made.in_flight(message_id="9f3c-2", key="PAY-2", seconds=5)]
    made.consumer(in_flight=again)
    [unknown] = given_again([level(ready=0)])
    ConsumerProcess.objects.filter(ended_at=None).update(waiting=1)
    [both] = given_again([level(ready=0)])

    perhaps = "1 message in a handler may have been begun by a lost consumer before: PAY-1."
    assert unknown == f"{perhaps} The work may be done already."
    assert both == f"{WAITS.replace('PAY-1', 'PAY-9')} {perhaps} {PAUSE}"


@pytest.mark.parametrize(("left", "doubtful"), [([], False), (["9f3c-2"], False), (["9f3c-7"], True)])
def test_what_a_pause_gave_back_before_the_kill_is_in_a_handler_for_the_first_time(
    left: list[str], *, doubtful: bool
) -> None:
    lost(let_go={"payments.main": left})
    made.consumer(in_flight=[made.in_flight(seconds=3, again=True)])

    assert bool(given_again()) is doubtful


def level(**fields: Any) -> Level:
    return Level(queue="payments.main", role=Role.WORK, consumers=1, **fields)


@pytest.mark.parametrize("ready", [0, 1])
def test_what_ended_between_the_last_heartbeat_and_the_kill_is_not_told_once_the_queue_is_empty(ready: int) -> None:
    lost(in_flight=[made.in_flight(seconds=70)])
    made.consumer()

    assert given_again([level(ready=ready)]) == [f"{WAITS} {PAUSE}"] * ready


@pytest.mark.parametrize(
    ("idle", "kept", "said"),
    [((20,), 0, False), ((20, 30), 0, False), ((20, None), 0, True), ((20, 90), 0, True), ((20,), 1, True)],
    ids=["idle since", "both", "one was not", "one only before", "something is in quarantine"],
)
def test_what_ended_before_the_kill_is_not_told_again_with_each_later_message(
    idle: tuple[int | None, ...], kept: int, *, said: bool
) -> None:
    """Payments that were paid and acknowledged a moment before a kill came back for an hour, whenever others waited."""
    lost(in_flight=[made.in_flight(seconds=70)])
    for ago in idle:
        at = {} if ago is None else {"payments.main": (timezone.now() - timedelta(seconds=ago)).isoformat()}
        made.consumer(idle=at, waiting=3)
    levels = (level(ready=5), Level(queue="payments.main.quarantine", role=Role.QUARANTINE, ready=kept, consumers=1))
    health = Health(survey=survey(), limits=Limits(), gauged=Gauged(levels=levels, api_set=True))

    assert [one.text for one in health.problems if one.code is Code.GIVEN_AGAIN] == [WAITS] * said


@pytest.mark.parametrize(
    ("facts", "said"),
    [({"ended_by": "ann"}, True), ({"ended_at": None, "fault": ""}, True), ({}, False)],
    ids=["an operator says so", "nobody saw its end", "its end was seen"],
)
def test_what_a_consumer_has_that_may_live_on_is_told_although_others_are_idle(
    facts: dict[str, Any], *, said: bool
) -> None:
    """Of one that only misses its database, or is cut off, the broker gives back later what it had."""
    gone = lost(in_flight=[made.in_flight(seconds=70)])
    ConsumerProcess.objects.filter(pk=gone.pk).update(stopping=False, **facts)
    made.consumer(idle={"payments.main": timezone.now().isoformat()})
    health = Health(survey=survey(), limits=Limits(), gauged=Gauged(levels=(level(ready=5),), api_set=True))

    assert any("PAY-1" in one.text for one in health.problems if one.code is Code.GIVEN_AGAIN) is said


@pytest.mark.parametrize(("idle", "said"), [(45, False), (None, True)], ids=["after it", "never"])
def test_one_that_was_lost_since_may_have_had_it_too(idle: int | None, *, said: bool) -> None:
    """With both killed, payments of minutes before were told with those that really waited."""
    lost(seconds=100, in_flight=[made.in_flight(message_id="9f3c-1", key="PAY-1", seconds=120)])
    at = {} if idle is None else {"payments.main": (timezone.now() - timedelta(seconds=idle)).isoformat()}
    lost(seconds=40, idle=at, in_flight=[made.in_flight(message_id="9f3c-2", key="PAY-2", seconds=42)])
    health = Health(survey=survey(), limits=Limits(), gauged=Gauged(levels=(level(ready=5),), api_set=True))
    [told] = [one.text for one in health.problems if one.code is Code.GIVEN_AGAIN]

    assert "PAY-2" in told
    assert ("PAY-1" in told) is said


@pytest.mark.parametrize(
    "changed",
    [
        {"published": timedelta()},
        {"again": False},
        {"queue": "mails"},
        {"handler": "posting"},
    ],
    ids=["published after its end", "first delivery", "of another queue", "once"],
)
def test_what_no_lost_worker_had_or_what_does_nothing_twice_is_not_told(changed: dict[str, Any]) -> None:
    @handler("postings", once=True, name="posting")
    def posting(payment: Delivery) -> None:
        """Nothing."""

    lost(seconds=200)
    # Not as the module is imported: in a long run that is before the worker was lost.
    times = {name: (timezone.now() - ago).isoformat() for name, ago in changed.items() if isinstance(ago, timedelta)}
    made.consumer(in_flight=[made.in_flight(**{"seconds": 5, "again": True, **changed, **times})])

    assert given_again() == []


def test_what_was_never_delivered_again_or_waits_behind_a_pause_is_not_told_here() -> None:
    lost(in_flight=[made.in_flight(seconds=70, auto_ack=True)])
    QueueControl.objects.create(queue="mails", since=timezone.now(), paused=True)
    lost(queues=["mails"], in_flight=[made.in_flight(seconds=70, queue="mails")])

    assert given_again() == []


@pytest.mark.parametrize(
    ("looked", "ready", "facts", "said"),
    [
        (0, 1, {}, True),
        (0, 1, {"seconds": 20, "stopping": True}, True),
        (5, 1, {}, False),
        (0, 0, {}, False),
        (0, 1, {"stopping": True}, False),
        (0, 1, {"queues": ["mails"]}, False),
    ],
    ids=["killed", "told to end, and killed", "begun since the look", "all done", "is ending", "of another queue"],
)
def test_what_the_last_consumers_had_begun_is_told_as_soon_as_the_broker_has_lost_them(
    looked: float, ready: int, facts: dict[str, Any], *, said: bool
) -> None:
    """Who started a consumer within 30 s, as the page asked for, made eight payments again without a warning."""
    made.consumer(**{"seconds": 3, "in_flight": [made.in_flight(seconds=30)], **facts})
    known = survey()
    unread = replace(level(ready=ready), consumers=0)
    gauged, at = Gauged(levels=(unread,), api_set=False), known.at - timedelta(seconds=looked)
    told = [one for one in Health(survey=known, gauged=gauged, looked_at=at).needs if one.code is Code.GIVEN_AGAIN]

    assert [f"{one.text} {one.why}" for one in told] == [f"{WAITS} {PAUSE}"] * said


def test_consumers_advises_a_pause_first_if_what_the_last_one_had_begun_waits(admin_user: Any) -> None:
    """Live status said "pause the queue", and the page that it leads to only how a consumer is started."""
    lost(in_flight=[made.in_flight(seconds=70)])
    page = client_of(admin_user)
    shown, command = Page(page.get(CONSUMERS)).text, run("rmq_status", "--consumers").out
    QueueControl.objects.create(queue="payments.main", since=timezone.now(), paused=True)
    paused = Page(page.get(CONSUMERS)).text

    assert f"! {WAITS} {PAUSE}" in shown
    assert shown.count("manage.py rmq_consume") == 1
    assert f"! {WAITS} {PAUSE}\n" in command
    assert WAITS not in paused


BEGUN = "1 message was in a handler when its consumer was lost, and may have been done: PAY-1."


@pytest.mark.parametrize("stop", [{"paused": True}, {"opened": True, "opened_at": timezone.now(), "cause": "BankDown"}])
def test_what_a_killed_worker_had_begun_is_told_before_its_stopped_queue_resumes(admin_user: Any, stop: Any) -> None:
    """Two payments that were made waited behind the pause, and only a fold on Consumers knew of them."""
    handler("payments.main", policy=RetryThenPark())(print)
    QueueControl.objects.create(queue="payments.main", since=timezone.now(), **stop)
    made.consumer(seconds=60, ended_at=timezone.now() - timedelta(seconds=50), in_flight=[made.in_flight(seconds=3)])
    page = client_of(admin_user)

    assert BEGUN in Page(page.get(STATUS)).text
    assert BEGUN in Page(page.get("/admin/rmq_retry/queuecontrol/")).text
    assert BEGUN in run("rmq_status").out


@pytest.mark.parametrize("became", ["handled", "parked", "given to a living one", "of another queue"])
def test_what_somebody_has_had_since_does_not_wait_in_the_stopped_queue(became: str) -> None:
    QueueControl.objects.create(queue="payments.main", since=timezone.now(), paused=True)
    entry = made.in_flight(queue="mail" if became == "of another queue" else "payments.main")
    made.consumer(seconds=0 if became == "given to a living one" else 60, in_flight=[entry])
    if became == "handled":
        made.tried_again("9f3c-7", at=timezone.now() - timedelta(seconds=40), verdict=ACK.name)
    elif became == "parked":
        made.message(message_id="9f3c-7", parked_at=timezone.now())

    assert "may have been done" not in run("rmq_status").out


@pytest.mark.parametrize(("since", "said"), [(90, True), (30, False)], ids=["it was at it before", "it began later"])
def test_what_a_cut_off_worker_was_at_when_it_died_later_is_a_finding(since: float, *, said: bool) -> None:
    """It lived when another one got the message, and could not tell any more how its own call had ended."""
    begun = (timezone.now() - timedelta(seconds=since)).isoformat()
    entry = {"queue": "payments.main", "message_id": "9f3c-1", "since": begun}
    made.consumer(seconds=20, ended_at=timezone.now() - timedelta(seconds=15), in_flight=[entry])
    handled("9f3c-1", minutes=1)

    assert bool(told()) is said


def test_what_a_worker_of_another_queue_had_is_no_finding() -> None:
    handled("9f3c-1", minutes=1)
    made.consumer(seconds=600, queues=["mail"])

    assert told() == []


def test_what_was_handled_before_a_worker_vanished_is_no_finding() -> None:
    handled("9f3c-1", minutes=11)
    made.consumer(seconds=600)

    assert told() == []


def test_what_two_workers_have_handled_needs_no_dead_one_and_is_certain(admin_user: Any) -> None:
    """One that was frozen was woken, and paid again: it was "perhaps" as if a bank had to be asked."""
    for minutes in (2, 1):
        handled("9f3c-1", minutes=minutes)
    page = client_of(admin_user)
    shown = Page(page.get(STATUS))
    listed = Page(page.get(shown.links["Show these messages"])).text

    assert told() == ["1 message was handled twice, the last time 1 min ago: 9f3c-1."]
    assert Code.DONE_TWICE.value.severity is Severity.ERROR
    assert "✕ handled twice" in listed
    assert listed.count("worker-4:12") == 2


def test_what_was_handled_and_came_again_as_its_ack_was_lost_was_handled_twice() -> None:
    """The first of the two is noted as its connection is lost: it came to nobody before."""
    for message_id, ago, again in (("9f3c-1", 90, False), ("9f3c-1", 30, True), ("9f3c-2", 90, False)):
        at = timezone.now() - timedelta(seconds=ago)
        made.tried_again(message_id, at=at, verdict=ACK.name, redelivered=again)

    assert told() == ["1 message was handled twice, the last time 29 s ago: 9f3c-1."]


def test_what_two_workers_have_handled_comes_first() -> None:
    """Twelve payments were made twice, and none of them was among the ten that the list showed."""
    made.consumer(seconds=600)
    for minutes in (5, 4):
        handled("9f3c-1", minutes=minutes)
    handled("9f3c-2", minutes=1)

    assert told() == [
        "1 message was handled twice, the last time 4 min ago: 9f3c-1.",
        "1 message was perhaps handled twice, 1 min ago: 9f3c-2.",
    ]


def test_what_the_lost_worker_had_begun_comes_before_what_it_had_waiting(admin_user: Any) -> None:
    """Two that were paid once were named first: who checked them at the bank called it a false alarm."""
    held = [made.in_flight(message_id=f"9f3c-{one}", queue="payments.main.quarantine") for one in (4, 5)]
    made.consumer(seconds=600, in_flight=held)
    for number in range(6):
        handled(f"9f3c-{number}", minutes=number + 1)
    [found] = [one for one in in_survey(survey(), Limits()) if one.code is Code.PERHAPS_TWICE]
    page = client_of(admin_user)
    listed = Page(page.get(Page(page.get(STATUS)).links["Show these messages"])).text

    named = "9f3c-5, 9f3c-4, 9f3c-3 and 3 more"
    assert found.text == f"6 messages were perhaps handled twice, the last 1 min ago: {named}."
    assert " 2 of them were in a handler when their consumer was heard of last: check these first. " in found.why
    assert listed.count("! begun by worker-3:4711, which is gone") == 2
    assert sorted(("9f3c-4", "9f3c-5", "9f3c-3"), key=listed.index) == ["9f3c-5", "9f3c-4", "9f3c-3"]


def test_each_lost_worker_that_had_begun_a_message_is_named(admin_user: Any) -> None:
    """In a crash loop a payment was made three times, and the second of the lost ones was dropped."""
    for ago in (500, 600):
        made.consumer(seconds=ago, pid=ago, in_flight=[made.in_flight(message_id="9f3c-1", seconds=ago + 1)])
    handled("9f3c-1", minutes=1)
    listed = Page(client_of(admin_user).get(f"{STATUS}handled_again/")).text
    told, data = (run("rmq_parked", "list", "--handled-again", *options) for options in ((), ("--json",)))

    assert "! begun by worker-3:600, worker-3:500, which are gone" in listed
    assert "! perhaps 3 times: worker-3:600, worker-3:500 had begun it" in told.out
    assert [one["process"] for one in data.data["items"][0]["begun"]] == ["worker-3:600", "worker-3:500"]


def test_a_successor_with_the_name_of_the_lost_worker_does_not_hide_what_that_had_begun(admin_user: Any) -> None:
    """In a container both were pid 1 of one host: the second payment was taken for the end of the first one."""
    name: dict[str, Any] = {"host": "worker-4", "pid": 12}
    held = [made.in_flight(message_id=f"9f3c-{one}", seconds=605) for one in (1, 2)]
    lost = made.consumer(seconds=600, in_flight=held, **name)
    made.consumer(seconds=5, started_at=timezone.now() - timedelta(seconds=500), **name)
    second, own = handled("9f3c-1", minutes=1), handled("9f3c-2", minutes=10)
    listed = Page(client_of(admin_user).get(f"{STATUS}handled_again/")).text

    assert "! begun by worker-4:12, which is gone" in listed
    assert all_begun(begun_by([lost]), [own.queue], own.message_id, [own]) == ()
    assert all_begun(begun_by([lost]), [own.queue], second.message_id, [second]) != ()


def test_another_worker_with_the_name_of_the_one_that_handled_it_may_have_had_it_too(admin_user: Any) -> None:
    made.consumer(seconds=600)
    made.consumers(2, host="worker-4", pid=12)
    handled("9f3c-1", minutes=1)
    listed = Page(client_of(admin_user).get(f"{STATUS}handled_again/")).text

    assert "! perhaps: a consumer that is gone had it, or worker-4:12, which runs" in listed


def test_a_worker_that_runs_is_named_and_not_said_to_be_gone(admin_user: Any) -> None:
    """It was cut off, paid, and ran on: the list said that one that is gone had the message."""
    made.consumer(seconds=600)
    made.consumer(pid=2035)
    # The one that handled it, one of another queue, and one that came later.
    made.consumer(host="worker-4", pid=12)
    made.consumer(pid=7, queues=["mail"])
    made.consumer(pid=8, started_at=timezone.now())
    handled("9f3c-1", minutes=1)
    listed = Page(client_of(admin_user).get(f"{STATUS}handled_again/")).text
    told = run("rmq_parked", "list", "--handled-again").out

    assert "! perhaps: a consumer that is gone had it, or worker-3:2035, which runs" in listed
    assert "! perhaps twice: one that is gone had it, or worker-3:2035, which still runs" in told


def test_all_that_the_finding_counts_are_listed(admin_user: Any) -> None:
    """The button led to a search for the first twenty."""
    made.consumer(seconds=6000)
    for number in range(30):
        handled(f"9f3c-{number}", minutes=number + 1)
    page = client_of(admin_user)
    shown = Page(page.get(STATUS))

    assert Page(page.get(shown.links["Show these messages"])).text.count("perhaps: a consumer") == 30


def test_the_keys_of_the_list_are_in_one_box_to_copy(admin_user: Any) -> None:
    """The list goes to the bank, and its keys were to be typed off row by row."""
    made.consumer(seconds=600)
    for number in range(3):
        handled(f"9f3c-{number}", minutes=number + 1)
    content = client_of(admin_user).get(f"{STATUS}handled_again/").content.decode()
    box = content.partition("Keys to copy")[2].partition("<pre")[2].partition("</pre>")[0]

    assert box.partition(">")[2].split() == ["9f3c-2", "9f3c-1", "9f3c-0"]


def test_a_list_without_such_messages_says_so(admin_user: Any) -> None:
    text = Page(client_of(admin_user).get(f"{STATUS}handled_again/")).text

    assert "No message was handled again in the last 24 hours." in text


def test_the_finding_ends_after_a_day() -> None:
    made.consumer(seconds=26 * 3600)
    handled("9f3c-1", hours=25)

    assert told() == []


def test_a_handler_that_does_nothing_twice_is_no_finding(admin_user: Any) -> None:
    @handler("payments.main", once=True, name="transfer")
    def transfer(payment: Delivery) -> None:
        """Nothing."""

    made.consumer(seconds=600)
    handled("9f3c-1", minutes=1)
    Attempt.objects.update(handler="transfer")
    listed = Page(client_of(admin_user).get(LIST, {"q": "9f3c-1"})).text

    assert told() == []
    assert "✓ done" in listed


def test_of_many_messages_those_that_came_again_first_are_named() -> None:
    """Of ten payments two were in hand as the worker was killed, and the first eight to be checked were others."""
    made.consumer(seconds=600)
    for number in range(6):
        handled(f"9f3c-{number}", minutes=number + 1)

    said = "6 messages were perhaps handled twice, the last 1 min ago: 9f3c-5, 9f3c-4, 9f3c-3 and 3 more."
    assert told() == [said]


def test_what_a_later_lost_worker_had_comes_before_what_an_earlier_one_had() -> None:
    made.consumer(seconds=600)
    handled("9f3c-1", minutes=5)
    made.consumer(pid=7, seconds=200)
    handled("9f3c-2", minutes=1)

    assert told() == ["2 messages were perhaps handled twice, the last 1 min ago: 9f3c-2, 9f3c-1."]


@pytest.mark.parametrize(
    ("threads", "lost", "batch", "said"),
    [
        ((2, 2), 1, None, "Their consumer handled at most 2 at once."),
        ((2, 1), 2, None, "Their consumers handled at most 3 at once."),
        ((8, 2), 1, None, ""),
        ((0, 2), 1, None, ""),
        ((2, 2), 1, Batch(2), "Their consumer handled at most 4 at once."),
        ((2, 2), 1, Batch(50), ""),
    ],
    ids=["one", "two", "as many threads", "not known", "batches", "large batches"],
)
def test_no_more_is_in_doubt_than_the_lost_worker_can_have_begun(
    threads: tuple[int, int], lost: int, batch: Batch | None, said: str
) -> None:
    """Thirty payments were to be checked at the bank, and a worker with two threads had begun two of them."""
    if batch is not None:
        handler("payments.main", policy=RetryThenPark(), batch=batch)(print)
    for number in range(lost):
        made.consumer(seconds=600, pid=number + 1, threads=threads[number])
    for number in range(6):
        handled(f"9f3c-{number}", minutes=number + 1)
    [found] = [one for one in in_survey(survey(), Limits()) if one.code is Code.PERHAPS_TWICE]

    assert found.why.partition("done twice. ")[2].partition("This stays")[0].strip() == said


@pytest.mark.parametrize(
    ("arrival", "policy", "again"),
    [
        (delivery(), PLAIN, False),
        (delivery(redelivered=True), PLAIN, True),
        (delivery(redelivered=True, headers={"x-delivery-count": 0, "x-acquired-count": 1}), PLAIN, False),
        (delivery(redelivered=True), RetryThenPark(attempts=2, via=NackRequeue()), False),
        (replace(delivery(), quarantined=True), PLAIN, True),
        (replace(delivery(), token=(SimpleNamespace(stale=True), 1)), PLAIN, True),
        (delivery(headers=RETRIED), PLAIN, True),
        # What an operator has requeued since was decided on.
        (delivery(headers={**RETRIED, "rmq-retry-ticket": "7.2:x"}), PLAIN, False),
        (delivery(redelivered=True, raw=b"\x20\x00\xff\xff\xff\xff"), PLAIN, False),
    ],
    ids=["first", "again", "given back", "requeue", "quarantine", "cut off", "retry", "requeued", "unreadable"],
)
def test_an_attempt_knows_whether_another_consumer_may_have_done_its_work(
    arrival: Delivery, policy: RetryThenPark, again: bool
) -> None:
    assert finished(ACK, arrival, handler=subscription(policy)).redelivered is again


@pytest.mark.parametrize(
    ("lost", "said"), [(True, "Requeue run {pk}: 46 messages were perhaps handled twice."), (False, "")]
)
def test_a_run_tells_what_was_perhaps_handled_twice_if_a_consumer_was_lost(
    admin_user: Any, *, lost: bool, said: str
) -> None:
    """Two of them were paid twice, and only the page of the run told. A deployment loses no consumer."""
    now = timezone.now()
    begun = now - timedelta(minutes=10)
    times = {"created_at": begun, "started_at": begun, "finished_at": now - timedelta(minutes=1)}
    run = RequeueRun.objects.create(**times, by="ann", state="finished", total=400, sent=400, perhaps_twice=46)
    made.consumer(seconds=300 if lost else 5)
    found = [one.text for one in in_survey(survey(), Limits()) if one.code is Code.RUN_PERHAPS_TWICE]
    shown = Page(client_of(admin_user).get(STATUS))

    assert found == ([said.format(pk=run.pk)] if lost else [])
    assert any(link.endswith("outcomes/?of=perhaps_twice") for link in shown.links.values()) is lost


@pytest.mark.parametrize("of_retries", [False, True], ids=["parked", "waiting retries"])
def test_the_finding_of_a_run_names_its_first_messages(*, of_retries: bool) -> None:
    """Outside of runs the payments were named; of a run a count, and the names two clicks away."""
    now = timezone.now()
    facts = {"by": "ann", "created_at": now, "finished_at": now, "state": "finished", "total": 5, "handled_twice": 4}
    run = RequeueRun.objects.create(**facts, retries_of="payments.main" if of_retries else "")
    for number, handled_times in enumerate((1, 2, 2, 3, 2)):
        name, part = f"PAY-{number}", {"run": run, "handled": handled_times, "sent_at": now}
        if of_retries:
            EarlyRetry.objects.create(**part, identity=name, shown=name, state=ItemState.PROCESSED)
        else:
            RequeueItem.objects.create(**part, message=made.message(business_key=name), place=number, revision=1)
    [found] = [one.text for one in in_survey(survey(), Limits()) if one.code is Code.HANDLED_TWICE]

    named = "PAY-3, PAY-1, PAY-2 and 1 more"
    assert found == f"Requeue run {run.pk}: at least 4 messages were handled twice: {named}."

"""Many who click at once, and drivers that are killed: never more than one live copy of a message, and none lost."""

import os
import signal
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connections, transaction
from django.db.backends.utils import CursorWrapper
from django.db.models import F
from django.utils import timezone
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry import Delivery, handler
from django_rmq_retry.models import (
    Action,
    AuditHead,
    ItemState,
    MessageVersion,
    OperatorAction,
    ParkedMessage,
    RequeueItem,
    RequeueRun,
    RunState,
    RunWait,
    State,
)
from django_rmq_retry.models.parked import OPEN
from django_rmq_retry.parked.audit import acts_on, verify
from django_rmq_retry.parked.copies import contents
from django_rmq_retry.parked.edit import Proposal, propose
from django_rmq_retry.parked.edit import store as store_edit
from django_rmq_retry.parked.edit_many import PathChange, store_many
from django_rmq_retry.parked.edited_keys import KeyTaken
from django_rmq_retry.parked.key_lists import list_filter, look_up, store
from django_rmq_retry.parked.requeue import requeue
from django_rmq_retry.parked.run_steering import resume_run
from django_rmq_retry.parked.selection import LISTED, Selection
from tests.operators.dying import CHANGE, DISCARDING_STEPS, EDITING_STEPS, LETTING_GO_STEPS, LISTING_STEPS, PART, STEPS
from tests.operators.invariants import check_books, check_counters
from tests.operators.made import (
    ANN,
    discard_messages,
    drive_run,
    list_in_parts,
    list_part_of,
    record,
    requeue_run,
    stop_run,
)
from tests.operators.racing import PEOPLE, copies, together
from tests.parked.made import copy_failed
from tests.tooling import processes
from tests.tooling.filled import Own
from tests.tooling.marks import NIGHTLY_ON_SQLITE, nightly_but
from tests.tooling.owned import routed
from tests.tooling.waiting import wait_until

pytestmark = [pytest.mark.database, pytest.mark.usefixtures("own"), *NIGHTLY_ON_SQLITE]
ROUNDS = 5
ENDS_ONCE = ("at the end", 2)
WAITS_FOR_US = "SELECT count(*) FROM pg_locks WHERE NOT granted AND transactionid = pg_current_xact_id()::xid"


@pytest.fixture
def own(own_database: Own, settings: Any) -> Own:
    """Threads and processes of a test work on one database, whichever it is."""
    routed(settings)
    return own_database


def test_many_operators_who_requeue_one_message_make_one_copy(wired: BlockingChannel) -> None:
    one = record()
    runs = together(lambda number: requeue([one.pk], by=f"person {number}"))
    sent = [run for run in runs if isinstance(run, RequeueRun) and run.sent]

    assert (len(runs), len(sent), copies(wired)) == (PEOPLE, 1, {one.pk: 1})
    assert ParkedMessage.objects.get().cycle == 2
    check_books()
    assert OperatorAction.objects.count() == PEOPLE


def test_many_drivers_of_one_run_send_each_message_once(wired: BlockingChannel) -> None:
    messages = [record() for _ in range(40)]
    run = requeue_run([one.pk for one in messages], rate=1000, stop_at=None)
    together(lambda number: drive_run(run, f"driver {number}", for_seconds=1.0))
    drive_run(run, "the last")

    assert copies(wired) == {one.pk: 1 for one in messages}
    check_counters()


def scalar(cursor: CursorWrapper, query: str) -> int:
    cursor.execute(query)
    return int(cursor.fetchone()[0])


def test_a_discard_that_waits_for_the_audit_log_lets_a_requeue_run_commit() -> None:
    if connections["own"].vendor != "postgresql":
        pytest.skip("only PostgreSQL checks foreign keys at the commit")
    one = record()
    discard_messages(Selection.of_ids([record().pk]))  # makes the row that each action of an operator locks

    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic(using="own"), connections["own"].cursor() as cursor:
            AuditHead.objects.using("own").update(number=F("number"))
            waiting = pool.submit(together, lambda _number: discard_messages(Selection.of_ids([one.pk])), 1)
            wait_until(lambda: scalar(cursor, WAITS_FOR_US) > 0, 20, what="the discard waits for the audit log")
            # The lock that PostgreSQL takes for a foreign key of an item of a run.
            cursor.execute("SELECT id FROM rmq_retry_parkedmessage WHERE id = %s FOR KEY SHARE NOWAIT", [one.pk])
            found = cursor.fetchall()
        waiting.result(20)

    assert found == [(one.pk,)]
    assert ParkedMessage.objects.get(pk=one.pk).state == State.DISCARDED


def test_a_message_is_either_requeued_or_discarded_but_not_both(wired: BlockingChannel) -> None:
    messages = [record() for _ in range(10)]
    selection = Selection.of_ids([one.pk for one in messages])

    def act(number: int) -> object:
        if number % 2:
            return discard_messages(selection)
        return requeue([one.pk for one in messages], by="bob")

    together(act)
    found = copies(wired)
    requeued = set(ParkedMessage.objects.filter(state=State.REQUEUED).values_list("pk", flat=True))
    discarded = set(ParkedMessage.objects.filter(state=State.DISCARDED).values_list("pk", flat=True))
    acts = OperatorAction.objects.filter(action=Action.DISCARD)
    told = {one.pk for one in messages if acts.filter(acts_on([one.pk])).exists()}

    assert found == dict.fromkeys(requeued, 1)
    assert len(requeued) + len(discarded) == 10
    assert told == discarded
    check_books()


def killed(own: Own, broker_url: str, run: RequeueRun, *words: str) -> datetime:
    """A process that drives a run dies at a step, and its lease has run out at that time."""
    command = [sys.executable, "-m", "tests.operators.dying", str(run.pk), *words]
    ended = processes.run(command, env={**os.environ, **own.environment, "RMQ_URL": broker_url})
    assert ended.returncode == -signal.SIGKILL
    past = timezone.now() - timedelta(seconds=1)
    RequeueRun.objects.update(leased_until=past)
    return past


@pytest.mark.parametrize(
    ("step", "nth"),
    [
        *((step, 1) for step in STEPS),
        *(pytest.param(step, 2, marks=pytest.mark.nightly) for step in STEPS if (step, 2) != ENDS_ONCE),
    ],
)
def test_a_run_resumes_after_its_driver_is_killed(
    own: Own, wired: BlockingChannel, broker_url: str, step: str, nth: int
) -> None:
    messages = [record() for _ in range(8)]
    run = requeue_run([one.pk for one in messages], rate=100)
    past = killed(own, broker_url, run, "sending", step, str(nth))
    ParkedMessage.objects.filter(state=State.REQUEUEING).update(claimed_until=past)
    run = drive_run(run, "heir")
    found = copies(wired)

    assert set(found.values()) <= {1}
    for message in ParkedMessage.objects.all():
        if message.pk in found:
            assert message.state == State.REQUEUED or message.unconfirmed
        else:
            assert message.state in OPEN
            assert message.unconfirmed
    states = Counter(RequeueItem.objects.values_list("state", flat=True))
    assert (run.sent, run.unconfirmed) == (states["sent"], states["unconfirmed"])
    assert run.sent + run.unconfirmed == 8
    assert run.state in (RunState.WAITING, RunState.FINISHED)
    check_counters()


@pytest.mark.parametrize("step", nightly_but([*STEPS][1:3], [step for step in STEPS if (step, 2) != ENDS_ONCE]))
def test_a_driver_that_is_killed_with_another_canary_sends_no_second_one(
    own: Own, wired: BlockingChannel, broker_url: str, step: str
) -> None:
    run = requeue_run([record().pk for _ in range(4)], rate=100, canary=True)
    wait_until(lambda: drive_run(run, for_seconds=0.5).sent == 1, what="the canary is sent")
    first = run.items.get(place=1)
    copy_failed(first.message_id, first.cycle)
    assert drive_run(run).wait == RunWait.CANARY_FAILED
    resume_run(run.pk, ANN, canary=True)
    # The driver that paused it may drive it again for some seconds more.
    RequeueRun.objects.update(leased_until=timezone.now() - timedelta(seconds=1))
    past = killed(own, broker_url, run, "sending", step, "1")
    unfinished = run.items.filter(state="claimed").exists()
    drive_run(run, "heir", for_seconds=1)
    held = set(copies(wired))
    assert len(held) in ((1, 2) if unfinished else (2,))
    ParkedMessage.objects.filter(state=State.REQUEUEING).update(claimed_until=past)
    run = drive_run(run, "second heir", for_seconds=1)

    assert not copies(wired)
    assert run.wait == (RunWait.NOT_CONFIRMED if unfinished else RunWait.CANARY_WAITS)
    assert run.items.filter(state="pending").count() == 2
    check_counters()


@pytest.mark.parametrize("step", DISCARDING_STEPS)
def test_a_discard_by_a_list_that_is_killed_midway_is_told_for_exactly_the_discarded(
    own: Own, broker_url: str, step: str
) -> None:
    messages = [record(key=f"PAY-{number}") for number in range(8)]
    keys = [one.business_key for one in messages]
    chosen = list_filter(store(keys, ANN, look_up(keys)))
    command = [sys.executable, "-m", "tests.operators.dying", str(chosen["list"]), "discarding", step, "2"]
    ended = processes.run(command, env={**os.environ, **own.environment, "RMQ_URL": broker_url})
    discarded = set(ParkedMessage.objects.filter(state=State.DISCARDED).values_list("pk", flat=True))
    told = {one.pk for one in messages if OperatorAction.objects.filter(acts_on([one.pk])).exists()}
    again = discard_messages(Selection.of_filter({LISTED: chosen, "state": list(OPEN)}), category="duplicate")

    assert ended.returncode == -signal.SIGKILL
    assert len(discarded) == (6 if step == "after a slice" else 3)
    assert told == discarded
    assert again.changed == 8 - len(discarded)
    assert list(verify()) == []
    check_counters()


@pytest.mark.parametrize("step", EDITING_STEPS)
def test_an_edit_of_many_that_is_killed_has_edited_all_and_said_so_or_none(
    own: Own, broker_url: str, settings: Any, step: str
) -> None:
    settings.RMQ_RETRY = {"URL": broker_url, "OPERATORS": {"EDITABLE": {"*": True}}}
    messages = [record(body=f'{{"amount": "8,5{number}"}}'.encode()) for number in range(4)]
    command = [sys.executable, "-m", "tests.operators.dying", "0", "editing", step, "1"]
    ended = processes.run(command, env={**os.environ, **own.environment, "RMQ_URL": broker_url})
    edited = ParkedMessage.objects.filter(version=2).count()
    written = MessageVersion.objects.count(), OperatorAction.objects.filter(acts_on([messages[0].pk])).count()
    if not edited:
        rows = ParkedMessage.objects.values_list("pk", "revision")
        store_many(PathChange(**CHANGE), ANN, revisions=dict(rows), reason="comma")
    bodies = [contents(one).body for one in ParkedMessage.objects.order_by("pk")]

    assert ended.returncode == -signal.SIGKILL
    assert (edited, written) == ((4, (4, 1)) if step == "after the commit" else (0, (0, 0)))
    assert bodies == [f'{{"amount": 8.5{number}}}'.encode() for number in range(4)]
    assert set(ParkedMessage.objects.values_list("state", "version", "revision")) == {("parked", 2, 2)}
    check_books()


@pytest.fixture
def in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of a few messages are as large as others of many thousands."""
    list_in_parts(monkeypatch, PART, at_once=0, patience=-1.0)


def large(count: int = 8) -> RequeueRun:
    for _ in range(count):
        record()
    # A process that dies knows no handlers.
    return requeue_run(Selection.of_filter({"state": ["parked"]}), rate=1000, include=["unhandled"])


@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize(
    "nth", [1, pytest.param(2, marks=pytest.mark.nightly), pytest.param(3, marks=pytest.mark.nightly)]
)
@pytest.mark.parametrize("step", LISTING_STEPS)
def test_a_driver_killed_while_it_lists_omits_and_doubles_nothing(
    own: Own, wired: BlockingChannel, broker_url: str, step: str, nth: int
) -> None:
    run = large()
    killed(own, broker_url, run, "listing", step, str(nth))
    later = record()
    run = drive_run(run, "heir")

    assert copies(wired) == dict.fromkeys(ParkedMessage.objects.exclude(pk=later.pk).values_list("pk", flat=True), 1)
    assert list(run.items.order_by("place").values_list("place", flat=True)) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert (run.total, run.sent, run.skipped, run.wait) == (8, 8, 0, "")
    check_counters()


@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize("nth", [1, pytest.param(2, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("step", LETTING_GO_STEPS)
def test_a_driver_killed_while_it_skips_leaves_the_rest_to_the_next(
    own: Own, wired: BlockingChannel, broker_url: str, step: str, nth: int
) -> None:
    run = large(11)
    while RequeueRun.objects.get(pk=run.pk).listing:
        RequeueRun.objects.filter(pk=run.pk).update(driver="lister")
        list_part_of(run, "lister")
    stop_run(run, reason="wrong ones")
    killed(own, broker_url, run, "letting go", step, str(nth))
    run = drive_run(run, "heir", outcomes=True)

    assert (run.state, run.total, run.skipped, run.sent) == (RunState.STOPPED, 11, 11, 0)
    assert run.finished_at is not None
    assert Counter(run.items.values_list("state", flat=True)) == {ItemState.SKIPPED: 11}
    check_books()
    assert copies(wired) == {}


@pytest.mark.usefixtures("in_parts")
def test_two_operators_who_start_the_same_large_run_send_each_message_once(wired: BlockingChannel) -> None:
    messages = [record() for _ in range(20)]
    selection = Selection.of_filter({"state": ["parked"]})

    def act(number: int) -> object:
        return drive_run(requeue_run(selection, rate=1000), f"driver {number}", for_seconds=20)

    together(act, 2)

    assert copies(wired) == {one.pk: 1 for one in messages}
    assert sum(RequeueRun.objects.values_list("sent", flat=True)) == 20
    check_books()


@pytest.mark.usefixtures("in_parts")
def test_several_listers_of_one_run_list_each_message_once() -> None:
    run = large(30)
    RequeueRun.objects.filter(pk=run.pk).update(driver="each")

    def act(_number: int) -> None:
        for _ in range(6):
            list_part_of(run, "each")

    together(act, 3)
    run = RequeueRun.objects.get(pk=run.pk)

    assert sorted(run.items.values_list("place", flat=True)) == list(range(1, 31))
    assert (run.total, run.listing) == (30, False)


@pytest.mark.usefixtures("in_parts")
def test_a_stopped_run_sends_nothing_more(wired: BlockingChannel) -> None:
    run = large(30)

    def act(number: int) -> object:
        return stop_run(run) if number else drive_run(run, "driver", for_seconds=20)

    together(act, 2)
    run = drive_run(run, "the last", outcomes=True)
    found = copies(wired)

    assert set(found.values()) <= {1}
    assert (run.state, run.sent + run.skipped, run.sent) == (RunState.STOPPED, run.total, sum(found.values()))
    assert run.items.filter(state__in=[ItemState.PENDING, ItemState.CLAIMED]).count() == 0
    check_books()


def test_two_edits_to_the_same_new_key_in_one_instant_tell_one_operator(settings: Any) -> None:
    """Each edits another message, and no message has the key yet: without turns, both would be stored."""
    settings.RMQ_RETRY = {**settings.RMQ_RETRY, "OPERATORS": {"EDITABLE": {"*": True}}}

    @handler("payments.book", keys=lambda message: [message.data["reference"]])
    def book(message: Delivery) -> None:
        """Nothing."""

    for attempt in range(ROUNDS):
        key = f"PAY-{attempt}"
        rows = [payment(f"{key}-{number}") for number in range(PEOPLE)]
        edits = [propose(row, text=f'{{"reference": "{key}"}}') for row in rows]

        def edit(number: int, rows: list[ParkedMessage] = rows, edits: list[Proposal] = edits) -> object:
            try:
                return store_edit(rows[number].pk, ANN, edits[number], version=1, reason="typing error")
            except KeyTaken as taken:
                return taken

        done = together(edit)

        assert Counter(type(one) for one in done) == {MessageVersion: 1, KeyTaken: PEOPLE - 1}
        assert Selection.of_filter({"key": key}).count == 1


def payment(reference: str) -> ParkedMessage:
    body = f'{{"reference": "{reference}"}}'.encode()
    return record(queue="payments.book", content_type="application/json", body=body, key=reference)

"""A host whose clock is wrong: what the database keeps, delays and deletes by time goes by the database's clock."""

import logging
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection, transaction
from django.db.models import Model
from django.test import Client
from django.utils import timezone

from django_rmq_retry import Delivery, Fixed, Ladder, Message, Queue, RetryThenPark, database_clock, handler
from django_rmq_retry.handlers import registry
from django_rmq_retry.handlers.call import OnceState
from django_rmq_retry.health.facts import survey
from django_rmq_retry.health.problems import Limits, in_survey
from django_rmq_retry.health.rules import Severity
from django_rmq_retry.inbox.once import once
from django_rmq_retry.inbox.retention import EntryRetention
from django_rmq_retry.models import (
    Attempt,
    Declared,
    ErrorGroup,
    InboxEntry,
    OutboxMessage,
    ParkedMessage,
    ParkedMinute,
    QueueControl,
    RequeueRun,
    RunState,
    State,
)
from django_rmq_retry.parked import queue_pauses, retention
from django_rmq_retry.parked.findings import report
from django_rmq_retry.parked.groups import minute_of, parked_lately
from django_rmq_retry.parked.operators import Actor, Refused
from django_rmq_retry.parked.retention import purge, purge_audit
from django_rmq_retry.parked.selection import Selection
from django_rmq_retry.publishing import due_rows, outbox
from django_rmq_retry.testing import isolated_handlers
from tests.admin.looking import press
from tests.commands.running import run
from tests.consumer.assembly import consumer_of
from tests.handlers.factories import arrived, delivery
from tests.parked.arrivals import store
from tests.parked.made import parked
from tests.tooling.clocks import DAY, YEAR, shifted
from tests.tooling.waiting import wait_until

pytestmark = [pytest.mark.database, pytest.mark.django_db]
# Half a minute more than is said: a span is cut, and the two clocks are not read at once.
WRONG = [8 * YEAR + 30, -300 * DAY - 30, 3630.0, -3630.0]
FARTHEST = WRONG[:2]
SAID = dict(zip(WRONG, ("2920 d ahead of", "300 d behind", "1 h ahead of", "1 h behind"), strict=True))
UNTIL = "Nothing is deleted by age until they agree. Synchronize both by NTP."
REFUSED = "Nothing is deleted by age until they agree: synchronize both by NTP."
NEAR = timedelta(seconds=30)


@pytest.fixture
def own_clock() -> None:
    if connection.vendor == "sqlite":
        pytest.skip("SQLite has the clock of its host")


@pytest.fixture
def right() -> datetime:
    """The time before the host's clock goes wrong."""
    return timezone.now()


@pytest.fixture
def handled() -> Iterator[list[str]]:
    """The ids of what the handler has run for."""
    ran: list[str] = []
    with isolated_handlers():

        @handler(Queue("payments"), name="book", once=True)
        def book(message: Delivery) -> None:
            ran.append(message.id or "")

        yield ran


def handle(name: str) -> None:
    once(registry.subscription("book"), delivery(message_id=name, queue="payments"), OnceState())


@pytest.mark.usefixtures("own_clock")
@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize(("zones", "zone"), [(True, "UTC"), (True, "Asia/Kathmandu"), (False, "Asia/Kathmandu")])
def test_the_time_comes_from_the_database_in_any_time_zone(
    wrong: float, zones: bool, zone: str, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.USE_TZ, settings.TIME_ZONE = zones, zone
    before = timezone.now()
    shifted(monkeypatch, wrong)

    found = database_clock.now("default")

    assert abs(found - before) < NEAR
    assert abs(database_clock.ahead("default") + timedelta(seconds=wrong)) < NEAR


@pytest.mark.usefixtures("own_clock")
def test_a_jumping_host_clock_does_not_change_the_time(right: datetime, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for wrong in (0.0, 8 * YEAR, -8 * YEAR, 0.0):
        shifted(monkeypatch, wrong)
        found += [database_clock.now("default"), database_clock.reckoned("default")]

    assert [abs(at - right) < NEAR for at in found] == [True] * 8
    # A reading is right to half of its question, and none is kept that took longer than that.
    assert all(
        later - earlier > -timedelta(seconds=database_clock.SLOWEST_READING_SECONDS)
        for earlier, later in pairwise(found)
    )


class Slow:
    """A connection whose answer, the time halfway to it, takes so many seconds by the steady clock."""

    alias, vendor, wrap_database_errors = "slow", "postgresql", nullcontext()

    def __init__(self, monkeypatch: pytest.MonkeyPatch, took: float) -> None:
        self.connection, self.took, self.at = self, took, 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.at)
        monkeypatch.setattr(time, "time", lambda: self.at)

    def ensure_connection(self) -> None: ...

    def cursor(self) -> Any:
        return nullcontext(self)

    def execute(self, _: str) -> None:
        self.answer = 5000.0 + self.at + self.took / 2

    def fetchone(self) -> tuple[float]:
        self.at += self.took
        return (self.answer,)


def test_a_slow_database_answer_does_not_set_the_clock_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_clock, "_readings", {})
    slow: Any = Slow(monkeypatch, 0.4)
    database_clock._fresh(slow)
    assert database_clock.epoch("slow") == pytest.approx(5000 + slow.at)
    kept = database_clock._readings["slow"]

    slow.took = 3.0
    slow.at += database_clock.READING_SECONDS
    assert database_clock._fresh(slow) is kept
    assert database_clock._readings == {"slow": kept}

    slow.took = 0.1
    assert database_clock._fresh(slow) is database_clock._readings["slow"] is not kept


@pytest.mark.usefixtures("own_clock")
def test_the_time_advances_inside_a_transaction() -> None:
    begun = time.monotonic()
    with transaction.atomic():
        first = database_clock.ahead("default")
        wait_until(lambda: time.monotonic() - begun > 0.3, what="the transaction is older than its first question")
        second = database_clock.ahead("default")

    assert abs(second - first) < timedelta(seconds=0.2)


@pytest.mark.usefixtures("own_clock")
@pytest.mark.parametrize("wrong", FARTHEST)
def test_an_inbox_entry_has_the_right_age_despite_a_wrong_host_clock(
    wrong: float, right: datetime, handled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shifted(monkeypatch, wrong)
    handle("m")
    monkeypatch.undo()
    EntryRetention()()

    assert handled == ["m"]
    assert [abs(at - right) < NEAR for at in InboxEntry.objects.values_list("handled_at", flat=True)] == [True]


@pytest.mark.usefixtures("own_clock", "handled")
@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_host_clock_deletes_no_inbox_entry_and_is_logged_once(
    wrong: float, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "django_rmq_retry")
    handle("m")
    old = timezone.now() - timedelta(days=500)
    InboxEntry.objects.create(key=uuid4(), handler="book", name="old", digest=uuid4(), handled_at=old)
    retention = EntryRetention()
    shifted(monkeypatch, wrong)
    assert [retention(), retention()] == [False, False]
    names = sorted(InboxEntry.objects.values_list("name", flat=True))
    monkeypatch.undo()
    retention()

    assert (names, list(InboxEntry.objects.values_list("name", flat=True))) == (["m", "old"], ["m"])
    said = [record.getMessage() for record in caplog.records if getattr(record, "event", "") == "clocks"]
    assert said == [
        f"The clock of this host is {SAID[wrong]} the clock of database 'default'. {UNTIL}",
        "The clocks of this host and of database 'default' agree again",
    ]


@pytest.mark.usefixtures("own_clock")
def test_a_wrong_host_clock_deletes_no_record_and_no_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    now = timezone.now()
    parked(message_id="m", state=State.PROCESSED, resolved_at=now)
    Attempt.objects.create(identity="n", queue="q", number=1, started_at=now, seconds=0.1, verdict="retry", pid=1)
    shifted(monkeypatch, 8 * YEAR + 30)

    assert retention.delete_old() is False
    assert (ParkedMessage.objects.count(), Attempt.objects.count()) == (1, 1)


@pytest.mark.usefixtures("own_clock")
@pytest.mark.parametrize("dry", [True, False])
def test_purge_is_refused_on_a_host_with_a_wrong_clock(dry: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    parked(message_id="m", state=State.PROCESSED, resolved_at=timezone.now())
    shifted(monkeypatch, 8 * YEAR + 30)
    said = f"The clock of this host differs from the clock of the database by 2920 d. {REFUSED}"

    for purges in (purge, purge_audit):
        with pytest.raises(Refused) as found:
            purges(Actor.of_shell(), older_than=timedelta(days=1), dry=dry)
        assert str(found.value) == said
    assert ParkedMessage.objects.count() == 1


@pytest.mark.usefixtures("own_clock")
@pytest.mark.parametrize("wrong", FARTHEST)
def test_an_outbox_row_is_due_at_once_despite_a_wrong_host_clock(
    wrong: float, right: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    shifted(monkeypatch, wrong)
    outbox.writer.keep([Message(body=b"{}", routing_key="payments")], using="default")
    written = OutboxMessage.objects.get()
    assert abs(written.created_at - right) < NEAR
    assert abs(written.due_at - right) < timedelta(minutes=2)
    monkeypatch.undo()
    # Two readings of the database's clock may differ by the duration of a query.
    OutboxMessage.objects.update(due_at=written.created_at - timedelta(seconds=database_clock.SLOWEST_READING_SECONDS))
    shifted(monkeypatch, -wrong)

    assert due_rows.waiting("default")


@pytest.mark.usefixtures("own_clock")
@pytest.mark.parametrize(("wrong", "word"), [(240.0, ""), (3630.0, "1 h ahead of"), (-300 * DAY - 30, "300 d behind")])
def test_a_clock_difference_is_a_status_problem(
    wrong: float, word: str, monkeypatch: pytest.MonkeyPatch, admin_client: Client
) -> None:
    shifted(monkeypatch, wrong)
    found = survey()
    judged = in_survey(found, Limits())
    problems = [one.line for one in judged if one.severity is Severity.ERROR]
    page = admin_client.get("/admin/rmq_retry/livestatus/").content.decode()

    said = f"clocks: The clock of this host is {word} the clock of database 'default'. Synchronize both by NTP."
    assert problems == ([said] if word else [])
    assert ("✕</span> The clock of this host is" in page) == bool(word)
    assert abs(found.apart + timedelta(seconds=wrong)) < NEAR


@pytest.fixture
def unrecorded(settings: Any) -> None:
    """No attempt is written: another thread would do that, outside of the test's transaction."""
    settings.RMQ_RETRY = {**settings.RMQ_RETRY, "RECORDS": False}


def tried(arrival: Delivery) -> Message:
    """The copy that a failed attempt makes of its message, on a thread like a consumer's."""
    consumer = consumer_of(registry.work_queues()).consumer
    with ThreadPoolExecutor(1) as pool:
        copy = pool.submit(consumer._pipeline.attempt, arrival).result().copy
    assert copy is not None
    return copy


@pytest.mark.usefixtures("own_clock", "unrecorded")
@pytest.mark.parametrize("wrong", FARTHEST)
@pytest.mark.parametrize("state", [State.DISCARDED, State.PROCESSED])
def test_a_message_parked_after_its_resolution_reopens_despite_a_wrong_clock(
    wrong: float, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    with isolated_handlers():

        @handler(Queue("payments"), name="charge", policy=RetryThenPark(attempts=1))
        def charge(_: Delivery) -> None:
            raise ValueError

        store(arrived(tried(delivery(message_id="m")), queue="payments.parked"))
        # A stamp is cut to whole milliseconds, so one that was made just after it could seem to be earlier.
        resolved_at = database_clock.now("default") - NEAR
        ParkedMessage.objects.update(state=state, resolved_at=resolved_at, resolution="done")
        ErrorGroup.objects.update(parked=0, **{state.value: 1})
        shifted(monkeypatch, wrong)
        store(arrived(tried(delivery(message_id="m")), queue="payments.parked"))

    record = ParkedMessage.objects.get()
    assert (record.state, record.copies) == (State.PARKED, 2)
    assert abs(record.parked_at - database_clock.now("default")) < NEAR


@pytest.mark.usefixtures("own_clock", "unrecorded")
@pytest.mark.parametrize("wrong", FARTHEST)
def test_a_retry_budget_is_kept_between_hosts_with_different_clocks(
    wrong: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    database_clock.now("default")
    with isolated_handlers():
        policy = RetryThenPark(attempts=None, backoff=Fixed(1), budget=600, via=Ladder())

        @handler(Queue("payments"), name="charge", policy=policy)
        def charge(_: Delivery) -> None:
            raise ValueError

        copy = tried(delivery(message_id="m"))
        shifted(monkeypatch, wrong)
        again = tried(arrived(copy, queue="payments"))
        monkeypatch.undo()
        last = tried(arrived(again, queue="payments"))

    assert [one.routing_key for one in (copy, again, last)] == ["payments.retry.1s"] * 3


class Strict:
    """A router that refuses what it does not know."""

    def db_for_write(self, model: type[Model], **_: object) -> str:
        raise LookupError(model)


@pytest.mark.usefixtures("unrecorded")
def test_a_raising_database_router_does_not_prevent_a_retry(settings: Any) -> None:
    settings.DATABASE_ROUTERS = [Strict()]
    with isolated_handlers():

        @handler(Queue("payments"), name="charge", policy=RetryThenPark(attempts=2, backoff=Fixed(1), budget=600))
        def charge(_: Delivery) -> None:
            raise ValueError

        assert tried(delivery(message_id="m")).routing_key == "payments.retry.1s"


@pytest.mark.usefixtures("own_clock")
@pytest.mark.parametrize("wrong", FARTHEST)
def test_the_requeue_age_limit_uses_the_database_clock(
    wrong: float, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.RMQ_RETRY = {"URL": "amqp://127.0.0.1/", "OPERATORS": {"REQUEUE_MAX_AGE": DAY}}
    now = timezone.now()
    for name, age in (("new", 600), ("old", 2 * DAY)):
        parked(message_id=name, published_at=now - timedelta(seconds=age))
    shifted(monkeypatch, wrong)
    found = {one.name: one.count for one in report(Selection.of_filter({"state": ["parked"]})).findings}

    assert found["late"] == 1


@pytest.mark.usefixtures("own_clock")
@pytest.mark.parametrize("wrong", WRONG[1:3])
def test_the_page_of_a_run_measures_its_pace_by_the_database_clock(
    wrong: float, right: datetime, admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    since = right - timedelta(seconds=1000)
    times = dict.fromkeys(("created_at", "started_at", "paced_at"), since)
    lasting = {"beat_at": right, "leased_until": right + timedelta(minutes=5)}
    run = RequeueRun.objects.create(**times, **lasting, total=12013, sent=10000, rate=50)
    shifted(monkeypatch, wrong)
    database_clock.now("default")
    answer = admin_client.get(f"/admin/rmq_retry/requeuerun/{run.pk}/change/")

    assert "measured: about" in answer.content.decode()
    assert "Nothing has been sent for" not in answer.content.decode()


@pytest.mark.usefixtures("own_clock")
@pytest.mark.parametrize("wrong", FARTHEST)
def test_the_first_declaration_time_uses_the_database_clock(
    wrong: float, right: datetime, broker_url: str, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.RMQ_RETRY = {"URL": broker_url}
    shifted(monkeypatch, wrong)
    with isolated_handlers():
        handler(Queue("payments"), name="charge")(lambda _: None)
        assert run("rmq_declare").code == 0

    kept = [at for times in Declared.objects.values_list("first_at", "last_at") for at in times]
    assert len(kept) > 2
    assert max(abs(at - right) for at in kept) < NEAR


def test_on_sqlite_the_database_clock_is_the_host_clock(right: datetime, monkeypatch: pytest.MonkeyPatch) -> None:
    if connection.vendor != "sqlite":
        pytest.skip("others have a clock of their own")
    shifted(monkeypatch, DAY)

    assert abs(database_clock.now("default") - right - timedelta(days=1)) < NEAR
    assert database_clock.ahead("default") == timedelta()
    assert database_clock.trusted("default") is not None


@pytest.mark.usefixtures("own_clock")
@pytest.mark.parametrize("wrong", [3630.0, -3630.0])
def test_a_running_requeue_is_shown_as_driven_by_the_database_clock(
    wrong: float, right: datetime, monkeypatch: pytest.MonkeyPatch, admin_client: Client
) -> None:
    driver = {"driver": "consumer-1", "beat_at": right, "leased_until": right + timedelta(minutes=5)}
    known = {"state": RunState.RUNNING, "total": 10, "sent": 4, "by": "ann", "started_at": right, "created_at": right}
    driven = RequeueRun.objects.create(**known, **driver)
    left = RequeueRun.objects.create(**known, beat_at=right - timedelta(minutes=5))
    shifted(monkeypatch, wrong)
    pages = [admin_client.get(f"/admin/rmq_retry/requeuerun/{run.pk}/change/") for run in (driven, left)]

    shown = [(one.context["undriven"], one.context["silent"]) for one in pages]
    assert shown == [(False, False), (True, True)]


@pytest.mark.usefixtures("own_clock")
@pytest.mark.parametrize("wrong", FARTHEST)
def test_the_growth_of_a_group_uses_the_database_clock(
    wrong: float, right: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = parked(message_id="m").group
    ParkedMinute.objects.create(group=group, minute=minute_of(right), new=True, count=7)
    shifted(monkeypatch, wrong)
    lately = parked_lately([group.pk])

    assert (sum(lately.counts[group.pk]), lately.newest[group.pk]) == (7, 7)


@pytest.mark.usefixtures("own_clock")
@pytest.mark.parametrize("wrong", [3630.0, -3630.0])
def test_the_list_of_the_last_hour_uses_the_database_clock(
    wrong: float, right: datetime, monkeypatch: pytest.MonkeyPatch, admin_client: Client
) -> None:
    for name, age in (("new", 10), ("old", 90)):
        parked(message_id=name, parked_at=right - timedelta(minutes=age))
    shifted(monkeypatch, wrong)
    listed = admin_client.get("/admin/rmq_retry/parkedmessage/?parked=1h").context["cl"]

    assert [one.message_id for one in listed.result_list] == ["new"]
    assert abs(listed.as_of - right) < NEAR


@pytest.mark.usefixtures("own_clock")
@pytest.mark.parametrize("wrong", [3630.0, -3630.0])
def test_a_hold_of_two_hours_ends_by_the_database_clock(
    wrong: float, right: datetime, monkeypatch: pytest.MonkeyPatch, admin_client: Client
) -> None:
    message = parked(message_id="m")
    shifted(monkeypatch, wrong)
    form = admin_client.get(f"/admin/rmq_retry/parkedmessage/hold/?message={message.pk}", follow=True)
    press(admin_client, form, "Hold ", span="2h", text="the bank calls back")
    message.refresh_from_db()

    assert message.held_until is not None
    assert abs(message.held_until - right - timedelta(hours=2)) < NEAR


@pytest.mark.usefixtures("own_clock")
@pytest.mark.parametrize("wrong", FARTHEST)
def test_a_command_shows_a_pause_by_the_database_clock(
    wrong: float, right: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    with isolated_handlers():
        handler(Queue("payments"), name="charge")(lambda _: None)
        queue_pauses.pause_queue("payments", Actor.of_shell(), reason="closed", until=right + timedelta(hours=1))
        shifted(monkeypatch, wrong)
        paused = run("rmq_queue", "list", "--json").data["items"][0]["state"]
        QueueControl.objects.update(until=right - timedelta(hours=1))
        over = run("rmq_queue", "list", "--json").data["items"][0]["state"]

    assert (paused, over) == ("paused", "flowing")

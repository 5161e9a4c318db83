"""The number of queries of each page: the same for many messages as for few, and none for values that no page shows.

Django's own questions, who is asking and what that person may do, are not counted: every page of every admin has them.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from django.utils.translation import override
from pytest_django.asserts import assertHTMLEqual

from django_rmq_retry.admin import status
from django_rmq_retry.health import facts
from django_rmq_retry.models import (
    ErrorGroup,
    ItemState,
    ParkedMessage,
    QueueControl,
    RequeueItem,
    RequeueRun,
    RunState,
    State,
)
from django_rmq_retry.parked.actions import discard
from django_rmq_retry.parked.nameless import MOST_READ
from django_rmq_retry.parked.operators import Actor
from django_rmq_retry.parked.selection import Selection
from tests.admin import made
from tests.admin.budgets import ADMIN, BUDGETS
from tests.admin.conftest import client_of
from tests.admin.looking import Page, own_queries
from tests.commands.running import run
from tests.operators.made import requeue_run
from tests.tooling.marks import NIGHTLY_BUT_ON_SQLITE, nightly_but

pytestmark = [pytest.mark.django_db, pytest.mark.database, *NIGHTLY_BUT_ON_SQLITE]
LOOKS = (
    "view_parkedmessage",
    "view_errorgroup",
    "view_requeuerun",
    "view_operatoraction",
    "view_livestatus",
    "view_queuecontrol",
    "view_blockedkey",
    "view_outboxmessage",
    "view_approvalrequest",
)


@pytest.fixture
def lead() -> User:
    return made.person("lead", superuser=True)


@pytest.fixture
def support() -> User:
    """A user who may look and requeue, but not see contents."""
    return made.person("support", *LOOKS, "requeue", "bulk_requeue", "send_waiting")


def filled(messages: int) -> dict[str, object]:
    """Create error groups with this number of messages, and a run over some; return the parts of the addresses."""
    groups = [made.group(title=f"Error{number}") for number in range(messages)]
    for number in range(messages):
        one = made.message(groups[0], keys=[f"PAY-{number}", "shared"], business_key=f"PAY-{number}")
        made.message(groups[0], business_key="twice", version=2)
        made.message(groups[number], state=State.PROCESSED)
        made.attempt(one, 1)
        made.attempt(one, 5, fingerprint=groups[0].fingerprint)
        # It lives for as long as a busy machine takes for all pages.
        made.consumer(seconds=-3600, in_flight=[made.in_flight()])
    run = requeue_run(Selection.of_filter({"group": groups[0].pk}), Actor.of_code("test"), reason="test")
    _ended(run)
    named = Selection.of_ids(ParkedMessage.objects.filter(state=State.PARKED).values_list("pk", flat=True)[:messages])
    filtered = Selection.of_filter({"group": groups[0].pk, "state": [State.PARKED.value]})
    asked = made.asked(lambda actor: discard(filtered, actor, category="test"))
    return {
        "group": groups[0].pk, "message": one.pk, "key": one.message_id, "run": run.pk, "request": asked.pk,
        "row": made.outgoing().pk, "named": named.token(), "filtered": filtered.token(),
    }  # fmt: skip


def _ended(run: RequeueRun) -> None:
    """Some messages of each state."""
    states = [ItemState.FAILED, ItemState.SKIPPED, ItemState.UNCONFIRMED, ItemState.PROCESSED]
    for place, item in enumerate(RequeueItem.objects.filter(run=run).order_by("place")):
        item.state = states[place % 4]
        item.save()
    RequeueRun.objects.filter(pk=run.pk).update(failed=1, skipped=1, unconfirmed=1, processed=1, sent=2)


def questions(client: Client, address: str) -> list[str]:
    """The queries of a page when it is shown for the second time."""
    client.get(address)
    with CaptureQueriesContext(connection) as queries:
        response = client.get(address)

    assert response.status_code in (200, 302), address
    return own_queries(queries)


@pytest.mark.parametrize("who", nightly_but(["lead"], ["lead", "support"]))
@pytest.mark.parametrize("messages", [4, 60])
def test_each_page_keeps_its_query_budget(request: pytest.FixtureRequest, who: str, messages: int) -> None:
    client, names = client_of(request.getfixturevalue(who)), filled(messages)
    asked = {page: questions(client, ADMIN + page.format(**names)) for page in BUDGETS}

    assert {page: found for page, found in asked.items() if len(found) > BUDGETS[page]} == {}


def test_list_queries_read_no_body_and_always_have_a_limit(lead: User) -> None:
    client, names = client_of(lead), filled(60)
    lists = [page for page in BUDGETS if page.startswith("parkedmessage/") and "change" not in page]
    asked = [sql for page in lists for sql in questions(client, ADMIN + page.format(**names))]
    # A search reads small bodies of the outbox, behind blocked keys, and of some messages that have no business key.
    read = ("rmq_retry_outboxmessage", "rmq_retry_blockedmessage", f"LIMIT {MOST_READ}")
    asked = [sql for sql in asked if not any(table in sql for table in read) or "LIMIT" not in sql]

    assert [sql for sql in asked if _names("body")(sql) or _names("properties")(sql)] == []
    # The attempts are counted of the messages of one page only.
    asked = [sql for sql in asked if "rmq_retry_attempt" not in sql]
    assert [sql for sql in asked if "LIMIT" not in sql] == []
    assert [sql for sql in asked if "DISTINCT" in sql] == []


def test_ids_are_looked_up_before_the_rows_are_read(lead: User) -> None:
    filled(60)
    asked = questions(client_of(lead), f"{ADMIN}parkedmessage/?q=shared")

    asked = [sql for sql in asked if "UNION" in sql and "RECURSIVE" not in sql]
    assert len(asked) == 2
    assert [sql for sql in asked if "parked_at" in sql] == []


@pytest.mark.parametrize("page", ["requeuerun/{run}/change/", "requeuerun/", "livestatus/"])
@pytest.mark.parametrize(("paused", "reads"), [(False, 0), (True, 1)])
def test_what_a_run_waits_for_is_read_only_while_a_queue_is_stopped(
    lead: User, page: str, paused: bool, reads: int
) -> None:
    """The queues of a thousand messages were read, mostly to find that none of them is stopped."""
    run = RequeueRun.objects.create(by="ann", created_at=timezone.now(), state="waiting", sent=1)
    item = {"run": run, "message": made.message(), "place": 1, "revision": 1}
    RequeueItem.objects.create(**item, state="sent", sent_at=timezone.now())
    QueueControl.objects.create(queue="others", paused=paused)
    asked = questions(client_of(lead), ADMIN + page.format(run=run.pk))

    assert len([sql for sql in asked if "requeueitem" in sql and _names("queue")(sql)]) == reads
    assert page != "requeuerun/" or len(asked) == 3 + reads


def test_the_checkbox_of_a_row_equals_the_stock_admin_checkbox(page: Client) -> None:
    one = made.message(business_key='PAY-"<1>&')
    ours = admin.site.get_model_admin(ParkedMessage)
    stock = admin.ModelAdmin.action_checkbox

    assertHTMLEqual(ours.action_checkbox(one), stock(ours, one))
    assert ours.action_checkbox(one) in page.get(f"{ADMIN}parkedmessage/").content.decode()
    assert vars(stock).items() <= vars(type(ours).action_checkbox).items()
    with override("de"):
        assertHTMLEqual(ours.action_checkbox(one), stock(ours, one))


def test_the_types_of_a_group_are_counted_without_reading_its_messages(lead: User) -> None:
    group = made.group()
    for number in range(6):
        made.message(group, type="card.settle" if number % 2 else "ledger.post")
    page = client_of(lead).get(f"{ADMIN}errorgroup/{group.pk}/change/")

    assert dict(page.context["types"]) == {"card.settle": "3", "ledger.post": "3"}


def test_the_live_status_counts_what_is_parked_and_what_was_parked_lately(lead: User) -> None:
    """On hold is not parked, and what was parked ten minutes ago stays so, whatever became of it since."""
    group, now = made.group(), timezone.now()
    for state in (State.PARKED, State.PARKED, State.ON_HOLD, State.DISCARDED):
        made.message(group, state=state, parked_at=now)
    made.message(group, parked_at=now - timedelta(hours=1))
    counts = client_of(lead).get(f"{ADMIN}livestatus/").context["counts"]
    assert counts["recent_parts"] == "2 still parked"

    assert ErrorGroup.objects.get(pk=group.pk).parked == 4
    assert (counts["parked"], counts["recent"], counts["oldest"]) == (3, 4, now - timedelta(hours=1))


def test_of_what_was_parked_lately_the_page_tells_new_messages_from_those_that_failed_again(lead: User) -> None:
    """After a requeue "Parked in 10 minutes 5" looked like five more payments, of which two had been there before.

    One that was parked and sent since still counts: the number fell while people worked.
    """
    now = timezone.now()
    early, late = now - timedelta(minutes=3), now - timedelta(minutes=1)
    made.message(parked_at=now)
    quiet = client_of(lead).get(f"{ADMIN}livestatus/")
    for _ in range(2):
        made.message(parked_at=late, cycle=2, requeued_at=early)
    # A copy that its sender published once more, and one that was parked first and requeued since.
    made.message(parked_at=late, cycle=2, requeued_at=early, published_again=True)
    made.message(parked_at=early, cycle=2, requeued_at=late, state=State.REQUEUED)

    assert "Parked in 10 minutes 1 Waiting" in Page(quiet).text
    told = Page(client_of(lead).get(f"{ADMIN}livestatus/")).text
    assert "Parked in 10 minutes 5 2 new · 3 failed again · 4 still parked" in told
    assert "(+5 in 10 min, 3 of them again)" in run("rmq_status").out


def test_what_an_incident_parks_and_fails_is_counted_up_to_a_limit(lead: User, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "MOST_RECENT", 2)
    monkeypatch.setattr(status, "MOST_RECENT", 2)
    group = made.group()
    for _ in range(2):
        made.attempt(made.message(group, parked_at=timezone.now()), at=timezone.now())
    exact = Page(client_of(lead).get(f"{ADMIN}livestatus/")).text
    made.attempt(made.message(group, parked_at=timezone.now()), at=timezone.now())
    more = Page(client_of(lead).get(f"{ADMIN}livestatus/")).text

    assert "Parked in 10 minutes 2 " in exact
    assert "Failed attempts in the last minute 2 " in exact
    assert "Parked in 10 minutes 3 Waiting" in more
    assert "Failed attempts in the last minute 2+ " in more
    assert "(+3 in 10 min)" in run("rmq_status").out


def test_failures_of_the_last_minute_are_counted_by_the_database(lead: User) -> None:
    """The page of an incident read up to 10,001 rows to show one number."""
    one, now = made.message(), timezone.now()
    made.attempt(one, at=now - timedelta(minutes=9), seconds=520)
    for _ in range(2):
        made.attempt(one, at=now - timedelta(minutes=9), seconds=1)
    quiet = client_of(lead).get(f"{ADMIN}livestatus/").context["counts"]["failed"]
    made.attempt(one, at=now - timedelta(minutes=9), seconds=520)
    client = client_of(lead)
    client.get(f"{ADMIN}livestatus/")
    with CaptureQueriesContext(connection) as queries:
        counted = client.get(f"{ADMIN}livestatus/").context["counts"]["failed"]

    # One that took long counts although others have ended before it.
    assert (quiet, counted) == (1, 2)
    reads = [sql for sql in own_queries(queries) if _names("seconds")(sql)]
    reads = [sql for sql in reads if not (_names("next_at")(sql) or _names("redelivered")(sql))]
    assert [sql for sql in reads if "COUNT(" not in sql] == []


def test_a_paused_run_looks_for_its_messages_in_earlier_runs_only_if_there_are_any() -> None:
    group = made.group()
    for _ in range(3):
        made.message(group)
    chosen = Selection.of_filter({"group": group.pk})
    looked, earlier, elsewhere = [], "rmq_retry_requeueitem U0", []
    for _ in range(2):
        run = requeue_run(chosen, Actor.of_code("test"), reason="test", include=["under_way"])
        RequeueRun.objects.filter(pk=run.pk).update(state=RunState.PAUSED)
        with CaptureQueriesContext(connection) as queries:
            elsewhere.append(sum(facts.survey(page=True).elsewhere.values()))
        plain = [one["sql"].replace('"', "").replace("`", "") for one in queries.captured_queries]
        looked.append(any(earlier in sql for sql in plain))

    assert elsewhere == [0, 3]
    assert looked == [False, True]


def test_the_live_status_of_an_empty_database_shows_zeros(lead: User) -> None:
    counts: Any = client_of(lead).get(f"{ADMIN}livestatus/").context["counts"]

    assert (counts["parked"], counts["recent"], counts["oldest"]) == (0, 0, None)


def _names(column: str) -> Callable[[str], bool]:
    """True if a statement reads this column, however the database quotes it."""
    return lambda sql: f'"{column}"' in sql or f"`{column}`" in sql

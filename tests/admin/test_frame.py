"""The frame of all pages: groups and the live status, the audit log, missing tables, other sites, strict policies."""

import re
import socket
import threading
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.contrib import admin as default
from django.contrib.admin.sites import AdminSite, all_sites
from django.db import connection
from django.template import Context, Template
from django.template.loader import get_template
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import path
from django.utils import timezone
from django.utils.translation import deactivate, get_language, override, trans_real

import django_rmq_retry
from django_rmq_retry.admin import broker_look, groups, timeline
from django_rmq_retry.admin.status import LiveStatusAdmin
from django_rmq_retry.markup import NOTHING, count_or_dash, time_span
from django_rmq_retry.models import (
    Action,
    ConsumerProcess,
    ErrorGroup,
    ItemState,
    OperatorAction,
    ParkedMessage,
    RequeueItem,
    RequeueRun,
    RunState,
    State,
)
from django_rmq_retry.parked.edit_many import Act, PathChange, store_many
from django_rmq_retry.parked.operators import Actor
from django_rmq_retry.wording import counted, minute, second
from tests.admin import made
from tests.admin.budgets import BUDGETS
from tests.admin.conftest import client_of, operating
from tests.admin.looking import Page, own_queries
from tests.operators.made import BOB, discard_messages, logged, requeue_run

pytestmark = pytest.mark.django_db
GROUPS = "/admin/rmq_retry/errorgroup/"
AUDIT = "/admin/rmq_retry/operatoraction/"
FOLDER = Path(django_rmq_retry.__file__).parent / "templates"
TEMPLATES = sorted(str(one.relative_to(FOLDER)) for one in FOLDER.rglob("*.html"))


def test_the_list_of_groups_takes_no_query_for_each_group(page: Client) -> None:
    for number in range(30):
        made.message(made.group(title=f"Error{number}"))
    with CaptureQueriesContext(connection) as queries:
        response = page.get(GROUPS)

    assert response.status_code == 200
    assert len(own_queries(queries)) <= BUDGETS["errorgroup/"], own_queries(queries)


@pytest.mark.parametrize("active", ["", "de"])
def test_a_page_sets_its_language_and_time_zone_and_leaves_them_as_they_were(
    page: Client, monkeypatch: pytest.MonkeyPatch, active: str
) -> None:
    def now_set() -> tuple[bool, bool]:
        return hasattr(trans_real._active, "value"), hasattr(timezone._active, "value")  # type: ignore[attr-defined]

    inside = []

    def looked(self: Any, request: Any, **_more: Any) -> Any:
        inside.append((get_language(), timezone.get_current_timezone_name(), now_set()))
        return self.refused(request, "")

    monkeypatch.setattr(LiveStatusAdmin, "list_page", looked)
    with override(active or "de", deactivate=True), timezone.override("Asia/Tokyo" if active else None):
        if not active:
            deactivate()
        language, zone, before = get_language(), timezone.get_current_timezone_name(), now_set()
        page.get("/admin/rmq_retry/livestatus/")

        assert before == (bool(active), bool(active))
        assert inside == [(language, zone, (True, True))]
        assert (get_language(), timezone.get_current_timezone_name(), now_set()) == (language, zone, before)


def test_the_page_of_a_group_begins_with_its_run_its_age_and_its_growth(page: Client) -> None:
    cause, now = made.group(), timezone.now()
    chosen = [made.message(cause, parked_at=now - timedelta(seconds=20)).pk for _ in range(3)]
    run = requeue_run(chosen[:2])
    # None came since it was started, so none is growth.
    calm = page.get(f"{GROUPS}{cause.pk}/change/")
    type(run).objects.update(created_at=now - timedelta(seconds=30))
    answer = page.get(f"{GROUPS}{cause.pk}/change/")
    text, since = Page(answer).text, minute(answer.context["card"].trend.newest_since)
    head = [
        text.index(words)
        for words in ("is to send 2 of these", "3 parked", f"▲ growing (+3 since {since}) · first 52 min ago")
    ]

    assert "growing" not in Page(calm).text
    assert head == sorted(head)
    assert head[-1] < text.index("Requeue one, then")


def test_a_group_card_shows_its_count_its_age_and_whether_it_grows(page: Client, settings: Any) -> None:
    operating(settings, ERROR_LABELS={"GatewayTimeout": "The bank did not answer."})
    cause, now = made.group(note="outage", noted_by="ann", noted_at=timezone.now()), timezone.now()
    for minutes in (0.5, 3, 70):
        made.message(cause, parked_at=now - timedelta(minutes=minutes))
    made.message(cause, state=State.ON_HOLD, held_until=now + timedelta(hours=1), parked_at=now - timedelta(hours=2))
    quiet = made.group(title="Quiet")
    for minutes in (9, 60, 61):
        made.message(quiet, parked_at=now - timedelta(minutes=minutes))
    text = Page(page.get(GROUPS)).text

    assert "GatewayTimeout · bank.gateway:post 3 parked · 1 on hold" in text
    assert re.search(
        r"transfer · ▲ growing \(\+2 since [\d:]+\) · first 52 min ago .*? Requeue one, then the others… More…", text
    )
    assert text.count("growing") == 1
    assert "The bank did not answer." in text
    assert "Requeue 3…" in text
    assert "2 groups · 6 messages parked · 1 on hold" in text


def test_a_group_does_not_grow_by_messages_that_were_requeued_and_failed_again(page: Client) -> None:
    now = timezone.now()
    cause = made.group()
    for _ in range(3):
        made.message(cause, parked_at=now - timedelta(minutes=2))
    ErrorGroup.objects.filter(pk=cause.pk).update(last_new=now - timedelta(minutes=2), last_seen=now)

    for address in (GROUPS, f"{GROUPS}{cause.pk}/change/", "/admin/rmq_retry/livestatus/"):
        text = Page(page.get(address)).text
        assert "GatewayTimeout" in text, address
        assert "growing" not in text, address


class TestOneCauseBehindTwoHandlers:
    @pytest.fixture
    def cause(self) -> ErrorGroup:
        cause = made.group()
        for handler, queue, count in (("pay.transfer", "transfer", 3), ("pay.card", "card", 2)):
            for _ in range(count):
                made.message(cause, handler=handler, queue=queue, parked_at=timezone.now() - timedelta(seconds=5))
        made.message(cause, handler="pay.old", queue="old", state=State.DISCARDED)
        return cause

    def test_the_row_names_the_handlers_of_what_is_parked(self, page: Client, cause: ErrorGroup) -> None:
        text = Page(page.get(GROUPS)).text

        assert "pay.card, pay.transfer · ▲ growing" in text
        assert "pay.old" not in text

    def test_the_page_counts_them_and_leads_to_each(self, page: Client, cause: ErrorGroup) -> None:
        shown = Page(page.get(f"{GROUPS}{cause.pk}/change/"))
        listed = page.get(f"/admin/rmq_retry/parkedmessage/?group={cause.pk}&queue=card&handler=pay.card")

        assert "Queues and handlers pay.transfer (transfer) 3" in shown.text
        assert "pay.card (card) 2" in shown.text
        assert listed.context["cl"].result_count == 2

    def test_the_list_names_the_group_and_says_how_many_it_has(self, page: Client, cause: ErrorGroup) -> None:
        url = "/admin/rmq_retry/parkedmessage/?group="
        text = Page(page.get(f"{url}{cause.pk}")).text
        other = Page(page.get(f"{url}{cause.pk},999")).text
        wrong = page.get(f"{url}x,{'9' * 30}")

        assert "Filter 5 messages" in text
        assert "Group: GatewayTimeout · bank.gateway:post ✕" in text
        assert "Group: GatewayTimeout · bank.gateway:post, #999 ✕" in other
        assert wrong.status_code == 200

    def test_the_audit_log_names_the_group(self, page: Client, cause: ErrorGroup) -> None:
        logged(Action.EDIT, group=cause.pk, subject="amount")
        logged(Action.NOTE, group=999)
        links = Page(page.get("/admin/rmq_retry/operatoraction/")).links

        assert links["GatewayTimeout · bank.gateway:post"] == f"{GROUPS}{cause.pk}/change/"
        assert links["group #999"] == f"{GROUPS}999/change/"

    def test_a_change_of_more_messages_than_one_edit_takes_is_not_offered(
        self, page: Client, cause: ErrorGroup, monkeypatch: pytest.MonkeyPatch, settings: Any
    ) -> None:
        operating(settings, EDITABLE={"*": True})
        monkeypatch.setattr(groups, "MOST_EDITED", 4)
        text = Page(page.get(f"{GROUPS}{cause.pk}/change/")).text

        assert "Edit 5…: At most" in text

    def test_the_messages_of_one_handler_are_requeued_alone(self, page: Client, cause: ErrorGroup) -> None:
        query: dict[str, Any] = {"group": cause.pk, "queue": "card", "handler": "pay.card"}
        preview = page.get("/admin/rmq_retry/requeuerun/preview/", query, follow=True)

        assert preview.context["report"].total == 2
        assert preview.context["selection"].filter["handler"] == "pay.card"

    def test_many_handlers_are_counted(self, page: Client, cause: ErrorGroup) -> None:
        for number in range(3):
            made.message(cause, handler=f"pay.z{number}", queue="transfer")

        assert "pay.card, pay.transfer, pay.z0 and 2 more" in Page(page.get(GROUPS)).text


def test_groups_are_searched_muted_and_counted_by_queue(page: Client) -> None:
    made.message(made.group(title="Alpha"), queue="one")
    made.message(made.group(title="Beta", muted=True), queue="two")

    assert "Alpha" in Page(page.get(GROUPS, {"q": "alph"})).text
    assert "No error group matches." in Page(page.get(GROUPS, {"q": "gamma"})).text
    assert "Beta" not in Page(page.get(GROUPS)).text
    assert "Beta" in Page(page.get(GROUPS, {"show": "muted"})).text
    assert {"one", "two"} <= set(Page(page.get(GROUPS, {"by": "queue"})).links)


def test_the_page_of_a_group_shows_its_cause(page: Client) -> None:
    cause = made.group()
    one = made.message(cause, business_key="PAY-1")
    made.attempt(one, 5, fingerprint=cause.fingerprint)
    text = Page(page.get(f"{GROUPS}{cause.pk}/change/")).text

    assert "bank/gateway.py:17 in post raise GatewayTimeout(host)" in text
    assert "payment.transfer 1" in text
    assert "PAY-1" in text


def test_the_page_of_a_group_shows_its_newest_message_with_its_body_and_its_attempts(settings: Any) -> None:
    operating(settings, MASK=["iban"])
    cause, now = made.group(), timezone.now()
    made.message(cause, business_key="PAY-OLD", parked_at=now - timedelta(hours=1))
    one = made.message(cause, business_key="PAY-NEW", parked_at=now, error_text="no route to the bank")
    for number in (4, 5):
        made.attempt(one, number, logs="the secret log")
    page = f"{GROUPS}{cause.pk}/change/"
    whole = Page(client_of(made.person("lead", superuser=True)).get(page))
    support = Page(client_of(made.person("support", "view_errorgroup", "view_parkedmessage")).get(page)).text
    looker = Page(client_of(made.person("looker", "view_errorgroup")).get(page)).text

    assert "Newest message PAY-NEW no route to the bank" in whole.text
    assert whole.links["PAY-NEW"].endswith(f"/parkedmessage/{one.pk}/change/")
    assert "DE89370400440532013000" in whole.text
    assert "Attempt 5 failed GatewayTimeout: no route to the bank" in whole.text
    assert whole.text.index("Attempt 5 failed") < whole.text.index("Attempt 4: same error")
    assert ("12345678901234567890" in support, "DE89370400440532013000" in support) == (True, False)
    assert "PAY-NEW" not in looker
    assert "no route to the bank" not in looker


def test_the_page_of_a_group_counts_only_what_there_is_and_lists_ten(page: Client) -> None:
    cause = made.group()
    for number in range(11):
        made.message(cause, business_key=f"PAY-{number}", queue=f"queue{number % 2}")
    logged(Action.HOLD, group=cause.pk, reason="the bank calls back")
    logged(Action.NOTE, group=cause.pk, reason="a note")
    response = page.get(f"{GROUPS}{cause.pk}/change/")
    text = Page(response).text

    assert "11 parked" in text
    assert "waiting for outcome" not in text
    assert re.search("Last action: Hold · [^·]+ · [^·]+ ago : the bank calls back", text)
    assert len(response.context["rows"]) == 10
    assert [str(one) for one in response.context["columns"]] == ["Business key", "Queue", "Attempts", "Parked"]


def test_a_card_has_its_share_and_the_error_of_its_newest_message() -> None:
    largest = made.group(title="BankDown")
    for _ in range(3):
        made.message(largest, error_text="no route to the bank")
    made.message(made.group(title="Once"))
    viewer = made.person("viewer", "view_errorgroup", "view_parkedmessage")
    seen = Page(client_of(viewer).get(GROUPS)).text
    looker = Page(client_of(made.person("looker", "view_errorgroup")).get(GROUPS)).text

    assert "3 parked · 75 %" in seen
    assert "no route to the bank" in seen
    assert "no route to the bank" not in looker


def test_the_page_of_a_group_lists_the_deploys_under_which_it_failed(
    page: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    cause, noon = made.group(), timezone.make_aware(datetime(2026, 1, 5, 12, 0))  # noqa: DTZ001 - made aware
    one = made.message(cause)
    for minutes, deploy in enumerate(["old", "old", "a1b2c3", "a1b2c3", ""]):
        at = noon + timedelta(minutes=minutes)
        made.attempt(one, minutes + 1, at=at, deploy=deploy, fingerprint=cause.fingerprint)
    made.attempt(one, 6, deploy="ffff99", fingerprint="of another group")
    whole = Page(page.get(f"{GROUPS}{cause.pk}/change/")).text
    monkeypatch.setattr(timeline, "MOST_ATTEMPTS_READ", 4)
    cut = Page(page.get(f"{GROUPS}{cause.pk}/change/")).text

    assert "Deploys: a1b2c3 (from 2026-01-05 12:02 ) · old (from 2026-01-05 12:00 )" in whole
    assert "Deploys: a1b2c3 (from 2026-01-05 12:02 ) · old Requeue…" in cut
    assert "ffff99" not in whole
    assert "bank/gateway.py:17 in post raise GatewayTimeout(host)" in whole


@pytest.mark.parametrize(
    ("left", "tried", "shown"), [(True, True, "pay.card"), (False, True, "pay.book"), (False, False, "pay.card")]
)
def test_the_traceback_of_a_group_is_of_a_handler_whose_messages_are_parked_if_there_is_one(
    page: Client, *, left: bool, tried: bool, shown: str
) -> None:
    """Two handlers share the cause; the traceback was that of messages which had been discarded."""
    cause = made.group()
    old, new = (made.message(cause, handler=name) for name in ("pay.book", "pay.card"))
    for one, at in [*([(old, timezone.now() - timedelta(minutes=9))] if tried else []), (new, timezone.now())]:
        made.attempt(one, 5, at=at, fingerprint=cause.fingerprint)
    if not left:
        discard_messages([new.pk], BOB)
    text = Page(page.get(f"{GROUPS}{cause.pk}/change/")).text

    assert f"· {shown} " in text.partition("Latest traceback")[2]
    assert ("no message of this handler is parked with this error now" in text) is (not left and not tried)
    assert "payments/handlers.py:41 in transfer" in text


def test_a_timeline_without_attempts_says_that_none_is_recorded(page: Client) -> None:
    cause = made.group()
    one = made.message(cause)
    sent = made.message(cause, state="requeued", cycle=2, requeued_at=timezone.now())
    said = "No attempt of this message is recorded here."
    texts = [Page(page.get(f"/admin/rmq_retry/parkedmessage/{pk}/change/")).text for pk in (one.pk, sent.pk)]

    assert said in Page(page.get(f"{GROUPS}{cause.pk}/change/")).text
    assert [said in text for text in texts] == [False, True]
    assert "5 attempts were not recorded" in texts[0]


@pytest.mark.parametrize("together", [False, True])
def test_a_group_tells_of_the_edit_of_its_messages_also_with_those_of_another_group(
    page: Client, settings: Any, *, together: bool
) -> None:
    """Its timeline ended with the failure, and one edit of both groups stood on neither page."""
    settings.RMQ_RETRY = {**settings.RMQ_RETRY, "OPERATORS": {"EDITABLE": {"*": True}}}
    cause = made.group()
    some = [made.message(one, body=b'{"amount": 1}') for one in ([cause, made.group()] if together else [cause])]
    set_two = PathChange(path="amount", act=Act.SET, value="2", number=True)
    store_many(set_two, BOB, revisions={one.pk: one.revision for one in some}, reason="typo")
    text = Page(page.get(f"{GROUPS}{cause.pk}/change/")).text

    assert "● Edited by bob typo" in text.partition("Timeline")[2].partition("Parked in the last")[0]
    assert re.search(
        "Action Edit .*Reason typo", text.partition(" Activity ")[2].partition("Messages in this group")[0]
    )


def test_a_group_tells_who_requeued_its_newest_message_between_two_parkings(page: Client) -> None:
    """It told of both parkings, and nothing had happened between them."""
    now = timezone.now()
    one = made.message(cycle=2, parked_at=now, requeued_at=now - timedelta(minutes=4))
    made.attempt(one, 5, at=now - timedelta(minutes=8), verdict="park", reason="retries_exhausted")
    sent = requeue_run([one.pk], BOB, reason="bank is back")
    item = {"state": ItemState.FAILED, "sent_at": now - timedelta(minutes=4), "cycle": 2}
    RequeueItem.objects.filter(run=sent.pk).update(**item)
    RequeueRun.objects.update(state=RunState.FINISHED, failed=1, sent=1)
    made.attempt(one, 6, at=now - timedelta(minutes=1), verdict="park", reason="permanent", cycle=2)
    shown = Page(page.get(f"{GROUPS}{one.group_id}/change/"))
    told = shown.text.partition("Timeline")[2].partition("Parked in the last")[0]

    assert re.search(
        f"Parked.*Attempt 6 failed.*→ Requeued by bob · Requeue run {sent.pk} bank is back.*Parked.*Attempt 5 failed",
        told,
    )
    assert shown.links[f"Requeue run {sent.pk}"] == f"/admin/rmq_retry/requeuerun/{sent.pk}/change/"


def test_deploys_are_shown_without_the_traceback_permission() -> None:
    cause = made.group()
    made.attempt(made.message(cause), 1, fingerprint=cause.fingerprint)
    looker = client_of(made.person("looker", "view_errorgroup"))
    response = looker.get(f"{GROUPS}{cause.pk}/change/")

    assert "Deploys: a1b2c3 (from" in Page(response).text
    assert "gateway.py" not in response.content.decode()


def test_an_empty_group_list_states_that_nothing_is_parked(page: Client) -> None:
    assert "✓ Nothing is parked." in Page(page.get(GROUPS)).text


def test_a_list_of_groups_says_how_many_it_has_and_how_many_of_all_have_parked_messages(page: Client) -> None:
    """Five groups stood above "0 groups · 0 messages parked"."""
    made.group(title="Resolved")
    resolved = Page(page.get(GROUPS, {"show": "all"})).text
    made.message(made.group(title="Beta", muted=True))
    muted, every = Page(page.get(GROUPS, {"show": "muted"})).text, Page(page.get(GROUPS, {"show": "all"})).text
    made.message(made.group(title="Alpha"))
    parked, found = Page(page.get(GROUPS)).text, Page(page.get(GROUPS, {"q": "alph"})).text
    ErrorGroup.objects.update(muted=False)

    assert "1 group listed · Nothing is parked." in resolved
    assert "0 messages" not in resolved
    assert "1 group listed · 1 of all groups has parked messages · 1 message parked" in muted
    assert "2 groups listed · 1 of all groups has parked messages · 1 message parked" in every
    assert "1 group listed · 2 of all groups have parked messages · 2 messages parked" in parked
    assert "1 group listed · 2 of all groups have parked messages · 2 messages parked" in found
    assert "2 groups · 2 messages parked" in Page(page.get(GROUPS)).text


@pytest.mark.parametrize("fragment", ["", "&fragment=1"], ids=["the page", "its live part"])
def test_a_list_of_groups_offers_nothing_for_the_ticked_unless_one_can_be_ticked(page: Client, fragment: str) -> None:
    """What comes while the page is open is listed with boxes: their buttons come with them."""
    cause = made.group()
    calm = page.get(f"{GROUPS}?show=all{fragment}")
    made.message(cause, state=State.ON_HOLD)
    held = page.get(f"{GROUPS}?show=all{fragment}")
    made.message(cause)
    ready = Page(page.get(f"{GROUPS}?show=all{fragment}"))

    assert ["the ticked" in Page(one).text for one in (calm, held)] == [False, False]
    assert ["rmq-ticked" in one.content.decode() for one in (calm, held)] == [False, False]
    assert "Requeue the ticked…" in ready.text
    assert ("form", "rmq-ticked") in {(tag, given.get("id")) for tag, given in ready.tags}


def test_the_page_of_a_group_of_which_nothing_is_parked_says_so_once(page: Client) -> None:
    """It stood below "Affected message types", too."""
    text = Page(page.get(f"{GROUPS}{made.group().pk}/change/")).text

    assert "Affected message types" not in text
    assert text.count("Nothing is parked.") == 1


def test_the_audit_log_shows_all_actions_or_only_those_of_the_user() -> None:
    clerk = made.person("clerk", "view_operatoraction")
    logged(
        Action.DISCARD,
        Actor(name="clerk", user_id=clerk.pk, source="admin"),
        message=17,
        subject="PAY-own",
        reason="test",
    )
    logged(Action.DISCARD, message=18, subject="PAY-others", reason="=cmd()")
    auditor = client_of(made.person("auditor", "view_operatoraction", "view_all_operatoraction", "export"))
    seen_by_clerk, seen_by_auditor = client_of(clerk).get(AUDIT), auditor.get(AUDIT)
    others = OperatorAction.objects.get(message=18)

    assert "PAY-own" in Page(seen_by_clerk).text
    assert "PAY-others" not in Page(seen_by_clerk).text
    assert "PAY-others" in Page(seen_by_auditor).text
    assert client_of(clerk).get(f"{AUDIT}{others.pk}/change/").status_code == 403
    assert others.seal in Page(auditor.get(f"{AUDIT}{others.pk}/change/")).text
    assert "PAY-own" not in Page(auditor.get(AUDIT, {"message": "18"})).text
    assert "PAY-own" not in Page(auditor.get(AUDIT, {"q": "#18"})).text
    file = auditor.post(f"{AUDIT}export/?message=18", {"form": "csv"})
    content = b"".join(file).decode()
    assert "PAY-others" in content
    assert "PAY-own" not in content
    assert "'=cmd()" in content


@pytest.mark.parametrize(
    ("language", "count", "said"),
    [
        ("en", 1, "1 action"),
        ("en", 18, "18 actions"),
        ("de", 18, "18 Aktionen"),
        ("fr", 1, "1 action"),
        ("ru", 2, "2 действия"),
        ("ru", 18, "18 действий"),
        ("uk", 18, "18 дій"),
        ("zh-hans", 18, "18 个操作"),
    ],
)
def test_the_audit_log_counts_actions(page: Client, settings: Any, language: str, count: int, said: str) -> None:
    settings.LANGUAGE_CODE = language
    for number in range(count):
        logged(Action.DISCARD, message=number + 1)
    text = Page(page.get(AUDIT)).text

    assert re.search(rf"{said}(?!\w)", text)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("name", ["parkedmessage", "errorgroup", "requeuerun", "operatoraction", "consumerprocess"])
def test_missing_tables_are_a_503_that_names_migrate(page: Client, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for model in (ParkedMessage, ErrorGroup, OperatorAction, RequeueRun, ConsumerProcess):
        for field in model._meta.concrete_fields:
            assert field.cached_col is not None  # Django computes it once, with the table's name: not with this test's
        monkeypatch.setattr(model._meta, "db_table", f"missing_{model._meta.db_table}")
    response = page.get(f"/admin/rmq_retry/{name}/")

    assert response.status_code == 503
    assert "manage.py migrate rmq_retry" in Page(response).text


@pytest.mark.usefixtures("connected")
def test_an_unresponsive_broker_delays_a_page_by_less_than_a_second(
    page: Client, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        settings.RMQ_RETRY = {"URL": f"amqp://guest:secret@127.0.0.1:{port}/"}
        waited: list[float | None] = []
        join = threading.Thread.join

        def joined(thread: threading.Thread, timeout: float | None = None) -> None:
            waited.append(timeout)
            join(thread, timeout)

        monkeypatch.setattr(threading.Thread, "join", joined)
        response = page.get("/admin/rmq_retry/livestatus/")
        content = response.content.decode()

    assert waited == [broker_look.PAGE_PATIENCE_SECONDS]
    assert broker_look.PAGE_PATIENCE_SECONDS < 1
    assert "The broker has not answered yet" in content
    assert "No connection to the broker" not in content
    assert "✓" not in Page(response).text.partition("Latest actions")[0]
    assert "secret" not in content


def test_the_live_status_says_when_the_messages_were_counted(page: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a discard of 01:05:02 it said "checked 01:05:01": that was the look at the broker before."""
    made.broker_seen(monkeypatch)
    seen = replace(broker_look.look(), at=timezone.now() - timedelta(minutes=1))
    monkeypatch.setattr(broker_look, "look", lambda: seen)
    text = Page(page.get("/admin/rmq_retry/livestatus/")).text

    at = re.findall(r"\bchecked (\d\d:\d\d:\d\d)", text)
    assert at[0] != second(seen.at)
    assert set(at[1:]) == {second(seen.at)}, "of the queues"


def test_the_live_status_counts_parked_and_waiting_messages(page: Client) -> None:
    now = timezone.now()
    made.message(made.group(title="BankDown"), parked_at=now)
    old = made.message(made.group(last_seen=now - timedelta(hours=1)), parked_at=now - timedelta(hours=1))
    made.attempt(old, 1, next_at=now + timedelta(minutes=5))
    settled: dict[str, Any] = {"state": State.PROCESSED, "parked_at": now - timedelta(hours=1)}
    halted, sent_early = made.message(**settled), made.message(**settled)
    made.attempt(halted, 1, verdict="halt", next_at=now + timedelta(minutes=1))
    made.attempt(sent_early, 1, at=now - timedelta(minutes=2), next_at=now + timedelta(minutes=2))
    made.attempt(sent_early, 2, at=now - timedelta(minutes=1), verdict="ack", next_at=None)
    text = Page(page.get("/admin/rmq_retry/livestatus/")).text

    assert "Parked in 10 minutes 1" in text
    assert "Parked 2" in text
    assert re.search(r"Waiting until due 1 next retry in [45] min", text)


@pytest.mark.parametrize("name", TEMPLATES)
def test_no_template_has_inline_scripts_or_styles(name: str) -> None:
    text = get_template(name).template.source  # type: ignore[attr-defined]

    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son(?!ce=True)\w+=|javascript:", text), name


def test_another_admin_site_serves_the_pages_under_its_own_urls(lead: Any, settings: Any) -> None:
    site = AdminSite(name="ops")
    try:
        for model, pages in default.site._registry.items():
            if model._meta.app_label == "rmq_retry":
                site.register(model, type(pages))
        settings.ROOT_URLCONF = type("urls", (), {"urlpatterns": [path("ops/", site.urls)]})
        cause = made.message(made.group()).group
        client = client_of(lead)
        links = Page(client.get(f"/ops/rmq_retry/errorgroup/{cause.pk}/change/")).links
    finally:
        all_sites.discard(site)

    assert links["Requeue…"].startswith("/ops/rmq_retry/requeuerun/preview/")


def test_the_csp_nonce_is_set_on_scripts_and_styles(page: Client, settings: Any) -> None:
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, "tests.admin.test_frame.with_nonce"]
    content = page.get(GROUPS).content.decode()

    assert re.search(r'rmq\.css" nonce="abc"', content)
    assert re.search(r'rmq\.js" defer nonce="abc"', content)


def with_nonce(get_response: Any) -> Any:
    """As django-csp does."""

    def answered(request: Any) -> Any:
        request.csp_nonce = "abc"
        return get_response(request)

    return answered


def test_ages_and_durations_have_readable_units() -> None:
    spans = (0, 0.0002, 0.0031, 0.25, 30.0, 60, 100.65, 3599, 3600 * 3 + 59, 3600 * 3 + 60 * 12, 86400, 86400 * 4)
    long = ["30 s", "1 min", "1 min 41 s", "59 min", "3 h", "3 h 12 min", "1 day", "4 days"]

    assert [time_span(seconds) for seconds in spans] == ["0 s", "1 ms", "3 ms", "0.2 s", *long]


PLURAL = """{% load i18n rmq_retry %}{% blocktranslate count n=4712|rmq_count trimmed %}
{{ n }}{% plural %}{{ n }} m{% endblocktranslate %}"""


def test_counts_have_the_separators_of_the_language() -> None:
    said = {}
    for language in ("en", "de", "fr"):
        with override(language):
            plural = Template(PLURAL)
            said[language] = (str(count_or_dash(4712)), plural.render(Context()), counted("%(n)d of %(n)d", n=1234567))

    assert said["en"] == ("4,712", "4,712 m", "1,234,567 of 1,234,567")
    assert said["de"] == ("4.712", "4.712 m", "1.234.567 of 1.234.567")
    assert said["fr"][0] == "4\xa0712"
    assert count_or_dash(None) == NOTHING

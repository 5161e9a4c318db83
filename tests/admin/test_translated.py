"""Each address and each state in a language that puts translated texts between brackets: none of ours is outside."""

import re
from collections.abc import Iterator
from datetime import timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from django.contrib import admin
from django.db import models
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from django_rmq_retry.admin import early_form
from django_rmq_retry.amqp.levels import Level
from django_rmq_retry.messages import Reason
from django_rmq_retry.models import (
    Action,
    ApprovalRequest,
    Attempt,
    BlockedKey,
    EarlyRetry,
    ItemReason,
    ItemState,
    OperatorAction,
    ParkedMessage,
    QueueControl,
    RequeueItem,
    RequeueRun,
    RunState,
    RunWait,
    State,
)
from django_rmq_retry.parked import approvals
from django_rmq_retry.parked.actions import discard
from django_rmq_retry.parked.blocked_keys import unblock
from django_rmq_retry.parked.early_retries import RetryCause, WaitingReport
from django_rmq_retry.parked.outbox_actions import retry_outbox
from django_rmq_retry.parked.queue_pauses import pause_queue, resume_queue
from django_rmq_retry.parked.selection import Selection
from django_rmq_retry.topology import Role
from tests.admin import made
from tests.admin.conftest import QUEUE, client_of, operating
from tests.admin.stopped import blocked, halted, outgoing, trip
from tests.operators.made import ANN, logged
from tests.tooling import pseudo
from tests.tooling.brokers import broker_away

pytestmark = pytest.mark.django_db
ADMIN = "/admin/rmq_retry/"
AUDIT, GROUPS, LIST = f"{ADMIN}operatoraction/", f"{ADMIN}errorgroup/", f"{ADMIN}parkedmessage/"
PREVIEW, RUNS, STATUS = f"{ADMIN}requeuerun/preview/", f"{ADMIN}requeuerun/", f"{ADMIN}livestatus/"
QUEUES, KEYS, OUTBOX = (f"{ADMIN}{name}/" for name in ("queuecontrol", "blockedkey", "outboxmessage"))
STOCK = ("_add", "_delete")
"""Django's own addresses, closed to every user: 403."""
FILES = {"rmq_retry_parkedmessage_body", "rmq_retry_requeuerun_export"}
"""Addresses that answer with a file."""
SPOKEN = {
    *("title", "aria-label", "placeholder", "alt", "label", "data-text-done", "data-text-every", "data-text-paused"),
    *("data-text-stale", "data-text-signed-out", "data-text-pause", "data-text-resume"),
}
QUOTED = {"code", "kbd", "pre", "script", "style", "textarea"}
DATA = (
    *("GatewayTimeout", "bank.gateway:post", "no answer within 30 s", "payments.main", "payment.transfer", "payments"),
    *("ledger.post", "tests.admin.conftest.sent.<locals>.transfer"),
    *("payments.main.parked", "payments.main.quarantine", "bank/gateway.py:17", "payments/handlers.py:41", "transfer"),
    *(
        "Gave up after 5 attempts.",
        "lead",
        "testserver",
        "ann",
        "INC-553",
        "worker-3",
        "worker-4",
        "a1b2c3",
        "PAY-1",
        "REC-1",
        "said so",
    ),
    *(
        "x-death",
        "tenant",
        "north",
        "iban",
        "token",
        "headers.token",
        "application/json",
        "str",
        "UTC",
        *("JST", "WAT", "MST"),
        "SHA-256",
    ),
    *("message_id", "content_type", "delivery_mode", "admin", "cli", "code", "manage.py rmq_declare", "handlers.py"),
)
"""Values from outside, and names for machines."""


class Seen(HTMLParser):
    """Each text that a user sees or a screen reader reads, one after another."""

    def __init__(self, response: Any) -> None:
        super().__init__()
        self.read: list[str] = []
        self.heard: list[str] = []
        self._inside: list[str] = []
        self.feed(response.content.decode().replace("<wbr>", ""))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.heard += [given[name] for name in SPOKEN & set(given)]
        if given.get("type") == "submit":
            self.heard.append(given.get("value", ""))
        if tag in QUOTED:
            self._inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self._inside and self._inside[-1] == tag:
            self._inside.pop()

    def handle_data(self, data: str) -> None:
        if not self._inside:
            self.read.append(data)


def untranslated(response: Any) -> set[str]:
    """Words outside all brackets that are no data."""
    there = Seen(response)
    outside = "\n".join(map(pseudo.unmarked, [" ".join(there.read), *there.heard]))
    for known in sorted(DATA, key=len, reverse=True):
        outside = re.sub(rf"(?<![\w.]){re.escape(known)}(?![\w])", " ", outside)
    return set(re.findall(r"[^\W\d_]{2,}", re.sub(r"9f3c-\d+|corr-\d+|[0-9a-f]{16}", " ", outside)))


def wrong(found: dict[str, Any]) -> dict[str, set[str]]:
    """Of each page its words that stand outside all brackets."""
    told = {name: untranslated(response) for name, response in found.items()}
    return {name: words for name, words in told.items() if words}


@pytest.fixture(autouse=True)
def marked(tmp_path: Path, settings: Any) -> Iterator[None]:
    operating(settings, EDITABLE={"payment.*": True})
    # The copy of an unblocked message is a row of the outbox.
    with broker_away(), pseudo.spoken(settings, tmp_path):
        yield


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker with every kind of trouble."""
    full: dict[str, Any] = {"arguments": {"x-max-length": 1}, "dead_letters": 2, "moving": 1}
    levels = [
        Level(queue="payments.main" if role is Role.WORK else "payments", role=role, ready=3, consumers=0, **full)
        for role in Role
    ]
    levels += [Level(queue="payments", role=Role.WAITING, ready=3, consumers=1)]
    levels += [Level(queue="payments", role=Role.WORK, missing=True)]
    for ready, consumers in ((0, 0), (2, 0), (1, 1)):
        levels.append(Level(queue="payments", role=Role.WORK, ready=ready, consumers=consumers, abandoned=True))
    made.broker_seen(monkeypatch, *levels, api=False)


def test_untranslated_text_is_detected(page: Client) -> None:
    response = page.get(GROUPS)
    response.content = response.content.replace(b"</h1>", b" glued</h1>").replace(
        b'role="search"', b'title="Bare words"'
    )

    assert untranslated(response) == {"glued", "Bare", "words"}


def test_group_pages_are_translated(page: Client) -> None:
    cause = made.group(note="said so", noted_by="ann", noted_at=timezone.now(), regressed_at=timezone.now(), muted=True)
    cause.plain, cause.owner, cause.ticket, cause.reason = "said so", "ann", "INC-553", Reason.PERMANENT
    cause.save()
    for state in State:
        made.attempt(made.message(cause, state=state, held_until=timezone.now() + timedelta(days=2)), 5)
    addresses = [f"{GROUPS}?show=all", f"{GROUPS}?by=queue", f"{GROUPS}?q=nothing", f"{GROUPS}{cause.pk}/change/"]

    assert wrong({address: page.get(address) for address in [*addresses, f"{GROUPS}{cause.pk}/note/"]}) == {}


def test_the_message_list_with_each_reason_is_translated(page: Client) -> None:
    for reason in Reason:
        made.message(made.group(title=""), error="", error_text="", reason=reason, cycle=2, unconfirmed=True)
    filters = ["state=all", *(f"reason={reason.value}&state=all&parked=1h&cycle_min=2" for reason in Reason)]

    assert wrong({words: page.get(f"{LIST}?{words}") for words in filters}) == {}


def test_the_message_page_is_translated_in_each_state(page: Client) -> None:
    later, found = timezone.now() + timedelta(days=2), {}
    fields: dict[str, Any] = {"resolved_at": timezone.now(), "resolution": "duplicate: INC-553", "held_until": later}
    for state in State:
        one = made.message(state=state, business_key="PAY-1", unconfirmed=True, succeeded_at=later, copies=2, **fields)
        for number in (4, 5):
            made.attempt(one, number)
        run = RequeueRun.objects.create(by="ann", created_at=later, state=RunState.FINISHED)
        RequeueItem.objects.create(
            run=run, message=one, place=1, revision=1, sent_at=later, skip_code=ItemReason.UNCONFIRMED
        )
        for action in Action:
            logged(action, on=one, reason="INC-553", run=run.pk)
        found[state.value] = page.get(f"{LIST}{one.pk}/change/")

    assert wrong(found) == {}


def test_missing_permissions_are_translated(settings: Any) -> None:
    operating(settings, CONTACT="ann", MASK=["iban", "token"])
    one = made.message(properties=made.properties({"token": "x", "x-death": "y"}))
    made.attempt(one, 5)
    looker = client_of(made.person("lead", "view_parkedmessage", "view_errorgroup", "view_operatoraction"))
    addresses = (f"{LIST}{one.pk}/change/", f"{GROUPS}{one.group_id}/change/", PREVIEW, RUNS, AUDIT, STATUS)

    assert wrong({address: looker.get(address) for address in addresses}) == {}


@pytest.mark.parametrize("what", ["discard", "hold", "export"])
def test_confirmation_pages_are_translated(page: Client, what: str) -> None:
    one = made.message(business_key="PAY-1")
    asked = page.get(f"{LIST}{what}/", {"group": one.group_id}, follow=True)
    address = asked.redirect_chain[-1][0]
    wrong = page.post(address, {"category": "other", "span": "at", "at": "never", "form": "paper"})
    gone = page.get(f"{LIST}{what}/?sel=made-up")
    found = [untranslated(response) for response in (asked, wrong, gone)]

    assert found == [set(), set(), set()]


def test_editing_pages_are_translated(page: Client) -> None:
    one = made.message(business_key="PAY-1")
    address = f"{LIST}{one.pk}/edit/"
    form = page.get(address)
    broken = page.post(address, {"text": '{"a": NaN}', "review": "1"})
    review = page.post(address, {"text": '{"iban": 1, "iban": 2}', "new_id": "REC-1", "review": "1"})
    found = [untranslated(response) for response in (form, broken, review)]

    assert found == [set(), set(), set()]


@pytest.mark.usefixtures("seen")
def test_the_preview_with_every_finding_is_translated(page: Client, settings: Any) -> None:
    operating(settings, REQUEUE_MAX_AGE=1.0)
    cause, old = made.group(), timezone.now() - timedelta(days=3)
    for _ in range(2):
        made.message(cause, business_key="PAY-1", published_at=old)
    made.message(cause, reason=Reason.PERMANENT, succeeded_at=old)
    made.message(cause, queue="payments", unconfirmed=True)
    made.message(cause, queue="", version=2)
    preview = page.get(PREVIEW, {"group": cause.pk}, follow=True)
    ids = "&".join(f"_selected_action={one.pk}" for one in ParkedMessage.objects.all())
    ticked = page.post(LIST, f"action=requeue&{ids}", follow=True, content_type="application/x-www-form-urlencoded")
    wrong = page.post(preview.redirect_chain[-1][0], {"start": "now", "rate": "0", "target": "REC-1"})
    found = [untranslated(response) for response in (preview, ticked, wrong)]

    assert found == [set(), set(), set()]


def test_the_run_page_is_translated_in_each_state(page: Client) -> None:
    counts = {"total": 9, "sent": 4, "processed": 1, "failed": 1, "skipped": 1, "unconfirmed": 1}
    bounds = {"max_depth": 10, "stop_at": 20, "rate": 8, "driver": "worker-3", "beat_at": timezone.now()}
    found = {}
    for state in RunState:
        run = RequeueRun.objects.create(
            by="ann", created_at=timezone.now(), state=state, wait=RunWait.GUARD, **counts, **bounds
        )
        for place, kind in enumerate(ItemState):
            RequeueItem.objects.create(
                run=run, message=made.message(), place=place, revision=1, state=kind, skip_code=ItemReason.LATE
            )
        found[state.value] = page.get(f"{RUNS}{run.pk}/change/")
    found["list"] = page.get(RUNS)

    assert wrong(found) == {}


@pytest.mark.usefixtures("seen")
def test_the_audit_log_and_the_live_status_are_translated(page: Client) -> None:
    one = made.message()
    made.attempt(one, 4, next_at=timezone.now() + timedelta(hours=1))
    RequeueRun.objects.create(by="ann", created_at=timezone.now(), state=RunState.RUNNING)
    acts = [logged(action, on=one, reason="INC-553") for action in Action]
    addresses = (AUDIT, f"{AUDIT}{acts[0].pk}/change/", f"{AUDIT}export/", STATUS)

    assert wrong({address: page.get(address) for address in addresses}) == {}


def addresses() -> dict[str, tuple[type[models.Model], bool]]:
    """Of each page its model, and whether it is about one row."""
    ours = [(model, pages) for model, pages in admin.site._registry.items() if model._meta.app_label == "rmq_retry"]
    urls = [(model, url, str(url.name or "")) for model, pages in ours for url in pages.get_urls()]
    return {
        name: (model, bool(url.pattern.converters)) for model, url, name in urls if name and not name.endswith(STOCK)
    }


def world() -> dict[str, dict[str, Any]]:
    """Make something of everything; return what some pages must be asked with."""
    one = made.message(business_key="PAY-1")
    made.message(state=State.DISCARDED, resolution="duplicate: INC-553", resolved_at=timezone.now())
    made.message(state=State.ON_HOLD, held_until=timezone.now() + timedelta(hours=1))
    made.attempt(one, 5)
    logged(Action.DISCARD, message=one.pk, reason="duplicate")
    RequeueRun.objects.create(by="ann", created_at=timezone.now(), note="INC-553")
    outgoing(failed=True)
    blocked(one, waiting=1)
    flying = [made.in_flight(), made.in_flight(seconds=60, timeout=30.0)]
    made.consumer(in_flight=flying[:1], number=1)
    made.consumer(connected=False)
    made.consumer(stopping=True)
    made.consumer(seconds=90)
    made.consumer(seconds=90, in_flight=flying)
    made.tried_again("9f3c-7", at=timezone.now() - timedelta(minutes=1), verdict="ack")
    pause_queue(QUEUE, ANN, reason="INC-553", until=timezone.now() + timedelta(hours=1))
    halted("ledger.post")
    QueueControl.objects.filter(queue="ledger.post").update(halted_seen_at=timezone.now() + timedelta(hours=1))
    other = made.message()
    made.asked(lambda actor: discard(Selection.of_ids([other.pk]), actor, category="duplicate"), ANN)
    chosen = {"message": one.pk}
    asking = ("discard", "hold", "unhold_many", "restore_many", "export", "edit_many")
    acts = {f"rmq_retry_parkedmessage_{act}": chosen for act in asking}
    since = {"since": one.parked_at - timedelta(hours=1), "after": 0}
    runs: dict[str, dict[str, Any]] = {
        "rmq_retry_requeuerun_preview": chosen,
        "rmq_retry_requeuerun_waiting": {"queue": QUEUE},
        "rmq_retry_queuecontrol_first": {"queue": "ledger.post"},
        "rmq_retry_livestatus_checked": {"code": "PERHAPS_TWICE"},
    }
    return {**acts, **runs, "rmq_retry_parkedmessage_newer": since}


IN_STATE = {"rmq_retry_parkedmessage_restore": State.DISCARDED, "rmq_retry_parkedmessage_unhold": State.ON_HOLD}
"""The state of the message for the pages that are about messages in one state."""


REFUSED = {"rmq_retry_approvalrequest_reject": 422, "rmq_retry_outboxmessage_discard_several": 422}
"""What the world no longer allows: its request was approved just before; and what is asked without a selection."""


def answered(client: Client, name: str, asked: dict[str, Any]) -> Any:
    """The response of an address; of one that takes no GET, the response to its button."""
    model, single = addresses()[name]
    rows = model._default_manager.filter(**({"state": IN_STATE[name]} if name in IN_STATE else {}))
    row = rows.order_by("pk").first() if single else None
    url = reverse(f"admin:{name}", args=[row.pk] if row else [])
    response = client.get(url, asked, follow=True)
    if response.status_code != 405:
        return response
    seen = {"seen": approvals.mark(row)} if isinstance(row, ApprovalRequest) else {}
    return client.post(url, {"place": "iban", "queue": "none", **seen}, follow=True)


def test_every_admin_page_is_translated(page: Client) -> None:
    asked = world()
    found = {name: answered(page, name, asked.get(name, {})) for name in addresses()}
    files = {name for name, response in found.items() if not response["Content-Type"].startswith("text/html")}
    found["app_list"] = page.get(ADMIN)

    assert {name: response.status_code for name, response in found.items() if response.status_code != 200} == REFUSED
    assert files == FILES
    assert wrong({name: response for name, response in found.items() if name not in files}) == {}


def test_the_page_of_waiting_retries_and_its_run_are_translated(page: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    due = timezone.now() + timedelta(minutes=3)
    causes = (
        RetryCause(error="A", count=1100, first=due, last=due),
        RetryCause(error="B", count=1, first=due, last=due),
    )
    waits = WaitingReport(queue=QUEUE, count=1101, causes=causes)
    monkeypatch.setattr(early_form, "_ask_broker", lambda _wish: (waits, "", ""))
    address = f"{RUNS}waiting/?queue={QUEUE}"
    found = {"asked": page.get(address), "refused": page.post(address, {"queue": QUEUE, "start": "now"})}
    seen = found["asked"].context["form"].mark
    form = {"queue": QUEUE, "start": "now", "reason": "INC-553", "typed": "1101", "seen": seen}
    found["run"] = page.post(address, form, follow=True)
    RequeueRun.objects.update(state="finished", sent=9, failed=1, skipped=2, perhaps_twice=1)
    run = RequeueRun.objects.get()
    for number, (error, next_at) in enumerate((("A", due), ("A", due), ("B", None))):
        values = {"identity": f"message:{number}", "error": error, "sent_at": due, "redelivered": True, "handled": 1}
        EarlyRetry.objects.create(run=run, state=ItemState.FAILED, **values)
        made.tried_again(str(number), at=due, verdict="ack" if next_at is None else "retry")
        Attempt.objects.filter(message_id=str(number)).update(next_at=next_at)
    found["ended"] = page.get(found["run"].redirect_chain[-1][0])
    for kind in ("failed", "perhaps_twice", "handled_twice"):
        found[kind] = page.get(f"{RUNS}{run.pk}/outcomes/", {"of": kind})
    found["second"] = page.post(address, form)
    RequeueRun.objects.update(state="stopped")
    found["stopped"] = page.get(found["run"].redirect_chain[-1][0])

    assert wrong(found) == {}


def test_every_admin_page_states_the_missing_permission_in_translation(settings: Any) -> None:
    operating(settings, CONTACT="ann")
    asked, new = world(), client_of(made.person("admin"))
    found = {name: answered(new, name, asked.get(name, {})) for name in addresses()}
    ours = {name: response for name, response in found.items() if response.templates}

    assert [name for name, response in found.items() if _open(response)] == ["rmq_retry_errorgroup_help"]
    assert len(ours) > len(found) / 2
    assert wrong(ours) == {}


def _open(response: Any) -> bool:
    """True if it is shown; a user who may see no action is redirected from one."""
    return response.status_code == 200 and not response.redirect_chain


def test_every_list_of_an_empty_database_is_translated(page: Client) -> None:
    whole = [name for name, (_model, single) in addresses().items() if not single and name.endswith("_changelist")]

    assert wrong({name: answered(page, name, {}) for name in whole}) == {}


@pytest.mark.parametrize("failed", [0, 1, 2])
@pytest.mark.parametrize("tried", [False, True])
def test_the_page_of_a_queue_with_an_open_breaker_is_translated(page: Client, failed: int, tried: bool) -> None:
    trip(QUEUE, handler="transfer", kind="GatewayTimeout", cause="GatewayTimeout", failed=failed, by="worker-3")
    if tried:
        QueueControl.objects.update(prober="worker-3", probe_until=timezone.now() + timedelta(hours=1))
    found = {"open": page.get(QUEUES), "status": page.get(f"{ADMIN}livestatus/")}
    found["held"] = page.post(
        f"{QUEUES}change_state/", {"queue": QUEUE, "action": "pause", "reason": "INC-553"}, follow=True
    )

    assert wrong(found) == {}
    assert found["open"].context["rows"][0].explanation


def test_the_messages_after_pausing_and_resuming_are_translated(page: Client) -> None:
    acts = [(QUEUE, "pause"), (QUEUE, "resume"), (QUEUE, "resume"), ("tenant", "pause")]
    asked = [{"queue": queue, "action": act, "reason": "INC-553"} for queue, act in acts]
    said = [page.post(f"{QUEUES}change_state/", words, follow=True) for words in asked]

    assert [str(message.level_tag) for one in said for message in one.context["messages"]] == [
        *("success", "success", "warning", "warning"),
    ]
    assert [untranslated(one) for one in said] == [set()] * 4


@pytest.mark.parametrize("count", [0, 1, 2])
def test_the_outbox_page_is_translated(page: Client, count: int) -> None:
    rows = [outgoing(failed=False), *(outgoing(failed=True) for _ in range(count))]
    listed = page.get(f"{OUTBOX}?state=failed")
    done = page.post(OUTBOX, {"action": "retry", "_selected_action": [row.pk for row in rows]}, follow=True)

    assert [f"{count} message" in str(message) for message in done.context["messages"]] == [True]
    assert wrong({"listed": listed, "done": done}) == {}


def test_the_pages_of_a_blocked_key_are_translated(page: Client, settings: Any) -> None:
    settings.RMQ_RETRY = {**settings.RMQ_RETRY, "BLOCKED_PER_KEY": 1}
    first = made.message()
    known = blocked(first, waiting=2)
    address = f"{KEYS}{known.pk}/unblock/"
    found = {"listed": page.get(KEYS), "message": page.get(f"{LIST}{first.pk}/change/"), "asked": page.get(address)}
    found["no reason"] = page.post(address, {"first": "1"})
    for name, answer in (("late", "2"), ("next", "1"), ("last", ""), ("free", "")):
        found[name] = page.post(address, {"first": answer, "text": "INC-553"}, follow=True)

    assert wrong(found) == {}
    assert not BlockedKey.objects.exists()
    assert OperatorAction.objects.count() == 3


def test_the_audit_log_names_the_object_of_each_action(page: Client) -> None:
    pause_queue(QUEUE, ANN, reason="INC-553")
    resume_queue(QUEUE, ANN)
    unblock(blocked(made.message(), waiting=0), ANN, reason="INC-553")
    retry_outbox(ANN, [outgoing(failed=True).pk], using="default")
    logged(Action.PAUSE, run=1, facts={"before": {}, "after": {}})
    logged(Action.UNHOLD)
    said = [act.get_action_display() for act in OperatorAction.objects.order_by("number")]

    assert said == [
        *("[!! Pause queue !!]", "[!! Resume queue !!]", "[!! Unblock key !!]", "[!! Retry outbox message !!]"),
        *("[!! Pause requeue run !!]", "[!! Take off hold !!]"),
    ]
    assert untranslated(page.get(f"{ADMIN}operatoraction/")) == set()


def test_the_page_of_a_deleted_message_is_translated(page: Client) -> None:
    made.message()
    gone = made.message().pk
    alone = made.message().pk
    logged(Action.DISCARD, message=gone, reason="duplicate")
    made.message()
    ParkedMessage.objects.filter(pk__in=[gone, alone]).delete()
    found = {name: page.get(f"{LIST}{pk}/change/") for name, pk in (("gone", gone), ("alone", alone))}

    assert [response.status_code for response in found.values()] == [410, 410]
    assert wrong(found) == {}

"""Every page in a language that puts each translated text between brackets: no word of ours stands outside."""

import re
from collections.abc import Iterator
from datetime import timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from django_rmq_retry.amqp.levels import Level
from django_rmq_retry.messages import Reason
from django_rmq_retry.models import (
    Action,
    ItemReason,
    ItemState,
    ParkedMessage,
    RequeueItem,
    RequeueRun,
    RunState,
    RunWait,
    State,
)
from django_rmq_retry.topology import Role
from tests.admin import made
from tests.admin.conftest import client_of, operating
from tests.operators.made import logged
from tests.tooling import pseudo

pytestmark = pytest.mark.django_db
ADMIN = "/admin/rmq_retry/"
AUDIT, GROUPS, LIST = f"{ADMIN}operatoraction/", f"{ADMIN}errorgroup/", f"{ADMIN}parkedmessage/"
PREVIEW, RUNS, STATUS = f"{ADMIN}requeuerun/preview/", f"{ADMIN}requeuerun/", f"{ADMIN}livestatus/"
SPOKEN = {
    *("title", "aria-label", "placeholder", "alt", "label", "data-text-done", "data-text-every", "data-text-paused"),
    *("data-text-stale", "data-text-signed-out", "data-text-pause", "data-text-resume"),
}
QUOTED = {"code", "kbd", "pre", "script", "style", "textarea"}
DATA = (
    *("GatewayTimeout", "bank.gateway:post", "no answer within 30 s", "payments.main", "payment.transfer", "payments"),
    *("payments.main.parked", "payments.main.quarantine", "bank/gateway.py:17", "payments/handlers.py:41", "transfer"),
    *("Gave up after 5 attempts.", "lead", "ann", "INC-553", "worker-3", "a1b2c3", "PAY-1", "REC-1", "said so"),
    *("x-death", "tenant", "north", "iban", "token", "headers.token", "application/json", "str", "UTC", "SHA-256"),
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
        self.feed(response.content.decode())

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


@pytest.fixture(autouse=True)
def marked(tmp_path: Path, settings: Any) -> Iterator[None]:
    operating(settings, EDITABLE={"payment.*": True})
    with pseudo.spoken(settings, tmp_path):
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


def test_empty_pages_are_translated(page: Client) -> None:
    found = {address: untranslated(page.get(address)) for address in (GROUPS, LIST, RUNS, AUDIT, STATUS)}

    assert {address: words for address, words in found.items() if words} == {}


def test_group_pages_are_translated(page: Client) -> None:
    cause = made.group(note="said so", noted_by="ann", noted_at=timezone.now(), regressed_at=timezone.now(), muted=True)
    cause.plain, cause.owner, cause.ticket, cause.reason = "said so", "ann", "INC-553", Reason.PERMANENT
    cause.save()
    for state in State:
        made.attempt(made.message(cause, state=state, held_until=timezone.now() + timedelta(days=2)), 5)
    addresses = [f"{GROUPS}?show=all", f"{GROUPS}?by=queue", f"{GROUPS}?q=nothing", f"{GROUPS}{cause.pk}/change/"]
    found = {address: untranslated(page.get(address)) for address in [*addresses, f"{GROUPS}{cause.pk}/note/"]}

    assert {address: words for address, words in found.items() if words} == {}


@pytest.mark.parametrize("reason", list(Reason))
def test_the_message_list_with_each_reason_is_translated(page: Client, reason: Reason) -> None:
    made.message(made.group(title=""), error="", error_text="", reason=reason, cycle=2, unconfirmed=True)
    addresses = (f"{LIST}?state=all", f"{LIST}?reason={reason.value}&state=all&parked=1h&cycle_min=2")
    found = [untranslated(page.get(address)) for address in addresses]

    assert found == [set(), set()]


@pytest.mark.parametrize("state", list(State))
def test_the_message_page_is_translated_in_each_state(page: Client, state: State) -> None:
    later = timezone.now() + timedelta(days=2)
    resolved: dict[str, Any] = {
        "resolved_at": timezone.now(),
        "resolution": "duplicate: INC-553",
        "held_until": later,
        "copies": 2,
    }
    one = made.message(state=state, business_key="PAY-1", unconfirmed=True, succeeded_at=later, **resolved)
    for number in (4, 5):
        made.attempt(one, number)
    run = RequeueRun.objects.create(by="ann", created_at=later, state=RunState.FINISHED)
    RequeueItem.objects.create(
        run=run, message=one, place=1, revision=1, sent_at=later, skip_code=ItemReason.UNCONFIRMED
    )
    for action in Action:
        logged(action, on=one, reason="INC-553", run=run.pk)

    assert untranslated(page.get(f"{LIST}{one.pk}/change/")) == set()


def test_missing_permissions_are_translated(settings: Any) -> None:
    operating(settings, CONTACT="ann", MASK=["iban", "token"])
    one = made.message(properties=made.properties({"token": "x", "x-death": "y"}))
    made.attempt(one, 5)
    looker = client_of(made.person("lead", "view_parkedmessage", "view_errorgroup", "view_operatoraction"))
    addresses = (f"{LIST}{one.pk}/change/", f"{GROUPS}{one.group_id}/change/", PREVIEW, RUNS, AUDIT, STATUS)
    found = {address: untranslated(looker.get(address)) for address in addresses}

    assert {address: words for address, words in found.items() if words} == {}


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


@pytest.mark.parametrize("state", list(RunState))
def test_the_run_page_is_translated_in_each_state(page: Client, state: RunState) -> None:
    counts = {"total": 9, "sent": 4, "processed": 1, "failed": 1, "skipped": 1, "unconfirmed": 1}
    bounds = {"max_depth": 10, "stop_at": 20, "rate": 8, "driver": "worker-3", "beat_at": timezone.now()}
    run = RequeueRun.objects.create(
        by="ann", created_at=timezone.now(), state=state, wait=RunWait.GUARD, **counts, **bounds
    )
    for place, kind in enumerate(ItemState):
        RequeueItem.objects.create(
            run=run, message=made.message(), place=place, revision=1, state=kind, skip_code=ItemReason.LATE
        )
    found = [untranslated(page.get(address)) for address in (RUNS, f"{RUNS}{run.pk}/change/")]

    assert found == [set(), set()]


@pytest.mark.usefixtures("seen")
def test_the_audit_log_and_the_live_status_are_translated(page: Client) -> None:
    one = made.message()
    made.attempt(one, 4, next_at=timezone.now() + timedelta(hours=1))
    RequeueRun.objects.create(by="ann", created_at=timezone.now(), state=RunState.RUNNING)
    acts = [logged(action, on=one, reason="INC-553") for action in Action]
    number = acts[0].pk
    found = {one: untranslated(page.get(one)) for one in (AUDIT, f"{AUDIT}{number}/change/", f"{AUDIT}export/", STATUS)}

    assert {address: words for address, words in found.items() if words} == {}

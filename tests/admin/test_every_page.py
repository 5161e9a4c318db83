"""Every address of the app's admin, found by itself, in a language that puts each translated text between brackets."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.contrib import admin
from django.db import models
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from django_rmq_retry.models import Action, BlockedKey, OperatorAction, ParkedMessage, QueueControl, RequeueRun
from django_rmq_retry.parked.controls import pause, resume, retry_outbox, unblock
from django_rmq_retry.policies import Circuit
from tests.admin import made
from tests.admin.conftest import QUEUE, client_of, operating
from tests.admin.standstills import blocked, outgoing, tripped
from tests.admin.test_translated import ADMIN, untranslated
from tests.operators.made import ANN, logged
from tests.tooling import pseudo
from tests.tooling.brokers import broker_away

pytestmark = pytest.mark.django_db
STOCK = ("_add", "_delete")
"""Django's own addresses, closed to every user: 403."""
FILES = {"rmq_retry_parkedmessage_body", "rmq_retry_requeuerun_export"}
"""Addresses that answer with a file."""
QUEUES, KEYS, OUTBOX, LIST = (
    f"{ADMIN}{name}/" for name in ("queuecontrol", "blockedkey", "outboxmessage", "parkedmessage")
)


@pytest.fixture(autouse=True)
def spoken(tmp_path: Path, settings: Any) -> Iterator[None]:
    operating(settings, EDITABLE={"payment.*": True})
    # The copy of an unblocked message is a row of the outbox.
    with broker_away(), pseudo.spoken(settings, tmp_path):
        yield


def addresses() -> dict[str, tuple[type[models.Model], bool]]:
    """Of each page its model, and whether it is about one row."""
    ours = [(model, pages) for model, pages in admin.site._registry.items() if model._meta.app_label == "rmq_retry"]
    urls = [(model, url, str(url.name or "")) for model, pages in ours for url in pages.get_urls()]
    return {
        name: (model, bool(url.pattern.converters)) for model, url, name in urls if name and not name.endswith(STOCK)
    }


def world() -> dict[str, dict[str, Any]]:
    """Something of everything; what some pages must be asked with."""
    one = made.message(business_key="PAY-1")
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
    pause(QUEUE, ANN, reason="INC-553", until=timezone.now() + timedelta(hours=1))
    chosen = {"message": one.pk}
    acts = {f"rmq_retry_parkedmessage_{act}": chosen for act in ("discard", "hold", "export")}
    since = {"since": one.parked_at - timedelta(hours=1), "after": 0}
    return {**acts, "rmq_retry_requeuerun_preview": chosen, "rmq_retry_parkedmessage_newer": since}


def answered(client: Client, name: str, asked: dict[str, Any]) -> Any:
    """The response of an address; of one that takes no GET, the response to its button."""
    model, single = addresses()[name]
    row = model._default_manager.order_by("pk").first() if single else None
    url = reverse(f"admin:{name}", args=[row.pk] if row else [])
    response = client.get(url, asked, follow=True)
    return client.post(url, {"place": "iban"}, follow=True) if response.status_code == 405 else response


def wrong(found: dict[str, Any]) -> dict[str, set[str]]:
    """Of each page its words that stand outside all brackets."""
    told = {name: untranslated(response) for name, response in found.items()}
    return {name: words for name, words in told.items() if words}


def test_every_admin_page_is_translated(page: Client) -> None:
    asked = world()
    found = {name: answered(page, name, asked.get(name, {})) for name in addresses()}
    files = {name for name, response in found.items() if not response["Content-Type"].startswith("text/html")}
    found["app_list"] = page.get(ADMIN)

    assert {name: response.status_code for name, response in found.items() if response.status_code != 200} == {}
    assert files == FILES
    assert wrong({name: response for name, response in found.items() if name not in files}) == {}


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


def trip(at: datetime, *, failed: int = 0, tried: bool = False) -> None:
    now = at.timestamp()
    circuit = Circuit().trip(handler="transfer", kind="GatewayTimeout", cause="GatewayTimeout", now=now, wait=60)
    for _ in range(failed):
        circuit = circuit.fail(cause="GatewayTimeout", now=now, wait=60)
    tripped(QUEUE, circuit, by="worker-3")
    if tried:
        QueueControl.objects.update(prober="worker-3", probe_until=at + timedelta(hours=1))


@pytest.mark.parametrize("failed", [0, 1, 2])
@pytest.mark.parametrize("tried", [False, True])
def test_the_page_of_a_queue_with_an_open_breaker_is_translated(page: Client, failed: int, tried: bool) -> None:
    trip(timezone.now(), failed=failed, tried=tried)
    found = {"open": page.get(QUEUES), "status": page.get(f"{ADMIN}livestatus/")}
    found["held"] = page.post(
        f"{QUEUES}change_state/", {"queue": QUEUE, "action": "pause", "reason": "INC-553"}, follow=True
    )

    assert wrong(found) == {}
    assert found["open"].context["rows"][0].explanation


def test_the_messages_after_pausing_and_resuming_are_translated(page: Client) -> None:
    acts = [(QUEUE, "pause"), (QUEUE, "resume"), (QUEUE, "resume"), ("tenant", "pause")]
    said = [page.post(f"{QUEUES}change_state/", {"queue": queue, "action": act}, follow=True) for queue, act in acts]

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
    pause(QUEUE, ANN)
    resume(QUEUE, ANN)
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

"""Permissions: each address and each verb, with every right but the one that it needs."""

from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse

from django_rmq_retry.models import OperatorAction, ParkedMessage, RequeueRun, State
from django_rmq_retry.parked.selection import Selection
from tests.admin import made
from tests.admin.conftest import client_of
from tests.operators.made import requeue_run

pytestmark = pytest.mark.django_db(transaction=True)


def world() -> dict[str, Any]:
    """One message in each state, a run and an act."""
    cause = made.group()
    parked, gone = made.message(cause), made.message(cause, state=State.DISCARDED)
    held = made.message(cause, state=State.ON_HOLD)
    run = requeue_run([made.message(cause).pk])
    token = made.selected(parked)
    many = [made.message(cause).pk for _ in range(26)]
    return {
        "message": parked.pk,
        "gone": gone.pk,
        "held": held.pk,
        "group": cause.pk,
        "run": run.pk,
        "act": OperatorAction.objects.get(run=run.pk).pk,
        "sel": token,
        "many": Selection.of_ids(many).token(),
        "key": made.blocked_key().pk,
        "row": made.outgoing().pk,
    }


ADDRESSES: list[tuple[str, str, str, dict[str, str], tuple[str, ...]]] = [
    ("get", "parkedmessage_changelist", "", {}, ("view_parkedmessage",)),
    ("get", "parkedmessage_change", "message", {}, ("view_parkedmessage",)),
    ("get", "errorgroup_changelist", "", {}, ("view_errorgroup",)),
    ("get", "errorgroup_changelist", "", {"by": "queue"}, ("view_errorgroup",)),
    ("get", "errorgroup_change", "group", {}, ("view_errorgroup",)),
    ("get", "requeuerun_changelist", "", {}, ("view_requeuerun",)),
    ("get", "requeuerun_change", "run", {}, ("view_requeuerun",)),
    ("get", "operatoraction_changelist", "", {}, ("view_operatoraction",)),
    ("get", "operatoraction_change", "act", {}, ("view_operatoraction", "view_all_operatoraction")),
    ("get", "livestatus_changelist", "", {}, ("view_livestatus",)),
    ("get", "consumerprocess_changelist", "", {}, ("view_livestatus",)),
    ("get", "queuecontrol_changelist", "", {}, ("view_queuecontrol",)),
    ("post", "queuecontrol_change_state", "", {"action": "pause"}, ("view_queuecontrol", "pause_queue")),
    ("get", "outboxmessage_changelist", "", {}, ("view_outboxmessage",)),
    ("get", "blockedkey_changelist", "", {}, ("view_blockedkey",)),
    ("get", "blockedkey_unblock", "key", {}, ("view_blockedkey", "unblock_blockedkey")),
    ("post", "blockedkey_unblock", "key", {"first": "m1", "text": "r"}, ("view_blockedkey", "unblock_blockedkey")),
    ("get", "requeuerun_preview", "", {"sel": "sel"}, ("requeue",)),
    ("post", "requeuerun_preview", "", {"sel": "sel", "start": "now"}, ("requeue",)),
    ("post", "requeuerun_preview", "", {"sel": "many", "start": "now"}, ("requeue", "bulk_requeue")),
    ("post", "requeuerun_control", "run", {"action": "pause"}, ("control_requeuerun",)),
    ("post", "requeuerun_send", "run", {}, ("requeue",)),
    ("post", "requeuerun_export", "run", {}, ("view_requeuerun", "export")),
    ("get", "parkedmessage_discard", "", {"sel": "sel"}, ("discard",)),
    ("post", "parkedmessage_discard", "", {"sel": "sel", "category": "test"}, ("discard",)),
    ("post", "parkedmessage_restore", "gone", {}, ("view_parkedmessage", "discard")),
    ("get", "parkedmessage_hold", "", {"sel": "sel"}, ("hold",)),
    ("post", "parkedmessage_hold", "", {"sel": "sel", "span": "2h"}, ("hold",)),
    ("post", "parkedmessage_unhold", "held", {}, ("view_parkedmessage", "hold")),
    ("get", "parkedmessage_export", "", {"sel": "sel"}, ("view_parkedmessage", "export")),
    ("post", "parkedmessage_export", "", {"sel": "sel", "form": "csv"}, ("view_parkedmessage", "export")),
    (
        "post",
        "parkedmessage_export",
        "",
        {"sel": "sel", "form": "jsonl", "payload": "whole"},
        ("view_parkedmessage", "export", "view_payload"),
    ),
    ("get", "operatoraction_export", "", {}, ("view_operatoraction", "export")),
    ("post", "operatoraction_export", "", {}, ("view_operatoraction", "export")),
    ("post", "parkedmessage_body", "message", {}, ("view_parkedmessage", "view_payload")),
    ("post", "parkedmessage_reveal", "message", {"place": "iban"}, ("view_parkedmessage", "reveal_field")),
    (
        "get",
        "parkedmessage_edit",
        "message",
        {},
        ("view_parkedmessage", "edit_requeue", "view_payload", "requeue"),
    ),
    (
        "post",
        "parkedmessage_edit",
        "message",
        {"text": "{}", "store": "1", "reason": "r"},
        ("view_parkedmessage", "edit_requeue", "view_payload", "requeue"),
    ),
    ("get", "parkedmessage_newer", "", {"since": "2026-11-21T03:00:00Z", "after": "0"}, ("view_parkedmessage",)),
    ("get", "parkedmessage_keys", "", {}, ("view_parkedmessage",)),
    ("post", "parkedmessage_keys", "", {"keys": "PAY-1"}, ("view_parkedmessage",)),
    ("get", "errorgroup_help", "", {}, ()),
    ("get", "errorgroup_note", "group", {}, ("view_errorgroup", "note_errorgroup")),
    ("post", "errorgroup_note", "group", {"note": "n"}, ("view_errorgroup", "note_errorgroup")),
]
NAMES = ["_".join([address[0], address[1], *address[3].values()]) for address in ADDRESSES]
"""The verb of HTTP, the page, and what is asked of it."""


def ask(client: Client, known: dict[str, Any], address: tuple[str, str, str, dict[str, str], Any]) -> Any:
    method, name, of, data, _needs = address
    url = reverse(f"admin:rmq_retry_{name}", args=[known[of]] if of else [])
    values = {key: known.get(value, value) if key == "sel" else value for key, value in data.items()}
    asked: Callable[..., Any] = getattr(client, method)
    return asked(url, values)


def state() -> list[tuple[Any, ...]]:
    """Everything that an act could change."""
    messages = ParkedMessage.objects.order_by("pk").values_list("pk", "state", "revision", "version")
    return [*messages, *RequeueRun.objects.order_by("pk").values_list("pk", "state"), (OperatorAction.objects.count(),)]


@pytest.mark.parametrize("address", ADDRESSES, ids=NAMES)
def test_each_page_needs_its_own_permissions_and_no_others(address: Any, settings: Any) -> None:
    settings.RMQ_RETRY = {**settings.RMQ_RETRY, "OPERATORS": {"EDITABLE": {"*": True}}}
    known = world()
    able = client_of(made.person("able", *address[4]))

    assert ask(able, known, address).status_code in (200, 302, 422)


@pytest.mark.parametrize("address", ADDRESSES, ids=NAMES)
def test_every_page_refuses_a_user_who_lacks_one_permission(address: Any, settings: Any) -> None:
    settings.RMQ_RETRY = {**settings.RMQ_RETRY, "OPERATORS": {"EDITABLE": {"*": True}}}
    known = world()
    ours = Permission.objects.filter(content_type__app_label="rmq_retry")
    for lacking in address[4]:
        user = User.objects.create(username=f"lacks-{lacking}", is_staff=True)
        user.user_permissions.set(ours.exclude(codename=lacking))
        before = state()
        refused = ask(client_of(user), known, address)

        assert refused.status_code == 403, lacking
        assert "You need the permission" in refused.context["why"]
        assert state() == before


@pytest.mark.parametrize("address", ADDRESSES, ids=NAMES)
def test_every_page_redirects_anonymous_users_to_the_login(address: Any) -> None:
    known = world()
    before = state()
    answer = ask(Client(), known, address)

    assert answer.status_code == 302
    assert answer.headers["Location"].startswith("/admin/login/")
    assert state() == before


@pytest.mark.parametrize("address", [one for one in ADDRESSES if one[0] == "post"], ids=lambda one: str(one[1]))
def test_no_action_is_done_by_get(address: Any, settings: Any) -> None:
    settings.RMQ_RETRY = {**settings.RMQ_RETRY, "OPERATORS": {"EDITABLE": {"*": True}}}
    known = world()
    lead = client_of(made.person("lead", superuser=True))
    before = state()
    ask(lead, known, ("get", *address[1:]))

    assert state() == before


@pytest.mark.parametrize("address", [one for one in ADDRESSES if one[0] == "post"], ids=lambda one: str(one[1]))
def test_no_action_is_done_without_a_csrf_token(address: Any) -> None:
    known = world()
    client = Client(enforce_csrf_checks=True)
    client.force_login(made.person("lead", superuser=True))
    before = state()

    assert ask(client, known, address).status_code == 403
    assert state() == before


def test_the_list_offers_only_actions_that_the_user_may_do() -> None:
    known = world()
    url = reverse("admin:rmq_retry_parkedmessage_changelist")
    support = client_of(made.person("support", "view_parkedmessage", "hold"))
    shown = support.get(url).content.decode()
    ticked = {"action": "discard", "_selected_action": [known["message"]]}
    tried = support.post(url, ticked)

    assert 'value="hold"' in shown
    assert 'value="discard"' not in shown
    assert "/discard/?sel=" not in tried.headers.get("Location", "")


def test_the_permit_setting_is_called_for_each_message(settings: Any) -> None:
    def north_only(_user: object, _verb: str, message: Any) -> bool | str:
        return message.type == "north" or "Only the north is yours."

    settings.RMQ_RETRY = {**settings.RMQ_RETRY, "OPERATORS": {"PERMIT": north_only}}
    north, south = (
        made.message(type="north", business_key="NORTH-ONE"),
        made.message(type="south", business_key="SOUTH-ONE"),
    )
    client = client_of(made.person("clerk", "view_parkedmessage", "discard", "requeue"))
    listed = client.get(reverse("admin:rmq_retry_parkedmessage_changelist")).content.decode()
    page = client.get(reverse("admin:rmq_retry_parkedmessage_change", args=[south.pk]))
    token = made.selected(north, south)
    acted = client.post(reverse("admin:rmq_retry_parkedmessage_discard"), {"sel": token, "category": "test"})
    started = client.post(reverse("admin:rmq_retry_requeuerun_preview"), {"sel": token, "start": "now"})

    assert "NORTH-ONE" in listed
    assert "SOUTH-ONE" not in listed
    assert (page.status_code, acted.status_code, started.status_code) == (403, 403, 403)
    assert "Only the north is yours." in page.content.decode()
    assert "SOUTH-ONE" not in page.content.decode()


def test_a_search_does_not_open_a_hidden_message(settings: Any) -> None:
    settings.RMQ_RETRY = {
        **settings.RMQ_RETRY,
        "OPERATORS": {"PERMIT": lambda _user, _verb, message: message.type == "north"},
    }
    north = made.message(type="north", message_id="id-of-north")
    made.message(type="south", message_id="id-of-south")
    client = client_of(made.person("clerk", "view_parkedmessage"))
    url = reverse("admin:rmq_retry_parkedmessage_changelist")
    found, hidden, missing = (client.get(url, {"q": f"id-of-{name}"}) for name in ("north", "south", "nowhere"))

    assert found.headers["Location"] == reverse("admin:rmq_retry_parkedmessage_change", args=[north.pk])
    assert (hidden.status_code, missing.status_code) == (200, 200)
    assert hidden.content.decode().count("id-of-south") == missing.content.decode().count("id-of-nowhere")


def test_discarding_a_group_leaves_hidden_messages_parked(settings: Any) -> None:
    settings.RMQ_RETRY = {
        **settings.RMQ_RETRY,
        "OPERATORS": {"PERMIT": lambda _user, _verb, message: message.type == "north"},
    }
    cause = made.group()
    north, south = made.message(cause, type="north"), made.message(cause, type="south")
    client = client_of(made.person("clerk", "view_parkedmessage", "discard"))
    url = reverse("admin:rmq_retry_parkedmessage_discard")
    there = client.get(url, {"group": cause.pk}).headers["Location"]
    client.post(url, {"sel": unquote(there.partition("sel=")[2]), "category": "test"})

    assert [ParkedMessage.objects.get(pk=one.pk).state for one in (north, south)] == ["discarded", "parked"]

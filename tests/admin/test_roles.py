"""The five roles at every address of the admin, by GET and by POST: what their table says, and nothing else."""

from itertools import product
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import Group, User
from django.core.management import call_command
from django.db.models import Model
from django.test import Client
from django.urls import URLPattern, reverse

from django_rmq_retry.admin import runs
from django_rmq_retry.parked import selection
from django_rmq_retry.parked.selection import Selection
from tests.admin import made
from tests.admin.conftest import client_of
from tests.admin.test_permissions import ADDRESSES, NAMES, ask, state, world

pytestmark = pytest.mark.django_db(transaction=True)
ALL = {"support", "on-call", "developer", "auditor", "lead"}
MAY: dict[str, set[str]] = {
    "get_parkedmessage_changelist": ALL,
    "get_parkedmessage_change": ALL,
    "get_errorgroup_changelist": ALL,
    "get_errorgroup_changelist_queue": ALL,
    "get_errorgroup_change": ALL,
    "get_requeuerun_changelist": ALL,
    "get_requeuerun_change": ALL,
    "get_livestatus_changelist": ALL,
    "get_consumerprocess_changelist": ALL,
    "get_outboxmessage_changelist": ALL,
    "get_blockedkey_changelist": ALL,
    "get_blockedkey_unblock": {"on-call", "lead"},
    "post_blockedkey_unblock_m1_r": {"on-call", "lead"},
    "get_operatoraction_changelist": ALL,
    "get_operatoraction_change": {"auditor", "lead"},
    "get_queuecontrol_changelist": ALL,
    "post_queuecontrol_change_state_pause": {"on-call", "lead"},
    "get_requeuerun_preview_sel": {"support", "on-call", "lead"},
    "post_requeuerun_preview_sel_now": {"support", "on-call", "lead"},
    "post_requeuerun_preview_many_now": {"on-call", "lead"},
    "post_requeuerun_control_pause": {"on-call", "lead"},
    "post_requeuerun_send": {"support", "on-call", "lead"},
    "post_requeuerun_export": ALL - {"support"},
    "get_parkedmessage_discard_sel": {"on-call", "lead"},
    "post_parkedmessage_discard_sel_test": {"on-call", "lead"},
    "post_parkedmessage_restore": {"on-call", "lead"},
    "get_parkedmessage_hold_sel": {"support", "on-call", "lead"},
    "post_parkedmessage_hold_sel_2h": {"support", "on-call", "lead"},
    "post_parkedmessage_unhold": {"support", "on-call", "lead"},
    "get_parkedmessage_export_sel": ALL - {"support"},
    "post_parkedmessage_export_sel_csv": ALL - {"support"},
    "post_parkedmessage_export_sel_jsonl_whole": {"on-call", "developer", "lead"},
    "get_operatoraction_export": ALL - {"support"},
    "post_operatoraction_export": ALL - {"support"},
    "post_parkedmessage_body": {"on-call", "developer", "lead"},
    "post_parkedmessage_reveal_iban": {"support", "lead"},
    "get_parkedmessage_edit": {"lead"},
    "post_parkedmessage_edit_{}_1_r": {"lead"},
    "get_parkedmessage_newer_2026-11-21T03:00:00Z_0": ALL,
    "get_parkedmessage_keys": ALL,
    "post_parkedmessage_keys_PAY-1": ALL,
    "get_errorgroup_help": ALL,
    "get_errorgroup_note": ALL - {"auditor"},
    "post_errorgroup_note_n": ALL - {"auditor"},
}
"""The roles that may; all other users get 403."""
INHERITED = ("add", "delete", "change", "history")
MODELS = [model for model in admin.site._registry if model._meta.app_label == "rmq_retry"]


def ours() -> set[str]:
    """The names of all addresses of the app."""
    found: list[URLPattern] = [url for model in MODELS for url in admin.site._registry[model].get_urls()]
    return {str(url.name).removeprefix("rmq_retry_") for url in found if url.name}


def in_role(role: str) -> Client:
    """A user of that group without any other right."""
    user = User.objects.create(username=role, is_staff=True)
    user.groups.add(Group.objects.get(name=f"rmq {role}"))
    return client_of(user)


@pytest.fixture
def roles(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    call_command("rmq_roles", verbosity=0)
    settings.RMQ_RETRY = {**settings.RMQ_RETRY, "OPERATORS": {"EDITABLE": {"*": True}}}
    monkeypatch.setattr(runs, "UNSCRIPTED", 0.0)


def test_the_role_table_covers_every_address() -> None:
    asked = {name for _method, name, *_more in ADDRESSES}
    inherited = {f"{model._meta.model_name}_{name}" for model, name in product(MODELS, INHERITED)}

    assert ours() - asked - inherited == set()
    assert "livestatus_change" not in ours()
    assert set(NAMES) == set(MAY)


@pytest.mark.usefixtures("roles")
@pytest.mark.parametrize("role", sorted(ALL))
def test_each_role_may_do_exactly_what_the_table_states(role: str) -> None:
    client, got = in_role(role), {}
    for name, address in zip(NAMES, ADDRESSES, strict=True):
        known, before = world(), state()
        answer = ask(client, known, address)
        got[name] = answer.status_code
        if answer.status_code == 403:
            assert state()[: len(before)] == before, name

    assert {name for name, code in got.items() if code == 403} == {name for name in MAY if role not in MAY[name]}
    assert set(got.values()) <= {200, 302, 403}


@pytest.mark.usefixtures("roles")
@pytest.mark.parametrize("role", ["root", *sorted(ALL)])
def test_the_stock_admin_forms_add_change_and_delete_nothing(role: str) -> None:
    known, before = world(), state()
    client = client_of(made.person(role, superuser=True)) if role == "root" else in_role(role)
    got = {}
    for model, name in product(MODELS, INHERITED):
        if f"{model._meta.model_name}_{name}" not in ours():
            continue
        address = own_form(model, name, known)
        got[f"post {name} {address}"] = client.post(address, {"post": "yes", "_save": "1", "state": "x"}).status_code
        got[f"get {name} {address}"] = client.get(address).status_code

    assert state() == before
    assert {address: code for address, code in got.items() if code not in (200, 302, 403, 404)} == {}
    assert {code for address, code in got.items() if address.split()[1] in ("add", "delete")} <= {403, 404}


@pytest.mark.usefixtures("roles")
@pytest.mark.parametrize(
    "page", ["requeuerun_preview", "parkedmessage_discard", "parkedmessage_hold", "parkedmessage_export"]
)
def test_a_forged_or_expired_token_does_nothing(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    known, lead = world(), in_role("lead")
    form = {"start": "now", "category": "test", "span": "2h", "form": "csv"}
    said, seal = known["sel"].rsplit(":", 1)
    other = Selection.of_filter({}).token().split(":")[0]
    forged = [f"{said}:{seal[::-1]}", f"{other}:{':'.join(known['sel'].split(':')[1:])}", "", "1", "\0", "é" * 300]
    before = state()
    url = reverse(f"admin:rmq_retry_{page}")
    got = {client_get(url, {"sel": one, **form}).status_code for one in forged for client_get in (lead.get, lead.post)}
    monkeypatch.setattr(selection, "VALID_FOR", -1)
    old = lead.post(url, {"sel": known["sel"], **form}).status_code

    assert (got, old, state()) == ({400}, 400, before)


@pytest.mark.usefixtures("roles")
def test_a_token_carries_no_permissions_of_its_author() -> None:
    known, support = world(), in_role("support")
    preview, discard = (reverse(f"admin:rmq_retry_{name}") for name in ("requeuerun_preview", "parkedmessage_discard"))
    link = in_role("lead").get(preview, {"group": known["group"]}).headers["Location"]
    before = state()
    shown = support.get(link)
    token = link.partition("sel=")[2]
    tried = [support.post(link, {"start": "now"}), support.post(f"{discard}?sel={token}", {"category": "test"})]

    assert (shown.status_code, [one.status_code for one in tried]) == (200, [403, 403])
    assert "Can requeue many messages at once" in shown.content.decode()
    assert state() == before


def own_form(model: type[Model], name: str, known: dict[str, Any]) -> str:
    """Of a record that is there."""
    of = {"parkedmessage": "message", "errorgroup": "group", "requeuerun": "run", "operatoraction": "act"}
    of["outboxmessage"] = "row"
    word = str(model._meta.model_name)
    return reverse(f"admin:rmq_retry_{word}_{name}", args=[] if name == "add" else [known[of[word]]])

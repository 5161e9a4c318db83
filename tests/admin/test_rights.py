"""Rights: a table of all addresses with the permissions and roles that they need, and one pass that proves it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import product
from typing import Any, NamedTuple
from urllib.parse import unquote

import pytest
from django.contrib import admin
from django.contrib.auth.models import Group, Permission, User
from django.core.management import call_command
from django.db import transaction
from django.test import Client
from django.urls import URLPattern, reverse
from django.utils import timezone

from django_rmq_retry.admin import runs
from django_rmq_retry.models import ApprovalRequest, OperatorAction, OutboxMessage, ParkedMessage, RequeueRun, State
from django_rmq_retry.parked import selection
from django_rmq_retry.parked.actions import discard
from django_rmq_retry.parked.edit import propose, store
from django_rmq_retry.parked.selection import Selection
from tests.admin import made
from tests.admin.conftest import client_of, is_north, operating
from tests.admin.stopped import halted
from tests.operators.made import requeue_run

pytestmark = pytest.mark.django_db
ALL = {"support", "on-call", "developer", "auditor", "lead"}
OPERATE, ACT, EXPORT = {"on-call", "lead"}, {"support", "on-call", "lead"}, ALL - {"support"}
WHOLE, REVEAL, NOTE = {"on-call", "developer", "lead"}, {"lead"}, ALL - {"auditor"}
EDIT = ("view_parkedmessage", "edit_requeue", "view_payload", "requeue")
BULK_EDIT = (*EDIT, "bulk_edit")
REQUEST, APPROVE = "view_approvalrequest", "approve_approvalrequest"
RUN = "view_requeuerun"
QUEUE, KEY, MESSAGE, AUDIT = "view_queuecontrol", "view_blockedkey", "view_parkedmessage", "view_operatoraction"
ROW = "view_outboxmessage"
DOUBT = {"code": "PERHAPS_TWICE", "reason": "r"}


class Address(NamedTuple):
    """One request: a page, what is asked of it, and the permissions and roles that may."""

    method: str
    name: str
    of: str
    data: dict[str, str]
    needs: tuple[str, ...]
    roles: set[str]

    def __str__(self) -> str:
        return " ".join([self.method, self.name, *self.data.values()])

    def asked_by(self, client: Client, known: dict[str, Any], method: str = "") -> Any:
        url = reverse(f"admin:rmq_retry_{self.name}", args=[known[self.of]] if self.of else [])
        values = {key: known.get(value, value) if key == "sel" else value for key, value in self.data.items()}
        asked: Callable[..., Any] = getattr(client, method or self.method)
        return asked(url, values)


ADDRESSES = [
    Address("get", "parkedmessage_changelist", "", {}, (MESSAGE,), ALL),
    Address("get", "parkedmessage_change", "message", {}, (MESSAGE,), ALL),
    Address("get", "parkedmessage_newer", "", {"since": "2026-11-21T03:00:00Z", "after": "0"}, (MESSAGE,), ALL),
    Address("get", "parkedmessage_keys", "", {}, (MESSAGE,), ALL),
    Address("post", "parkedmessage_keys", "", {"keys": "PAY-1"}, (MESSAGE,), ALL),
    Address("get", "errorgroup_changelist", "", {}, ("view_errorgroup",), ALL),
    Address("get", "errorgroup_changelist", "", {"by": "queue"}, ("view_errorgroup",), ALL),
    Address("get", "errorgroup_change", "group", {}, ("view_errorgroup",), ALL),
    Address("get", "errorgroup_help", "", {}, (), ALL),
    Address("get", "errorgroup_note", "group", {}, ("view_errorgroup", "note_errorgroup"), NOTE),
    Address(
        "post", "errorgroup_note", "group", {"note": "n"}, ("view_errorgroup", "note_errorgroup"), ALL - {"auditor"}
    ),
    Address("get", "requeuerun_changelist", "", {}, ("view_requeuerun",), ALL),
    Address("get", "requeuerun_change", "run", {}, ("view_requeuerun",), ALL),
    Address("get", "requeuerun_preview", "", {"sel": "sel"}, ("requeue",), ACT),
    Address("post", "requeuerun_preview", "", {"sel": "sel", "start": "now"}, ("requeue",), ACT),
    Address("post", "requeuerun_preview", "", {"sel": "many", "start": "now"}, ("requeue", "bulk_requeue"), OPERATE),
    Address("get", "requeuerun_waiting", "", {"queue": "payments.main"}, ("view_requeuerun", "send_waiting"), OPERATE),
    Address(
        "post",
        "requeuerun_waiting",
        "",
        {"queue": "payments.main", "start": "now"},
        ("view_requeuerun", "send_waiting"),
        OPERATE,
    ),
    Address("get", "requeuerun_control", "run", {"action": "stop"}, (RUN, "control_requeuerun"), OPERATE),
    Address("post", "requeuerun_control", "run", {"action": "pause"}, (RUN, "control_requeuerun"), OPERATE),
    Address("get", "requeuerun_outcomes", "early", {"of": "failed"}, ("view_requeuerun", MESSAGE), ALL),
    Address("post", "requeuerun_send", "run", {}, ("requeue",), ACT),
    Address("post", "requeuerun_export", "run", {}, ("view_requeuerun", "export"), EXPORT),
    Address("get", "operatoraction_changelist", "", {}, (AUDIT,), ALL),
    Address("get", "operatoraction_change", "act", {}, (AUDIT, "view_all_operatoraction"), {"auditor", "lead"}),
    Address("get", "operatoraction_export", "", {}, (AUDIT, "export"), EXPORT),
    Address("post", "operatoraction_export", "", {}, (AUDIT, "export"), EXPORT),
    Address("get", "approvalrequest_changelist", "", {}, (REQUEST,), ALL),
    Address("get", "approvalrequest_change", "request", {}, (REQUEST,), ALL),
    Address("post", "approvalrequest_approve", "request", {"remark": "r"}, (REQUEST, APPROVE, "discard"), OPERATE),
    Address("post", "approvalrequest_approve", "edit_request", {}, (REQUEST, APPROVE, *EDIT), {"lead"}),
    Address("post", "approvalrequest_reject", "request", {"reason": "r"}, (REQUEST, APPROVE), OPERATE),
    Address("get", "livestatus_changelist", "", {}, ("view_livestatus",), ALL),
    Address("get", "livestatus_handled_again", "", {}, ("view_livestatus",), ALL),
    Address("get", "livestatus_checked", "", DOUBT, ("view_livestatus", "discard"), OPERATE),
    Address("post", "livestatus_checked", "", DOUBT, ("view_livestatus", "discard"), OPERATE),
    Address("get", "consumerprocess_changelist", "", {}, ("view_livestatus",), ALL),
    Address("get", "queuecontrol_changelist", "", {}, (QUEUE,), ALL),
    Address("get", "queuecontrol_first", "", {"queue": "payments.main"}, (QUEUE, MESSAGE), ALL),
    Address("post", "queuecontrol_change_state", "", {"action": "pause"}, (QUEUE, "pause_queue"), OPERATE),
    Address("get", "outboxmessage_changelist", "", {}, ("view_outboxmessage",), ALL),
    Address("get", "outboxmessage_change", "row", {}, ("view_outboxmessage",), ALL),
    Address("get", "outboxmessage_discard", "row", {}, (ROW, "discard_outboxmessage"), OPERATE),
    Address("post", "outboxmessage_discard", "row", {"text": "r"}, (ROW, "discard_outboxmessage"), OPERATE),
    Address("post", "outboxmessage_discard_several", "", {"rows": "1"}, (ROW, "discard_outboxmessage"), OPERATE),
    Address("get", "blockedkey_changelist", "", {}, (KEY,), ALL),
    Address("get", "blockedkey_unblock", "key", {}, (KEY, "unblock_blockedkey"), OPERATE),
    Address("post", "blockedkey_unblock", "key", {"first": "m1", "text": "r"}, (KEY, "unblock_blockedkey"), OPERATE),
    Address("get", "parkedmessage_discard", "", {"sel": "sel"}, ("discard",), OPERATE),
    Address("post", "parkedmessage_discard", "", {"sel": "sel", "category": "test"}, ("discard",), OPERATE),
    Address("get", "parkedmessage_restore", "gone", {}, (MESSAGE, "discard"), OPERATE),
    Address("post", "parkedmessage_restore", "gone", {}, (MESSAGE, "discard"), OPERATE),
    Address("get", "parkedmessage_restore_many", "", {"sel": "sel"}, ("discard",), OPERATE),
    Address("post", "parkedmessage_restore_many", "", {"sel": "sel"}, ("discard",), OPERATE),
    Address("get", "parkedmessage_hold", "", {"sel": "sel"}, ("hold",), ACT),
    Address("post", "parkedmessage_hold", "", {"sel": "sel", "span": "2h"}, ("hold",), ACT),
    Address("get", "parkedmessage_unhold_many", "", {"sel": "sel"}, ("hold",), ACT),
    Address("post", "parkedmessage_unhold_many", "", {"sel": "sel"}, ("hold",), ACT),
    Address("get", "parkedmessage_unhold", "held", {}, (MESSAGE, "hold"), ACT),
    Address("post", "parkedmessage_unhold", "held", {}, (MESSAGE, "hold"), ACT),
    Address("get", "parkedmessage_export", "", {"sel": "sel"}, (MESSAGE, "export"), EXPORT),
    Address("post", "parkedmessage_export", "", {"sel": "sel", "form": "csv"}, (MESSAGE, "export"), EXPORT),
    Address(
        "post",
        "parkedmessage_export",
        "",
        {"sel": "sel", "form": "jsonl", "payload": "whole"},
        (MESSAGE, "export", "view_payload"),
        WHOLE,
    ),
    Address("post", "parkedmessage_body", "message", {}, (MESSAGE, "view_payload"), WHOLE),
    Address("post", "parkedmessage_reveal", "message", {"place": "iban"}, (MESSAGE, "reveal_field"), REVEAL),
    Address("get", "parkedmessage_edit", "message", {}, EDIT, {"lead"}),
    Address("post", "parkedmessage_edit", "message", {"text": "{}", "store": "1", "reason": "r"}, EDIT, {"lead"}),
    Address("get", "parkedmessage_edit_many", "", {"sel": "sel"}, BULK_EDIT, {"lead"}),
    Address(
        "post", "parkedmessage_edit_many", "", {"sel": "sel", "path": "amount", "act": "remove"}, BULK_EDIT, {"lead"}
    ),
]
TICKED = {
    ("outboxmessage", "retry", "row"): OPERATE,
    ("outboxmessage", "discard", "row"): OPERATE,
    ("parkedmessage", "requeue", "message"): ACT,
    ("parkedmessage", "edit", "message"): {"lead"},
    ("parkedmessage", "discard", "message"): OPERATE,
    ("parkedmessage", "hold", "message"): ACT,
    ("parkedmessage", "unhold", "held"): ACT,
    ("parkedmessage", "restore", "gone"): OPERATE,
    ("parkedmessage", "export", "message"): EXPORT,
}
"""The actions on the ticked rows of a list, each with a row, and the roles that may."""
LISTED = {"held": {"state": State.ON_HOLD}, "gone": {"state": State.DISCARDED}}
"""The filters of the lists on which an action on such a row is offered."""
INHERITED = ("add", "delete", "change", "history")
MODELS = [model for model in admin.site._registry if model._meta.app_label == "rmq_retry"]
INPUTS = ("p", "o", "q", "e", "sel", "message", "group", "run", "ids", "state", "since", "after", "before", "id__in")


def world() -> dict[str, Any]:
    """One message in each state, a run and an act."""
    cause = made.group()
    parked, gone = made.message(cause), made.message(cause, state=State.DISCARDED)
    held = made.message(cause, state=State.ON_HOLD)
    run = requeue_run([made.message(cause).pk])
    many = [made.message(cause).pk for _ in range(26)]
    edited = made.message(cause)
    made.consumer(seconds=600)
    made.tried_again("9f3c-7", at=timezone.now() - timedelta(minutes=1), verdict="ack")
    return {
        "message": parked.pk,
        "gone": gone.pk,
        "held": held.pk,
        "group": cause.pk,
        "run": run.pk,
        "early": RequeueRun.objects.create(by="ann", created_at=timezone.now(), retries_of="payments.main").pk,
        "act": OperatorAction.objects.get(run=run.pk).pk,
        "sel": made.selected(parked),
        "many": Selection.of_ids(many).token(),
        "key": made.blocked_key().pk,
        "halted": halted("payments.main").pk,
        "row": made.outgoing().pk,
        "request": made.asked(lambda actor: discard(Selection.of_ids([parked.pk]), actor, category="test")).pk,
        "edit_request": made.asked(
            lambda actor: store(edited.pk, actor, propose(edited, text="{}"), version=1, reason="empty")
        ).pk,
    }


def state() -> list[tuple[Any, ...]]:
    """Everything that an act could change."""
    messages = ParkedMessage.objects.order_by("pk").values_list("pk", "state", "revision", "version")
    runs = RequeueRun.objects.order_by("pk").values_list("pk", "state")
    requests = ApprovalRequest.objects.order_by("pk").values_list("pk", "state")
    outbox = OutboxMessage.objects.order_by("pk").values_list("pk", "attempts")
    return [*messages, *runs, *requests, *outbox, (OperatorAction.objects.count(),)]


@contextmanager
def undone() -> Iterator[None]:
    with transaction.atomic():
        yield
        transaction.set_rollback(True)


def in_role(role: str) -> Client:
    """A user of that group without any other right."""
    user = User.objects.create(username=role, is_staff=True)
    user.groups.add(Group.objects.get(name=f"rmq {role}"))
    return client_of(user)


@pytest.fixture(autouse=True)
def roles(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    call_command("rmq_roles", verbosity=0)
    operating(settings, EDITABLE={"*": True})
    monkeypatch.setattr(runs, "CLICK_SECONDS", 0.0)


def test_the_table_has_every_address() -> None:
    found: list[URLPattern] = [url for model in MODELS for url in admin.site._registry[model].get_urls()]
    ours = {str(url.name).removeprefix("rmq_retry_") for url in found if url.name}
    inherited = {f"{model._meta.model_name}_{name}" for model, name in product(MODELS, INHERITED)}

    assert ours - {address.name for address in ADDRESSES} - inherited == set()
    assert "livestatus_change" not in ours


def test_every_address_answers_those_who_may_and_changes_nothing_for_others() -> None:
    known, before = world(), state()
    ours = set(Permission.objects.filter(content_type__app_label="rmq_retry").values_list("codename", flat=True))
    roles = {role: in_role(role) for role in sorted(ALL)}
    needed = {permission for address in ADDRESSES for permission in address.needs}
    lacking = {one: client_of(made.person(f"lacks {one}", *ours - {one})) for one in needed}
    exact = {needs: client_of(made.person(f"has {needs}", *needs)) for needs in {one.needs for one in ADDRESSES}}
    wrong = []
    for address in ADDRESSES:
        users = {role: (client, role in address.roles) for role, client in roles.items()}
        users |= {f"lacks {one}": (lacking[one], False) for one in address.needs}
        users["has what it needs"] = exact[address.needs], True
        for who, (client, may) in users.items():
            with undone():
                answer = address.asked_by(client, known)
                same = state() == before
            refused = answer.status_code == 403 and same and "You need the permission" in answer.context["why"]
            if not (answer.status_code in (200, 302, 422) if may else refused):
                wrong.append((str(address), who, answer.status_code))

    assert wrong == []


def test_an_action_on_ticked_rows_is_done_for_its_roles_only() -> None:
    known, before, wrong = world(), state(), []
    roles = {role: in_role(role) for role in sorted(ALL)}
    for ((model, action, row), may), (role, client) in product(TICKED.items(), roles.items()):
        url = reverse(f"admin:rmq_retry_{model}_changelist", query=LISTED.get(row))
        with undone():
            answer = client.post(url, {"action": action, "_selected_action": [known[row]]})
            asks = "/?sel=" in answer.headers.get("Location", "") or b'id="rmq-text"' in answer.content
            done = asks or state() != before
        if done != (role in may):
            wrong.append((model, action, role))

    assert wrong == []
    pages = {str(model._meta.model_name): admin.site._registry[model] for model in MODELS}
    ours = {(model, action) for model, shown in pages.items() for action in shown.actions or ()}
    assert ours == {(model, action) for model, action, _row in TICKED}


def test_nothing_is_done_by_a_post_to_a_page_that_only_shows() -> None:
    known, lead = world(), client_of(made.person("root", superuser=True))
    lead.raise_request_exception = False
    before = state()
    posted = {one.name for one in ADDRESSES if one.method == "post"}
    shown = {one.name: one for one in ADDRESSES if one.name not in posted}
    codes = {name: one.asked_by(lead, known, method="post").status_code for name, one in shown.items()}

    assert {name: code for name, code in codes.items() if code >= 500} == {}
    assert state() == before


def test_every_address_sends_strangers_to_the_login() -> None:
    known, before = world(), state()
    places = {str(one): one.asked_by(Client(), known).headers["Location"] for one in ADDRESSES}

    assert [name for name, place in places.items() if not place.startswith("/admin/login/")] == []
    assert state() == before


def test_no_action_is_done_by_get_or_without_a_csrf_token() -> None:
    known, before, root = world(), state(), made.person("root", superuser=True)
    forged = Client(enforce_csrf_checks=True)
    forged.force_login(root)
    posts = [one for one in ADDRESSES if one.method == "post"]
    codes = {str(one): one.asked_by(forged, known).status_code for one in posts}
    for one in posts:
        one.asked_by(client_of(root), known, method="get")

    assert set(codes.values()) == {403}
    assert state() == before


def test_no_page_is_cacheable(page: Client) -> None:
    known = world()
    answers = {str(one): one.asked_by(page, known) for one in ADDRESSES if one.method == "get"}

    assert [name for name, answer in answers.items() if "no-store" not in answer["Cache-Control"]] == []


@pytest.mark.nightly
def test_no_page_fails_on_random_input(page: Client) -> None:
    page.raise_request_exception = False
    known, huge = world(), "99999999999999999999999"
    asked = [*({key: huge} for key in INPUTS), dict.fromkeys(INPUTS, "abc"), dict.fromkeys(INPUTS, "\x00")]
    pages = {(one.name, one.of) for one in ADDRESSES if one.method == "get"}
    urls = [reverse(f"admin:rmq_retry_{name}", args=[known[of]] if of else []) for name, of in sorted(pages)]
    ids = ("0", "-1", "abc", huge, "1%00", "%F0%9F%92%A5", "1 OR 1=1")
    kinds = ("parkedmessage", "errorgroup", "requeuerun", "operatoraction", "approvalrequest")
    requests = [(url, words) for url in urls for words in asked]
    requests += [(f"/admin/rmq_retry/{kind}/{pk}/change/", {}) for kind in kinds for pk in ids]
    codes = {(url, str(words)): page.get(url, words).status_code for url, words in requests}

    assert {one: code for one, code in codes.items() if code not in (200, 302, 400, 403, 404, 409, 410, 422)} == {}


@pytest.mark.parametrize("role", ["root", "lead"])
def test_the_stock_admin_forms_add_change_and_delete_nothing(role: str) -> None:
    known, before = world(), state()
    client = client_of(made.person(role, superuser=True)) if role == "root" else in_role(role)
    of = {"parkedmessage": "message", "errorgroup": "group", "requeuerun": "run", "operatoraction": "act"}
    of |= {"outboxmessage": "row", "approvalrequest": "request"}
    got = {}
    for model, name in product(MODELS, INHERITED):
        word = str(model._meta.model_name)
        if any(url.name == f"rmq_retry_{word}_{name}" for url in admin.site._registry[model].get_urls()):
            address = reverse(f"admin:rmq_retry_{word}_{name}", args=[] if name == "add" else [known[of[word]]])
            got[name, word, "post"] = client.post(address, {"post": "yes", "_save": "1", "state": "x"}).status_code
            got[name, word, "get"] = client.get(address).status_code

    assert state() == before
    assert {one: code for one, code in got.items() if code not in (200, 302, 403, 404)} == {}
    assert {code for (name, *_rest), code in got.items() if name in ("add", "delete")} <= {403, 404}


def test_a_forged_or_expired_token_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    known, lead, before = world(), in_role("lead"), state()
    form = {"start": "now", "category": "test", "span": "2h", "form": "csv"}
    said, seal = known["sel"].rsplit(":", 1)
    other = Selection.of_filter({}).token().split(":")[0]
    forged = [f"{said}:{seal[::-1]}", f"{other}:{':'.join(known['sel'].split(':')[1:])}", "", "1", "\0", "é" * 300]
    names = ("parkedmessage_discard", "parkedmessage_hold", "parkedmessage_export", "parkedmessage_edit_many")
    pages = ("requeuerun_preview", *names)
    urls = [reverse(f"admin:rmq_retry_{page}") for page in pages]
    asked = [(ask, url, {"sel": one, **form}) for url in urls for one in forged for ask in (lead.get, lead.post)]
    got = [ask(url, words).status_code for ask, url, words in asked]
    monkeypatch.setattr(selection, "TOKEN_SECONDS", -1)
    old = [lead.post(url, {"sel": known["sel"], **form}).status_code for url in urls]

    assert ({*got, *old}, state()) == ({400}, before)


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

    operating(settings, PERMIT=north_only)
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
    operating(settings, PERMIT=is_north)
    north = made.message(type="north", message_id="id-of-north")
    made.message(type="south", message_id="id-of-south")
    client = client_of(made.person("clerk", "view_parkedmessage"))
    url = reverse("admin:rmq_retry_parkedmessage_changelist")
    found, hidden, missing = (client.get(url, {"q": f"id-of-{name}"}) for name in ("north", "south", "nowhere"))

    assert found.headers["Location"] == reverse("admin:rmq_retry_parkedmessage_change", args=[north.pk])
    assert (hidden.status_code, missing.status_code) == (200, 200)
    assert hidden.content.decode().count("id-of-south") == missing.content.decode().count("id-of-nowhere")


def test_discarding_a_group_leaves_hidden_messages_parked(settings: Any) -> None:
    operating(settings, PERMIT=is_north)
    cause = made.group()
    north, south = made.message(cause, type="north"), made.message(cause, type="south")
    client = client_of(made.person("clerk", "view_parkedmessage", "discard"))
    url = reverse("admin:rmq_retry_parkedmessage_discard")
    there = client.get(url, {"group": cause.pk}).headers["Location"]
    client.post(url, {"sel": unquote(there.partition("sel=")[2]), "category": "test"})

    assert [ParkedMessage.objects.get(pk=one.pk).state for one in (north, south)] == ["discarded", "parked"]

"""Four eyes by commands: they ask instead of acting, and who approves proves who it is."""

import getpass
import os
import pwd
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from django.contrib.auth.models import User

from django_rmq_retry.breakers.table import states
from django_rmq_retry.management import accounts
from django_rmq_retry.models import ApprovalRequest, MessageVersion, OperatorAction, ParkedMessage, RequeueRun, State
from django_rmq_retry.parked import approvals, operators
from django_rmq_retry.parked.four_eyes import Wish
from django_rmq_retry.parked.operators import Actor, NotAllowed
from tests.admin.made import person
from tests.admin.stopped import trip
from tests.commands.running import Exit, Ran, Terminal, run
from tests.operators.made import ANN, QUEUE, again, record, requeue_run
from tests.operators.second_person import MAY, actor_of, needing_second_person

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("charge")]
PASSWORD = "correct horse"
ME = pwd.getpwuid(os.getuid()).pw_name


@pytest.fixture(autouse=True)
def four_eyes(settings: Any) -> None:
    needing_second_person(settings)


@pytest.fixture
def bob() -> User:
    bob = person("bob", *MAY)
    bob.set_password(PASSWORD)
    bob.save()
    return bob


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A terminal on which this is typed at the prompt for a password."""
    words = [PASSWORD]
    monkeypatch.setenv("LOGNAME", ME)
    monkeypatch.setattr(accounts, "sys", SimpleNamespace(stdin=Terminal(), stderr=Terminal()))
    monkeypatch.setattr(getpass, "getpass", lambda _prompt: words[0])
    return words


def two() -> list[str]:
    return [str(record(body=b'{"amount": "8,50"}', content_type="application/json").pk) for _ in range(2)]


def asked(name: str, *more: str) -> Ran:
    """Ask for an act by its command."""
    words = {
        "discard": ("rmq_parked", "discard", *two(), "--category", "duplicate", "--yes"),
        "requeue": ("rmq_parked", "requeue", *two(), "--planned", "--yes"),
        "edit": ("rmq_parked", "edit", two()[0], "--header", "a=b", "--yes", "--reason", "INC-553"),
        "edit_many": ("rmq_parked", "edit", *two(), "--set", "amount=8.50", "--yes", "--reason", "INC-553"),
        "resume": ("rmq_queue", "resume", QUEUE, "--reason", "the bank is back"),
    }
    if name == "resume":
        trip(QUEUE, wait=300)
    return run(*words[name], *more)


def done(name: str) -> bool:
    return {
        "discard": ParkedMessage.objects.filter(state=State.DISCARDED).count() == 2,
        "requeue": RequeueRun.objects.filter(total=2).exists(),
        "edit": MessageVersion.objects.count() == 1,
        "edit_many": MessageVersion.objects.count() == 2,
        "resume": not states([QUEUE])[QUEUE].circuit.opened,
    }[name]


ACTS = ("discard", "requeue", "edit", "edit_many", "resume")


@pytest.mark.usefixtures("typed", "bob")
@pytest.mark.parametrize("name", ACTS)
def test_a_command_asks_and_another_account_approves(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    said = asked(name)
    before, number = done(name), ApprovalRequest.objects.get().pk
    monkeypatch.setattr(operators, "account", lambda _login: "bob")
    monkeypatch.setattr(getpass, "getuser", lambda: "bob")
    shown = run("rmq_parked", "approve", str(number), "--user", "bob", "--dry-run")
    listed = run("rmq_parked", "approvals").lines
    approved = run("rmq_parked", "approve", str(number), "--user", "bob", "--yes", "--keys-checked")
    acts = run("rmq_audit", "list").out

    assert (said.code, before) == (Exit.ASKED, False)
    assert f"Nothing was done yet. Request {number} waits for a second person until " in said.err
    assert (shown.code, "asked for by" in shown.err) == (Exit.DONE, True)
    assert (listed[1][0], listed[1][1]) == (str(number), "waiting")
    assert (approved.code, done(name)) == (Exit.DONE, True)
    assert f"{ME}, approved by bob" in acts
    assert run("rmq_parked", "approvals").code == Exit.NOTHING
    assert run("rmq_parked", "approvals", "--decided").lines[1][1].partition(":")[0] == "done"


@pytest.mark.parametrize("name", ["discard", "requeue"])
def test_the_run_that_has_the_messages_is_named_before_they_are_discarded_or_requeued(name: str) -> None:
    asked(name)
    request = ApprovalRequest.objects.get()
    made = requeue_run(list(Wish.of(request).selection.revisions)[:1], ANN, include=["discard_asked"])
    shown = run("rmq_parked", "approve", str(request.pk), "--user", "bob", "--dry-run")

    assert f"  Requeue run {made.pk} by ann is to send 1 of these.\n" in shown.err


@pytest.mark.usefixtures("bob", "typed")
@pytest.mark.parametrize("name", ["edit", "edit_many"])
def test_an_approved_edit_is_stored_and_says_that_nothing_is_sent(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was "carried out", as if the payment had been sent."""
    asked(name)
    number = str(ApprovalRequest.objects.get().pk)
    monkeypatch.setattr(operators, "account", lambda _login: "bob")
    monkeypatch.setattr(getpass, "getuser", lambda: "bob")
    approved = run("rmq_parked", "approve", number, "--user", "bob", "--yes", "--keys-checked")
    state = run("rmq_parked", "approvals", "--decided").lines[1][1]

    assert approved.out == f"Request {number} is approved. The change is stored, and nothing is sent yet.\n"
    assert "To send what was edited: manage.py rmq_parked requeue " in approved.err
    assert state == ("done: stored, not sent yet" if name == "edit" else "done: 2 stored, not sent yet")


@pytest.mark.usefixtures("bob")
@pytest.mark.parametrize("name", ACTS)
def test_a_rejected_act_is_not_done(name: str) -> None:
    asked(name)
    number = str(ApprovalRequest.objects.get().pk)
    rejected = run("rmq_parked", "reject", number, "--reason", "paid already")
    again_rejected = run("rmq_parked", "reject", number, "--reason", "paid already")

    assert (rejected.code, again_rejected.code, done(name)) == (Exit.DONE, Exit.DRIFT, False)
    assert ApprovalRequest.objects.get().remark == "paid already"


def test_a_user_id_without_a_name_is_its_number_and_not_what_the_environment_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pwd, "getpwuid", mock.Mock(side_effect=KeyError))
    monkeypatch.setenv("LOGNAME", "bob")

    assert Actor.of_shell().behalf.startswith(f"uid:{os.getuid()}@")


@pytest.mark.parametrize("words", ["wrong", ""])
def test_nobody_approves_by_another_name_without_its_password(words: str, typed: list[str], bob: User) -> None:
    asked("discard")
    typed[0] = words
    ran = run("rmq_parked", "approve", str(ApprovalRequest.objects.get().pk), "--user", bob.username, "--yes")

    assert (ran.code, ran.err.splitlines()[-1]) == (
        Exit.UNCONFIRMED,
        "The name or the password is wrong; nothing was done.",
    )
    assert not done("discard")


def test_without_a_terminal_nobody_can_enter_a_password(bob: User) -> None:
    asked("discard")
    ran = run("rmq_parked", "approve", str(ApprovalRequest.objects.get().pk), "--user", bob.username, "--yes")

    assert (ran.code, "No terminal to enter the password on" in ran.err) == (Exit.UNCONFIRMED, True)
    assert not done("discard")


@pytest.mark.usefixtures("typed", "bob")
def test_the_shell_that_asked_approves_nothing_whatever_name_it_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "somebody")
    asked("discard")
    monkeypatch.setenv("LOGNAME", "bob")
    request = ApprovalRequest.objects.get()
    ran = run("rmq_parked", "approve", str(request.pk), "--user", "bob", "--yes")

    assert (request.by, request.behalf.partition("@")[0]) == ("somebody", ME)
    assert (ran.code, "under the same name" in ran.err) == (Exit.UNCONFIRMED, True)
    assert not done("discard")


@pytest.mark.usefixtures("typed")
def test_an_account_needs_its_permissions_in_a_shell_too() -> None:
    asked("discard")
    dan = person("dan", "approve_approvalrequest")
    dan.set_password(PASSWORD)
    dan.save()
    ran = run("rmq_parked", "approve", str(ApprovalRequest.objects.get().pk), "--user", "dan", "--yes")

    assert ran.code == Exit.UNCONFIRMED
    assert not done("discard")


def test_of_several_queues_those_without_an_open_breaker_are_resumed() -> None:
    trip(QUEUE, wait=300)
    ran = run("rmq_queue", "resume", QUEUE)

    assert (ran.code, ApprovalRequest.objects.get().subject) == (Exit.ASKED, QUEUE)


def test_fewer_messages_are_discarded_at_once() -> None:
    one = record()
    ran = run("rmq_parked", "discard", str(one.pk), "--category", "test")

    assert (ran.code, again(one).state) == (Exit.DONE, State.DISCARDED)
    assert OperatorAction.objects.get().who == Actor.of_shell().name


@pytest.mark.parametrize("way", ["on a terminal", "by the variable"])
@pytest.mark.parametrize("name", ACTS)
def test_who_asked_by_a_command_with_an_account_does_not_approve_it_in_the_admin(
    name: str, way: str, typed: list[str], bob: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "by the variable":
        typed[0] = "not asked for"
        monkeypatch.setenv("RMQ_USER_PASSWORD", PASSWORD)
    said = asked(name, "--user", "bob")
    request = ApprovalRequest.objects.get()
    with pytest.raises(NotAllowed, match="You asked for this yourself"):
        approvals.approve(request.pk, actor_of(bob))
    before = done(name)
    approvals.approve(request.pk, actor_of(person("cid", *MAY)))

    assert (said.code, request.by, request.by_key, before) == (Exit.ASKED, "bob", str(bob.pk), False)
    assert done(name)


@pytest.mark.usefixtures("typed")
def test_who_asked_by_a_command_with_an_account_needs_its_permissions(bob: User) -> None:
    asked("discard", "--user", "bob")
    request = ApprovalRequest.objects.get()
    bob.user_permissions.clear()
    with pytest.raises(NotAllowed, match="bob, who asked for this, must not do it any more"):
        approvals.approve(request.pk, actor_of(person("cid", *MAY)))
    bob.delete()
    with pytest.raises(NotAllowed, match="The account of bob, who asked for this, no longer exists"):
        approvals.approve(request.pk, actor_of(User.objects.get(username="cid")))

    assert not done("discard")


@pytest.mark.usefixtures("typed")
@pytest.mark.parametrize("name", ACTS)
def test_a_request_without_an_account_is_refused_where_one_is_required(name: str, bob: User, settings: Any) -> None:
    limits = settings.RMQ_RETRY["FOUR_EYES"]
    asked(name)
    settings.RMQ_RETRY = {**settings.RMQ_RETRY, "FOUR_EYES": {**limits, "REQUIRE_ACCOUNT": True}}
    with pytest.raises(NotAllowed, match="in a shell without an account"):
        approvals.approve(ApprovalRequest.objects.get().pk, actor_of(bob))
    refused = asked(name)
    named = asked(name, "--user", "bob")

    assert (refused.code, named.code) == (Exit.UNCONFIRMED, Exit.ASKED)
    assert "needs --user with your account" in refused.err
    assert ApprovalRequest.objects.count() == 2
    assert not done(name)

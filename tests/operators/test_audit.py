"""The audit log: its rows, the changes that it detects, and the other records of an action."""

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.db import connection, transaction
from django.test import Client, modify_settings
from django.urls import reverse

from django_rmq_retry.models import Action, AuditHead, ItemState, OperatorAction, ParkedMessage, RequeueItem
from django_rmq_retry.models.audit import HistoryIsFixed
from django_rmq_retry.parked import audit
from django_rmq_retry.parked.audit import acts_on, log_action, verify
from django_rmq_retry.parked.operators import Actor
from tests.admin.made import person
from tests.operators.made import discard_messages, record, requeue_run, stop_run

pytestmark = [pytest.mark.django_db, pytest.mark.database]
ANN = Actor(name="ann", source="admin")
IN_ORDER = audit._in_order
Captured = Callable[..., AbstractContextManager[list[Any]]]


def acts(count: int = 3) -> list[OperatorAction]:
    return [
        log_action(ANN, Action.DISCARD, reason="duplicate", message=number, facts={"n": number})
        for number in range(count)
    ]


def tamper(sql: str, *values: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql, values)


def test_the_stop_of_a_run_is_no_act_on_what_it_had_sent_before() -> None:
    sent, left = record().pk, record().pk
    run = requeue_run([sent, left])
    RequeueItem.objects.filter(run=run, message=sent).update(state=ItemState.SENT)
    stop_run(run)

    def found(*messages: int) -> list[str]:
        rows = OperatorAction.objects.filter(acts_on(messages)).order_by("number")
        return list(rows.values_list("action", flat=True))

    assert found(sent) == ["requeue"]
    assert found(left) == ["requeue", "stop"]
    assert found(sent, left) == ["requeue", "stop"]


def test_an_untouched_audit_log_verifies() -> None:
    acts()

    assert list(verify()) == []
    assert [action.number for action in OperatorAction.objects.order_by("number")] == [1, 2, 3]


def test_the_check_detects_a_row_with_a_forged_seal() -> None:
    acts()
    tamper("UPDATE rmq_retry_operatoraction SET seal = 'made up' WHERE number = 2")

    assert "Row 3 does not follow row 2: one of them was changed or inserted later." in list(verify())


def test_the_check_detects_missing_last_rows() -> None:
    acts()

    tamper("DELETE FROM rmq_retry_operatoraction WHERE number = 3")

    assert list(verify()) == ["The log ends at row 2, but 3 rows were written: the last rows are missing."]


@pytest.mark.parametrize("place", ["before the rows", "after the rows"])
def test_actions_logged_during_the_check_raise_no_alarm(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def in_order(using: str) -> Iterator[OperatorAction]:
        if place == "before the rows":
            acts(2)
        yield from IN_ORDER(using)
        acts(2)

    acts()
    monkeypatch.setattr(audit, "_in_order", in_order)

    assert list(verify()) == []


def test_the_check_detects_a_row_above_the_head() -> None:
    acts()
    tamper("UPDATE rmq_retry_audithead SET number = 2")

    assert list(verify()) == ["The log ends at row 3, but 2 rows were written: the last rows are missing."]


def test_the_orm_refuses_to_change_or_delete_audit_rows() -> None:
    [action] = acts(1)

    for change in (action.save, action.delete, OperatorAction.objects.all().delete):
        with pytest.raises(HistoryIsFixed):
            change()
    with pytest.raises(HistoryIsFixed):
        OperatorAction.objects.update(reason="")
    assert AuditHead.objects.get().number == 1


def test_an_action_with_undecodable_or_long_text_is_logged() -> None:
    action = log_action(ANN, Action.HOLD, reason="nul \0 and \ud800" + "x" * 400, subject="\0")

    action.refresh_from_db()
    assert action.reason.startswith(r"nul \x00 and \ud800xxx")
    assert list(verify()) == []


@pytest.fixture
def bob() -> Actor:
    """An operator with an account."""
    user = User.objects.create(username="bob", is_staff=True, is_superuser=True)
    return Actor(name="bob", user_id=user.pk, source="admin")


def entered() -> list[tuple[str, str, str, str]]:
    """The admin's own history: what it was on, and what was done."""
    rows = LogEntry.objects.select_related("content_type").order_by("pk")
    return [(row.content_type.model, row.object_id, row.object_repr, row.change_message) for row in rows]  # type: ignore[union-attr,misc]


def test_an_action_on_one_message_appears_in_its_admin_history(bob: Actor) -> None:
    one = record(key="payment:7")
    discard_messages([one.pk], bob, category="duplicate")
    client = Client()
    client.force_login(User.objects.get())
    page = client.get(reverse("admin:rmq_retry_parkedmessage_history", args=[one.pk])).content.decode()

    assert entered() == [("parkedmessage", str(one.pk), str(one), "discard · duplicate")]
    assert (page.count("discard · duplicate"), "bob" in page) == (1, True)


def test_the_permit_setting_also_guards_the_admin_history(bob: Actor, settings: Any) -> None:
    one = record()
    discard_messages([one.pk], bob, category="duplicate")
    settings.RMQ_RETRY = {
        **settings.RMQ_RETRY,
        "OPERATORS": {"PERMIT": lambda _user, _verb, _message: "Not of your bank."},
    }
    client = Client()
    client.force_login(person("eve", "view_parkedmessage"))
    answer = client.get(reverse("admin:rmq_retry_parkedmessage_history", args=[one.pk]))

    assert (answer.status_code, "duplicate" in answer.content.decode()) == (403, False)


def test_a_requeue_run_has_one_admin_log_entry_and_one_per_later_action(bob: Actor) -> None:
    run = requeue_run([record().pk for _ in range(3)], bob, reason="INC-1")
    stop_run(run, bob, reason="wrong ones")

    assert [(model, number, said) for model, number, _what, said in entered()] == [
        ("requeuerun", str(run.pk), "requeue · 3 messages · INC-1"),
        ("requeuerun", str(run.pk), "stop · 3 messages · wrong ones"),
    ]


def test_the_admin_log_names_what_was_changed_as_its_page_does(bob: Actor) -> None:
    """The site's index shows these names: the subject of an action may be a filter, or the path of an edit."""
    one = record()
    log_action(bob, Action.EDIT, group=one.group_id, subject="amount", count=12)
    log_action(bob, Action.REQUEUE, run=7, subject="edited_at 2026-11-28T08:19:36.034256+00:00")
    log_action(bob, Action.NOTE, group=999, subject="GatewayTimeout")

    assert [row[:3] for row in entered()] == [
        ("errorgroup", str(one.group_id), str(one.group)),
        ("requeuerun", "7", "Requeue run 7"),
        ("errorgroup", "999", "GatewayTimeout"),
    ]


def test_an_action_without_a_single_target_is_entered_under_the_action(bob: Actor) -> None:
    for number in range(2):
        log_action(bob, Action.PURGE, count=number + 1)

    acted = OperatorAction.objects.order_by("pk")
    assert [row[:2] for row in entered()] == [("operatoraction", str(row.pk)) for row in acted]


def test_a_reveal_is_not_entered_in_the_history_of_its_message(bob: Actor) -> None:
    one = record()
    action = log_action(bob, Action.REVEAL, message=one.pk, subject=str(one))

    assert entered() == [("operatoraction", str(action.pk), str(one), "reveal")]


def test_an_action_without_an_account_creates_no_admin_log_entry() -> None:
    acts()

    assert (LogEntry.objects.count(), OperatorAction.objects.count()) == (0, 3)


def test_actions_are_logged_without_the_admin_app(bob: Actor) -> None:
    with modify_settings(INSTALLED_APPS={"remove": ["django.contrib.admin"]}):
        log_action(bob, Action.DISCARD)

    assert (LogEntry.objects.count(), OperatorAction.objects.count()) == (0, 1)


def test_a_rolled_back_action_leaves_no_row_no_entry_and_no_log_line(
    bob: Actor, caplog: pytest.LogCaptureFixture, django_capture_on_commit_callbacks: Captured
) -> None:
    def fail() -> None:
        with transaction.atomic():
            log_action(bob, Action.DISCARD)
            raise ArithmeticError

    caplog.set_level(logging.INFO, "django_rmq_retry")
    with django_capture_on_commit_callbacks(execute=True), pytest.raises(ArithmeticError):
        fail()

    assert (LogEntry.objects.count(), OperatorAction.objects.count(), caplog.messages) == (0, 0, [])


def test_an_action_is_rolled_back_if_its_admin_log_entry_fails(bob: Actor, monkeypatch: pytest.MonkeyPatch) -> None:
    one = record()
    monkeypatch.setattr(LogEntry, "save", lambda *_args, **_words: 1 / 0)

    with pytest.raises(ZeroDivisionError):
        discard_messages([one.pk], bob, category="duplicate")

    assert (ParkedMessage.objects.get().state, OperatorAction.objects.count()) == ("parked", 0)


def test_an_action_is_one_log_line_with_operator_verb_and_reason(
    bob: Actor, caplog: pytest.LogCaptureFixture, django_capture_on_commit_callbacks: Captured
) -> None:
    ids = [record(key=key).pk for key in ("PAY-1", "PAY-2")]
    with caplog.at_level(logging.INFO, "django_rmq_retry"), django_capture_on_commit_callbacks(execute=True):
        discard_messages(ids, bob, category="duplicate")
    [line] = caplog.records
    names = ("event", "who", "action", "count", "reason", "source", "record", "group", "run", "subject", "behalf")

    assert caplog.messages == ["discard PAY-1, PAY-2 by bob"]
    assert [getattr(line, name) for name in names] == [
        *("rmq.operator", "bob", "discard", 2, "duplicate", "admin", None),
        *(OperatorAction.objects.get().group, None, "PAY-1, PAY-2", ""),
    ]


def test_a_deleted_account_loses_its_admin_log_but_not_the_audit_log(bob: Actor) -> None:
    log_action(bob, Action.DISCARD, message=1)
    User.objects.all().delete()

    assert (LogEntry.objects.count(), OperatorAction.objects.get().actor_name) == (0, "bob")
    assert list(verify()) == []

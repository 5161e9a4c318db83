"""The audit log: what it keeps, and what it notices."""

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection

from django_rmq_retry.models import AuditHead, OperatorAction, Verb
from django_rmq_retry.models.actions import HistoryIsFixed
from django_rmq_retry.operating.actors import Actor
from django_rmq_retry.operating.auditing import note, verify

pytestmark = pytest.mark.django_db
ANN = Actor(name="ann", source="admin")


def acts(count: int = 3) -> list[OperatorAction]:
    return [note(ANN, Verb.DISCARD, reason="duplicate", message=number, facts={"n": number}) for number in range(count)]


def tamper(sql: str, *values: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql, values)


def test_a_log_that_nobody_touched_is_whole() -> None:
    acts()

    assert list(verify()) == []
    assert [action.number for action in OperatorAction.objects.order_by("number")] == [1, 2, 3]


def test_a_changed_row_is_noticed() -> None:
    acts()

    tamper("UPDATE rmq_retry_operatoraction SET reason = 'other' WHERE number = 2")

    assert list(verify()) == ["2 was changed after it was written."]


def test_a_row_with_a_new_seal_does_not_fit_the_next() -> None:
    acts()
    tamper("UPDATE rmq_retry_operatoraction SET seal = 'made up' WHERE number = 2")

    assert "3 does not follow 2: one of them was changed or put in later." in list(verify())


def test_a_missing_row_is_noticed() -> None:
    acts()

    tamper("DELETE FROM rmq_retry_operatoraction WHERE number = 2")

    assert list(verify()) == ["Between 1 and 3 rows are missing."]


def test_missing_last_rows_are_noticed() -> None:
    acts()

    tamper("DELETE FROM rmq_retry_operatoraction WHERE number = 3")

    assert list(verify()) == ["The log ends at 2, and 3 rows were written: the last ones are missing."]


def test_a_deleted_account_leaves_its_name_and_a_whole_log() -> None:
    user = User.objects.create(username="bob")
    note(Actor(name="bob", user_id=user.pk), Verb.REQUEUE)

    user.delete()

    kept = OperatorAction.objects.get()
    assert (kept.actor_id, kept.actor_name) == (None, "bob")
    assert list(verify()) == []


def test_no_code_of_ours_changes_what_was_done() -> None:
    [action] = acts(1)

    for change in (action.save, action.delete, OperatorAction.objects.all().delete):
        with pytest.raises(HistoryIsFixed):
            change()
    with pytest.raises(HistoryIsFixed):
        OperatorAction.objects.update(reason="")
    assert AuditHead.objects.get().number == 1


def test_what_came_from_outside_never_keeps_an_act_from_the_log() -> None:
    action = note(ANN, Verb.HOLD, reason="nul \0 and \ud800" + "x" * 400, subject="\0")

    action.refresh_from_db()
    assert action.reason.startswith(r"nul \x00 and \ud800xxx")
    assert list(verify()) == []

"""Retention: resolved messages are deleted after their time, open ones never."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from django_rmq_retry.models import Attempt, AttemptName, BusinessKey, ErrorGroup, ParkedMessage, RequeueItem, State
from django_rmq_retry.models.parked import RESOLVED, UNRESOLVED
from django_rmq_retry.parked import retention
from tests.operators.invariants import check_counters
from tests.parked.made import NOON, group, item, parked

pytestmark = [pytest.mark.django_db, pytest.mark.database]
OLD = timezone.now() - timedelta(days=91)
YOUNG = timezone.now() - timedelta(days=89)


def attempt(identity: str, **told: Any) -> Attempt:
    known = {"queue": "q", "number": 1, "seconds": 0.1, "verdict": "retry", "host": "h", "pid": 1, "thread": "t"}
    return Attempt.objects.create(identity=identity, **{**known, "started_at": OLD, **told})


def left() -> list[str]:
    return list(ParkedMessage.objects.order_by("pk").values_list("message_id", flat=True))


@pytest.mark.parametrize("state", RESOLVED)
def test_old_resolved_records_are_deleted_with_their_keys_and_items(state: State) -> None:
    old = parked(state=state, resolved_at=OLD, message_id="old")
    parked(state=state, resolved_at=YOUNG, message_id="young")
    BusinessKey.objects.create(message=old, value="k")
    item(old)

    assert retention.delete_old() is False
    assert (left(), BusinessKey.objects.count(), RequeueItem.objects.count()) == (["young"], 0, 0)


@pytest.mark.parametrize("state", UNRESOLVED)
def test_open_records_are_never_deleted(state: State) -> None:
    parked(state=state, resolved_at=OLD, parked_at=OLD, recorded_at=OLD, message_id="open")
    retention.delete_old()

    assert left() == ["open"]


def test_the_group_stays_and_its_counters_are_updated() -> None:
    one = group(discarded=2, parked=1, processed=1)
    for state in (State.DISCARDED, State.DISCARDED, State.PROCESSED):
        parked(group=one, state=state, resolved_at=OLD)
    parked(group=one)
    retention.delete_old()

    check_counters()
    assert (ErrorGroup.objects.get().parked, ErrorGroup.objects.get().discarded) == (1, 0)


def test_the_settings_define_the_retention(settings: Any) -> None:
    settings.RMQ_RETRY = {**settings.RMQ_RETRY, "OPERATORS": {"RESOLVED_DAYS": 88, "ATTEMPT_DAYS": 92}}
    parked(state=State.DISCARDED, resolved_at=YOUNG)
    attempt("a")
    retention.delete_old()

    assert (left(), Attempt.objects.count()) == ([], 1)


def test_old_attempts_are_deleted_unless_their_record_is_kept() -> None:
    kept = parked()
    attempt(kept.identity)
    attempt("gone")
    attempt("gone", started_at=timezone.now() - timedelta(days=29))
    retention.delete_old()

    assert sorted(Attempt.objects.values_list("identity", flat=True)) == ["gone", kept.identity]


def test_attempts_without_an_id_stay_while_their_queue_has_such_a_record() -> None:
    parked(message_id="", queue="q")
    attempt("body:1")
    attempt("body:2", queue="other")
    retention.delete_old()

    assert list(Attempt.objects.values_list("identity", flat=True)) == ["body:1"]


def test_the_names_of_old_attempts_are_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "DELETED_AT_ONCE", 2)
    for name, at in (*((f"old {number}", OLD) for number in range(9)), ("new", timezone.now())):
        AttemptName.objects.create(identity="message:1", value=name, folded=name, at=at)

    assert (retention.delete_old(), AttemptName.objects.count()) == (True, 2)
    assert (retention.delete_old(), [row.value for row in AttemptName.objects.all()]) == (False, ["new"])


def test_records_are_deleted_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "DELETED_AT_ONCE", 2)
    one = group(processed=9)
    for _ in range(9):
        parked(group=one, state=State.PROCESSED, resolved_at=OLD, parked_at=NOON)

    assert (retention.delete_old(), len(left())) == (True, 1)
    assert (retention.delete_old(), len(left())) == (False, 0)


def test_a_record_reopened_meanwhile_is_not_deleted() -> None:
    parked(state=State.DISCARDED, resolved_at=OLD, message_id="back")
    looks: list[str] = []

    def meanwhile(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        found = execute(sql, params, many, context)
        if sql.startswith("SELECT") and not looks:
            looks.append(sql)
            rows = list(context["cursor"].fetchall())
            ParkedMessage.objects.update(state=State.PARKED)
            return execute(sql.split(" WHERE ", maxsplit=1)[0] + f" WHERE id = {rows[0][0]}", (), many, context)
        return found

    with connection.execute_wrapper(meanwhile):
        retention.delete_old()

    assert (len(looks), left()) == (1, ["back"])

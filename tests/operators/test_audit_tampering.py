"""Changes to the audit log in the database itself: the check reports each change and each gap."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection

from django_rmq_retry.models import Action, OperatorAction
from django_rmq_retry.parked.operators import Actor
from tests.commands.running import run
from tests.operators.made import logged

pytestmark = [pytest.mark.django_db, pytest.mark.database]
OTHERWISE: dict[str, Any] = {
    "number": 7,
    "at": None,
    "actor_id": None,
    "actor_name": "eve",
    "actor_key": "999",
    "behalf": "eve@laptop",
    "action": Action.HOLD.value,
    "reason": "another",
    "message": 999,
    "first_message": 999,
    "last_message": 999,
    "group": 999,
    "run": 999,
    "subject": "another",
    "count": 999,
    "facts": '{"n": 999}',
    "ip": "10.0.0.9",
    "source": "cli",
    "salt": "f" * 32,
    "digest": "f" * 64,
    "previous": "f" * 64,
    "seal": "f" * 64,
}
"""Another value for each column."""
COLUMNS = [field.column for field in OperatorAction._meta.concrete_fields]
NULLABLE = ("message", "first_message", "last_message", "group", "run", "ip")


@pytest.fixture
def acts(db: None) -> list[OperatorAction]:  # noqa: ARG001 - asked for by its name
    """Five acts of one person."""
    user = User.objects.create(username="ann")
    ann = Actor(name="ann", user_id=user.pk, ip="10.0.0.1", source="admin")
    return [
        logged(
            Action.DISCARD,
            ann,
            reason="duplicate",
            message=n,
            group=n,
            run=n,
            subject=f"s-{n}",
            facts={"n": n},
            messages=(7, 8),
        )
        for n in range(1, 6)
    ]


def tamper(sql: str, *values: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql, values)


def problems() -> list[str]:
    """The output of `rmq_audit verify`."""
    found = run("rmq_audit", "verify")
    assert (found.code == 0) == found.out.startswith("The audit log is complete")
    return [] if found.code == 0 else found.out.splitlines()


def changes() -> Iterator[Any]:
    for column in COLUMNS:
        if column != "id":
            yield pytest.param(column, OTHERWISE[str(column)], id=str(column))
    for column in NULLABLE:
        yield pytest.param(column, None, id=f"no {column}")


@pytest.mark.parametrize(("column", "value"), list(changes()))
def test_a_change_of_any_column_is_reported(column: str, value: Any, acts: list[OperatorAction]) -> None:
    if column == "at":
        value = acts[1].at + timedelta(seconds=1)
    if column == "actor_id":
        value = User.objects.create(username="eve").pk
    quoted = connection.ops.quote_name(column)
    tamper(f"UPDATE rmq_retry_operatoraction SET {quoted} = %s WHERE number = 2", value)  # noqa: S608 - ours

    assert problems()


def test_every_column_of_the_audit_log_is_tampered_with() -> None:
    assert {*OTHERWISE, "id"} == set(COLUMNS)


@pytest.mark.usefixtures("acts")
@pytest.mark.parametrize("numbers", [[1], [1, 2], [2], [2, 3], [5], [4, 5], [1, 2, 3, 4, 5]])
def test_deleted_rows_are_reported(numbers: list[int]) -> None:
    for number in numbers:
        tamper("DELETE FROM rmq_retry_operatoraction WHERE number = %s", number)

    assert problems()


@pytest.mark.usefixtures("acts")
def test_two_swapped_rows_are_reported() -> None:
    for before, after in ((2, 99), (3, 2), (99, 3)):
        tamper("UPDATE rmq_retry_operatoraction SET number = %s WHERE number = %s", after, before)

    assert len(problems()) >= 2


@pytest.mark.usefixtures("acts")
def test_deleting_the_operator_keeps_the_name_and_the_log_verifies() -> None:
    User.objects.get().delete()

    assert {(act.actor, act.actor_name) for act in OperatorAction.objects.all()} == {(None, "ann")}
    assert problems() == []


@pytest.mark.usefixtures("acts")
def test_rows_purged_by_retention_are_not_reported_missing() -> None:
    long_ago = OperatorAction.objects.get(number=1).at - timedelta(9000)
    tamper("UPDATE rmq_retry_operatoraction SET at = %s WHERE number = 1", long_ago)

    assert run("rmq_audit", "purge", "--yes").code == 0
    assert problems() == []

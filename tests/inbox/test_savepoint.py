"""The savepoints of a handler with ``once`` are those of any transaction, though the first ones are never set."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import DatabaseError, connection, connections, transaction
from django.test.utils import CaptureQueriesContext
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from django_rmq_retry import Message
from django_rmq_retry.models import InboxEntry, OutboxMessage
from django_rmq_retry.publishing import outbox_rows
from tests.inbox.test_guard import run
from tests.inbox.vendors import POSTGRESQL, SQLITE, not_on

pytestmark = [pytest.mark.database, pytest.mark.django_db(transaction=True)]


class Refused(Exception):
    """What a block of these handlers raises, and its handler catches."""


@dataclass(frozen=True)
class Block:
    steps: "Sequence[Step]"
    fails: bool


Step = str | Block
BY_DJANGO, BY_DRIVER, BY_OUTBOX = WAYS = "by Django", "by the driver", "by the outbox"
STEPS = st.recursive(
    st.lists(st.sampled_from(WAYS), max_size=2),
    lambda inner: st.lists(st.one_of(st.sampled_from(WAYS), st.builds(Block, inner, st.booleans())), max_size=4),
    max_leaves=6,
)


def insert(name: str, way: str) -> None:
    if way == BY_DJANGO:
        Group.objects.create(name=name)
    elif way == BY_OUTBOX:
        outbox_rows.insert([Message(body=b"", routing_key=name)], using="default", lease=0.0)
    else:
        driver: Any = connection.connection
        driver.cursor().execute(f"INSERT INTO auth_group (name) VALUES ('{name}')")  # noqa: S608 - a number


def take(steps: Sequence[Step], numbers: Iterator[int]) -> list[str]:
    """Take the steps, and return the names that must remain."""
    left: list[str] = []
    for step in steps:
        if isinstance(step, str):
            left.append(str(next(numbers)))
            insert(left[-1], step)
            continue
        inner: list[str] = []
        with suppress(Refused), transaction.atomic():
            inner = take(step.steps, numbers)
            if step.fails:
                raise Refused
        left += [] if step.fails else inner
    return left


def committed() -> set[str]:
    kept = OutboxMessage.objects.values_list("routing_key", flat=True)
    return {*Group.objects.values_list("name", flat=True), *kept}


def statements(does: Any) -> list[str]:
    with CaptureQueriesContext(connection) as captured:
        run(lambda _message: does())
    InboxEntry.objects.all().delete()
    return [one["sql"] for one in captured.captured_queries]


@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS)
def test_a_block_that_fails_undoes_its_own_effects_and_no_others(steps: Sequence[Step]) -> None:
    for model in (Group, InboxEntry, OutboxMessage):
        model.objects.all().delete()
    left: list[str] = []

    run(lambda _message: left.extend(take(steps, count())))

    assert (committed(), InboxEntry.objects.count()) == (set(left), 1)


def test_a_block_of_its_own_costs_no_further_statement() -> None:
    not_on(SQLITE)

    def service() -> None:
        with transaction.atomic(), transaction.atomic():
            Group.objects.create(name="b")

    flat, nested = statements(lambda: Group.objects.create(name="a")), statements(service)

    assert len(nested) == len(flat)
    assert not [one for one in nested if one.startswith(("SAVEPOINT", "RELEASE"))]


def test_a_block_after_the_first_statement_has_its_own_savepoint() -> None:
    def service() -> None:
        Group.objects.create(name="a")
        with transaction.atomic():
            Group.objects.create(name="b")

    assert len([one for one in statements(service) if one.startswith(("SAVEPOINT", "RELEASE"))]) == 2


def test_a_copy_before_a_block_that_fails_remains() -> None:
    if connection.vendor != POSTGRESQL:
        pytest.skip("only PostgreSQL has COPY")

    def copies() -> None:
        with connection.cursor() as cursor, cursor.copy("COPY auth_group (name) FROM STDIN") as copy:
            copy.write_row(["copied"])
        with suppress(Refused), transaction.atomic():
            Group.objects.create(name="a")
            raise Refused

    run(lambda _message: copies())

    assert committed() == {"copied"}


def test_a_block_that_hides_an_error_of_the_database_raises_at_its_end() -> None:
    if connection.vendor != POSTGRESQL:
        pytest.skip("only PostgreSQL ends a transaction at an error")

    def hides() -> None:
        with suppress(DatabaseError), transaction.atomic():
            Group.objects.create(name="a")
            with suppress(DatabaseError), connection.cursor() as cursor:
                cursor.execute("SELECT * FROM there_is_no_such_table")
        Group.objects.create(name="b")

    run(lambda _message: hides())

    assert committed() == {"b"}


def test_a_driver_that_takes_one_statement_at_a_time_gets_one() -> None:
    if connection.vendor != POSTGRESQL:
        pytest.skip("this is about psycopg")
    options = connection.settings_dict["OPTIONS"]
    connection.close()
    connection.settings_dict["OPTIONS"] = {**options, "server_side_binding": True}
    try:
        run(lambda _message: take([Block([BY_DJANGO], fails=True), BY_DJANGO], count()))
    finally:
        connection.close()
        connection.settings_dict["OPTIONS"] = options

    assert committed() == {"1"}


def test_a_handler_leaves_the_connection_as_it_was() -> None:
    run(lambda _message: None)

    assert not [name for name in vars(connections["default"]) if name.startswith("_savepoint_")]
    assert "cursor" not in getattr(connection.connection, "__dict__", {})

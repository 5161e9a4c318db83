"""The transaction of ``once`` on MariaDB: fewer round trips than any other, and its connection is as before."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import connection, transaction

from django_rmq_retry import Delivery
from django_rmq_retry.models import InboxEntry
from tests.inbox.test_guard import run
from tests.inbox.vendors import MARIADB

pytestmark = [pytest.mark.database, pytest.mark.django_db(transaction=True)]


@pytest.fixture(autouse=True)
def only_there(db: None) -> None:  # noqa: ARG001 - the test's database
    if connection.vendor != MARIADB:
        pytest.skip("only MariaDB turns autocommit off and on")


def value(query: str) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(query)
        return cursor.fetchone()[-1]


def round_trips(act: Callable[[], object]) -> int:
    before = int(value("SHOW SESSION STATUS LIKE 'Questions'"))
    act()
    return int(value("SHOW SESSION STATUS LIKE 'Questions'")) - before - 1


def in_atomic(_message: Delivery | None = None) -> None:
    with transaction.atomic():
        Group.objects.create(name="a")


def refuses(message: Delivery) -> None:
    in_atomic(message)
    raise ValueError


def rolls_back(message: Delivery) -> None:
    in_atomic(message)
    with connection.cursor() as cursor:
        cursor.execute("ROLLBACK")


def test_a_handler_with_once_takes_no_more_round_trips_than_without() -> None:
    plain = round_trips(in_atomic)
    Group.objects.all().delete()

    assert round_trips(lambda: run(in_atomic)) <= plain


@pytest.mark.parametrize("handler", [in_atomic, refuses, rolls_back])
@pytest.mark.parametrize("handled", [False, True])
def test_autocommit_is_on_again_whatever_ends_the_transaction(
    handler: Callable[[Delivery], None], handled: bool
) -> None:
    if handled:
        run(lambda _message: None)
    with suppress(Exception):
        run(handler)

    assert (value("SELECT @@autocommit"), value("SELECT @@in_transaction")) == (1, 0)
    InboxEntry.objects.all().delete()
    Group.objects.all().delete()
    run(in_atomic)
    assert (Group.objects.count(), InboxEntry.objects.count()) == (1, 1)

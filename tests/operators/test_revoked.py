"""A run whose operator has lost the permission to requeue sends no more messages."""

from collections.abc import Callable

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test.utils import CaptureQueriesContext
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry.models import ItemReason
from django_rmq_retry.parked.operators import Actor
from tests.admin.made import person
from tests.operators.driving import Clock, Targets
from tests.operators.made import QUEUE, driver_of, record, requeue_run

pytestmark = pytest.mark.django_db(transaction=True)


def sacked(user: User) -> None:
    User.objects.filter(pk=user.pk).update(is_active=False)


def demoted(user: User) -> None:
    user.user_permissions.clear()


def deleted(user: User) -> None:
    user.delete()


@pytest.mark.parametrize(
    ("loss", "why"), [(sacked, ItemReason.REFUSED), (demoted, ItemReason.REFUSED), (deleted, ItemReason.ACCOUNT_GONE)]
)
def test_a_run_sends_nothing_after_its_operator_loses_the_permission(
    wired: BlockingChannel, loss: Callable[[User], None], why: str
) -> None:
    ann, clock = person("ann", "requeue"), Clock()
    actor = Actor(name="ann", user_id=ann.pk, source="admin")
    run = requeue_run([record().pk for _ in range(3)], actor, reason="x", rate=1)
    one = driver_of(run, clock=clock, targets=Targets())
    one.step()
    loss(ann)
    for _ in range(4):
        clock.now += 60
        one.step()

    items = list(run.items.order_by("place").values_list("state", "skip_code"))
    assert items == [("sent", ""), ("skipped", why), ("skipped", why)]
    assert int(wired.queue_declare(QUEUE, passive=True).method.message_count) == 1


@pytest.mark.usefixtures("wired")
def test_the_account_of_the_operator_is_read_once_for_each_slice() -> None:
    """It was read for each message, with all its permissions."""
    ann, clock = person("ann", "requeue"), Clock()
    actor = Actor(name="ann", user_id=ann.pk, source="admin")
    run = requeue_run([record().pk for _ in range(6)], actor, reason="x", rate=20)
    one = driver_of(run, clock=clock, targets=Targets())
    one.step()
    clock.now += 60
    with CaptureQueriesContext(connection) as asked:
        one.step()

    assert run.items.filter(state="sent").count() == 6
    read = [sql["sql"] for sql in asked.captured_queries if "last_login" in sql["sql"]]
    assert len(read) == 1

"""The test kit and ``once``: a missing database raises a clear error in the test; it is no failure of a handler."""

import pytest
from django.contrib.auth.models import Group
from django.db import transaction
from django.test import SimpleTestCase, TestCase

from django_rmq_retry import Delivery, Handler, handler
from django_rmq_retry.models import InboxEntry
from django_rmq_retry.testing import RmqTest, RmqTestMixin
from django_rmq_retry.testing.driver import NoDatabase

pytestmark = pytest.mark.usefixtures("no_handlers")


def charging(using: str = "") -> Handler[None]:
    @handler("payments", name="charge", once=True, using=using)
    def charge(message: Delivery) -> None:
        Group.objects.create(name=str(message.data))

    return charge


def test_a_test_without_the_pytest_database_is_refused(rmq: RmqTest) -> None:
    charging().publish("a")

    with pytest.raises(NoDatabase, match=r"charge runs with once in a transaction of database 'default'.*django_db"):
        rmq.drain()


@pytest.mark.django_db
def test_an_open_transaction_of_the_test_is_refused(rmq: RmqTest) -> None:
    charge = charging()
    charge.publish("a")

    with (
        transaction.atomic(),
        pytest.raises(NoDatabase, match=r"inside a transaction. Call drain\(\) or advance\(\) outside of atomic\(\)"),
    ):
        rmq.drain()


@pytest.mark.django_db
def test_an_unknown_database_is_refused(rmq: RmqTest) -> None:
    charging(using="nowhere").publish("a")

    with pytest.raises(NoDatabase, match="database 'nowhere', which is not available"):
        rmq.drain()


@pytest.mark.django_db(transaction=True)
def test_once_commits_with_real_transactions(rmq: RmqTest) -> None:
    charge = charging()
    for _ in range(2):
        charge.publish("a", message_id="m")
    rmq.drain()

    assert (Group.objects.count(), InboxEntry.objects.count()) == (1, 1)


class TestOfDjango(RmqTestMixin, TestCase):
    def test_once_runs_inside_the_transaction_of_the_test(self) -> None:
        charge = charging()
        for _ in range(2):
            charge.publish("a", message_id="m")
        self.rmq.drain()

        assert (Group.objects.count(), InboxEntry.objects.count()) == (1, 1)


class TestWithoutDatabases(RmqTestMixin, SimpleTestCase):
    def test_a_database_that_the_test_must_not_use_is_refused(self) -> None:
        charging().publish("a")

        with pytest.raises(NoDatabase, match="which this test must not use"):
            self.rmq.drain()

"""A handler with ``once``: its effects and its inbox entry are one commit, in tests and in production."""

import asyncio
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import transaction

from django_rmq_retry import Delivery, Fixed, Handler, RetryThenPark, handler, signals
from django_rmq_retry.models import InboxEntry
from django_rmq_retry.testing import RmqTest

pytestmark = [pytest.mark.database, pytest.mark.django_db, pytest.mark.usefixtures("no_handlers")]
POLICY = RetryThenPark(attempts=2, backoff=Fixed(10))


@pytest.fixture
def charge() -> Handler[None]:
    return charging()


def charging(**options: Any) -> Handler[None]:
    @handler("payments", policy=POLICY, name="charge", **{"once": True, **options})
    def charge(message: Delivery) -> None:
        Group.objects.create(name=f"{message.data} {Group.objects.count()}")
        if message.data == "fails":
            raise ValueError("not today")

    return charge


def done() -> list[str]:
    return sorted(Group.objects.values_list("name", flat=True))


def test_a_message_is_handled_and_its_name_is_stored(rmq: RmqTest, charge: Handler[None]) -> None:
    charge.publish("a", message_id="m")
    rmq.drain()

    entry = InboxEntry.objects.get()
    assert (done(), entry.handler, entry.name) == (["a 0"], "charge", "m")


def test_a_duplicate_is_acknowledged_without_running_its_handler(rmq: RmqTest, charge: Handler[None]) -> None:
    charge.publish("a", message_id="m")
    charge.publish("a", message_id="m")
    rmq.drain()

    assert (done(), len(rmq.attempts(charge)), rmq.all_parked(charge), rmq.drain()) == (["a 0"], 1, [], 0)


def test_a_duplicate_is_logged_in_one_line_and_sends_a_signal(
    rmq: RmqTest, charge: Handler[None], caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[str] = []
    hear = lambda handler, **_: heard.append(handler)  # noqa: E731
    signals.duplicated.connect(hear)
    charge.publish("a", message_id="m")
    charge.publish("a", message_id="m")
    with caplog.at_level("INFO", "django_rmq_retry"):
        rmq.drain()
    signals.duplicated.disconnect(hear)

    assert heard == ["charge"]
    assert [one.__dict__["event"] for one in caplog.records] == ["ack", "duplicate"]
    assert "duplicate charge id='m'" in caplog.text


def test_a_failed_handler_leaves_neither_effect_nor_entry(rmq: RmqTest, charge: Handler[None]) -> None:
    charge.publish("fails", message_id="m")
    rmq.drain()

    assert (done(), InboxEntry.objects.count(), len(rmq.attempts(charge))) == ([], 0, 2)
    assert rmq.parked(charge).reason == "Gave up after 2 attempts: ValueError: not today"


@pytest.mark.parametrize("fault", ["crash before ack", "duplicate delivery", "broker loss"])
def test_a_message_is_handled_once_whatever_redelivers_it(rmq: RmqTest, charge: Handler[None], fault: str) -> None:
    charge.publish("a", message_id="m")
    rmq.fail_next(charge, fault)
    rmq.drain()

    assert (done(), rmq.all_parked(charge)) == (["a 0"], [])


def test_an_async_handler_runs_in_the_same_transaction(rmq: RmqTest) -> None:
    @handler("payments", policy=POLICY, name="charge", once=True)
    async def charge(message: Delivery) -> None:
        await asyncio.gather()
        await Group.objects.acreate(name=str(message.data))
        if message.data == "fails":
            raise ValueError("not today")

    for data, name in (("a", "1"), ("a", "1"), ("fails", "2")):
        charge.publish(data, message_id=name)
    rmq.drain()

    assert (done(), InboxEntry.objects.count()) == (["a"], 1)


def test_messages_of_an_async_handler_are_published_on_its_commit(rmq: RmqTest, charge: Handler[None]) -> None:
    @handler("orders", policy=POLICY, name="order", once=True)
    async def order(message: Delivery) -> None:
        await charge.apublish(f"for {message.data}")
        if message.data == "fails":
            raise ValueError("not today")

    for data, name in (("a", "1"), ("a", "1"), ("fails", "2")):
        order.publish(data, message_id=name)
    rmq.drain()

    assert done() == ["for a 0"]


def test_a_handler_called_directly_skips_the_inbox(charge: Handler[None]) -> None:
    message = Delivery(queue="payments", body=b"", data="a")
    charge(message)
    charge(message)

    assert (done(), InboxEntry.objects.count()) == (["a 0", "a 1"], 0)


def test_on_commit_callbacks_run_after_the_commit(rmq: RmqTest) -> None:
    order: list[str] = []

    @handler("payments", policy=POLICY, name="charge", once=True)
    def charge(_message: Delivery) -> None:
        transaction.on_commit(lambda: order.append("committed"))
        order.append("done")

    charge.publish("a", message_id="m")
    charge.publish("a", message_id="m")
    rmq.drain()

    assert order == ["done", "committed"]

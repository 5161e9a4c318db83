"""The test kit: the outbox of production, and ``drain`` sends the rows that remain in it."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
from django.db import transaction

from django_rmq_retry import Delivery, Handler, handler
from django_rmq_retry.testing import RmqTest, isolated_handlers
from tests.outbox.made import kept

Capture = Callable[..., AbstractContextManager[Any]]


@pytest.fixture
def charge() -> Iterator[Handler[None]]:
    with isolated_handlers():

        @handler("outbox.charge")
        def charge(message: Delivery) -> None:
            """Do nothing."""

        yield charge


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("trouble", ["broker loss", "nack"])
def test_the_next_drain_sends_a_message_that_could_not_be_sent(
    rmq: RmqTest, charge: Handler[None], trouble: str
) -> None:
    rmq.fail_next("publish", trouble)
    with transaction.atomic():
        charge.publish({"payment": 7})
    assert (len(rmq.published(charge)), kept()) == (0, ["outbox.charge"])

    assert (rmq.drain(), kept()) == (1, [])


@pytest.mark.django_db(transaction=True)
def test_a_lost_confirm_sends_the_message_twice_with_one_id(rmq: RmqTest, charge: Handler[None]) -> None:
    rmq.fail_next("publish", "confirm lost")
    with transaction.atomic():
        name = charge.publish({"payment": 7})
    rmq.drain()

    assert [one.message.id for one in rmq.attempts(charge)] == [name, name]


@pytest.mark.django_db
def test_a_failing_publish_does_not_mark_the_broker_unavailable(
    rmq: RmqTest, charge: Handler[None], django_capture_on_commit_callbacks: Capture
) -> None:
    rmq.fail_next("publish", "broker loss")
    for number in (1, 2):
        with django_capture_on_commit_callbacks(execute=True), transaction.atomic():
            charge.publish({"payment": number})

    assert [one.data for one in rmq.published(charge)] == [{"payment": 2}]

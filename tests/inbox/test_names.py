"""Names by which a handler recognizes a message: its id, the result of its function, or its bytes."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Any
from unittest.mock import Mock
from uuid import UUID

import pytest
from django.db import OperationalError, connection
from django.utils import timezone

from django_rmq_retry import Delivery, Queue, RetryThenPark
from django_rmq_retry.handlers import Subscription
from django_rmq_retry.handlers.call import HandlerSkipped, OnceState, Unready
from django_rmq_retry.handlers.subscription import MessageName
from django_rmq_retry.inbox.names import NAME_LENGTH, name_for
from django_rmq_retry.inbox.once import insert, once, present
from django_rmq_retry.messages import Reason
from django_rmq_retry.models import InboxEntry
from django_rmq_retry.policies import DUPLICATE
from tests.handlers.factories import delivery
from tests.parked.arrivals import ticket_header
from tests.parked.made import parked as recorded

pytestmark = [pytest.mark.database, pytest.mark.django_db]
NUMBER = UUID("0f8e7d6c-5b4a-4392-8170-6f5e4d3c2b1a")
ATTEMPTS = {"rmq-retry-attempts": 1}
NOT_RUN = "The handler was not run."


def subscribed(
    named: bool | MessageName = True, does: Callable[[Delivery], object] = lambda _: None, *, name: str = "h"
) -> Subscription:
    policy = RetryThenPark(attempts=1)
    return Subscription(name=name, run=does, queue=Queue("q"), policy=policy, park="q.parked", once=named)


def arrival(**options: Any) -> Delivery:
    return replace(delivery(queue="q", **options), data=7)


def handled(named: bool | MessageName = True, **options: Any) -> bool:
    """Return True if the handler runs for such a message."""
    ran: list[Delivery] = []
    with suppress(Duplicate):
        once_or_duplicate(subscribed(named, ran.append), arrival(**options))
    return bool(ran)


class Duplicate(Exception):
    """Return True if the handler did not run because the message was handled before."""


def once_or_duplicate(subscription: Subscription, message: Delivery) -> None:
    try:
        once(subscription, message, OnceState())
    except HandlerSkipped as instead:
        if instead.verdict is DUPLICATE:
            raise Duplicate from instead
        raise


def parked(named: bool | MessageName = True, **options: Any) -> tuple[Reason | None, str]:
    with pytest.raises(HandlerSkipped) as found:
        once(subscribed(named, lambda _: pytest.fail("it must not run")), arrival(**options), OnceState())
    assert not found.value.verdict.counted

    return found.value.verdict.reason, found.value.verdict.detail


def test_a_message_id_with_another_body_is_a_conflict() -> None:
    assert handled(message_id="m", body=b"1")
    assert not handled(message_id="m", body=b"1")
    reason, detail = parked(message_id="m", body=b"2")

    assert reason is Reason.CONFLICT
    assert detail == (
        "Handler h has handled 'm' before, with another body. This message was not run. Compare the two "
        "bodies; requeue this message to run it, or discard it."
    )


@pytest.mark.parametrize("result", ["payment 7", 7, 7.5, Decimal("7.1"), NUMBER, "x" * 256, "\0", "\udcff", "é" * 255])
def test_a_once_function_may_return_any_text_or_number(result: object) -> None:
    assert handled(lambda _: result, message_id="one")
    assert not handled(lambda _: result, message_id="another")

    entry = InboxEntry.objects.get()
    assert 0 < len(entry.name) <= NAME_LENGTH


def test_long_names_that_differ_only_at_their_end_are_distinct() -> None:
    assert handled(lambda _: "x" * 300 + "1")
    assert handled(lambda _: "x" * 300 + "2")


@pytest.mark.parametrize("result", [None, "", True, float("nan"), [], {"payment": 7}, b"7"])
def test_a_once_function_that_returns_nothing_parks_the_message(result: object) -> None:
    assert parked(lambda _: result) == (
        Reason.UNNAMED,
        f"once=… of handler h must return a text or a number that names the message, not {result!r}. {NOT_RUN}",
    )


def test_a_once_function_that_raises_parks_the_message_with_its_error() -> None:
    reason, detail = parked(lambda message: message.data["payment"])

    assert reason is Reason.UNNAMED
    assert detail == "once=… of handler h raised TypeError: 'int' object is not subscriptable. The handler was not run."


def test_a_message_id_and_an_equal_function_result_are_distinct() -> None:
    assert handled(message_id="7")
    assert handled(lambda _: "7", message_id="other")


def test_two_handlers_of_one_message_each_handle_it() -> None:
    keys = {name_for(subscribed(name=name), arrival(message_id="m")).key for name in ("a", "b", "a\0id")}

    assert len(keys) == 3


def test_every_name_becomes_a_key_that_the_database_stores_unchanged() -> None:
    names = [name_for(subscribed(), arrival(message_id=f"m{number}")) for number in range(1000)]
    for name in names:
        insert(connection, "h", name)

    assert all(present(connection, name.key) for name in names)
    assert InboxEntry.objects.count() == 1000


def test_without_an_id_a_certain_redelivery_is_a_duplicate() -> None:
    assert handled(body=b"1")
    assert not handled(body=b"1", redelivered=True)
    assert not handled(body=b"1", headers=ATTEMPTS)
    assert not handled(body=b"1", attempt=2)


def test_without_an_id_a_fresh_equal_message_is_parked_for_an_operator() -> None:
    assert handled(body=b"1")
    reason, detail = parked(body=b"1")

    assert reason is Reason.ALIKE
    assert detail == (
        "The message has no id, and handler h has handled a message with the same body. It may be a second message or "
        "a copy of the first. Requeue it to run it; discard it if it is a copy."
    )


def test_without_an_id_another_body_route_or_property_is_another_message() -> None:
    assert handled(body=b"1")
    assert handled(body=b"2")
    assert handled(body=b"1", correlation_id="c")
    assert handled(body=b"1", exchange="x")
    assert handled(body=b"1", headers={"trace": "t"})


def test_a_message_without_an_id_begun_here_with_unknown_end_is_the_same() -> None:
    message, state = arrival(body=b"1"), OnceState()
    once(subscribed(), message, state)

    with pytest.raises(HandlerSkipped) as found:
        once(subscribed(), message, state)
    assert found.value.verdict is DUPLICATE


def test_a_message_without_an_id_first_refused_by_the_database_is_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    assert handled(body=b"1")
    fresh, state = arrival(body=b"1"), OnceState()
    with monkeypatch.context() as away:
        away.setattr("django_rmq_retry.inbox.once.insert", Mock(side_effect=OperationalError("away")))
        with pytest.raises(Unready):
            once(subscribed(), fresh, state)

    with pytest.raises(HandlerSkipped) as found:
        once(subscribed(), fresh, state)
    assert found.value.verdict.reason is Reason.ALIKE


@pytest.mark.parametrize("options", [{"redelivered": True}, {"attempt": 2}])
def test_without_an_id_a_requeued_message_is_handled(options: Any) -> None:
    assert handled(body=b"1")
    record = recorded(reason=Reason.ALIKE.value)
    copied = ticket_header(record.pk, 2, queue="q", id=None, body=b"1")
    ran: list[Delivery] = []
    for _ in range(2):
        with suppress(Duplicate):
            once_or_duplicate(subscribed(does=ran.append), arrival(body=b"1", headers=copied, **options))

    assert len(ran) == 1


def test_without_an_id_a_second_requeue_is_no_duplicate_of_the_first() -> None:
    assert handled(body=b"1")
    later = InboxEntry.objects.get().handled_at + timedelta(seconds=1)
    record = recorded(reason=Reason.EXHAUSTED.value, requeued_at=later)
    copied = ticket_header(record.pk, 3, queue="q", id=None, body=b"1")

    reason, _ = parked(body=b"1", headers=copied, redelivered=True)

    assert reason is Reason.ALIKE


def test_without_an_id_a_requeued_and_handled_message_is_a_duplicate_later() -> None:
    record = recorded(reason=Reason.EXHAUSTED.value, requeued_at=timezone.now() - timedelta(minutes=1))
    copied = ticket_header(record.pk, 3, queue="q", id=None, body=b"1")

    assert handled(body=b"1", headers=copied)
    assert not handled(body=b"1", headers=copied, redelivered=True)


def test_undecodable_properties_park_the_message() -> None:
    with pytest.raises(HandlerSkipped) as found:
        once(subscribed(), Delivery(queue="q", body=b"", raw=b"\xff\xff\x01"), OnceState())

    assert found.value.verdict.reason is Reason.UNDECODABLE_HEADERS

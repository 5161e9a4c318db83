"""The fault of an unconfirmed row, decided by the scope and cause of the result."""

import pytest

from django_rmq_retry import Message
from django_rmq_retry.amqp import Cause, PublishEnd, PublishResult, Scope
from django_rmq_retry.amqp.refusals import channel_closed
from django_rmq_retry.publishing.faults import FAULTS, RowFault, fault
from tests.tooling.results import (
    CONNECTION_LOST,
    NACKED,
    RETURNED,
    TOO_LARGE,
    UNKNOWN,
    UNSENT,
    UNWRITABLE,
    channel_closed_over,
)

TO_GONE = Message(body=b"12345", exchange="gone", routing_key="q")
RESULTS = (
    (RETURNED, RowFault.ROW, RowFault.ROW),
    (TOO_LARGE, RowFault.ROW, RowFault.ROW),
    (UNWRITABLE, RowFault.ROW, RowFault.ROW),
    (NACKED, RowFault.FULL, RowFault.FULL),
    (UNSENT, RowFault.BROKER, RowFault.BROKER),
    (UNKNOWN, RowFault.BROKER, RowFault.BROKER),
    (CONNECTION_LOST, RowFault.BROKER, RowFault.BROKER),
    (channel_closed_over(Cause.ACCESS_EXCHANGE), RowFault.PERMISSION, RowFault.SHARED),
    (channel_closed_over(Cause.ACCESS_TOPIC), RowFault.FULL, RowFault.SHARED),
    (channel_closed_over(Cause.OTHER, 406), RowFault.ROW, RowFault.SHARED),
)


@pytest.mark.parametrize(("result", "alone", "together"), RESULTS)
def test_a_fault_follows_from_scope_and_cause(result: PublishResult, alone: RowFault, together: RowFault) -> None:
    assert (fault(result, alone=True), fault(result, alone=False)) == (alone, together)


def test_every_cause_has_a_fault() -> None:
    assert set(Cause) <= FAULTS.keys()


CHANNEL_CLOSED = (
    (404, "NOT_FOUND - no exchange 'gone' in vhost '/'", PublishEnd.RETURNED, Cause.NO_EXCHANGE),
    (403, "ACCESS_REFUSED - access to exchange 'gone' in vhost '/' refused", PublishEnd.UNSENT, Cause.ACCESS_EXCHANGE),
    (403, "ACCESS_REFUSED - write access to exchange 'a long name, miss...", PublishEnd.UNSENT, Cause.ACCESS_EXCHANGE),
    (403, "ACCESS_REFUSED - write access to topic 'a.b' in exchange 'gone'", PublishEnd.UNSENT, Cause.ACCESS_TOPIC),
    (
        406,
        "PRECONDITION_FAILED - message size 5 is larger than configured max size 4",
        PublishEnd.TOO_LARGE,
        Cause.BODY_LIMIT,
    ),
    (406, "PRECONDITION_FAILED - message size 9 is larger than configured max size 5", PublishEnd.UNKNOWN, Cause.OTHER),
    (406, "PRECONDITION_FAILED - user_id property set to 'x' but it was 'bank'", PublishEnd.UNKNOWN, Cause.OTHER),
)


@pytest.mark.parametrize(("code", "text", "kind", "cause"), CHANNEL_CLOSED)
def test_the_cause_of_a_closed_channel_is_parsed_once(code: int, text: str, kind: PublishEnd, cause: Cause) -> None:
    result = channel_closed(code, text, message=TO_GONE, alone=True)
    scope = Scope.MESSAGE if cause in (Cause.NO_EXCHANGE, Cause.BODY_LIMIT) else Scope.CHANNEL

    assert (result.kind, result.scope, result.cause, result.code) == (kind, scope, cause, code)


def test_a_row_to_a_missing_exchange_that_was_not_alone_is_retried_alone() -> None:
    result = channel_closed(404, "NOT_FOUND - no exchange 'gone' in vhost '/'", message=TO_GONE, alone=False)

    assert (result.kind, result.scope) == (PublishEnd.UNKNOWN, Scope.CHANNEL)
    assert (fault(result, alone=False), fault(result, alone=True)) == (RowFault.SHARED, RowFault.ROW)

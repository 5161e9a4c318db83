"""The fault of an unconfirmed row, decided by the scope and cause of the result, never by its text."""

from dataclasses import replace

import pytest

from django_rmq_retry import Message
from django_rmq_retry.amqp import Cause, Outcome, PublishResult, Scope
from django_rmq_retry.amqp.refusals import channel_closed
from django_rmq_retry.publishing.faults import RowFault, fault
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
OTHER_WORDS = (
    "",
    "the connection was lost: x",
    "no confirm in time",
    "it cannot be written: x",
    "ACCESS_REFUSED - write access to exchange 'x' in vhost '/' refused for user 'y'",
)


@pytest.mark.parametrize(("result", "alone", "together"), RESULTS)
@pytest.mark.parametrize("text", [None, *OTHER_WORDS])
def test_a_fault_does_not_depend_on_the_wording_of_the_broker(
    result: PublishResult, alone: RowFault, together: RowFault, text: str | None
) -> None:
    reworded = result if text is None else replace(result, text=text)

    assert (fault(reworded, alone=True), fault(reworded, alone=False)) == (alone, together)


@pytest.mark.parametrize("cause", Cause)
@pytest.mark.parametrize("scope", Scope)
def test_every_cause_has_a_fault_in_every_scope(cause: Cause, scope: Scope) -> None:
    result = PublishResult(kind=Outcome.UNKNOWN, scope=scope, cause=cause)

    assert isinstance(fault(result, alone=True), RowFault)


@pytest.mark.parametrize(
    ("code", "text", "kind", "scope", "cause"),
    [
        (404, "NOT_FOUND - no exchange 'gone' in vhost '/'", Outcome.RETURNED, Scope.MESSAGE, Cause.NO_EXCHANGE),
        (
            403,
            "ACCESS_REFUSED - access to exchange 'gone' in vhost '/' refused for user 'bank'",
            Outcome.UNSENT,
            Scope.CHANNEL,
            Cause.ACCESS_EXCHANGE,
        ),
        (
            403,
            "ACCESS_REFUSED - write access to exchange 'a long name, so the end is miss...",
            Outcome.UNSENT,
            Scope.CHANNEL,
            Cause.ACCESS_EXCHANGE,
        ),
        (
            403,
            "ACCESS_REFUSED - write access to topic 'a.b' in exchange 'gone' in vhost '/' refused for user 'bank'",
            Outcome.UNSENT,
            Scope.CHANNEL,
            Cause.ACCESS_TOPIC,
        ),
        (
            406,
            "PRECONDITION_FAILED - message size 5 is larger than configured max size 4",
            Outcome.TOO_LARGE,
            Scope.MESSAGE,
            Cause.BODY_LIMIT,
        ),
        (
            406,
            "PRECONDITION_FAILED - message size 9 is larger than configured max size 5",
            Outcome.UNKNOWN,
            Scope.CHANNEL,
            Cause.OTHER,
        ),
        (
            406,
            "PRECONDITION_FAILED - user_id property set to 'x' but authenticated user was 'bank'",
            Outcome.UNKNOWN,
            Scope.CHANNEL,
            Cause.OTHER,
        ),
    ],
)
def test_the_cause_of_a_closed_channel_is_parsed_once(
    code: int, text: str, kind: Outcome, scope: Scope, cause: Cause
) -> None:
    result = channel_closed(code, text, message=TO_GONE, alone=True)

    assert (result.kind, result.scope, result.cause, result.code) == (kind, scope, cause, code)


def test_a_row_to_a_missing_exchange_that_was_not_alone_is_retried_alone() -> None:
    result = channel_closed(404, "NOT_FOUND - no exchange 'gone' in vhost '/'", message=TO_GONE, alone=False)

    assert (result.kind, result.scope) == (Outcome.UNKNOWN, Scope.CHANNEL)
    assert (fault(result, alone=False), fault(result, alone=True)) == (RowFault.SHARED, RowFault.ROW)

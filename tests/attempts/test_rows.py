"""An attempt as a row."""

import json
import os
import socket
import threading
from dataclasses import replace
from datetime import timedelta

import pytest

from django_rmq_retry import Delivery
from django_rmq_retry.attempts.rows import KEPT_BODY_BYTES, AttemptRow, RowBuilder, draft_of
from django_rmq_retry.handlers.contracts import FinishedAttempt
from django_rmq_retry.handlers.grouping import grouped
from django_rmq_retry.handlers.ticket import Ticket, ticket_of
from django_rmq_retry.messages import ErrorNote, Reason
from django_rmq_retry.messages.header_names import TICKET
from django_rmq_retry.messages.identity import attempt_identity, message_identity
from django_rmq_retry.messages.tracebacks import named_fingerprint
from django_rmq_retry.policies import halt, park
from tests.attempts.attempted import CHARGE, failure, success
from tests.handlers.factories import delivery
from tests.messages.exceptions import BankDown, caught, post
from tests.messages.parked_copies import parked_copy, read_back
from tests.parked.made import NOON

BUILDER = RowBuilder(deploy="a1b2c3", host="worker-3")


def row_of(attempt: FinishedAttempt, ticket: Ticket | None = None) -> AttemptRow:
    """As if it had ended at noon."""
    return BUILDER.row(draft_of(attempt, ticket)._replace(ended=NOON.timestamp()))


def test_a_failed_attempt_fills_every_column() -> None:
    row = row_of(failure(delivery(message_id="m-1", attempt=2)))

    assert (row.queue, row.handler, row.message_id) == ("payments", "payments.handlers.charge", "m-1")
    assert (row.cycle, row.number, row.verdict, row.wait) == (1, 2, "retry", 30)
    assert (row.started_at, row.seconds) == (NOON - timedelta(seconds=1.5), 1.5)
    assert row.next_at == NOON + timedelta(seconds=30)
    assert (row.error, row.error_text, row.reason) == ("BankDown", "no answer", "")
    assert (row.host, row.pid, row.thread) == ("worker-3", os.getpid(), threading.current_thread().name)
    assert (row.deploy, json.loads(row.chain)[1]["error"]) == ("a1b2c3", "TimeoutError")
    assert RowBuilder().host == socket.gethostname()


def test_a_success_has_no_error_and_no_next_attempt() -> None:
    row = row_of(success(delivery(attempt=3)))

    assert (row.verdict, row.number, row.next_at, row.chain, row.logs) == ("ack", 3, None, "[]", "")
    assert (row.error, row.error_text, row.fingerprint) == ("", "", "")


def test_a_halted_attempt_has_a_time_for_its_next_one() -> None:
    row = row_of(failure(verdict=halt(5, ErrorNote.of(BankDown("no")))))

    assert (row.verdict, row.next_at) == ("halt", NOON + timedelta(seconds=5))


def test_an_attempt_of_a_requeued_copy_has_its_cycle_and_record() -> None:
    ticket = Ticket(record=7, cycle=3)
    arrival = delivery(headers={TICKET: ticket.signed(message_identity("payments", None, b"{}"))})

    assert ticket_of(arrival) == ticket

    assert row_of(failure(arrival), ticket).cycle == 3


@pytest.mark.parametrize("headers", [{}, {TICKET: "made up"}, {TICKET: 7}])
def test_a_message_without_a_valid_ticket_has_none(headers: dict[str, object]) -> None:
    assert ticket_of(delivery(headers=headers)) is None


def test_undecodable_headers_carry_no_ticket() -> None:
    broken = delivery(raw=b"\x20\x00\xff" + TICKET.encode())

    assert ticket_of(broken) is None
    assert row_of(failure(broken)).message_id == ""


def test_an_attempt_has_the_identity_of_its_future_record() -> None:
    arrival = delivery(message_id="m-1", body=b'{"a": 1}')
    verdict = park(Reason.EXHAUSTED, "Gave up", ErrorNote.of(BankDown("no")))
    drained = read_back(parked_copy(verdict, arrival))

    assert row_of(failure(arrival)).identity == drained.identity
    assert drained.identity == attempt_identity("payments", "m-1", b'{"a": 1}')


def test_messages_without_an_id_are_identified_by_their_bytes() -> None:
    row = row_of(failure(delivery(body=b"1")))

    assert row.identity == attempt_identity("payments", "", b"1")
    assert row.identity.startswith("nameless:")
    assert len({row.identity, attempt_identity("payments", "", b"2"), attempt_identity("payment", "", b"s1")}) == 3


def test_a_large_body_is_not_kept_in_the_buffer() -> None:
    small, large = b"1" * KEPT_BODY_BYTES, b"1" * (KEPT_BODY_BYTES + 1)
    drafts = [draft_of(failure(delivery(message_id="m-1", body=body)), None) for body in (small, large)]

    assert [draft.body for draft in drafts] == [small, b""]
    assert [BUILDER.row(draft).identity for draft in drafts] == [
        attempt_identity("payments", "m-1", small),
        attempt_identity("payments", "m-1", large),
    ]


def test_the_fingerprint_of_the_handler_also_groups_retries() -> None:
    named_one = replace(CHARGE, fingerprint=lambda message, _: f"bank of {message.queue}")

    assert row_of(failure(subscription=named_one)).fingerprint == named_fingerprint("bank of payments")


def test_a_retry_has_the_group_that_parking_would_give_it() -> None:
    def charge(_: Delivery) -> None:
        post()

    error = caught(lambda: charge(delivery()))
    attempt = failure(error=error, subscription=replace(CHARGE, run=charge))
    last = park(Reason.EXHAUSTED, "Gave up", ErrorNote.of(error))
    verdict = grouped(last, attempt.delivery, attempt.subscription, error)

    assert row_of(attempt).fingerprint == verdict.fingerprint
    assert row_of(replace(attempt, verdict=verdict)).fingerprint == verdict.fingerprint


def test_every_text_of_an_attempt_is_short_and_storable() -> None:
    odd = delivery(message_id="m" * 255, queue="q" * 255, body=b"\xff")
    row = row_of(failure(odd, error=Exception("\0\udcff" * 10**6)))

    assert len(row.error_text.encode()) <= 4000
    for value in row:
        if isinstance(value, str):
            assert "\0" not in value
            value.encode()

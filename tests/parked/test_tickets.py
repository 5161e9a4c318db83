"""Tickets of requeued copies."""

import pytest

from django_rmq_retry.handlers.ticket import Ticket
from django_rmq_retry.messages.identity import message_identity

COPY = message_identity("payments", "m-1", b"{}")


def test_a_signed_ticket_is_read_back_unchanged() -> None:
    ticket = Ticket(record=7, cycle=2)

    assert Ticket.read(ticket.signed(COPY), COPY) == ticket


def test_a_forged_ticket_is_refused() -> None:
    signed = Ticket(record=7, cycle=2).signed(COPY)

    assert Ticket.read(signed.replace("7.2", "8.2"), COPY) is None
    assert [Ticket.read(made_up, COPY) for made_up in ("", "7.2", "7.2:x", None, 7, b"7.2", "\0")] == [None] * 7


@pytest.mark.parametrize(
    "other",
    [
        message_identity("refunds", "m-1", b"{}"),
        message_identity("payments", "m-2", b"{}"),
        message_identity("payments", None, b"{}"),
        message_identity("payments", "m-1", b"{ }"),
        message_identity("payments", "m-", b"1{}"),
    ],
)
def test_a_ticket_is_valid_only_for_its_own_message(other: str) -> None:
    assert Ticket.read(Ticket(record=7, cycle=2).signed(COPY), other) is None

"""Tickets of requeued copies."""

import pytest

from django_rmq_retry.handlers.ticket import Ticket, bearer

COPY = bearer("payments", "m-1", b"{}")


def test_a_ticket_comes_back_as_it_was_signed() -> None:
    ticket = Ticket(record=7, cycle=2)

    assert Ticket.read(ticket.signed(COPY), COPY) == ticket


def test_what_is_not_of_our_making_is_no_ticket() -> None:
    signed = Ticket(record=7, cycle=2).signed(COPY)

    assert Ticket.read(signed.replace("7.2", "8.2"), COPY) is None
    assert [Ticket.read(made_up, COPY) for made_up in ("", "7.2", "7.2:x", None, 7, b"7.2", "\0")] == [None] * 7


@pytest.mark.parametrize(
    "other",
    [
        bearer("refunds", "m-1", b"{}"),
        bearer("payments", "m-2", b"{}"),
        bearer("payments", None, b"{}"),
        bearer("payments", "m-1", b"{ }"),
        bearer("payments", "m-", b"1{}"),
    ],
)
def test_a_ticket_reports_nothing_of_another_message(other: str) -> None:
    assert Ticket.read(Ticket(record=7, cycle=2).signed(COPY), other) is None

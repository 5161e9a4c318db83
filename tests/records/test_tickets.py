"""Tickets of requeued copies."""

from django_rmq_retry.records.tickets import Ticket


def test_a_ticket_comes_back_as_it_was_signed() -> None:
    ticket = Ticket(record=7, cycle=2)

    assert Ticket.read(ticket.signed()) == ticket


def test_what_is_not_of_our_making_is_no_ticket() -> None:
    signed = Ticket(record=7, cycle=2).signed()

    assert Ticket.read(signed.replace("7.2", "8.2")) is None
    assert [Ticket.read(made_up) for made_up in ("", "7.2", "7.2:x", None, 7, b"7.2", "\0")] == [None] * 7

"""Tickets: the header by which a requeued copy finds its record, signed for one message: senders may forge it."""

from dataclasses import dataclass

from django.core.signing import BadSignature, Signer

from django_rmq_retry.messages.header_names import TICKET
from django_rmq_retry.messages.identity import message_identity
from django_rmq_retry.messages.message import Delivery

SALT = "django_rmq_retry.ticket"

TICKET_BYTES = TICKET.encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """The record of a parked message, and the requeue cycle in which a copy of the message was sent."""

    record: int
    cycle: int

    def signed(self, bearer: str) -> str:
        """Return the signed text for the header of the copy; ``bearer`` is the identity of its message."""
        return _signer(bearer).sign(f"{self.record}.{self.cycle}")

    @classmethod
    def read(cls, text: object, bearer: str) -> "Ticket | None":
        """Return the ticket in a header; None if this project did not sign it, or signed it for another message."""
        if not isinstance(text, str) or not text:
            return None
        try:
            record, _, cycle = _signer(bearer).unsign(text).partition(".")
            return cls(record=int(record), cycle=int(cycle))
        except (BadSignature, ValueError):
            return None


def _signer(bearer: str) -> Signer:
    return Signer(salt=f"{SALT}.{bearer}")


def ticket_of(delivery: Delivery) -> Ticket | None:
    """Return the ticket of a requeued copy; None for any other message, even if it carries the same header."""
    if TICKET_BYTES not in delivery.raw:
        return None
    try:
        return Ticket.read(delivery.headers.get(TICKET), message_identity(delivery.queue, delivery.id, delivery.body))
    except Exception:  # noqa: BLE001 - undecodable headers carry no ticket
        return None

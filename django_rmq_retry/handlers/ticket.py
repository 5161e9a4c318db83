"""Tickets: the signed header by which an attempt of a requeued copy finds its record.

A sender could invent the header, so it is signed; a handler may copy it into another message, so it is signed for one
message only.
"""

from dataclasses import dataclass

from django.core.signing import BadSignature, Signer

from django_rmq_retry.messages.message import Delivery
from django_rmq_retry.messages.parked import TICKET, identity

SALT = "django_rmq_retry.ticket"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """A record of a parked message, and the cycle of requeues in which a copy of it was sent."""

    record: int
    cycle: int

    def signed(self, bearer: str) -> str:
        """The text for the header of the copy."""
        return _signer(bearer).sign(f"{self.record}.{self.cycle}")

    @classmethod
    def read(cls, text: object, bearer: str) -> "Ticket | None":
        """The ticket in a header; None for one that this project did not sign, or signed for another message."""
        if not isinstance(text, str) or not text:
            return None
        try:
            record, _, cycle = _signer(bearer).unsign(text).partition(".")
            return cls(record=int(record), cycle=int(cycle))
        except (BadSignature, ValueError):
            return None


def bearer(queue: str, message_id: str | None, body: bytes) -> str:
    """The message for which a ticket is signed: in this queue, with this id and this body."""
    return identity(queue, message_id or "", body)


def _signer(bearer: str) -> Signer:
    return Signer(salt=f"{SALT}.{bearer}")


TICKET_MARK = TICKET.encode()


def ticket_of(delivery: Delivery) -> Ticket | None:
    """The ticket of a requeued copy; None for any other message, even if that carries the same header."""
    if TICKET_MARK not in delivery.raw:
        return None
    try:
        return Ticket.read(delivery.headers.get(TICKET), bearer(delivery.queue, delivery.id, delivery.body))
    except Exception:  # noqa: BLE001 - undecodable headers carry no ticket
        return None

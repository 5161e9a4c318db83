"""What a requeued copy carries: its record and which of its cycles.

Signed, for a sender could make it up; and for one message only, for a handler may copy its headers into another one.
"""

from dataclasses import dataclass

from django.core.signing import BadSignature, Signer

from django_rmq_retry.core.parking import identity

SALT = "django_rmq_retry.ticket"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """A record and the cycle in which a copy of it was sent."""

    record: int
    cycle: int

    def signed(self, bearer: str) -> str:
        """As the header of the copy."""
        return _signer(bearer).sign(f"{self.record}.{self.cycle}")

    @classmethod
    def read(cls, text: object, bearer: str) -> "Ticket | None":
        """What a message carries; nothing if it is not of our making, or was made for another message."""
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

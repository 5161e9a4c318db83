"""What a requeued copy carries: its record and which of its cycles. Signed, for a sender could make it up."""

from dataclasses import dataclass

from django.core.signing import BadSignature, Signer

SALT = "django_rmq_retry.ticket"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """A record and the cycle in which a copy of it was sent."""

    record: int
    cycle: int

    def signed(self) -> str:
        """As the header of the copy."""
        return Signer(salt=SALT).sign(f"{self.record}.{self.cycle}")

    @classmethod
    def read(cls, text: object) -> "Ticket | None":
        """What a message carries; nothing if it is not of our making."""
        if not isinstance(text, str) or not text:
            return None
        try:
            record, _, cycle = Signer(salt=SALT).unsign(text).partition(".")
            return cls(record=int(record), cycle=int(cycle))
        except (BadSignature, ValueError):
            return None

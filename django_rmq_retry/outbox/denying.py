"""Exchanges that the broker closes to us for want of a right: one row asks again and again, the others wait for it."""

import time
from collections.abc import Collection
from dataclasses import dataclass

MARGIN = 1.0
"""Seconds after a row is due again, before it is sent: it must be found then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """Which row asks for its exchange, and from when on."""

    row: int
    at: float


class Denied:
    """Of one relay: each has to learn it for itself."""

    def __init__(self) -> None:
        self._asking: dict[str, Asking] = {}

    @property
    def exchanges(self) -> Collection[str]:
        """Whose rows would only be refused, and the channel closed with all that is under way on it."""
        return self._asking.keys()

    def note(self, exchange: str, row: int, *, seconds: float) -> None:
        """This row was refused, and is due again after so many seconds."""
        self._asking[exchange] = Asking(row=row, at=time.monotonic() + seconds + MARGIN)

    def next(self) -> int | None:
        """A row to be sent alone, for its time has come; with its answer its exchange is open, or denied once more."""
        now = time.monotonic()
        for exchange, asking in self._asking.items():
            if asking.at <= now:
                del self._asking[exchange]
                return asking.row
        return None

"""What keeps a client that does not read from being sent a whole queue."""

from math import inf

MUCH, LITTLE = 8 * 2**20, 2**20
_AROUND = 100
"""What a delivery's frames take beside its properties and its body, about."""


class Valve:
    """Shut from when a client has much unread until little is left: its consumers count as full then."""

    __slots__ = ("most", "shut", "unread")

    def __init__(self) -> None:
        self.most: float = inf
        self.shut = False
        self.unread = 0

    def pass_on(self, size: int) -> None:
        """A delivery goes through; what follows it may have to wait."""
        self.unread += size + _AROUND
        if self.unread > self.most:
            self.shut = True

    def measure(self, unread: int) -> bool:
        """Learn what is really unread; whether the valve opens."""
        self.unread = unread
        opens = self.shut and unread < LITTLE
        self.shut = unread > self.most or (self.shut and not opens)
        return opens

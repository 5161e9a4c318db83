"""Acks of one channel, collected and written together: one for a whole run, single ones beyond a gap."""

import struct
from collections.abc import Iterable, Iterator

# Type, channel, payload size, class and method, delivery tag, multiple (a nack: and requeue), end of frame.
_FRAME = struct.Struct(">BHIIQBB").pack
_METHOD, _SIZE, _END = 1, 13, 0xCE
_ACK, _NACK, _REJECT = (60 << 16) | 80, (60 << 16) | 120, (60 << 16) | 90
_REQUEUE_NACK, _REQUEUE_REJECT = 2, 1


class Acks:
    """Knows which delivery tags of one channel are done, so that a slow message never holds the acks of others."""

    def __init__(self, channel_number: int) -> None:
        self._number = channel_number
        self._low = 0
        # Done, but with an undone one before it.
        self._ahead: set[int] = set()

    def acks(self, tags: Iterable[int]) -> Iterator[bytes]:
        """The frames that acknowledge these tags, each of them new."""
        new = list(tags)
        self._done(new)
        under = [tag for tag in new if tag <= self._low]
        if under:
            # Every tag up to this one is done, and this one is still the broker's to hear of.
            yield self._frame(_ACK, max(under), int(len(under) > 1))
        for tag in new:
            if tag > self._low:
                yield self._frame(_ACK, tag)

    def nack(self, tag: int, *, requeue: bool) -> bytes:
        self._done((tag,))
        return self._frame(_NACK, tag, _REQUEUE_NACK if requeue else 0)

    def counted_requeue(self, tag: int) -> bytes:
        self._done((tag,))
        return self._frame(_REJECT, tag, _REQUEUE_REJECT)

    def _done(self, tags: Iterable[int]) -> None:
        ahead, low = self._ahead, self._low
        ahead.update(tags)
        while low + 1 in ahead:
            low += 1
            ahead.discard(low)
        self._low = low

    def _frame(self, method: int, tag: int, bits: int = 0) -> bytes:
        return _FRAME(_METHOD, self._number, _SIZE, method, tag, bits, _END)

"""Which deliveries of a channel are settled, and the frames that say so."""

from collections.abc import Iterable, Iterator
from functools import partial

from django_rmq_retry.amqp.frames import (
    ACK_FRAME,
    ACK_SIZE,
    BASIC_ACK,
    BASIC_NACK,
    BASIC_REJECT,
    FRAME_END,
    FRAME_METHOD,
)

_REQUEUE_NACK, _REQUEUE_REJECT = 2, 1


class Acks:
    """The delivery tags of one channel that are settled, so that a slow message does not delay the acks of others."""

    def __init__(self, channel_number: int) -> None:
        self._frame = partial(ACK_FRAME.pack, FRAME_METHOD, channel_number, ACK_SIZE)
        self._low = 0
        # Settled tags above an unsettled one.
        self._ahead: set[int] = set()

    def acks(self, tags: Iterable[int]) -> Iterator[bytes]:
        """Return the frames that acknowledge these tags, none of which was settled before."""
        new = list(tags)
        self._mark_done(new)
        under = [tag for tag in new if tag <= self._low]
        if under:
            # Every tag up to the highest is settled here, and the broker has not received its ack yet.
            yield self._frame(BASIC_ACK, max(under), int(len(under) > 1), FRAME_END)
        for tag in new:
            if tag > self._low:
                yield self._frame(BASIC_ACK, tag, 0, FRAME_END)

    def has(self, tag: int) -> bool:
        """True if this tag is settled."""
        return tag <= self._low or tag in self._ahead

    def nack(self, tag: int, *, requeue: bool) -> bytes:
        self._mark_done((tag,))
        return self._frame(BASIC_NACK, tag, _REQUEUE_NACK if requeue else 0, FRAME_END)

    def counted_requeue(self, tag: int) -> bytes:
        self._mark_done((tag,))
        return self._frame(BASIC_REJECT, tag, _REQUEUE_REJECT, FRAME_END)

    def _mark_done(self, tags: Iterable[int]) -> None:
        ahead, low = self._ahead, self._low
        ahead.update(tags)
        while low + 1 in ahead:
            low += 1
            ahead.discard(low)
        self._low = low

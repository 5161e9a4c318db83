"""How large a body the broker takes: asked on a channel of its own, for one that is too large closes its channel."""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pika
    from pika.channel import Channel

ALWAYS = 4096
"""Bytes that no broker refuses; a larger body is asked about before it is sent, once for each new largest."""
NOBODY = "rmq-retry.size"
"""The key of the question, which no queue has: the broker looks at the size and drops it."""

_TOO_LARGE = re.compile(r"larger than configured max size (?P<limit>\d+)")


def limit_in(said: str) -> int | None:
    """The largest body, where the broker names it in its refusal."""
    found = _TOO_LARGE.search(said)
    return int(found["limit"]) if found else None


def above(size: int, limit: int) -> str:
    """What is said of a body that is larger than the broker takes."""
    return f"{size} bytes are above the broker's {limit}"


class Sizes:
    """What is known on one connection; the next one asks anew, for the broker may have been changed meanwhile."""

    def __init__(self, connection: "pika.SelectConnection") -> None:
        self._connection = connection
        self.taken = ALWAYS
        """A body up to this size can be sent without a question."""
        self.limit: int | None = None
        """The broker's, once it has refused a body."""

    def learn(self, limit: int) -> None:
        self.limit = self.taken = limit

    def ask(self, size: int, told: Callable[[], None]) -> None:
        """Call back when a body of this size may be sent, or the limit is known."""
        _Question(self, size, told).put(self._connection)


class _Question:
    """A body of zeros for nobody, then a round trip: the broker answers it, or closes the channel over the size."""

    def __init__(self, sizes: Sizes, size: int, told: Callable[[], None]) -> None:
        self._sizes = sizes
        self._size = size
        self._told: Callable[[], None] | None = told

    def put(self, connection: "pika.SelectConnection") -> None:
        connection.channel(on_open_callback=self._opened)

    def _opened(self, channel: "Channel") -> None:
        channel.add_on_close_callback(self._closed)
        channel.basic_publish("", NOBODY, bytes(self._size))
        channel.basic_qos(prefetch_count=1, callback=lambda _frame: self._taken(channel))

    def _taken(self, channel: "Channel") -> None:
        self._end(None)
        channel.close()

    def _closed(self, _channel: object, reason: BaseException) -> None:
        self._end(limit_in(getattr(reason, "reply_text", "")))

    def _end(self, limit: int | None) -> None:
        """Where the broker does not say, as to a user who may not write there, the body itself has to show it."""
        told, self._told = self._told, None
        if told is None:
            return
        if limit is not None:
            self._sizes.learn(limit)
        elif self._sizes.limit is None:
            self._sizes.taken = max(self._sizes.taken, self._size)
        told()

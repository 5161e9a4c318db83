"""Questions about several queues at once: which of them are missing, and whether all are empty."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from pika.exceptions import ChannelClosedByBroker

from django_rmq_retry.amqp.connection import Connection
from django_rmq_retry.amqp.open_line import OpenLine
from django_rmq_retry.amqp.protocol import Channel
from django_rmq_retry.amqp.refusals import Refusal
from django_rmq_retry.amqp.session import NamedDeclaration, passively


def report_emptiness(lines: Sequence[OpenLine], callback: Callable[[bool], None]) -> None:
    """Read each line's number of messages once; call back with True if all are 0 and nothing is unacked."""
    counts: list[int] = []
    unacked = any(line.in_flight for line in lines)

    def counted(ready: int) -> None:
        counts.append(ready)
        if len(counts) == len(lines):
            # A message that was ready before the query may have been delivered since.
            callback(not unacked and not any(counts) and not any(line.in_flight for line in lines))

    for line in lines:
        line.depth(counted)


class ExistenceCheck:
    """Calls back once with what is missing, unless the connection is lost. What is not shown counts as existing."""

    def __init__(
        self,
        connection: Connection,
        named: Iterable[NamedDeclaration],
        callback: Callable[[list[NamedDeclaration]], None],
    ) -> None:
        self._connection = connection
        self._left = deque(named)
        self._missing: list[NamedDeclaration] = []
        self._callback = callback
        self._next()

    def _next(self) -> None:
        """Open another channel for the next check, because a refusal closes the channel."""
        if self._left:
            self._connection.channel(on_open_callback=self._opened)
        else:
            self._callback(self._missing)

    def _opened(self, channel: Channel) -> None:
        channel.add_on_close_callback(self._refused)
        self._ask(channel)

    def _ask(self, channel: Channel) -> None:
        if self._left:
            passively(self._left[0])(channel, lambda _frame: self._found(channel))
        else:
            channel.close()
            self._next()

    def _found(self, channel: Channel) -> None:
        self._left.popleft()
        self._ask(channel)

    def _refused(self, _channel: object, reason: BaseException) -> None:
        if not isinstance(reason, ChannelClosedByBroker):
            return
        asked = self._left.popleft()
        if Refusal(reason.reply_code, reason.reply_text).missing:
            self._missing.append(asked)
        self._next()

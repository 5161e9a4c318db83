"""Looks whether queues and exchanges are there, without declaring any: one question at a time, on the I/O thread."""

from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from pika.exceptions import ChannelClosedByBroker

from django_rmq_retry.broker.connection import Connection
from django_rmq_retry.broker.refusing import Refusal
from django_rmq_retry.broker.wording import Named, passively
from django_rmq_retry.core.declarations import QueueDeclaration

if TYPE_CHECKING:
    from pika.channel import Channel


class Look:
    """Tells once, in the end, what is missing; never, where the connection is lost meanwhile.

    What the broker does not want to say, or cannot because a node is away, counts as there.
    """

    def __init__(self, connection: Connection, named: Iterable[Named], told: Callable[[list[str]], None]) -> None:
        self._connection = connection
        self._left = deque(named)
        self._missing: list[str] = []
        self._told = told
        self._go_on()

    def _go_on(self) -> None:
        """A no costs the channel: the next question is asked on another."""
        if self._left:
            self._connection.channel(on_open_callback=self._opened)
        else:
            self._told(self._missing)

    def _opened(self, channel: "Channel") -> None:
        channel.add_on_close_callback(self._refused)
        self._ask(channel)

    def _ask(self, channel: "Channel") -> None:
        if self._left:
            passively(self._left[0])(channel, lambda _frame: self._found(channel))
        else:
            channel.close()
            self._go_on()

    def _found(self, channel: "Channel") -> None:
        self._left.popleft()
        self._ask(channel)

    def _refused(self, _channel: object, reason: BaseException) -> None:
        if not isinstance(reason, ChannelClosedByBroker):
            return
        asked = self._left.popleft()
        if Refusal(reason.reply_code, reason.reply_text).missing:
            kind = "queue" if isinstance(asked, QueueDeclaration) else "exchange"
            self._missing.append(f"{kind} {asked.name!r}")
        self._go_on()

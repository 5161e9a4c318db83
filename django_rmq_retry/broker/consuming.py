"""The consuming connection: subscribes to its queues, hands deliveries over, and comes back after whatever happens."""

import logging
from collections.abc import Callable, Iterable, Sequence

from pika.exceptions import ChannelClosedByBroker

from django_rmq_retry.broker.address import Access
from django_rmq_retry.broker.base import Line, Publisher, Receiver
from django_rmq_retry.broker.connection import Connection
from django_rmq_retry.broker.lines import OpenLine
from django_rmq_retry.broker.linking import Link
from django_rmq_retry.broker.looking import Look
from django_rmq_retry.broker.looping import IoThread
from django_rmq_retry.broker.settling import Settler
from django_rmq_retry.broker.wording import Named
from django_rmq_retry.core.errors import QueueUnusable, TopologyMissing
from django_rmq_retry.core.message import Delivery
from django_rmq_retry.core.settlement import Settlement, Tell

log = logging.getLogger("django_rmq_retry")

RESUBSCRIBE = 0.5
MOST_TRIES = 8
"""So often in a row a queue may refuse a subscription that it once granted: its leader may be moving."""
LOOK = 0.05
DEAF = 120
"""So often in a row, twice a second, the I/O thread may leave the question unanswered whether it still turns."""
ACCESS_REFUSED, NOT_FOUND = 403, 404


class PikaSource:
    """Consumes over one connection with a channel for each queue; publishes copies over the publisher's own."""

    def __init__(self, io: IoThread, access: Access, publisher: Publisher, *, needs: Iterable[Named] = ()) -> None:
        self._io = io
        self._needs = tuple(needs)
        """What must be there before anything is consumed; asked for once, for what vanishes later may come back."""
        self._link = Link(io, access, purpose="consume", opened=self._opened, lost=self._lost, refused=self._failed)
        self._settler = Settler(io, publisher, again=self._again, renew=self._renew, remember=self._remember)
        self._lines: dict[str, OpenLine] = {}
        self._wanted: tuple[Line, ...] = ()
        self._tries: dict[str, int] = {}
        self._granted: set[str] = set()
        self._halted: dict[str, tuple[bytes, str, int]] = {}
        """The message at the head of an ordered line, and its attempts: it may come back by another channel."""
        self._quiet = False
        self._receiver: Receiver | None = None

    @property
    def alive(self) -> bool:
        return self._io.alive and self._io.unheard() < DEAF

    def start(self, lines: Sequence[Line], receiver: Receiver) -> None:
        self._wanted, self._receiver = tuple(lines), receiver
        self._io.call(self._link.open)

    def settle(self, delivery: Delivery, settlement: Settlement) -> None:
        self._settler.settle(delivery, settlement)

    def give_back(self, deliveries: Iterable[Delivery]) -> None:
        """Return deliveries that no attempt was made of."""
        returned = list(deliveries)
        self._io.call(lambda: self._return(returned))

    def quiesce(self) -> None:
        """No further arrivals; what is in hand can still be settled."""
        self._io.call(self._quiesce)

    def stop(self) -> None:
        """Settle what was handed over, then close."""
        self._io.call(self._stop)

    def empty(self, told: Callable[[bool], None]) -> None:
        """Tell whether every queue is empty and nothing is in hand."""
        self._io.call(lambda: self._look(told))

    def arrived(self, delivery: Delivery) -> None:
        if self._halted:
            body, key, attempts = self._halted.pop(delivery.queue, (b"", "", 0))
            if delivery.redelivered and (body, key) == (delivery.body, delivery.routing_key):
                delivery.attempt = attempts + 1
        self._hand_over(delivery)

    def _again(self, delivery: Delivery) -> None:
        """The next attempt of a message that stayed in hand."""
        self._remember(delivery)
        delivery.attempt += 1
        self._hand_over(delivery)

    def _hand_over(self, delivery: Delivery) -> None:
        if self._receiver is not None:
            self._receiver.arrived(delivery)

    def subscribed(self, line: OpenLine) -> None:
        self._tries.pop(line.line.queue, None)
        self._granted.add(line.line.queue)

    def interrupted(self, line: OpenLine, reason: BaseException | str) -> None:
        """The broker ended a subscription: an error to be mended, never the end of the work."""
        queue = line.line.queue
        if self._lines.get(queue) is line:
            del self._lines[queue]
        if self._quiet:
            return
        tries = self._tries[queue] = self._tries.get(queue, 0) + 1
        verdict = _hopeless(reason, granted=queue in self._granted and tries < MOST_TRIES)
        if verdict is not None:
            self._failed(QueueUnusable(queue, verdict[0], advice=verdict[1]))
            return
        wait = min(RESUBSCRIBE * tries, 5.0)
        log.warning("Queue %r: %s; subscribing again in %.1f s", queue, _words(reason), wait)
        self._io.later(wait, lambda: self._open_line(line.line))

    def _opened(self, connection: Connection) -> None:
        if self._receiver is not None:
            self._receiver.connected(connection.server)
        if self._needs:
            Look(connection, self._needs, self._looked)
        else:
            self._open_lines()

    def _looked(self, missing: list[str]) -> None:
        if missing:
            self._failed(TopologyMissing(missing))
            return
        self._needs = ()
        self._open_lines()

    def _open_lines(self) -> None:
        for line in self._wanted:
            self._open_line(line)

    def _open_line(self, line: Line) -> None:
        connection = self._link.connection
        if connection is not None and connection.is_open and not self._quiet and line.queue not in self._lines:
            self._lines[line.queue] = OpenLine(connection, line, self)

    def _remember(self, delivery: Delivery) -> None:
        line: OpenLine = delivery.token[0]  # type: ignore[index]  # made by the line itself
        if line.line.ordered:
            self._halted[delivery.queue] = (delivery.body, delivery.routing_key, delivery.attempt)

    def _renew(self, delivery: Delivery, hold: float) -> None:
        """Give an ordered line's message back, in its place, and take it again when its wait is over."""
        line: OpenLine = delivery.token[0]  # type: ignore[index]  # made by the line itself
        line.close()
        self._lines.pop(line.line.queue, None)
        self._io.later(hold, lambda: self._open_line(line.line))

    def _lost(self, reason: str, retry_in: float) -> None:
        self._lines.clear()
        if self._receiver is not None:
            self._receiver.lost(reason, retry_in)

    def _failed(self, error: BaseException) -> None:
        if self._receiver is not None:
            self._receiver.failed(error)

    def _return(self, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            line: OpenLine = delivery.token[0]  # type: ignore[index]  # made by the line itself
            if not line.line.ordered:
                line.tell(delivery, Tell.REQUEUE)

    def _quiesce(self) -> None:
        self._quiet = True
        self._settler.stop()
        for line in self._lines.values():
            line.quiesce()

    def _stop(self) -> None:
        if not self._quiet:
            self._quiesce()
        # What was confirmed a moment ago is to be acknowledged before its channel closes, or it comes again.
        self._settler.flush()
        if self._settler.copying and self._link.connection is not None:
            self._io.later(LOOK, self._stop)
            return
        for line in self._lines.values():
            line.close()
        self._lines.clear()
        self._link.close(self._drained)

    def _drained(self) -> None:
        if self._receiver is not None:
            self._receiver.drained()

    def _look(self, told: Callable[[bool], None]) -> None:
        lines = list(self._lines.values())
        if not self._wanted:
            told(True)  # noqa: FBT003 - the answer
            return
        if len(lines) < len(self._wanted) or not all(line.open for line in lines):
            told(False)  # noqa: FBT003 - the answer
            return
        _Look(lines, told)


class _Look:
    """Asks every line once and tells the sum."""

    def __init__(self, lines: Sequence[OpenLine], told: Callable[[bool], None]) -> None:
        self._left = len(lines)
        self._lines = lines
        self._found = sum(line.in_hand for line in lines)
        self._told = told
        for line in lines:
            line.depth(self._one)

    def _one(self, ready: int) -> None:
        self._left -= 1
        self._found += ready
        if not self._left:
            # What was ready a moment ago may have come into our hand since we asked.
            self._told(self._found == 0 and not any(line.in_hand for line in self._lines))


def _hopeless(reason: BaseException | str, *, granted: bool) -> tuple[str, str] | None:
    """What is wrong and what to do, where subscribing again would change nothing; None where it may."""
    if not isinstance(reason, ChannelClosedByBroker) or granted:
        return None
    text = reason.reply_text
    if reason.reply_code == NOT_FOUND and not ("home node" in text or "timeout" in text):
        return "it does not exist", "Declare it with `manage.py rmq_declare`."
    if reason.reply_code == ACCESS_REFUSED and "exclusive" not in text:
        return f"the broker says {text}", "Give the user the right to read it."
    return None


def _words(reason: BaseException | str) -> str:
    if isinstance(reason, ChannelClosedByBroker):
        return f"the broker closed the channel ({reason.reply_code} {reason.reply_text})"
    return str(reason)

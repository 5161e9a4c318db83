"""The consuming connection: subscribes to queues, passes on deliveries, and resubscribes after a failure."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from pika.exceptions import NoFreeChannels

from django_rmq_retry.amqp.address import Access
from django_rmq_retry.amqp.answers import answers_on
from django_rmq_retry.amqp.auto_ack_line import AutoAckLine
from django_rmq_retry.amqp.connection import Connection
from django_rmq_retry.amqp.contracts import Line, Publisher, Receiver
from django_rmq_retry.amqp.io_thread import IoThread
from django_rmq_retry.amqp.link import Link
from django_rmq_retry.amqp.open_line import OpenLine
from django_rmq_retry.amqp.pauses import Pauses
from django_rmq_retry.amqp.quarantine_turns import QuarantineTurns
from django_rmq_retry.amqp.queue_checks import ExistenceCheck, report_emptiness
from django_rmq_retry.amqp.refusals import forbidden, interruption_text, queue_may_be_gone, unrecoverable
from django_rmq_retry.amqp.session import NamedDeclaration
from django_rmq_retry.amqp.settler import Settler
from django_rmq_retry.errors import QueueUnusable, TopologyMissing
from django_rmq_retry.messages.message import Delivery, Settlement
from django_rmq_retry.topology.declarations import QueueDeclaration

log = logging.getLogger("django_rmq_retry")

RESUBSCRIBE_SECONDS = 0.5
MOST_SUBSCRIBE_TRIES = 8
"""Tries in a row at subscribing to a queue that once granted it: its leader may be moving."""
STOP_LOOK_SECONDS = 0.05
LAST_ANSWERS_SECONDS = 2.0
"""Seconds to wait at the end for answers to be confirmed."""
LOOK_AGAIN_SECONDS = 30.0
"""Seconds after which a patient source tries again to consume a queue that it could not consume."""
MOST_UNANSWERED_LOOKS = 120
"""Checks in a row, two a second, that the I/O thread may leave unanswered before the source counts as dead."""


class PikaSource:
    """Consumes over one connection with a channel for each queue; copies use the publisher's connection."""

    def __init__(
        self,
        io: IoThread,
        access: Access,
        publisher: Publisher,
        *,
        needs: Iterable[NamedDeclaration] = (),
        patient: bool = False,
    ) -> None:
        self._io = io
        self.catch_up = io.catch_up
        self._needs = tuple(needs)
        """The queues and exchanges that must exist before consuming starts; checked until all were found once."""
        self._external = {one.name for one in self._needs if one.existing}
        self._link = Link(io, access, purpose="consume", opened=self._opened, lost=self._lost, refused=self._failed)
        self._answers = answers_on(io, access, publisher)
        self._settler = Settler(io, publisher, answer=self._answers.send, again=self.arrived, renew=self._renew)
        self._lines: dict[str, OpenLine] = {}
        self._wanted: dict[str, Line] = {}
        """The lines to consume, by the names of their queues."""
        self._tries: dict[str, int] = {}
        self._granted: set[str] = set()
        self._existing: set[str] = set()
        """The quarantine queues that the broker has found."""
        self._named: dict[str, str] = {}
        """The broker's names of this connection's own queues: they outlive a pause, and end with the connection."""
        self._patient = patient
        """True if a queue that cannot be consumed is tried again instead of ending the consumer."""
        self._unusable: set[str] = set()
        self._awaited: set[str] = set()
        """The unusable queues with a running timer; a new connection also tries all of them immediately."""
        self._pauses = Pauses(self._lines, return_waiting=self._settler.return_waiting, later=io.later)
        self._turns = QuarantineTurns(io, exists=self._exists, ended=self._turn_ended)
        self._messages_lost: Counter[str] = Counter()
        self._acking: set[OpenLine] = set()
        """The lines that have consumed and are not closed."""
        self._lost_lines: list[OpenLine] = []
        self._quiet = False
        self._end_by = 0.0
        self._receiver: Receiver | None = None

    @property
    def alive(self) -> bool:
        return self._io.alive and self._io.unanswered() < MOST_UNANSWERED_LOOKS

    @property
    def ready(self) -> bool:
        lines = [self._lines.get(queue) for queue in self._wanted if queue not in self._pauses]
        there = self._link.connection is not None and not self._needs
        return there and all(one is not None and one.ready for one in lines)

    @property
    def copies(self) -> int:
        return self._settler.copies

    def holds(self, queue: str) -> bool:
        """True if a message of this queue is unacked here."""
        line = self._lines.get(queue)
        return line is not None and line.in_flight > 0

    def untouched(self, queue: str) -> object:
        line = self._lines.get(queue)
        if line is None or self._quiet or line.in_flight or not line.ready:
            return None
        return line, line.arrivals

    def when_answered(self, queue: str, callback: Callable[[bool], None]) -> None:
        def ask() -> None:
            line = self._lines.get(queue)
            if line is not None:
                line.when_processed(callback)

        self._io.call(ask)

    def knows(self, delivery: Delivery) -> bool:
        return delivery.token[0] in self._acking

    def unsettled(self, queue: str) -> int | None:
        if queue not in self._pauses or queue in self._lines:
            return None
        counts = [line.unsettled for line in self._acking.copy() if line.line.queue == queue]
        known = [count for count in counts if count is not None]
        return sum(known) if len(known) == len(counts) else None

    def start(self, lines: Sequence[Line], receiver: Receiver) -> None:
        self._wanted, self._receiver = {line.queue: line for line in lines}, receiver
        self._io.call(self._link.open)

    def settle(self, delivery: Delivery, settlement: Settlement) -> None:
        self._settler.settle(delivery, settlement)

    def give_back(self, deliveries: Iterable[Delivery]) -> None:
        for delivery in deliveries:
            self._io.call(partial(self._settler.give_back, delivery))

    def pause(self, queue: str) -> None:
        self._io.call(lambda: self._pauses.pause(queue))

    def resume(self, queue: str, *, prefetch: int | None = None) -> None:
        self._io.call(lambda: self._resume(queue, prefetch))

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        self._io.call(lambda: self._begin_timer(seconds, call))

    def quiesce(self) -> None:
        self._io.call(self._quiesce)

    def stop(self) -> None:
        self._io.call(self._stop)

    def report_emptiness(self, callback: Callable[[bool], None]) -> None:
        self._io.call(lambda: self._check_empty(callback))

    def arrived(self, delivery: Delivery) -> None:
        line: OpenLine = delivery.token[0]
        if line.line.quarantine:
            # It may be the copy of a message whose ack is still pending: if the copy kills this process before the
            # broker receives the ack, both remain.
            self._settler.when_copied(lambda: line.when_processed(partial(self._pass_on, delivery)))
        else:
            self._pass_on(delivery)

    def _pass_on(self, delivery: Delivery, still_ours: bool = True) -> None:  # noqa: FBT001, FBT002 - a broker's answer
        if still_ours and self._receiver is not None:
            self._receiver.arrived(delivery)

    def opened(self, line: OpenLine) -> None:
        self._turns.join(line)

    def subscribed(self, line: OpenLine) -> None:
        if line.line.queue in self._unusable:
            self._unusable.discard(line.line.queue)
            log.info("Queue %r can be consumed now", line.line.queue, extra={"event": "usable"})
        self._acking.add(line)
        self._tries.pop(line.line.queue, None)
        self._granted.add(line.line.queue)
        if line.line.temporary is not None and all(one.exclusive for one in line.line.temporary.queues.values()):
            self._named[line.line.queue] = line.name

    def message_lost(self, queue: str) -> None:
        """Count a lost message: it cannot be requeued, because the broker acknowledged it when it sent it."""
        self._messages_lost[queue] += 1

    def ended(self, line: OpenLine, *, in_good_order: bool) -> None:
        self._acking.discard(line)
        if line.last_acks and not in_good_order:
            self._lost_lines.append(line)

    def take_lost(self) -> Sequence[OpenLine]:
        """Return the lines that were lost since the last call."""
        lost, self._lost_lines = self._lost_lines, []
        return lost

    def take_unclosed(self) -> Sequence[OpenLine]:
        return [*self.take_lost(), *self._acking.copy()]

    def interrupted(self, line: OpenLine, reason: BaseException | str) -> None:
        """Subscribe again after the broker ended a subscription; fail only if subscribing again cannot help."""
        queue = line.line.queue
        if queue_may_be_gone(reason):
            self._named.pop(queue, None)
        if self._lines.get(queue) is line:
            del self._lines[queue]
        if self._quiet:
            return
        tries = self._tries[queue] = self._tries.get(queue, 0) + 1
        existed = queue in self._granted or (queue in self._existing and not forbidden(reason))
        granted = existed and tries < MOST_SUBSCRIBE_TRIES
        verdict = unrecoverable(reason, granted=granted, external=queue in self._external)
        if verdict is not None:
            self._failed(QueueUnusable(queue, verdict[0], advice=verdict[1]))
            return
        wait = min(RESUBSCRIBE_SECONDS * tries, 5.0)
        log.warning("Queue %r: %s; subscribing again in %.1f s", queue, interruption_text(reason), wait)
        self._io.later(wait, lambda: self._open_line(queue))

    def _opened(self, connection: Connection) -> None:
        if self._receiver is not None:
            self._receiver.connected(connection.server)
        if self._needs:
            ExistenceCheck(connection, self._needs, self._checked)
        else:
            self._open_lines()

    def _checked(self, missing: list[NamedDeclaration]) -> None:
        if missing:
            external = [_named(one) for one in missing if one.existing]
            self._failed(TopologyMissing(list(map(_named, missing)), external=external))
            return
        self._needs = ()
        self._open_lines()

    def _open_lines(self) -> None:
        for queue in self._wanted:
            self._open_line(queue)

    def _open_line(self, queue: str) -> None:
        """Consume a queue, unless it is consumed already, or may not be consumed now."""
        connection, line = self._link.connection, self._wanted.get(queue)
        if line is None or self._quiet or queue in self._lines or queue in self._pauses:
            return
        if connection is None or not connection.is_open:
            return
        # Only messages in quarantine have to wait here.
        arrived = self.arrived if line.quarantine or self._receiver is None else self._receiver.arrived
        name = self._named.get(queue, "")
        try:
            kind = AutoAckLine if line.auto_ack else OpenLine
            self._lines[queue] = kind(connection, self._pauses.shaped(line), self, name=name, arrived=arrived)
        except NoFreeChannels:
            advice = "Raise channel_max in rabbitmq.conf, or consume fewer queues in one process (`--queue`)."
            self._failed(QueueUnusable(queue, "the connection has no free channel", advice=advice))

    def _begin_timer(self, seconds: float, call: Callable[[], None]) -> None:
        self._io.later(seconds, call)

    def _resume(self, queue: str, prefetch: int | None) -> None:
        self._pauses.resume(queue, prefetch, self._wanted.get(queue))
        self._open_line(queue)

    def _exists(self, line: OpenLine) -> None:
        """Note that a quarantine queue exists; whether the user may read it shows only when it is consumed."""
        self._tries.pop(line.line.queue, None)
        self._existing.add(line.line.queue)

    def _turn_ended(self, line: OpenLine) -> None:
        """Give a quarantine line up and open it again, so that it waits for its next turn without a subscription."""
        if line.in_flight > 0:
            self._pauses.retire(line)
        else:
            line.close()
        if self._lines.get(line.line.queue) is line:
            del self._lines[line.line.queue]
            self._open_line(line.line.queue)

    def _renew(self, delivery: Delivery) -> None:
        """Return an ordered line's message to its place in the queue, and consume it again: its wait then goes on."""
        line: OpenLine = delivery.token[0]
        line.close()
        self._lines.pop(line.line.queue, None)
        self._open_line(line.line.queue)

    def _lost(self, reason: str, retry_in: float) -> None:
        self._lines.clear()
        self._named.clear()
        self._pauses.forget()
        if self._receiver is not None:
            self._receiver.lost(reason, retry_in)

    def _failed(self, error: BaseException) -> None:
        if self._patient and isinstance(error, QueueUnusable):
            self._await(error)
        elif self._receiver is not None:
            self._receiver.failed(error)

    def _await(self, error: QueueUnusable) -> None:
        queue = error.queue
        if queue not in self._unusable:
            self._unusable.add(queue)
            extra = {"event": "unusable", "queue": queue}
            log.warning("%s Looking again every %g s.", error, LOOK_AGAIN_SECONDS, extra=extra)
        if queue not in self._awaited:
            self._awaited.add(queue)
            self._io.later(LOOK_AGAIN_SECONDS, lambda: self._try_again(queue))

    def _try_again(self, queue: str) -> None:
        self._awaited.discard(queue)
        self._open_line(queue)

    def _quiesce(self) -> None:
        self._quiet = True
        self._settler.stop()
        for line in self._lines.values():
            line.quiesce()

    def _stop(self) -> None:
        if not self._quiet:
            self._quiesce()
        # Ack the originals of confirmed copies before their channel closes, or they are redelivered.
        self._settler.flush()
        open_lines = [line for line in self._lines.values() if line.open]
        if (self._settler.copying or not all(line.quiet for line in open_lines)) and self._link.connection is not None:
            self._io.later(STOP_LOOK_SECONDS, self._stop)
            return
        self._end_by = self._end_by or time.monotonic() + LAST_ANSWERS_SECONDS
        if self._answers.under_way and time.monotonic() < self._end_by:
            self._io.later(STOP_LOOK_SECONDS, self._stop)
            return
        self._answers.close()
        self._settler.close()
        for line in self._lines.values():
            line.close()
        self._lines.clear()
        self._pauses.close()
        for queue, count in self._messages_lost.items():
            log.warning(
                "Queue %r: %s messages that had arrived and were not begun are lost (ack='auto')",
                *(queue, count),
                extra={"event": "messages_lost", "queue": queue},
            )
        self._messages_lost.clear()
        self._link.close(self._closed)

    def _closed(self) -> None:
        if self._receiver is not None:
            self._receiver.closed()

    def _check_empty(self, callback: Callable[[bool], None]) -> None:
        # A queue that cannot be consumed does not count.
        usable = [queue for queue in self._wanted if queue not in self._unusable]
        wanted = [queue for queue in usable if queue not in self._pauses]
        lines = list(self._lines.values())
        if self._patient and not usable:
            callback(self._link.connection is not None)
        elif any(line.in_flight > 0 for line in self._pauses.retired):
            callback(False)  # noqa: FBT003 - the answer
        elif not wanted:
            callback(True)  # noqa: FBT003 - the answer
        elif len(lines) < len(wanted) or not all(line.open for line in lines):
            callback(False)  # noqa: FBT003 - the answer
        else:
            report_emptiness(lines, callback)


def _named(declaration: NamedDeclaration) -> str:
    kind = "queue" if isinstance(declaration, QueueDeclaration) else "exchange"
    return f"{kind} {declaration.name!r}"

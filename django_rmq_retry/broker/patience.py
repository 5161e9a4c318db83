"""A source that waits for queues it may not read or that are not there, while it consumes the others."""

import logging
from collections.abc import Callable

from django_rmq_retry.broker.address import Access
from django_rmq_retry.broker.base import Publisher
from django_rmq_retry.broker.consuming import PikaSource
from django_rmq_retry.broker.lines import OpenLine
from django_rmq_retry.broker.looping import IoThread
from django_rmq_retry.core.errors import QueueUnusable

log = logging.getLogger("django_rmq_retry")

LOOK_AGAIN = 30.0


class PatientSource(PikaSource):
    """As its kind, but a queue that cannot be consumed is looked for again, and nobody is told that all has failed."""

    def __init__(self, io: IoThread, access: Access, publisher: Publisher) -> None:
        super().__init__(io, access, publisher)
        self._unusable: set[str] = set()
        self._awaited: set[str] = set()
        """Of those the ones for which a timer runs; a connection made anew looks for all at once as well."""

    def subscribed(self, line: OpenLine) -> None:
        if line.line.queue in self._unusable:
            self._unusable.discard(line.line.queue)
            log.info("Queue %r can be consumed now", line.line.queue, extra={"event": "usable"})
        super().subscribed(line)

    def _failed(self, error: BaseException) -> None:
        if not isinstance(error, QueueUnusable):
            super()._failed(error)
            return
        queue = error.queue
        if queue not in self._unusable:
            self._unusable.add(queue)
            log.warning("%s Looking again every %g s.", error, LOOK_AGAIN, extra={"event": "unusable", "queue": queue})
        if queue not in self._awaited:
            self._awaited.add(queue)
            self._io.later(LOOK_AGAIN, lambda: self._look_again(queue))

    def _look_again(self, queue: str) -> None:
        self._awaited.discard(queue)
        self._reopen(queue)

    def _look(self, told: Callable[[bool], None]) -> None:
        """What cannot be consumed holds nobody up."""
        wanted = self._wanted
        usable = tuple(line for line in wanted if line.queue not in self._unusable)
        if not usable:
            told(self._link.connection is not None)
            return
        self._wanted = usable
        super()._look(told)
        self._wanted = wanted

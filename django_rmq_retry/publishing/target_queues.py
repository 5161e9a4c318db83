"""The queues to which a requeue run sends: their ready messages, their consumers, and whether the broker answers."""

import time
from collections.abc import Callable
from typing import Protocol

from django_rmq_retry.amqp.inspection import counted
from django_rmq_retry.amqp.refusals import Refusal
from django_rmq_retry.amqp.session import Session
from django_rmq_retry.errors import BrokerRefused, BrokerUnreachable, RmqRetryError

CACHE_SECONDS = 1.0
"""Seconds for which a queue's depth is cached."""


class TargetQueues(Protocol):
    """What a requeue run asks about the queues to which it sends."""

    def is_reachable(self) -> bool:
        """True if the broker can be reached."""

    def ready(self, queue: str) -> int | None:
        """Return the number of ready messages: 0 if the queue does not exist, None if the number is unknown."""

    def lacks_consumers(self, queue: str) -> bool:
        """True if the queue is known to have no consumer."""

    def added(self, queue: str, count: int) -> None:
        """Add messages sent to a queue to its cached depth."""

    def close(self) -> None: ...


class BrokersQueues:
    """Reads the depths by passive declares."""

    def __init__(self, open_session: Callable[[], Session]) -> None:
        self._open_session = open_session
        self._session: Session | None = None
        self._known: dict[str, tuple[float, int | None]] = {}

    def is_reachable(self) -> bool:
        try:
            self._open().ask(lambda channel, done: channel.exchange_declare("amq.direct", passive=True, callback=done))
        except Refusal:
            return True
        except (BrokerUnreachable, BrokerRefused, RmqRetryError, OSError):
            self.close()
            return False
        return True

    def ready(self, queue: str) -> int | None:
        at, depth = self._known.get(queue, (float("-inf"), None))
        if time.monotonic() - at >= CACHE_SECONDS:
            depth = self._ask(queue)
            self._known[queue] = time.monotonic(), depth
        return depth

    def lacks_consumers(self, queue: str) -> bool:
        try:
            holding = counted(self._open(), None, queue)
        except (Refusal, RmqRetryError, OSError):
            self.close()
            return False
        return holding is not None and not holding.consumers

    def added(self, queue: str, count: int) -> None:
        at, depth = self._known.get(queue, (0.0, None))
        if depth is not None:
            self._known[queue] = at, depth + count

    def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.__exit__(None, None, None)

    def _ask(self, queue: str) -> int | None:
        try:
            holding = counted(self._open(), None, queue)
        except Refusal:
            return None
        except (BrokerUnreachable, BrokerRefused, RmqRetryError, OSError):
            self.close()
            return None
        return 0 if holding is None else holding.ready

    def _open(self) -> Session:
        if self._session is None:
            session = self._open_session()
            session.__enter__()
            self._session = session
        return self._session

"""How many messages a queue holds, asked of the broker while a run is driven: a session, made when first needed."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from django_rmq_retry import wiring
from django_rmq_retry.broker.asking import Session
from django_rmq_retry.broker.holding import counted
from django_rmq_retry.broker.refusing import BrokerUnreachable, Refusal
from django_rmq_retry.conf import settings
from django_rmq_retry.core.errors import BrokerRefused, RmqRetryError

FRESH = 1.0
"""Seconds for which an answer is good enough."""
PATIENCE = 5.0


class Depths(Protocol):
    """What a driver wants to know of the broker."""

    def answers(self) -> bool:
        """Whether the broker can be reached."""

    def of(self, queue: str) -> int | None:
        """Messages that are ready; 0 for a queue that does not exist, None where nobody can tell."""

    def added(self, queue: str, count: int) -> None:
        """So many have been sent to it since."""

    def close(self) -> None: ...


class BrokersDepths:
    """By passive declares."""

    def __init__(self, *, patience: float = PATIENCE, clock: Callable[[], float] = time.monotonic) -> None:
        self._patience = patience
        self._clock = clock
        self._session: Session | None = None
        self._known: dict[str, tuple[float, int | None]] = {}

    def answers(self) -> bool:
        if wiring.stands_in():
            return True
        try:
            self._open().ask(lambda channel, done: channel.exchange_declare("amq.direct", passive=True, callback=done))
        except Refusal:
            return True
        except (BrokerUnreachable, BrokerRefused, RmqRetryError, OSError):
            self.close()
            return False
        return True

    def of(self, queue: str) -> int | None:
        if wiring.stands_in():
            return 0
        at, depth = self._known.get(queue, (float("-inf"), None))
        if self._clock() - at >= FRESH:
            depth = self._ask(queue)
            self._known[queue] = self._clock(), depth
        return depth

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
            access = settings().access()
            access = replace(access, connect_timeout=min(access.connect_timeout, self._patience))
            session = Session(access, purpose="run", patience=self._patience)
            session.__enter__()
            self._session = session
        return self._session

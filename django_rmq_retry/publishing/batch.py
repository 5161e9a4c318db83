"""One batch of outbox rows: those of an ordering key are sent one after the other, all others at once."""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from django_rmq_retry.amqp.contracts import Cause, PublishResult, unsent, unwritable
from django_rmq_retry.conf import settings
from django_rmq_retry.publishing import broker_connections
from django_rmq_retry.publishing.outbox_rows import OutboxRow, RowResult

CHECK_SECONDS = 0.2
SPARE_SECONDS = 10.0
"""Seconds beyond the publish timeout for which rows are leased to their writer."""

Late = Callable[[RowResult], None]


@dataclass(slots=True)
class _RowChain:
    """Rows that are sent one after the other: those of an ordering key, those sent alone, or a single other row."""

    rows: deque[OutboxRow] = field(default_factory=deque)
    busy: bool = False
    again: bool = False


class RowBatch:
    """One batch of rows; ``late`` gets results after `wait`; ``one_by_one`` sends each after a confirm of the last."""

    def __init__(
        self,
        rows: Sequence[OutboxRow],
        *,
        timeout: float,
        until: float = float("inf"),
        late: Late,
        one_by_one: bool = False,
    ) -> None:
        self._timeout = timeout
        self._until = until
        """The monotonic time after which no further row is sent."""
        self._late = late
        self._lock = threading.Lock()
        self._in_flight: set[int] = set()
        self._answers: list[RowResult] = []
        self._waited_for = True
        self._left = len(rows)
        self._over = threading.Event()
        self._chains = [_RowChain(rows=deque(rows))] if one_by_one else _chains(rows)

    def begin(self) -> None:
        """Send the first row of each chain. A row that cannot be encoded gets its result at once."""
        for chain in self._chains:
            self._send_next(chain)

    def wait(self, seconds: float, enough: Callable[[], bool] = lambda: False) -> tuple[list[RowResult], set[int]]:
        """Return the results within `seconds` or until `enough`, and the ids in flight; later results are late."""
        deadline = time.monotonic() + seconds
        while not self._over.wait(min(CHECK_SECONDS, max(0.0, deadline - time.monotonic()))):
            if time.monotonic() >= deadline or enough():
                break
        with self._lock:
            self._waited_for = False
            return list(self._answers), set(self._in_flight)

    def _send_next(self, chain: _RowChain) -> None:
        """Send the next row of a chain, in a loop: a publisher may return a result within the call."""
        with self._lock:
            if chain.busy:
                chain.again = True
                return
            chain.busy = True
        while True:
            row = self._next(chain)
            if row is not None:
                self._send(row, chain)
            with self._lock:
                if row is None or not chain.again:
                    chain.busy = False
                    return
                chain.again = False

    def _next(self, chain: _RowChain) -> OutboxRow | None:
        with self._lock:
            if not self._waited_for or time.monotonic() > self._until:
                self._drop(chain)
            if not chain.rows:
                return None
            row = chain.rows.popleft()
            self._in_flight.add(row.id)
            return row

    def _send(self, row: OutboxRow, chain: _RowChain) -> None:
        try:
            publisher = broker_connections.connections.publisher
        except Exception as error:  # noqa: BLE001 - the settings may be invalid; the row stays in the outbox
            self._answered(row, chain, unsent(Cause.OTHER, str(error)))
            return
        try:
            publisher.send(row.message, partial(self._answered, row, chain), timeout=self._timeout)
        except Exception as error:  # noqa: BLE001 - as above
            self._answered(row, chain, unwritable(str(error)))

    def _answered(self, row: OutboxRow, chain: _RowChain, result: PublishResult) -> None:
        answer = RowResult(row=row, result=result)
        with self._lock:
            self._in_flight.discard(row.id)
            in_time = self._waited_for
            if in_time:
                self._answers.append(answer)
            if not result.confirmed:
                # Drop the rest of the chain, because later rows of an ordering key must not overtake this one.
                self._drop(chain)
            self._left -= 1
            if not self._left:
                self._over.set()
            more = bool(chain.rows)
        if not in_time:
            self._late(answer)
        if more:
            self._send_next(chain)

    def _drop(self, chain: _RowChain) -> None:
        self._left -= len(chain.rows)
        chain.rows.clear()
        if not self._left:
            self._over.set()


def _chains(rows: Sequence[OutboxRow]) -> list[_RowChain]:
    chains: list[_RowChain] = []
    keyed: dict[str, _RowChain] = {}
    for row in rows:
        key = row.message.order_key
        chain = keyed.get(key) if key else None
        if chain is None:
            chain = _RowChain()
            chains.append(chain)
            if key:
                keyed[key] = chain
        chain.rows.append(row)
    return chains


def lease() -> float:
    """Return the seconds for which only its writer may send a row."""
    return settings().publish_timeout + SPARE_SECONDS

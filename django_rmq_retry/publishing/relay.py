"""A relay sends the outbox rows of one database that the committing process did not send, in batches."""

import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from django.db import Error, OperationalError

from django_rmq_retry.amqp.contracts import PublishEnd
from django_rmq_retry.publishing import broker_connections, faults, outbox_rows
from django_rmq_retry.publishing.due_rows import MOST_BATCH_ROWS, WantedRows, claimed, skips_locked
from django_rmq_retry.publishing.faults import Denied, RowFault
from django_rmq_retry.publishing.outbox_rows import OutboxRow, RowResult, lease
from django_rmq_retry.publishing.sending import Sending

MOST_ALONE = 100
"""Rows that are sent one by one before other rows have their turn."""
MOST_LOSSES = 3
RELAY_GRACE_SECONDS = 2.0
"""Seconds after its deadline within which a publish has ended, and seconds to wait for confirms when stopping."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    sent: int = 0
    failed: int = 0
    away: str = ""
    """The reason why the broker accepted nothing, so that the relay should wait; else empty."""

    @property
    def nothing(self) -> bool:
        return not (self.sent or self.failed or self.away)


class Relay:
    """The relay of one database. Several relays, in one or more processes, may serve the same database."""

    def __init__(self, using: str, *, ended: threading.Event) -> None:
        self._using = using
        self._ended = ended
        self._ended_at = 0.0
        self._away = False
        self._confirmed: set[int] = set()
        """Ids of confirmed rows that are not deleted yet."""
        self._late: list[Sending] = []
        """The batches that had rows in flight when they ended."""
        self._losses: Counter[int] = Counter()
        """The number of times a row that was sent alone had no result; confirms of other rows do not clear it."""
        self._alone_first = False
        """True if the next turn is that of the rows that are sent one by one."""
        self._denied = Denied()

    def turn(self) -> Turn:
        self.forget()
        probe = self._denied.next()
        if probe is not None:
            wanted = WantedRows(most=1, only=[probe], without=self._denied.exchanges)
            return self._send_and_record(wanted) or Turn(failed=1)
        for alone in (self._alone_first, not self._alone_first):
            most = 1 if self._away else MOST_ALONE if alone else MOST_BATCH_ROWS
            turn = self._send_and_record(WantedRows(most=most, alone=alone, without=self._denied.exchanges))
            if turn:
                # Neither kind of rows waits for all of the other kind.
                self._alone_first = not alone
                return turn
        return Turn()

    def _send_and_record(self, wanted: WantedRows) -> Turn | None:
        """Send the rows of a selection; None if there are none."""
        try:
            with claimed(self._using, wanted, lease=lease()) as rows:
                if not rows:
                    return None
                results = self._send_batch(rows, one_by_one=wanted.alone)
                turn = self._record_results(rows, results, alone=wanted.alone or len(rows) == 1)
        except OperationalError:
            # The transaction was rolled back, for example by a deadlock. Delete confirmed rows before another relay
            # sends them again.
            with suppress(Error):
                self.forget()
            raise
        self._confirmed -= {one.row.id for one in results}
        return turn

    def forget(self) -> None:
        """Delete rows confirmed earlier, so that they are not sent again after the database was unreachable."""
        for batch in self._late:
            self._take_results(batch)
        self._late = [batch for batch in self._late if batch.in_flight]
        if self._confirmed:
            known = list(self._confirmed)
            outbox_rows.delete(known, using=self._using)
            self._confirmed.difference_update(known)

    def _send_batch(self, rows: Sequence[OutboxRow], *, one_by_one: bool) -> list[RowResult]:
        batch = Sending(one_by_one=one_by_one)
        batch.put(rows)
        batch.send_ready()
        batch.wait(lease() - RELAY_GRACE_SECONDS, self._must_stop)
        batch.close()
        results = self._take_results(batch)
        if batch.in_flight:
            self._late.append(batch)
        return results

    def _take_results(self, batch: Sending) -> list[RowResult]:
        results, _unsent = batch.take()
        self._confirmed |= {one.row.id for one in results if one.result.confirmed}
        return results

    def _must_stop(self) -> bool:
        """True if the relay is stopping and RELAY_GRACE_SECONDS are over, or the broker is unreachable."""
        if not self._ended.is_set():
            return False
        self._ended_at = self._ended_at or time.monotonic()
        return self._away or time.monotonic() - self._ended_at > RELAY_GRACE_SECONDS

    def _record_results(self, rows: Sequence[OutboxRow], results: Sequence[RowResult], *, alone: bool) -> Turn:
        recorded = faults.record(results, using=self._using, fault_of=lambda one: self._fault(one, alone=alone))
        for row, seconds in recorded.denied:
            self._denied.note(row.message.exchange, row.id, seconds=seconds)
        if not skips_locked(self._using):
            self._give_back(rows, {one.row.id for one in results} - {row.id for row in recorded.free})
        for sent in recorded.sent:
            self._losses.pop(sent, None)
        self._note(sent=bool(recorded.sent), away=recorded.away)
        away = "" if recorded.sent or recorded.failed else recorded.away or "no publish was confirmed"
        return Turn(sent=len(recorded.sent), failed=recorded.failed, away=away)

    def _fault(self, row_result: RowResult, *, alone: bool) -> RowFault:
        """Return the fault of a result.

        A row over which the connection was lost before, and is lost again now that it is sent alone, is the cause. A
        row that repeatedly has no result for another reason counts as FULL, and is postponed, so that it does not
        block all others; once postponed, such a row is postponed again at its first loss.
        """
        whose = faults.fault(row_result.result, alone=alone)
        if alone and row_result.row.alone and whose is RowFault.BROKER and faults.suspect(row_result.result):
            return RowFault.ROW
        if alone and whose is RowFault.BROKER and row_result.result.kind is PublishEnd.UNKNOWN:
            self._losses[row_result.row.id] += 1
            most = 1 if row_result.row.alone and row_result.row.attempts else MOST_LOSSES
            if self._losses[row_result.row.id] >= most:
                del self._losses[row_result.row.id]
                return RowFault.FULL
        return whose

    def _give_back(self, rows: Sequence[OutboxRow], settled: set[int]) -> None:
        """End the lease of rows that were not sent, or that failed by no fault of their own."""
        kept = settled.union(*(batch.in_flight for batch in self._late))
        free = [row for row in rows if row.id not in kept]
        if free:
            # Without a wake-up: this relay would wake itself, and never pause while the broker refuses everything.
            outbox_rows.release(free, using=self._using, wake=False)

    def _note(self, *, sent: bool, away: str) -> None:
        if sent:
            self._away = False
            broker_connections.connections.reach.found()
        elif away:
            self._away = True
            broker_connections.connections.reach.lost(away)

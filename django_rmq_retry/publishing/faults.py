"""Unconfirmed outbox rows: classifying the fault, and scheduling the next attempt."""

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from django_rmq_retry.amqp.contracts import Cause, PublishResult, Scope
from django_rmq_retry.publishing import outbox_rows
from django_rmq_retry.publishing.outbox_rows import OutboxRow, RowResult

log = logging.getLogger("django_rmq_retry")

MOST_FAILED_SENDS = 15
"""Failed attempts after which a row needs an operator; with these waits that takes about nine minutes."""
FIRST_RESEND_SECONDS, LONGEST_RESEND_SECONDS = 1.0, 60.0

PROBE_MARGIN_SECONDS = 1.0
"""Seconds added to a row's due time before it is used as a probe, so that the query surely finds the row as due."""

CONNECTION_FORCED = 320
"""The reply code of a broker that is shut down, or whose operator closes connections: no message is the cause."""


class RowFault(Enum):
    """The cause of a missing confirm."""

    BROKER = "the broker is unreachable"
    FULL = "the broker refuses the message for now"
    PERMISSION = "write permission on the exchange is missing"
    ROW = "the message itself"
    SHARED = "another message that was in flight"


FAULTS: Mapping[Cause | None, RowFault] = {
    Cause.NO_EXCHANGE: RowFault.ROW,
    Cause.NO_ROUTE: RowFault.ROW,
    Cause.QUEUE_FULL: RowFault.FULL,
    Cause.ACCESS_EXCHANGE: RowFault.PERMISSION,
    Cause.ACCESS_TOPIC: RowFault.FULL,
    Cause.UNWRITABLE: RowFault.ROW,
    Cause.BODY_LIMIT: RowFault.ROW,
    Cause.CONNECTION_LOST: RowFault.BROKER,
    Cause.TIMEOUT: RowFault.BROKER,
    Cause.NO_CHANNEL: RowFault.BROKER,
    Cause.IO_STOPPED: RowFault.BROKER,
    Cause.OTHER: RowFault.ROW,
}
"""The fault by cause, if it is known that this message is the one that the broker refused."""


def fault(result: PublishResult, *, alone: bool) -> RowFault:
    """Return the fault for an unconfirmed message. `alone` means that no other message was in flight."""
    if result.scope is Scope.BROKER:
        return RowFault.BROKER
    if result.scope is Scope.CHANNEL and not alone:
        return RowFault.SHARED
    return FAULTS[result.cause]


def suspect(result: PublishResult) -> bool:
    """True if the broker may have closed the channel or the connection over this message."""
    if result.cause is Cause.CONNECTION_LOST:
        return result.code != CONNECTION_FORCED
    return result.scope is Scope.CHANNEL


def wait_after(attempts: int) -> float:
    return float(min(FIRST_RESEND_SECONDS * 2 ** min(attempts - 1, 16), LONGEST_RESEND_SECONDS))


def failed(row: OutboxRow, *, using: str, why: str, whose: RowFault) -> float:
    """Schedule the next attempt and return the seconds until it; 0 if the row is kept for an operator."""
    # Only faults of the message itself may use up its attempts: a full queue or a missing permission may last longer.
    attempts = row.attempts + 1 if whose is RowFault.ROW else min(row.attempts + 1, MOST_FAILED_SENDS // 2)
    if whose is RowFault.ROW and attempts >= MOST_FAILED_SENDS:
        outbox_rows.mark_failed(row.id, using=using, attempts=attempts, error=why)
        text = "Message %r stays in the outbox of %r until an operator sends it again or discards it: %s"
        log.critical(text, *_facts(row, using, why), extra=_extra(row, "outbox_failed"))
        return 0.0
    outbox_rows.postpone(row.id, using=using, seconds=wait_after(attempts), attempts=attempts, error=why)
    if attempts == 1:
        text = "Message %r waits in the outbox of %r and is sent again later: %s"
        log.warning(text, *_facts(row, using, why), extra=_extra(row, "outbox_retry"))
    return wait_after(attempts)


@dataclass(slots=True, kw_only=True)
class Recorded:
    """What was written of some results."""

    sent: list[int] = field(default_factory=list)
    """The ids of the confirmed rows, which were deleted."""
    free: list[OutboxRow] = field(default_factory=list)
    """The rows that failed by no fault of their own. They are unchanged."""
    failed: int = 0
    """The number of rows that failed although the broker answered."""
    away: str = ""
    """Why the broker did not answer; empty if it did."""
    denied: list[tuple[OutboxRow, float]] = field(default_factory=list)
    """The rows without write permission, each with the seconds until its next attempt."""


def record(
    results: Sequence[RowResult], *, using: str, fault_of: Callable[[RowResult], RowFault] | None = None
) -> Recorded:
    """Delete confirmed rows, and postpone those with a fault of their own."""
    recorded = Recorded(sent=[one.row.id for one in results if one.result.confirmed])
    if recorded.sent:
        outbox_rows.delete(recorded.sent, using=using)
    suspects: list[int] = []
    for one in results:
        if one.result.confirmed:
            continue
        whose = fault(one.result, alone=False) if fault_of is None else fault_of(one)
        if whose in (RowFault.BROKER, RowFault.SHARED):
            recorded.free.append(one.row)
            if suspect(one.result):
                suspects.append(one.row.id)
        if whose is RowFault.BROKER:
            recorded.away = recorded.away or one.result.shown
            continue
        recorded.failed += 1
        if whose is RowFault.SHARED:
            continue
        seconds = failed(one.row, using=using, why=one.result.shown, whose=whose)
        if whose is RowFault.PERMISSION:
            recorded.denied.append((one.row, seconds))
    if suspects:
        outbox_rows.send_alone(suspects, using=using)
    return recorded


def _facts(row: OutboxRow, using: str, why: str) -> tuple[str | None, str, str]:
    return row.message.properties.message_id, using, why


def _extra(row: OutboxRow, event: str) -> dict[str, object]:
    return {"event": event, "message_id": row.message.properties.message_id, "row": row.id}


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """The row that probes an exchange without write permission, and the time from which it may be sent."""

    row: int
    at: float


class Denied:
    """The exchanges to which a relay may not write. Each relay keeps its own list."""

    def __init__(self) -> None:
        self._probes: dict[str, Probe] = {}

    @property
    def exchanges(self) -> Collection[str]:
        """The exchanges whose rows are not sent: each refusal would close the channel, with all others in flight."""
        return self._probes.keys()

    def note(self, exchange: str, row: int, *, seconds: float) -> None:
        """Record that this row was refused and is due again after `seconds`."""
        self._probes[exchange] = Probe(row=row, at=time.monotonic() + seconds + PROBE_MARGIN_SECONDS)

    def next(self) -> int | None:
        """Return a due probe row, to be sent alone, or None; its exchange counts as writable until it is refused."""
        now = time.monotonic()
        for exchange, probe in self._probes.items():
            if probe.at <= now:
                del self._probes[exchange]
                return probe.row
        return None

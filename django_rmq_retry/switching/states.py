"""Where the queues of the project stand, as rows have it: for whoever asks."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from django.db import router
from django.utils import timezone

from django_rmq_retry.core.breaking import CLOSED, Circuit
from django_rmq_retry.models import Switch
from django_rmq_retry.switching.standing import FLOWING, QueueState


def states(queues: Iterable[str], *, using: str | None = None) -> Mapping[str, QueueState]:
    """Where these queues stand, in their order: for status pages and commands. One query."""
    names = list(queues)
    alias = using or router.db_for_read(Switch)
    rows = {row.queue: state_of(row) for row in Switch.objects.using(alias).filter(queue__in=names)}
    return {name: rows.get(name) or QueueState(queue=name) for name in names}


def standing(queues: Iterable[str]) -> list[QueueState]:
    """Those of them that do not flow now."""
    now = timezone.now().timestamp()
    return [one for one in states(queues).values() if one.state(now) != FLOWING]


def state_of(row: Switch) -> QueueState:
    circuit = CLOSED
    if row.tripped:
        circuit = Circuit(
            tripped=True,
            handler=row.handler,
            kind=row.kind,
            cause=row.cause,
            since=_epoch(row.tripped_at) or 0.0,
            failed=row.failed,
            probe_at=_epoch(row.probe_at) or 0.0,
            prober=row.prober,
            probe_until=_epoch(row.probe_until) or 0.0,
        )
    return QueueState(
        queue=row.queue,
        paused=row.paused,
        by=row.by,
        reason=row.reason,
        since=_epoch(row.since) or 0.0,
        until=_epoch(row.until),
        circuit=circuit,
    )


def columns_of(circuit: Circuit) -> dict[str, Any]:
    """What a row holds of a circuit."""
    return {
        "tripped": circuit.tripped,
        "handler": circuit.handler[:255],
        "kind": circuit.kind[:255],
        "cause": circuit.cause[:600],
        "tripped_at": moment(circuit.since),
        "failed": circuit.failed,
        "probe_at": moment(circuit.probe_at),
        "prober": circuit.prober,
        "probe_until": moment(circuit.probe_until),
    }


def moment(epoch: float) -> datetime | None:
    """As a column holds it; 0 is no time."""
    return datetime.fromtimestamp(epoch, UTC) if epoch else None


def _epoch(at: datetime | None) -> float | None:
    return None if at is None else at.timestamp()

"""Tables of breakers and rates in plain SQL."""

import os
import socket
import uuid
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from django.db import IntegrityError, router, transaction
from django.db.models import Q

from django_rmq_retry import server
from django_rmq_retry.breakers.control import FLOWING, QueueState
from django_rmq_retry.breakers.rates import AHEAD, begun
from django_rmq_retry.models import HandlerRate, QueueControl
from django_rmq_retry.policies.breaker import CLOSED, Circuit


def states(queues: Iterable[str], *, using: str | None = None) -> Mapping[str, QueueState]:
    """Where these queues stand, in their order: for status pages and commands. One query."""
    names = list(queues)
    alias = using or router.db_for_read(QueueControl)
    rows = {row.queue: state_of(row) for row in QueueControl.objects.using(alias).filter(queue__in=names)}
    return {name: rows.get(name) or QueueState(queue=name) for name in names}


def now() -> float:
    """The time that decides whether a pause is over: by the clock of the database that keeps the switches."""
    return server.now(router.db_for_read(QueueControl)).timestamp()


def standing(queues: Iterable[str], at: float) -> list[QueueState]:
    """Those of them that do not flow at a time."""
    return [one for one in states(queues).values() if one.state(at) != FLOWING]


def state_of(row: QueueControl) -> QueueState:
    circuit = CLOSED
    if row.opened:
        circuit = Circuit(
            opened=True,
            handler=row.handler,
            kind=row.kind,
            cause=row.cause,
            since=_epoch(row.opened_at) or 0.0,
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
        "opened": circuit.opened,
        "handler": circuit.handler[:255],
        "kind": circuit.kind[:255],
        "cause": circuit.cause[:600],
        "opened_at": moment(circuit.since),
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


class Table:
    """The project's one truth about its queues."""

    def look(self, queues: Collection[str]) -> Mapping[str, QueueState]:
        # Between two looks the times of switches are reckoned without a question.
        server.now(database())
        rows = QueueControl.objects.using(database()).filter(queue__in=list(queues))
        return {row.queue: state_of(row) for row in rows}

    def put(self, queue: str, circuit: Circuit, who: str) -> None:
        """What this process knows of a breaker. A probe that succeeded closes it, whoever else has one under way."""
        rows = QueueControl.objects.using(database())
        rows.get_or_create(queue=queue)
        changed = rows.filter(queue=queue)
        if circuit.opened:
            changed = changed.filter(Q(opened=False) | Q(prober=who))
        changed.update(**columns_of(circuit))

    def claim(self, queue: str, who: str, *, now: float, until: float, most: float) -> bool:
        """Whether the next probe is this process's; times that are more than ``most`` ahead are of a wrong clock."""
        open_ones = QueueControl.objects.using(database()).filter(queue=queue, opened=True)
        free = Q(prober="") | Q(prober=who) | Q(probe_until__isnull=True) | Q(probe_until__lte=moment(now))
        wrong = Q(probe_at__gt=moment(now + most)) | Q(probe_until__gt=moment(now + most))
        due = open_ones.filter(wrong | (Q(probe_at__lte=moment(now)) & free))
        return bool(due.update(prober=who, probe_until=moment(until), probe_at=moment(now)))

    def renew(self, queue: str, who: str, until: float) -> None:
        QueueControl.objects.using(database()).filter(queue=queue, opened=True, prober=who).update(
            probe_until=moment(until)
        )

    def release(self, who: str) -> None:
        """Whoever ends lets others probe at once."""
        QueueControl.objects.using(database()).filter(prober=who).update(prober="", probe_until=None)


def me() -> str:
    """A process's name; one that was killed and comes again has another."""
    return f"{socket.gethostname()[:100]}:{os.getpid()}.{uuid.uuid4().hex[:8]}"


def database() -> str:
    return router.db_for_write(QueueControl)


TRIES = 20


class MeterTable:
    """One row for each handler. No transaction is held: a row is moved on where it still is as it was read."""

    def take(self, handler: str, count: int, rate: float, now: float) -> float:
        rows = HandlerRate.objects.using(database()).filter(handler=handler)
        for _ in range(TRIES):
            known = rows.values_list("next_at", flat=True).first()
            first = now if known is None else begun(known.timestamp(), rate, now)
            if first > now + AHEAD:
                return -first
            following = datetime.fromtimestamp(first + count / rate, UTC)
            if known is None:
                if self._began(handler, following):
                    return first
            elif rows.filter(next_at=known).update(next_at=following):
                return first
        # Others were quicker each time: there is a rate for all, and it is theirs for now.
        return -now

    def _began(self, handler: str, following: datetime) -> bool:
        try:
            with transaction.atomic(using=database()):
                HandlerRate.objects.using(database()).create(handler=handler, next_at=following)
        except IntegrityError:
            return False
        return True

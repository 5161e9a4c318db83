"""Breakers, pauses and rates in the database."""

import os
import socket
import uuid
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.db import IntegrityError, router, transaction
from django.db.models import Q

from django_rmq_retry import database_clock
from django_rmq_retry.breakers.queue_state import Flow, QueueState
from django_rmq_retry.breakers.rates import AHEAD_SECONDS, first_free
from django_rmq_retry.models import ApprovalRequest, HandlerRate, QueueControl
from django_rmq_retry.policies.breaker import CLOSED, Circuit
from django_rmq_retry.statements import missing_tables

MOST_UPDATES = 20


def states(queues: Iterable[str]) -> Mapping[str, QueueState]:
    """Return the states of these queues in their order, by one query: for status pages and commands."""
    names = list(queues)
    alias = router.db_for_read(QueueControl)
    rows = {row.queue: state_of(row) for row in QueueControl.objects.using(alias).filter(queue__in=names)}
    return {name: rows.get(name) or QueueState(queue=name) for name in names}


def now() -> float:
    """Return the time that decides if a pause is over, by the clock of the database that stores the pauses."""
    return database_clock.now(router.db_for_read(QueueControl)).timestamp()


def stopped(queues: Iterable[str], at: float) -> list[QueueState]:
    """Return the states of the queues that an operator or a breaker has stopped at the given time."""
    return [one for one in states(queues).values() if one.state(at) is not Flow.FLOWING]


def all_stopped(at: float) -> list[QueueState]:
    """Return the states of all queues that an operator or a breaker has stopped at the given time, by one query."""
    rows = QueueControl.objects.using(router.db_for_read(QueueControl)).stopped(datetime.fromtimestamp(at, UTC))
    return [state_of(row) for row in rows]


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
        halted=row.halted_at is not None,
    )


def columns_of(circuit: Circuit) -> dict[str, Any]:
    return {
        "opened": circuit.opened,
        "handler": circuit.handler[:255],
        "kind": circuit.kind[:255],
        "cause": circuit.cause[:600],
        "opened_at": column_time(circuit.since),
        "failed": circuit.failed,
        "probe_at": column_time(circuit.probe_at),
        "prober": circuit.prober,
        "probe_until": column_time(circuit.probe_until),
    }


def column_time(epoch: float) -> datetime | None:
    """Return the time as a column stores it; 0 stands for no time."""
    return datetime.fromtimestamp(epoch, UTC) if epoch else None


def _epoch(at: datetime | None) -> float | None:
    return None if at is None else at.timestamp()


class BreakerTable:
    def read(self, queues: Collection[str]) -> Mapping[str, QueueState]:
        # This call measures the database's clock; until the next one, times need no query.
        database_clock.now(controls_alias())
        rows = QueueControl.objects.using(controls_alias()).filter(queue__in=list(queues))
        return {row.queue: state_of(row) for row in rows}

    def is_missing(self) -> bool:
        """Return True if the database has no such table, or the project has no database."""
        try:
            return bool(missing_tables([QueueControl], controls_alias()))
        except ImproperlyConfigured:
            return True

    def put(self, queue: str, circuit: Circuit, who: str) -> None:
        """Write this process's state of a breaker. A successful probe closes it even if another process is probing.

        Requests to close it are over then: nobody needs to decide on them.
        """
        rows = QueueControl.objects.using(controls_alias())
        rows.get_or_create(queue=queue)
        changed = rows.filter(queue=queue)
        if circuit.opened:
            changed = changed.filter(Q(opened=False) | Q(prober=who))
        changed.update(**columns_of(circuit))
        if not circuit.opened:
            requests = ApprovalRequest.objects.using(router.db_for_write(ApprovalRequest))
            requests.breaker_closed(queue, database_clock.now(requests.db))

    def claim(self, queue: str, who: str, *, now: float, until: float, most: float) -> bool:
        """Claim the next probe; return True on success. Times over ``most`` seconds ahead are from a wrong clock."""
        open_ones = QueueControl.objects.using(controls_alias()).filter(queue=queue, opened=True)
        free = Q(prober="") | Q(prober=who) | Q(probe_until__isnull=True) | Q(probe_until__lte=column_time(now))
        wrong = Q(probe_at__gt=column_time(now + most)) | Q(probe_until__gt=column_time(now + most))
        due = open_ones.filter(wrong | (Q(probe_at__lte=column_time(now)) & free))
        return bool(due.update(prober=who, probe_until=column_time(until), probe_at=column_time(now)))

    def renew(self, queue: str, who: str, until: float) -> None:
        mine = QueueControl.objects.using(controls_alias()).filter(queue=queue, opened=True, prober=who)
        mine.update(probe_until=column_time(until))

    def release(self, who: str) -> None:
        """Release this process's probes, so that other processes can probe at once."""
        QueueControl.objects.using(controls_alias()).filter(prober=who).update(prober="", probe_until=None)


def process_name() -> str:
    """Return a name for this process that is unique: a restarted process gets another one."""
    return f"{socket.gethostname()[:100]}:{os.getpid()}.{uuid.uuid4().hex[:8]}"


def controls_alias() -> str:
    return router.db_for_write(QueueControl)


class RateTable:
    """One row for each handler. An update applies only if the row is still as it was read, so no lock is needed."""

    def take(self, handler: str, count: int, rate: float, now: float) -> float:
        rows = HandlerRate.objects.using(controls_alias()).filter(handler=handler)
        for _ in range(MOST_UPDATES):
            known = rows.values_list("next_at", flat=True).first()
            first = now if known is None else first_free(known.timestamp(), rate, now)
            if first > now + AHEAD_SECONDS:
                return -first
            following = datetime.fromtimestamp(first + count / rate, UTC)
            if known is None:
                if self._insert(handler, following):
                    return first
            elif rows.filter(next_at=known).update(next_at=following):
                return first
        # Each update lost to one of another process: for now the others take all start times, and this one asks again.
        return -now

    def _insert(self, handler: str, following: datetime) -> bool:
        try:
            with transaction.atomic(using=controls_alias()):
                HandlerRate.objects.using(controls_alias()).create(handler=handler, next_at=following)
        except IntegrityError:
            return False
        return True

"""The switches as rows: each change is one statement, which does nothing where somebody was quicker."""

import os
import socket
import uuid
from collections.abc import Collection, Mapping

from django.db import router
from django.db.models import Q

from django_rmq_retry.core.breaking import Circuit
from django_rmq_retry.models import Switch
from django_rmq_retry.switching.standing import QueueState
from django_rmq_retry.switching.states import columns_of, moment, state_of


class Table:
    """The project's one truth about its queues."""

    def look(self, queues: Collection[str]) -> Mapping[str, QueueState]:
        rows = Switch.objects.using(database()).filter(queue__in=list(queues))
        return {row.queue: state_of(row) for row in rows}

    def put(self, queue: str, circuit: Circuit, who: str) -> None:
        """What this process knows of a breaker. A probe that succeeded closes it, whoever else has one under way."""
        rows = Switch.objects.using(database())
        rows.get_or_create(queue=queue)
        changed = rows.filter(queue=queue)
        if circuit.tripped:
            changed = changed.filter(Q(tripped=False) | Q(prober=who))
        changed.update(**columns_of(circuit))

    def claim(self, queue: str, who: str, *, now: float, until: float, most: float) -> bool:
        """Whether the next probe is this process's; times that are more than ``most`` ahead are of a wrong clock."""
        open_ones = Switch.objects.using(database()).filter(queue=queue, tripped=True)
        free = Q(prober="") | Q(prober=who) | Q(probe_until__isnull=True) | Q(probe_until__lte=moment(now))
        wrong = Q(probe_at__gt=moment(now + most)) | Q(probe_until__gt=moment(now + most))
        due = open_ones.filter(wrong | (Q(probe_at__lte=moment(now)) & free))
        return bool(due.update(prober=who, probe_until=moment(until), probe_at=moment(now)))

    def renew(self, queue: str, who: str, until: float) -> None:
        Switch.objects.using(database()).filter(queue=queue, tripped=True, prober=who).update(probe_until=moment(until))

    def release(self, who: str) -> None:
        """Whoever ends lets others probe at once."""
        Switch.objects.using(database()).filter(prober=who).update(prober="", probe_until=None)


def me() -> str:
    """A process's name; one that was killed and comes again has another."""
    return f"{socket.gethostname()[:100]}:{os.getpid()}.{uuid.uuid4().hex[:8]}"


def database() -> str:
    return router.db_for_write(Switch)

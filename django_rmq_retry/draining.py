"""Builds a drainer: parked queues on one side, the database on the other. The web process never imports it."""

from django_rmq_retry import registry, wiring
from django_rmq_retry.broker.asking import Session
from django_rmq_retry.broker.base import Line
from django_rmq_retry.broker.declaring import Declarer
from django_rmq_retry.broker.patience import PatientSource
from django_rmq_retry.conf import settings
from django_rmq_retry.consuming import Around
from django_rmq_retry.core.declarations import QueueDeclaration, Role, Topology
from django_rmq_retry.core.errors import MessageReturned
from django_rmq_retry.core.homes import homes_of
from django_rmq_retry.core.message import Delivery
from django_rmq_retry.core.parking import set_aside
from django_rmq_retry.core.topology import Queue
from django_rmq_retry.embedded.starting import Keeper
from django_rmq_retry.inbox import twins
from django_rmq_retry.inbox.ageing import Ageing
from django_rmq_retry.ordering.releasing import EVERY, settle
from django_rmq_retry.records.parker import Parker
from django_rmq_retry.records.retention import age_out
from django_rmq_retry.runtime.chores import Chore
from django_rmq_retry.runtime.draining import Drainer, Means

PREFETCH = 500
ASIDE = ".aside"
PATIENCE = 10.0
HOUR = 3600.0


def parked_queues() -> tuple[str, ...]:
    """All parked queues of the project, and of others where the settings name them; never one that handlers read."""
    intakes = registry.intakes()
    work = {intake.queue.name for intake in intakes}
    named = dict.fromkeys((*(intake.park for intake in intakes), *settings().parked_queues))
    return tuple(name for name in named if name not in work)


def drainer() -> Drainer:
    """A drainer with a connection of its own, on the I/O thread of the process."""
    access = settings().access(port_of=Keeper().port)
    means = Means(
        source=lambda: PatientSource(wiring.io("rmq-io"), access, wiring.publisher()),
        parker=Parker(homes_of(registry.intakes())),
        aside=PutAside(),
        around=Around,
        chores=(
            Chore(name="Retention", every=HOUR, run=age_out),
            Chore(name="Retention of handled messages", every=HOUR, run=Ageing()),
            Chore(name="Closing what another copy has done", every=twins.EVERY, run=twins.Twins()),
            Chore(name="Letting keys go on", every=EVERY, run=settle),
        ),
    )
    return Drainer([Line(queue=name, prefetch=PREFETCH) for name in parked_queues()], means)


class PutAside:
    """Copies into a queue beside the parked one, which is declared when it is first needed."""

    def __init__(self) -> None:
        self._declared: set[str] = set()

    def __call__(self, delivery: Delivery, why: str) -> None:
        name = delivery.queue + ASIDE
        if name not in self._declared:
            declare(name)
            self._declared.add(name)
        try:
            wiring.publisher().publish(set_aside(delivery, why, queue=name), timeout=PATIENCE)
        except MessageReturned:
            self._declared.discard(name)
            raise


def declare(name: str) -> None:
    """A queue that keeps what it gets, as safely as the broker can."""
    declaration = QueueDeclaration(name=name, role=Role.PARKED, arguments=Queue(name).plain_arguments())
    with Session(settings().access(), purpose="drain", patience=PATIENCE) as session:
        Declarer(session).declare(Topology(queues={name: declaration}))

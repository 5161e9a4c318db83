"""The second queue beside a parked one, for messages that cannot be recorded."""

from django_rmq_retry import conf
from django_rmq_retry.amqp.declarer import Declarer
from django_rmq_retry.amqp.session import Session
from django_rmq_retry.errors import MessageReturned
from django_rmq_retry.messages.message import Delivery
from django_rmq_retry.messages.parked_copy import UNRECORDED_QUEUE, set_aside
from django_rmq_retry.publishing import broker_connections
from django_rmq_retry.topology.declarations import Queue, QueueDeclaration, Role, Topology

PUT_ASIDE_SECONDS = 10.0


class PutAside:
    """Copies messages into a second queue beside the parked one; declares that queue when it is first needed."""

    def __init__(self) -> None:
        self._declared: set[str] = set()

    def __call__(self, delivery: Delivery, why: str) -> None:
        name = delivery.queue + UNRECORDED_QUEUE
        if name not in self._declared:
            declare(name)
            self._declared.add(name)
        try:
            broker_connections.connections.publisher.publish(
                set_aside(delivery, why, queue=name), timeout=PUT_ASIDE_SECONDS
            )
        except MessageReturned:
            self._declared.discard(name)
            raise


def declare(name: str) -> None:
    """Declare a quorum queue, the broker's safest type, for messages that cannot be recorded."""
    declaration = QueueDeclaration(name=name, role=Role.PARKED, arguments=Queue(name).plain_arguments())
    with Session(conf.settings().access(), purpose="drain", patience=PUT_ASIDE_SECONDS) as session:
        Declarer(session).declare(Topology(queues={name: declaration}))

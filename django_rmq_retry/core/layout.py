"""From handlers to topology: every queue, exchange and binding that a project needs, derived from what it wrote."""

from collections.abc import Sequence

from django_rmq_retry.core.declarations import (
    BindingDeclaration,
    QueueDeclaration,
    Role,
    Topology,
    exchanges_of,
)
from django_rmq_retry.core.errors import ConfigurationError
from django_rmq_retry.core.subscription import Intake
from django_rmq_retry.core.topology import Exchange, Queue


def layout(intakes: Sequence[Intake], *, extra: Sequence[Exchange | Queue] = ()) -> Topology:
    """The whole topology of a project, each name once; contradictions are refused with a sentence."""
    topology = Topology()
    for intake in intakes:
        topology += _of_intake(intake)
    for named in extra:
        topology += exchanges_of(named) if isinstance(named, Exchange) else _of_queue(named, Role.OTHER, {})
    return topology


def _of_intake(intake: Intake) -> Topology:
    found = Topology()
    arguments: dict[str, object] = {}
    for subscription in intake.subscriptions:
        additions = subscription.policy.via.additions(subscription.route)
        for name, value in additions.arguments.items():
            if arguments.setdefault(name, value) != value:
                raise ConfigurationError(
                    f"The handlers of queue {intake.queue.name!r} ask for {name}={arguments[name]!r} and {value!r}. "
                    "Give them the same carrier, or two queues."
                )
        found += additions.topology
    return _of_queue(intake.queue, Role.WORK, arguments) + found + _parked(intake)


def _of_queue(queue: Queue, role: Role, additions: dict[str, object]) -> Topology:
    # What the project writes out wins; None takes an argument away, for a topology declared elsewhere.
    arguments = {**queue.plain_arguments(), **additions, **queue.arguments}
    declaration = QueueDeclaration(
        name=queue.name,
        role=role,
        arguments={name: value for name, value in arguments.items() if value is not None},
        existing=queue.existing,
    )
    found = Topology()
    for binding in queue.bindings:
        found += exchanges_of(binding.source)
    bound = tuple(BindingDeclaration.of(binding, queue.name) for binding in queue.bindings if binding.source.name)
    return found + Topology(queues={queue.name: declaration}, bindings=bound)


def _parked(intake: Intake) -> Topology:
    kind = {"x-queue-type": intake.queue.type} if intake.queue.type else {}
    # The operators' queue takes whatever comes and gives nothing up: no length, no TTL, no limit that is ever met.
    limit = {"x-delivery-limit": intake.queue.delivery_limit} if intake.queue.type == "quorum" else {}
    arguments = {name: value for name, value in {**kind, **limit}.items() if value is not None}
    return Topology(queues={intake.park: QueueDeclaration(name=intake.park, role=Role.PARKED, arguments=arguments)})

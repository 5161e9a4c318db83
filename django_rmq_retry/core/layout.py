"""From handlers to topology: every queue, exchange and binding that a project needs, derived from what it wrote."""

from collections.abc import Sequence

from django_rmq_retry.core.deaths import dead_letter
from django_rmq_retry.core.declarations import (
    BindingDeclaration,
    ExchangeDeclaration,
    QueueDeclaration,
    Role,
    Topology,
    exchanges_of,
)
from django_rmq_retry.core.errors import ConfigurationError
from django_rmq_retry.core.subscription import Intake
from django_rmq_retry.core.topology import NO_LIMIT, Exchange, Queue, matches


def layout(intakes: Sequence[Intake], *, extra: Sequence[Exchange | Queue] = ()) -> Topology:
    """The whole topology of a project, each name once; contradictions are refused with a sentence."""
    written = {named.name: named for named in extra if isinstance(named, Queue)}
    parked = {intake.park for intake in intakes}
    topology = Topology()
    for intake in intakes:
        topology += _of_intake(intake) + _parked(intake, written.get(intake.park))
    for named in extra:
        if isinstance(named, Exchange):
            topology += exchanges_of(named)
        elif named.name not in parked:
            topology += _of_queue(named, Role.OTHER, {})
    for queue in topology.queues.values():
        if queue.role is Role.WAITING:
            _check_way_in(topology, queue.name)
            _check_way_back(topology, queue)
    return topology


def needed(intakes: Sequence[Intake]) -> tuple[ExchangeDeclaration | QueueDeclaration, ...]:
    """What must be there before a message is taken: its queue, and wherever it may be carried to."""
    found = Topology()
    for intake in intakes:
        names = (intake.queue.name, intake.park, *([intake.suspects] if intake.suspects else []))
        found += Topology(queues={name: QueueDeclaration(name=name) for name in names})
        for subscription in intake.subscriptions:
            found += _bare(subscription.policy.via.additions(subscription.route).topology)
    return (*found.exchanges.values(), *found.queues.values())


def parks(intake: Intake) -> bool:
    """Whether the broker parks what is rejected in the work queue; of one declared elsewhere nobody knows."""
    if intake.queue.existing:
        return False
    arguments = _of_intake(intake).queues[intake.queue.name].arguments
    target = arguments.get("x-dead-letter-exchange"), arguments.get("x-dead-letter-routing-key")
    return target == ("", intake.park)


def _bare(topology: Topology) -> Topology:
    """Only the names, which is all that can be asked for: what they are is another question."""
    return Topology(
        exchanges={name: ExchangeDeclaration(name=name) for name in topology.exchanges},
        queues={name: QueueDeclaration(name=name) for name in topology.queues},
    )


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
    return _of_queue(intake.queue, Role.WORK, arguments) + found + _suspects(intake)


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


def _suspects(intake: Intake) -> Topology:
    """Consumed one at a time: whoever stops a worker there takes nobody along into the parked queue."""
    if intake.suspects is None:
        return Topology()
    alone = Queue(intake.suspects)
    arguments = {**alone.plain_arguments(), **dead_letter("", intake.park, safe=True)}
    return Topology(queues={alone.name: QueueDeclaration(name=alone.name, role=Role.SUSPECTS, arguments=arguments)})


def _parked(intake: Intake, written: Queue | None) -> Topology:
    """The parked queue as the project wrote it out, or after its work queue."""
    if written is not None:
        return _of_queue(written, Role.PARKED, {})
    kind = {"x-queue-type": intake.queue.type} if intake.queue.type else {}
    # The operators' queue takes whatever comes and gives nothing up: no length, no TTL, no limit that is ever met.
    limited = intake.queue.type == "quorum" and intake.queue.delivery_limit is not None
    arguments = {**kind, "x-delivery-limit": NO_LIMIT} if limited else kind
    return Topology(queues={intake.park: QueueDeclaration(name=intake.park, role=Role.PARKED, arguments=arguments)})


def _check_way_in(topology: Topology, waiting: str) -> None:
    """A retry waits in one queue; two that get it would each send it back."""
    for binding in topology.bindings:
        if binding.destination == waiting and not binding.to_exchange:
            others = _reached(topology, binding.source, binding.key) - {waiting}
            if others:
                raise _doubled(binding.source, binding.key, {waiting, *others})


def _check_way_back(topology: Topology, waiting: QueueDeclaration) -> None:
    """A retry returns to the one queue it came from, never to all that the original went to."""
    back = str(waiting.arguments.get("x-dead-letter-exchange", ""))
    for key in _keys_back(topology, waiting) if back else ():
        reached = _reached(topology, back, key)
        if len(reached) > 1:
            raise _doubled(back, key, reached)


def _keys_back(topology: Topology, waiting: QueueDeclaration) -> set[str]:
    """The keys with which retries come out of a waiting queue, as far as the bindings tell."""
    key = waiting.arguments.get("x-dead-letter-routing-key")
    if key is not None:
        return {str(key)}
    into = [binding for binding in topology.bindings if binding.destination == waiting.name]
    keyed = {b.key for b in into if _kind(topology, b.source) != "fanout"}
    work = {
        queue.name
        for queue in topology.queues.values()
        if queue.arguments.get("x-dead-letter-exchange") in {binding.source for binding in into}
    }
    return keyed or {b.key for b in topology.bindings if b.destination in work}


def _reached(topology: Topology, exchange: str, key: str, *, seen: frozenset[str] = frozenset()) -> set[str]:
    """The queues of ours to which an exchange sends a key; where headers decide, nobody can tell before."""
    found: set[str] = set()
    if exchange in seen:
        return found
    for binding in topology.bindings:
        if binding.source != exchange or not _passes(_kind(topology, exchange), binding.key, key):
            continue
        if binding.to_exchange:
            found |= _reached(topology, binding.destination, key, seen=seen | {exchange})
        elif topology.role(binding.destination) in {Role.WORK, Role.WAITING}:
            found.add(binding.destination)
    return found


def _kind(topology: Topology, exchange: str) -> str:
    return topology.exchanges[exchange].type if exchange in topology.exchanges else ""


def _passes(kind: str, pattern: str, key: str) -> bool:
    if kind == "topic":
        return matches(pattern, key) or matches(key, pattern)
    return kind == "fanout" or (kind == "direct" and pattern == key)


def _doubled(exchange: str, key: str, queues: set[str]) -> ConfigurationError:
    named = " and ".join(repr(name) for name in sorted(queues))
    return ConfigurationError(
        f"Exchange {exchange!r} would send a retry with the key {key!r} to {named}: every retry would be doubled. "
        "Give each handler a retry exchange and a retry queue of its own, and its carrier back=''."
    )

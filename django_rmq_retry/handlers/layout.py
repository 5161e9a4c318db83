"""The topology that handlers need, computed from their subscriptions."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from django_rmq_retry.errors import ConfigurationError
from django_rmq_retry.handlers.subscription import WorkQueue
from django_rmq_retry.policies.carriers import dead_letter, parked_by_broker
from django_rmq_retry.topology.declarations import (
    Exchange,
    ExchangeDeclaration,
    Queue,
    QueueDeclaration,
    Role,
    Topology,
    bound,
    exchanges_of,
    matches,
    queue_of,
)
from django_rmq_retry.topology.drawings import Edge, EdgeKind


def layout(work_queues: Sequence[WorkQueue], *, extra: Sequence[Exchange | Queue] = ()) -> Topology:
    """Return the whole topology of a project, each name once; raise ConfigurationError for contradictions."""
    parked_names = {work_queue.park for work_queue in work_queues}
    written = [named for named in extra if isinstance(named, Queue) and named.name in parked_names]
    definitions = [one.parked_definition for work_queue in work_queues for one in work_queue.subscriptions]
    written += [definition for definition in definitions if definition is not None]
    defined_names = {queue.name for queue in written}
    topology = Topology()
    for work_queue in work_queues:
        topology += _of_work_queue(work_queue)
        topology += Topology() if work_queue.park in defined_names else _parked(work_queue)
    for definition in written:
        topology += _of_queue(definition, Role.PARKED, {})
    for named in extra:
        if isinstance(named, Exchange):
            topology += exchanges_of(named)
        elif named.existing and named.name in topology.queues:
            topology = topology.left_to_others(named.name)
        elif named.name not in parked_names:
            topology += _of_queue(named, Role.OTHER, {})
    for queue in topology.queues.values():
        if queue.role is Role.WAITING:
            _check_way_in(topology, queue.name)
            _check_way_back(topology, queue)
    return topology


def needed(
    work_queues: Sequence[WorkQueue], *, extra: Sequence[Exchange | Queue] = ()
) -> tuple[ExchangeDeclaration | QueueDeclaration, ...]:
    """Return the queues and exchanges that must exist before consuming: where messages come from or are copied to."""
    topology = Topology()
    for work_queue in work_queues:
        own = [work_queue.queue.name] if work_queue.queue.lasting else []
        names = (*own, work_queue.park, *([work_queue.quarantine] if work_queue.quarantine else []))
        topology += Topology(queues={name: QueueDeclaration(name=name) for name in names})
        for subscription in work_queue.subscriptions:
            topology += _bare(subscription.policy.via.additions(subscription.route).topology)
    external = {named.name for named in (*extra, *(one.queue for one in work_queues)) if named.existing}
    every: Sequence[ExchangeDeclaration | QueueDeclaration] = (*topology.exchanges.values(), *topology.queues.values())
    return tuple(replace(one, existing=True) if one.name in external else one for one in every)


def temporary(work_queue: WorkQueue) -> Topology | None:
    """Return the queue and bindings that a consumer declares for itself; None if the queue outlives its consumer."""
    if work_queue.queue.lasting:
        return None
    declared, name = _of_work_queue(work_queue), work_queue.queue.name
    bindings = tuple(one for one in declared.bindings if one.destination == name and not one.to_exchange)
    return Topology(queues={name: declared.queues[name]}, bindings=bindings)


def dead_letters_to_parked(work_queue: WorkQueue) -> bool:
    """True if the broker parks messages rejected in the work queue; False if others declare the queue."""
    if work_queue.queue.existing:
        return False
    arguments = _of_work_queue(work_queue).queues[work_queue.queue.name].arguments
    target = arguments.get("x-dead-letter-exchange"), arguments.get("x-dead-letter-routing-key")
    return target == ("", work_queue.park)


def _bare(topology: Topology) -> Topology:
    """Return the topology reduced to names, because a consumer checks only that queues and exchanges exist."""
    return Topology(
        exchanges={name: ExchangeDeclaration(name=name) for name in topology.exchanges},
        queues={name: QueueDeclaration(name=name) for name in topology.queues},
    )


def _of_work_queue(work_queue: WorkQueue) -> Topology:
    topology = Topology()
    arguments: dict[str, object] = {}
    vital: set[str] = set()
    for subscription in work_queue.subscriptions:
        additions = subscription.policy.via.additions(subscription.route)
        parking = parked_by_broker(subscription.route)
        vital |= {name for name, value in additions.arguments.items() if parking.get(name) != value}
        for name, value in additions.arguments.items():
            if arguments.setdefault(name, value) != value:
                raise ConfigurationError(
                    f"The handlers of queue {work_queue.queue.name!r} need {name}={arguments[name]!r} "
                    f"and {value!r}. Give them the same carrier, or two queues."
                )
        topology += additions.topology
    return _of_queue(work_queue.queue, Role.WORK, arguments, vital=vital) + topology + _quarantine(work_queue)


def _of_queue(queue: Queue, role: Role, additions: dict[str, object], *, vital: Iterable[str] = ()) -> Topology:
    declaration = queue_of(queue, role, additions, vital=vital)
    return Topology(queues={queue.name: declaration}) + bound(queue)


def _quarantine(work_queue: WorkQueue) -> Topology:
    """Return the quarantine queue, consumed one message at a time: one that kills its worker counts for no other."""
    if work_queue.quarantine is None:
        return Topology()
    queue = Queue(work_queue.quarantine)
    arguments = {**queue.plain_arguments(), **dead_letter("", work_queue.park, safe=True)}
    return Topology(queues={queue.name: QueueDeclaration(name=queue.name, role=Role.QUARANTINE, arguments=arguments)})


def _parked(work_queue: WorkQueue) -> Topology:
    """Return the parked queue, of the work queue's type, for a project that does not define the parked queue itself."""
    # The parked queue must accept and keep every message: no maximum length, no TTL, no effective delivery limit.
    arguments = work_queue.queue.companion_arguments()
    return Topology(
        queues={work_queue.park: QueueDeclaration(name=work_queue.park, role=Role.PARKED, arguments=arguments)}
    )


def _check_way_in(topology: Topology, waiting: str) -> None:
    """Refuse bindings that copy a retry into more than one queue: each copy would come back."""
    for binding in topology.bindings:
        if binding.destination == waiting and not binding.to_exchange:
            others = _reached(topology, binding.source, binding.key) - {waiting}
            if others:
                raise _doubled(binding.source, binding.key, {waiting, *others})


def _check_way_back(topology: Topology, waiting: QueueDeclaration) -> None:
    """Refuse a return path that sends a retry to more than one queue, such as all queues that got the original."""
    back = str(waiting.arguments.get("x-dead-letter-exchange", ""))
    for key in _keys_back(topology, waiting) if back else ():
        reached = _reached(topology, back, key)
        if len(reached) > 1:
            raise _doubled(back, key, reached)


def _keys_back(topology: Topology, waiting: QueueDeclaration) -> set[str]:
    """Return the routing keys with which retries leave a waiting queue, as far as the bindings show."""
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
    """Return the work and waiting queues to which an exchange routes a key; headers exchanges cannot be predicted."""
    reached: set[str] = set()
    if exchange in seen:
        return reached
    for binding in topology.bindings:
        if binding.source != exchange or not _passes(_kind(topology, exchange), binding.key, key):
            continue
        if binding.to_exchange:
            reached |= _reached(topology, binding.destination, key, seen=seen | {exchange})
        elif topology.role(binding.destination) in {Role.WORK, Role.WAITING}:
            reached.add(binding.destination)
    return reached


def _kind(topology: Topology, exchange: str) -> str:
    return topology.exchanges[exchange].type if exchange in topology.exchanges else ""


def _passes(kind: str, pattern: str, key: str) -> bool:
    if kind == "topic":
        return matches(pattern, key) or matches(key, pattern)
    return kind == "fanout" or (kind == "direct" and pattern == key)


def _doubled(exchange: str, key: str, queues: set[str]) -> ConfigurationError:
    named = " and ".join(repr(name) for name in sorted(queues))
    return ConfigurationError(
        f"Exchange {exchange!r} would send a retry with the routing key {key!r} to {named}: it would be duplicated. "
        "Give each handler a retry exchange and a retry queue of its own, and its carrier back=''."
    )


def homes_of(work_queues: Sequence[WorkQueue]) -> dict[str, str]:
    """Return the work queue of each waiting, quarantine and parked queue; shared ones are left out."""
    served: dict[str, set[str]] = {}
    for work_queue in work_queues:
        own = {work_queue.park, *({work_queue.quarantine} if work_queue.quarantine else ())}
        for name in own | waiting_queues_of(work_queue):
            served.setdefault(name, set()).add(work_queue.queue.name)
    return {name: min(work) for name, work in served.items() if len(work) == 1}


def waiting_queues_of(work_queue: WorkQueue) -> set[str]:
    """Return the queues in which retries of a work queue wait."""
    carriers = ((subscription.policy.via, subscription.route) for subscription in work_queue.subscriptions)
    return {name for via, route in carriers for name in via.additions(route).topology.queues}


def copies_of(work_queues: Iterable[WorkQueue]) -> list[Edge]:
    """Return the edges along which consumers copy messages: to parked, quarantine and waiting queues."""
    edges = []
    for work_queue in work_queues:
        work = (False, work_queue.queue.name)
        quarantine = [] if work_queue.quarantine is None else [work_queue.quarantine]
        edges += [
            Edge(source=work, target=(False, name), kind=EdgeKind.COPY) for name in (work_queue.park, *quarantine)
        ]
        for subscription in work_queue.subscriptions:
            added = subscription.policy.via.additions(subscription.route).topology
            reached = {binding.destination for binding in added.bindings}
            unbound = [name for name in added.queues if name not in reached]
            edges += [Edge(source=work, target=(False, name), kind=EdgeKind.COPY) for name in unbound]
            if subscription.policy.via.waits:
                exchanges = {binding.source for binding in added.bindings}
                edges += [Edge(source=work, target=(True, name), kind=EdgeKind.COPY) for name in exchanges]
    return edges

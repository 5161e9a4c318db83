"""A topology as nodes and edges, with a place for each node."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from django_rmq_retry.handlers.subscription import Intake
from django_rmq_retry.topology.declarations import ExchangeDeclaration, QueueDeclaration, Role, Topology

_UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"))


class Way(StrEnum):
    """The way in which a message passes an edge."""

    BINDING = "binding"
    DEAD_LETTER = "dead letter"
    """Moved by the broker."""
    COPY = "copy"
    """Copied by the consumer, confirmed, then acked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """An exchange, or a queue with its role."""

    name: str
    detail: str
    role: Role | None = None

    @property
    def key(self) -> tuple[bool, str]:
        """The node's identity; an exchange and a queue may share a name."""
        return self.role is None, self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """One edge between two nodes; several bindings between them are its labels."""

    source: tuple[bool, str]
    target: tuple[bool, str]
    way: Way
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """``Shape.of(topology, intakes)``; the intakes say where consumers copy messages to."""

    nodes: Mapping[tuple[bool, str], Node] = field(default_factory=dict)
    edges: Sequence[Edge] = ()

    @classmethod
    def of(cls, topology: Topology, intakes: Iterable[Intake] = ()) -> "Shape":
        found = [_exchange(one) for one in topology.exchanges.values()]
        found += [_queue(one) for one in topology.queues.values()]
        nodes = {node.key: node for node in found}
        edges = [*_bindings(topology), *_alternates(topology), *_dead_letters(topology, nodes)]
        edges += [edge for edge in _copies(topology, intakes) if not _known(edge, edges)]
        return cls(nodes=nodes, edges=tuple(edges))

    def into(self, node: Node) -> tuple[Edge, ...]:
        return tuple(edge for edge in self.edges if edge.target == node.key)

    def out_of(self, node: Node) -> tuple[Edge, ...]:
        return tuple(edge for edge in self.edges if edge.source == node.key)


def _exchange(one: ExchangeDeclaration) -> Node:
    return Node(name=one.name, detail=" · ".join([one.type, *(["existing"] if one.existing else [])]))


def _queue(one: QueueDeclaration) -> Node:
    ttl = one.arguments.get("x-message-ttl")
    words = [one.role.value, str(one.arguments.get("x-queue-type", ""))]
    words += [f"{duration(ttl)}" if isinstance(ttl, int) else "", "existing" if one.existing else ""]
    return Node(name=one.name, detail=" · ".join(word for word in words if word), role=one.role)


def duration(milliseconds: int) -> str:
    """Format a duration in the largest unit that divides it: ``90 s``, ``2 h``."""
    for size, unit in _UNITS:
        if milliseconds and milliseconds % size == 0:
            return f"{milliseconds // size} {unit}"
    return f"{milliseconds} ms"


def _bindings(topology: Topology) -> list[Edge]:
    labels: dict[tuple[tuple[bool, str], tuple[bool, str]], list[str]] = {}
    for binding in topology.bindings:
        ends = (True, binding.source), (binding.to_exchange, binding.destination)
        said = [f"{name}={value}" for name, value in binding.arguments.items()]
        labels.setdefault(ends, []).append(" ".join([*([binding.key] if binding.key else []), *said]))
    return [
        Edge(source=source, target=target, way=Way.BINDING, labels=tuple(label for label in found if label))
        for (source, target), found in labels.items()
    ]


def _alternates(topology: Topology) -> list[Edge]:
    return [
        Edge(source=(True, one.name), target=(True, str(name)), way=Way.DEAD_LETTER, labels=("unroutable",))
        for one in topology.exchanges.values()
        if (name := one.arguments.get("alternate-exchange")) in topology.exchanges
    ]


def _dead_letters(topology: Topology, nodes: Mapping[tuple[bool, str], Node]) -> list[Edge]:
    found = []
    for queue in topology.queues.values():
        exchange, key = (queue.arguments.get(f"x-dead-letter-{name}") for name in ("exchange", "routing-key"))
        # The default exchange has no box: its key names the queue.
        target = (True, str(exchange)) if exchange else (False, str(key if key is not None else queue.name))
        if exchange is not None and target in nodes:
            labels = (str(key),) if exchange and key is not None else ()
            found.append(Edge(source=(False, queue.name), target=target, way=Way.DEAD_LETTER, labels=labels))
    return found


def _copies(topology: Topology, intakes: Iterable[Intake]) -> list[Edge]:
    found = []
    for intake in intakes:
        work = (False, intake.queue.name)
        apart = [] if intake.suspects is None else [intake.suspects]
        found += [Edge(source=work, target=(False, name), way=Way.COPY) for name in (intake.park, *apart)]
        for subscription in intake.subscriptions:
            added = subscription.policy.via.additions(subscription.route).topology
            reached = {binding.destination for binding in added.bindings}
            unbound = [name for name in added.queues if name not in reached]
            found += [Edge(source=work, target=(False, name), way=Way.COPY) for name in unbound]
            if subscription.policy.via.waits:
                exchanges = {binding.source for binding in added.bindings}
                found += [Edge(source=work, target=(True, name), way=Way.COPY) for name in exchanges]
    return [edge for edge in dict.fromkeys(found) if edge.target[1] in {**topology.queues, **topology.exchanges}]


def _known(edge: Edge, edges: Iterable[Edge]) -> bool:
    return any((edge.source, edge.target) == (other.source, other.target) for other in edges)


Key = tuple[bool, str]
ENTRY, WORK, RETRY, WAITING, PARKED = range(5)
_COLUMNS = {Role.WAITING: WAITING, Role.SUSPECTS: WAITING, Role.PARKED: PARKED, Role.REPLY: PARKED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A column, and a row counted from the top; the row is fractional where a column is centred beside a longer one."""

    column: int
    row: float


def places(shape: Shape) -> dict[Key, Place]:
    """Return every node's place. Connected nodes form a family, and each family stands below the one before."""
    found: dict[Key, Place] = {}
    top = 0.0
    for family in families(shape):
        columns: dict[int, list[Key]] = {}
        for key in family:
            columns.setdefault(_column(shape, shape.nodes[key]), []).append(key)
        used = sorted(columns)
        last = columns.pop(PARKED, [])
        height = max(map(len, columns.values()), default=0)
        rows = [(column, top + (height - len(keys)) / 2, keys) for column, keys in columns.items()]
        # Below all others, so that no edge crosses these nodes.
        rows += [(PARKED, top + height, last)] if last else []
        for column, start, keys in rows:
            at = used.index(column)
            found |= {key: Place(column=at, row=start + number) for number, key in enumerate(keys)}
        top += height + len(last) + 0.4
    return found


def families(shape: Shape) -> list[list[Key]]:
    """Return the groups of connected nodes, in the order in which they were added."""
    linked: dict[Key, set[Key]] = {key: set() for key in shape.nodes}
    for edge in shape.edges:
        if edge.source in linked and edge.target in linked:
            linked[edge.source].add(edge.target)
            linked[edge.target].add(edge.source)
    seen: set[Key] = set()
    found = []
    for key in shape.nodes:
        if key not in seen:
            family = _reached(key, linked)
            seen |= family
            found.append([one for one in shape.nodes if one in family])
    return found


def _reached(start: Key, linked: Mapping[Key, Iterable[Key]]) -> set[Key]:
    found, todo = {start}, [start]
    while todo:
        new = [key for key in linked[todo.pop()] if key not in found]
        found.update(new)
        todo += new
    return found


def _column(shape: Shape, node: Node) -> int:
    if node.role is not None:
        return _COLUMNS.get(node.role, WORK)
    feeds_work = any(edge.target[0] is False and _is_work(shape, edge.target) for edge in shape.out_of(node))
    takes_retries = any(edge.way is not Way.BINDING and not edge.source[0] for edge in shape.into(node))
    return RETRY if takes_retries and not feeds_work else ENTRY


def _is_work(shape: Shape, key: Key) -> bool:
    node = shape.nodes.get(key)
    return node is not None and node.role is not None and _COLUMNS.get(node.role, WORK) == WORK

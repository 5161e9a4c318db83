"""A topology as nodes and edges, and drawings of it: text, SVG, Mermaid and RabbitMQ definitions."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from xml.sax.saxutils import escape

from django_rmq_retry.topology.declarations import ExchangeDeclaration, QueueDeclaration, Role, Topology

_UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"))

Key = tuple[bool, str]
"""True for an exchange, and its name: an exchange and a queue may share one."""
ENTRY, WORK, RETRY, WAITING, PARKED = range(5)
_COLUMNS = {Role.WAITING: WAITING, Role.QUARANTINE: WAITING, Role.PARKED: PARKED, Role.REPLY: PARKED}

WIDTH, HEIGHT, GAP_X, GAP_Y, MARGIN = 240, 46, 150, 28, 24
_LEGEND_HEIGHT = 34
_LONGEST_NAME, _LONGEST_LABEL, _MOST_LABELS = 32, 24, 3
_STYLE = """
svg { --ink: #1f2933; --soft: #52606d; --paper: #ffffff; --exchange: #e6ecf5; --work: #e2efe4; --waiting: #fdf3d0;
  --quarantine: #efe6f5; --parked: #fbe3e0; --other: #f0f0f0; --line: #7b8794; }
@media (prefers-color-scheme: dark) { svg { --ink: #f0f4f8; --soft: #bcccdc; --paper: #14181d; --exchange: #243447;
  --work: #1e3a26; --waiting: #463a12; --quarantine: #38264a; --parked: #4a2420; --other: #2b2f36; --line: #8a97a5; } }
.paper { fill: var(--paper); }
rect.node { stroke: var(--line); } .exchange { fill: var(--exchange); } .work { fill: var(--work); }
.waiting { fill: var(--waiting); } .quarantine { fill: var(--quarantine); } .parked { fill: var(--parked); }
.other, .reply { fill: var(--other); }
text { fill: var(--ink); font: 13px system-ui, sans-serif; } .detail, .label { fill: var(--soft); font-size: 11px; }
.label { text-anchor: middle; } .halo { stroke: var(--paper); stroke-width: 4px; stroke-linejoin: round; }
path.edge { fill: none; stroke: var(--line); stroke-width: 1.5; } .head { fill: var(--line); }
.dead { stroke-dasharray: 6 4; } .copy { stroke-dasharray: 1.5 3.5; stroke-linecap: round; stroke-width: 2.2; }
""".strip()
_MERMAID_CLASSES = {
    Role.WAITING: "fill:#fdf3d0,stroke:#a67c00,color:#333",
    Role.QUARANTINE: "fill:#efe6f5,stroke:#6f4a8e,color:#333",
    Role.PARKED: "fill:#fbe3e0,stroke:#b3372a,color:#333",
    Role.WORK: "fill:#e2efe4,stroke:#2e7d3a,color:#333",
}

__all__ = ["Shape", "definitions", "mermaid", "svg", "text"]


class EdgeKind(StrEnum):
    BINDING = "binding"
    DEAD_LETTER = "dead letter"
    """Moved by the broker."""
    ALTERNATE = "alternate"
    """Passed on by an exchange that has no binding for the message."""
    COPY = "copy"
    """Copied by the consumer, confirmed, then acked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    name: str
    detail: str
    role: Role | None = None

    @property
    def key(self) -> Key:
        return self.role is None, self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """One edge between two nodes; several bindings between them are its labels."""

    source: Key
    target: Key
    kind: EdgeKind
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Nodes and edges of a topology and of the copies of consumers: ``Shape.of(topology, copies_of(work_queues))``."""

    nodes: Mapping[Key, Node] = field(default_factory=dict)
    edges: Sequence[Edge] = ()

    @classmethod
    def of(cls, topology: Topology, copies: Iterable[Edge] = ()) -> "Shape":
        found = [_exchange_node(one) for one in topology.exchanges.values()]
        found += [_queue_node(one) for one in topology.queues.values()]
        nodes = {node.key: node for node in found}
        edges = [*_bindings(topology), *_alternates(topology), *_dead_letters(topology, nodes)]
        declared = topology.queues.keys() | topology.exchanges.keys()
        copies = [edge for edge in dict.fromkeys(copies) if edge.target[1] in declared]
        drawn = {(edge.source, edge.target) for edge in edges}
        edges += [edge for edge in copies if (edge.source, edge.target) not in drawn]
        return cls(nodes=nodes, edges=tuple(edges))

    def into(self, node: Node) -> tuple[Edge, ...]:
        return tuple(edge for edge in self.edges if edge.target == node.key)

    def out_of(self, node: Node) -> tuple[Edge, ...]:
        return tuple(edge for edge in self.edges if edge.source == node.key)


def _exchange_node(one: ExchangeDeclaration) -> Node:
    return Node(name=one.name, detail=" · ".join([one.type, *(["existing"] if one.existing else [])]))


def _queue_node(one: QueueDeclaration) -> Node:
    known = _known(one)
    ttl = known.get("x-message-ttl")
    words = [one.role.value, str(known.get("x-queue-type", ""))]
    words += [duration(ttl) if isinstance(ttl, int) else "", "existing" if one.existing else ""]
    return Node(name=one.name, detail=" · ".join(word for word in words if word), role=one.role)


def _known(one: QueueDeclaration) -> Mapping[str, object]:
    """Return the arguments that the queue has; of an external one, those that the project states or needs."""
    if not one.existing:
        return one.arguments
    return {name: value for name, value in one.arguments.items() if name in one.vital}


def duration(milliseconds: int) -> str:
    """Format a duration in the largest unit that divides it: ``90 s``, ``2 h``."""
    for size, unit in _UNITS:
        if milliseconds and milliseconds % size == 0:
            return f"{milliseconds // size} {unit}"
    return f"{milliseconds} ms"


def _bindings(topology: Topology) -> list[Edge]:
    labels: dict[tuple[Key, Key], list[str]] = {}
    for binding in topology.bindings:
        ends = (True, binding.source), (binding.to_exchange, binding.destination)
        text = [f"{name}={value}" for name, value in binding.arguments.items()]
        labels.setdefault(ends, []).append(" ".join([*([binding.key] if binding.key else []), *text]))
    return [
        Edge(source=source, target=target, kind=EdgeKind.BINDING, labels=tuple(label for label in found if label))
        for (source, target), found in labels.items()
    ]


def _alternates(topology: Topology) -> list[Edge]:
    return [
        Edge(source=(True, one.name), target=(True, str(name)), kind=EdgeKind.ALTERNATE)
        for one in topology.exchanges.values()
        if (name := one.arguments.get("alternate-exchange")) in topology.exchanges
    ]


def _dead_letters(topology: Topology, nodes: Mapping[Key, Node]) -> list[Edge]:
    found = []
    for queue in topology.queues.values():
        known = _known(queue)
        exchange, key = (known.get(f"x-dead-letter-{name}") for name in ("exchange", "routing-key"))
        # The default exchange has no box: its key names the queue.
        target = (True, str(exchange)) if exchange else (False, str(key if key is not None else queue.name))
        if exchange is not None and target in nodes:
            labels = (str(key),) if exchange and key is not None else ()
            found.append(Edge(source=(False, queue.name), target=target, kind=EdgeKind.DEAD_LETTER, labels=labels))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A column, and a row counted from the top; the row is fractional where a column is centred beside a longer one."""

    column: int
    row: float


def cells(shape: Shape) -> dict[Key, Cell]:
    """Return every node's cell. Connected nodes form a family, and each family stands below the one before."""
    placed: dict[Key, Cell] = {}
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
            placed |= {key: Cell(column=at, row=start + number) for number, key in enumerate(keys)}
        top += height + len(last) + 0.4
    return placed


def families(shape: Shape) -> list[list[Key]]:
    """Return the groups of connected nodes, in the order in which they were added."""
    linked: dict[Key, set[Key]] = {key: set() for key in shape.nodes}
    for edge in shape.edges:
        if edge.source in linked and edge.target in linked:
            linked[edge.source].add(edge.target)
            linked[edge.target].add(edge.source)
    found: list[list[Key]] = []
    for key in shape.nodes:
        if not any(key in family for family in found):
            reached = _reached(key, linked)
            found.append([one for one in shape.nodes if one in reached])
    return found


def _reached(start: Key, linked: Mapping[Key, Iterable[Key]]) -> set[Key]:
    reached, ahead = {start}, [start]
    while ahead:
        new = [key for key in linked[ahead.pop()] if key not in reached]
        reached.update(new)
        ahead += new
    return reached


def _column(shape: Shape, node: Node) -> int:
    if node.role is not None:
        return _COLUMNS.get(node.role, WORK)
    targets = (shape.nodes.get(edge.target) for edge in shape.out_of(node))
    feeds_work = any(one and one.role is not None and _column(shape, one) == WORK for one in targets)
    takes_retries = any(edge.kind is not EdgeKind.BINDING and not edge.source[0] for edge in shape.into(node))
    return RETRY if takes_retries and not feeds_work else ENTRY


_OUT = {
    EdgeKind.DEAD_LETTER: "⇢ dead letters to",
    EdgeKind.ALTERNATE: "⇢ unroutable messages to",
    EdgeKind.COPY: "⇒ copies to",
}


def text(shape: Shape) -> str:
    """Return exchanges and queues as text, each with its sources and targets."""
    return "\n".join(_text_lines(shape))


def _text_lines(shape: Shape) -> Iterator[str]:
    for title, exchanges in (("Exchanges", True), ("Queues", False)):
        nodes = [node for node in shape.nodes.values() if (node.role is None) is exchanges]
        if not nodes:
            continue
        yield title
        width = max(len(node.name) for node in nodes)
        for node in nodes:
            yield f"  {node.name.ljust(width)}  {node.detail}"
            for edge in shape.into(node):
                if edge.kind is EdgeKind.BINDING:
                    yield f"      ← {edge.source[1]}{_labels(edge)}"
            for edge in shape.out_of(node):
                if edge.kind is not EdgeKind.BINDING:
                    yield f"      {_OUT[edge.kind]} {edge.target[1]}{_labels(edge)}"


def _labels(edge: Edge) -> str:
    return f" by {', '.join(edge.labels)}" if edge.labels else ""


_SVG_CLASSES = {
    EdgeKind.BINDING: "binding",
    EdgeKind.DEAD_LETTER: "dead",
    EdgeKind.ALTERNATE: "alternate",
    EdgeKind.COPY: "copy",
}

_MEANINGS = (
    (EdgeKind.BINDING, "binding"),
    (EdgeKind.DEAD_LETTER, "dead letters, moved by the broker"),
    (EdgeKind.COPY, "confirmed copy by the consumer"),
    (EdgeKind.ALTERNATE, "messages that no binding accepts"),
)
_ALWAYS = (EdgeKind.BINDING, EdgeKind.DEAD_LETTER, EdgeKind.COPY)
"""The ways that the legend explains even if the drawing has none of them."""


def svg(shape: Shape, *, title: str = "Topology") -> str:
    where = cells(shape)
    columns = max((cell.column for cell in where.values()), default=0) + 1
    rows = max((cell.row for cell in where.values()), default=0.0) + 1
    width = 2 * MARGIN + columns * WIDTH + (columns - 1) * GAP_X
    height = round(2 * MARGIN + rows * (HEIGHT + GAP_Y) + _LEGEND_HEIGHT)
    parts = [*_head(title, width, height), *_edges(shape, where), *_nodes(shape, where)]
    return "\n".join([*parts, *_legend(shape, height - MARGIN), "</svg>", ""])


def _head(title: str, width: int, height: int) -> Iterator[str]:
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="img" aria-label="{clean(title)}">'
    )
    yield f"<title>{clean(title)}</title>"
    yield f"<style>{_STYLE}</style>"
    yield (
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto" '
        'markerUnits="userSpaceOnUse"><path class="head" d="M0 0 L8 4 L0 8 z"/></marker></defs>'
    )
    yield f'<rect class="paper" width="{width}" height="{height}"/>'


def _nodes(shape: Shape, where: Mapping[Key, Cell]) -> Iterator[str]:
    for key, node in shape.nodes.items():
        x, y = _corner(where[key])
        kind = "exchange" if node.role is None else node.role.value
        radius = HEIGHT // 2 if node.role is None else 4
        box = f'x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="{radius}"'
        what = f"{'Exchange' if node.role is None else 'Queue'} {node.name}: {node.detail}"
        yield f'<g><title>{clean(what)}</title><rect class="node {kind}" {box}/>'
        yield f'<text x="{x + 16}" y="{y + 20}">{clean(short(node.name, _LONGEST_NAME))}</text>'
        yield f'<text class="detail" x="{x + 16}" y="{y + 36}">{clean(node.detail)}</text></g>'


def _edges(shape: Shape, where: Mapping[Key, Cell]) -> Iterator[str]:
    drawn = [edge for edge in shape.edges if edge.source in where and edge.target in where]
    for edge in drawn:
        line, _ = _line(where[edge.source], where[edge.target])
        yield f'<path class="edge {_SVG_CLASSES[edge.kind]}" d="{line}" marker-end="url(#head)"/>'
    # After all lines, so that no line crosses a label.
    for edge in drawn:
        _, (x, y) = _line(where[edge.source], where[edge.target])
        full = clean(", ".join(edge.labels))
        for number, line in enumerate(reversed(_shortened(edge.labels))):
            words = f'x="{x}" y="{y - 13 * number}">{clean(short(line, _LONGEST_LABEL))}</text>'
            yield f'<g><title>{full}</title><text class="label halo" {words}<text class="label" {words}</g>'


def _shortened(labels: Sequence[str]) -> list[str]:
    if len(labels) <= _MOST_LABELS:
        return list(labels)
    return [*labels[: _MOST_LABELS - 1], f"and {len(labels) - _MOST_LABELS + 1} more"]


def _line(source: Cell, target: Cell) -> tuple[str, tuple[int, int]]:
    """Return the path of an edge and the position of its label."""
    (x1, y1), (x2, y2) = _corner(source), _corner(target)
    across = target.column - source.column
    if across > 0:
        return _forth(x1 + WIDTH, y1 + HEIGHT // 2, x2, y2 + HEIGHT // 2)
    if across == 0:
        side, y1, y2 = x1 - 40, y1 + HEIGHT // 2, y2 + HEIGHT // 2
        return f"M{x1} {y1} C{side} {y1} {side} {y2} {x2} {y2}", (side, (y1 + y2) // 2)
    if across == -1:
        # Leave and enter below the middle, apart from the opposite edge.
        (x2, y1, y2), middle = (x2 + WIDTH, y1 + HEIGHT - 8, y2 + HEIGHT - 8), x1 - GAP_X // 2
        return f"M{x1} {y1} C{middle} {y1 + 26} {middle} {y2 + 26} {x2} {y2}", (middle, (y1 + y2) // 2 + 24)
    (x1, y1), (x2, y2) = (x1 + WIDTH // 2, y1 + HEIGHT), (x2 + WIDTH // 2, y2 + HEIGHT)
    lane = max(y1, y2) + GAP_Y - 8
    path = f"M{x1} {y1} V{lane - 10} Q{x1} {lane} {x1 - 10} {lane} H{x2 + 10} Q{x2} {lane} {x2} {lane - 10} V{y2}"
    return path, ((x1 + x2) // 2, lane)


def _forth(x1: int, y1: int, x2: int, y2: int) -> tuple[str, tuple[int, int]]:
    """Go to the target's row first and then straight on, where no other box stands."""
    bend = x1 + GAP_X
    path = f"M{x1} {y1} C{bend - GAP_X // 2} {y1} {bend - GAP_X // 2} {y2} {bend} {y2}"
    return path + ("" if bend == x2 else f" H{x2}"), (bend - GAP_X // 2, (y1 + y2) // 2 - 4)


def _legend(shape: Shape, y: int) -> Iterator[str]:
    x, drawn = MARGIN, {edge.kind for edge in shape.edges}.union(_ALWAYS)
    for way, meaning in _MEANINGS:
        if way not in drawn:
            continue
        yield f'<path class="edge {_SVG_CLASSES[way]}" d="M{x} {y} h40" marker-end="url(#head)"/>'
        yield f'<text class="detail" x="{x + 48}" y="{y + 4}">{meaning}</text>'
        x += 70 + 7 * len(meaning)


def _corner(cell: Cell) -> tuple[int, int]:
    return MARGIN + cell.column * (WIDTH + GAP_X), round(MARGIN + cell.row * (HEIGHT + GAP_Y))


def short(name: str, longest: int) -> str:
    return name if len(name) <= longest else f"{name[: longest - 1]}…"


def clean(name: str) -> str:
    """Escape a name, and remove characters that XML forbids."""
    return escape("".join(char if char.isprintable() else "�" for char in name), {'"': "&quot;", "'": "&apos;"})


_ARROWS = {EdgeKind.BINDING: "-->", EdgeKind.DEAD_LETTER: "-.->", EdgeKind.ALTERNATE: "--o", EdgeKind.COPY: "==>"}


def mermaid(shape: Shape) -> str:
    """Return Mermaid code: solid arrows are bindings, dotted dead letters, thick copies, circled ends alternates."""
    return "\n".join(_mermaid_lines(shape))


def _mermaid_lines(shape: Shape) -> Iterator[str]:
    ids = {key: f"n{number}" for number, key in enumerate(shape.nodes)}
    yield "flowchart LR"
    for key, node in shape.nodes.items():
        label = f'"{escaped(node.name)}<br/>{escaped(node.detail)}"'
        yield f"  {ids[key]}{{{{{label}}}}}" if node.role is None else f"  {ids[key]}[{label}]"
    for edge in shape.edges:
        if edge.source in ids and edge.target in ids:
            label = f'|"{escaped(", ".join(edge.labels))}"|' if edge.labels else ""
            yield f"  {ids[edge.source]} {_ARROWS[edge.kind]}{label} {ids[edge.target]}"
    for role, style in _MERMAID_CLASSES.items():
        members = [ids[key] for key, node in shape.nodes.items() if node.role is role]
        if members:
            yield f"  classDef {role.value} {style}"
            yield f"  class {','.join(members)} {role.value}"


def escaped(name: str) -> str:
    """Write every character with a meaning in Mermaid or HTML as an entity code."""
    return "".join(char if char.isalnum() or char in " ._-·,=:/" else f"#{ord(char)};" for char in name)


def definitions(topology: Topology, *, vhost: str = "/") -> dict[str, list[dict[str, object]]]:
    """Return a file for ``rabbitmqctl import_definitions``, without external queues and exchanges."""
    topology = topology.lasting
    return {
        "exchanges": [
            {
                "name": exchange.name,
                "vhost": vhost,
                "type": exchange.type,
                "durable": exchange.durable,
                "auto_delete": exchange.auto_delete,
                "internal": exchange.internal,
                "arguments": dict(exchange.arguments),
            }
            for exchange in topology.exchanges.values()
            if not exchange.existing
        ],
        "queues": [
            {
                "name": queue.name,
                "vhost": vhost,
                "durable": True,
                "auto_delete": False,
                "arguments": dict(queue.arguments),
            }
            for queue in topology.queues.values()
            if not queue.existing
        ],
        "bindings": [
            {
                "source": binding.source,
                "vhost": vhost,
                "destination": binding.destination,
                "destination_type": "exchange" if binding.to_exchange else "queue",
                "routing_key": binding.key,
                "arguments": dict(binding.arguments),
            }
            for binding in topology.bindings
            if not topology.foreign(binding)
        ],
    }

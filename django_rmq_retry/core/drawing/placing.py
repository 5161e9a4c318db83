"""Where each node of a shape stands: in columns from left to right, related ones together."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from django_rmq_retry.core.declarations import Role
from django_rmq_retry.core.drawing.shape import Node, Shape, Way

Key = tuple[bool, str]
ENTRY, WORK, RETRY, WAITING, PARKED = range(5)
_COLUMNS = {Role.WAITING: WAITING, Role.SUSPECTS: WAITING, Role.PARKED: PARKED, Role.REPLY: PARKED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A column, and a row counted from the top; no whole number where a column is centred beside a longer one."""

    column: int
    row: float


def places(shape: Shape) -> dict[Key, Place]:
    """Every node's place. What is connected stands together, each family below the one before."""
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
        # Below all others, so that the way there passes none of them.
        rows += [(PARKED, top + height, last)] if last else []
        for column, start, keys in rows:
            at = used.index(column)
            found |= {key: Place(column=at, row=start + number) for number, key in enumerate(keys)}
        top += height + len(last) + 0.4
    return found


def families(shape: Shape) -> list[list[Key]]:
    """The nodes in groups that nothing connects, in the order in which they were named."""
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

"""A topology as a Mermaid flowchart, for READMEs and wikis."""

from collections.abc import Iterator

from django_rmq_retry.core.declarations import Role
from django_rmq_retry.core.drawing.shape import Edge, Node, Shape, Way

_ARROWS = {Way.BINDING: "-->", Way.DEAD_LETTER: "-.->", Way.COPY: "==>"}
_CLASSES = {
    Role.WAITING: "fill:#fdf3d0,stroke:#a67c00,color:#333",
    Role.SUSPECTS: "fill:#efe6f5,stroke:#6f4a8e,color:#333",
    Role.PARKED: "fill:#fbe3e0,stroke:#b3372a,color:#333",
    Role.WORK: "fill:#e2efe4,stroke:#2e7d3a,color:#333",
}


def mermaid(shape: Shape) -> str:
    """Solid arrows are bindings, dotted ones the broker's dead letters, thick ones the consumer's copies."""
    return "\n".join(_lines(shape))


def _lines(shape: Shape) -> Iterator[str]:
    ids = {key: f"n{number}" for number, key in enumerate(shape.nodes)}
    yield "flowchart LR"
    for key, node in shape.nodes.items():
        yield f"  {ids[key]}{_box(node)}"
    for edge in shape.edges:
        if edge.source in ids and edge.target in ids:
            yield f"  {ids[edge.source]} {_ARROWS[edge.way]}{_label(edge)} {ids[edge.target]}"
    for role, style in _CLASSES.items():
        members = [ids[key] for key, node in shape.nodes.items() if node.role is role]
        if members:
            yield f"  classDef {role.value} {style}"
            yield f"  class {','.join(members)} {role.value}"


def _box(node: Node) -> str:
    label = f'"{escaped(node.name)}<br/>{escaped(node.detail)}"'
    return f"{{{{{label}}}}}" if node.role is None else f"[{label}]"


def _label(edge: Edge) -> str:
    return f'|"{escaped(", ".join(edge.labels))}"|' if edge.labels else ""


def escaped(name: str) -> str:
    """Everything that could mean something to Mermaid or HTML as an entity code of Mermaid's."""
    return "".join(char if char.isalnum() or char in " ._-·,=:/" else f"#{ord(char)};" for char in name)

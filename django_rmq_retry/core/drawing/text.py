"""A topology in lines, for terminals and reviews."""

from collections.abc import Iterator

from django_rmq_retry.core.drawing.shape import Edge, Node, Shape, Way

_IN = {Way.BINDING: "←", Way.DEAD_LETTER: "⇠", Way.COPY: "⇐"}
_OUT = {Way.DEAD_LETTER: "⇢ dead letters to", Way.COPY: "⇒ copies to"}


def text(shape: Shape) -> str:
    """Exchanges and queues, each with what comes in and where it goes from there."""
    return "\n".join(_lines(shape))


def _lines(shape: Shape) -> Iterator[str]:
    for title, exchanges in (("Exchanges", True), ("Queues", False)):
        nodes = [node for node in shape.nodes.values() if (node.role is None) is exchanges]
        if not nodes:
            continue
        yield title
        width = max(len(node.name) for node in nodes)
        for node in nodes:
            yield f"  {node.name.ljust(width)}  {node.detail}"
            yield from (f"      {line}" for line in _ways(shape, node))


def _ways(shape: Shape, node: Node) -> Iterator[str]:
    for edge in shape.into(node):
        if edge.way is Way.BINDING:
            yield f"{_IN[edge.way]} {edge.source[1]}{_labels(edge)}"
    for edge in shape.out_of(node):
        if edge.way is not Way.BINDING:
            yield f"{_OUT[edge.way]} {edge.target[1]}{_labels(edge)}"


def _labels(edge: Edge) -> str:
    return f" by {', '.join(edge.labels)}" if edge.labels else ""

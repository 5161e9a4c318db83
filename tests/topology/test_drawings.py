"""Drawings: every name is inert, every way is drawn, nothing stands on anything else."""

from itertools import combinations
from xml.etree import ElementTree

import pytest

from django_rmq_retry import DeadLetter, Exchange, Queue, RetryThenPark, WaitQueue
from django_rmq_retry.handlers import Subscription, WorkQueue, work_queues_of
from django_rmq_retry.handlers.layout import copies_of, layout
from django_rmq_retry.policies import Policy
from django_rmq_retry.topology import BindingDeclaration, ExchangeDeclaration, QueueDeclaration, Role, Topology
from django_rmq_retry.topology.drawings import (
    EdgeKind,
    Shape,
    cells,
    definitions,
    duration,
    families,
    mermaid,
    svg,
    text,
)
from tests.handlers.factories import topology_of

HOSTILE = "<script>alert('1')</script>\"&\x1b[2J\x00|]]>"
SVG = "{http://www.w3.org/2000/svg}"
MAIN = Exchange("main", "direct")
EDGES = [
    (RetryThenPark(attempts=3), "work", ["work.retry.12s", "work.retry.36s", "work.parked"], []),
    (RetryThenPark(via=DeadLetter(exchange="again", queue="later", after=30)), "later", ["main"], ["again"]),
    (RetryThenPark(via=WaitQueue("again", "later")), "later", ["main"], ["again"]),
]


def shaped(policy: Policy, *more: Exchange | Queue) -> tuple[Shape, Topology]:
    queue = Queue("work", bindings=[MAIN.bind("a"), MAIN.bind("b")])
    found: tuple[WorkQueue, ...] = work_queues_of(
        [Subscription(name="h", run=lambda _: None, queue=queue, policy=policy, park="work.parked")]
    )
    return Shape.of(layout(found, extra=more), copies_of(found)), topology_of(*found[0].subscriptions, extra=more)


def tree(drawn: str) -> ElementTree.Element:
    return ElementTree.fromstring(drawn)  # noqa: S314  # our own


@pytest.mark.parametrize(("policy", "source", "targets", "into"), EDGES)
def test_the_paths_of_a_retry_are_drawn(policy: Policy, source: str, targets: list[str], into: list[str]) -> None:
    shape, _ = shaped(policy)
    found = {edge.target[1] for edge in shape.edges if edge.source[1] == source}

    assert found >= set(targets)
    assert {edge.source[1] for edge in shape.edges if edge.target[1] == source} >= set(into)


def test_bindings_between_one_pair_are_one_edge_with_all_keys() -> None:
    shape, _ = shaped(RetryThenPark())

    assert [edge.labels for edge in shape.edges if edge.kind is EdgeKind.BINDING] == [("a", "b")]


def test_an_exchange_and_a_queue_of_one_name_are_two_boxes() -> None:
    shape, _ = shaped(RetryThenPark(), Exchange("work", "fanout"))

    assert {(True, "work"), (False, "work")} <= set(shape.nodes)
    assert len(cells(shape)) == len(shape.nodes)


def test_no_two_boxes_stand_in_one_place() -> None:
    for policy, *_ in EDGES:
        shape, _ = shaped(policy, Exchange("lonely", "fanout"), Queue("other"))
        where = cells(shape)

        assert where.keys() == shape.nodes.keys()
        for one, other in combinations(where.values(), 2):
            assert one.column != other.column or abs(one.row - other.row) >= 1


def test_an_unconnected_exchange_is_drawn_apart() -> None:
    shape, _ = shaped(RetryThenPark(), Exchange("lonely", "fanout"))

    assert [len(family) for family in families(shape)] == [len(shape.nodes) - 1, 1]


def test_alternate_exchanges_and_ttl_dead_letters_are_drawn() -> None:
    rest = Exchange("rest", "fanout")
    delay = Queue("delay", message_ttl=90, arguments={"x-dead-letter-exchange": "rest"})
    shape = Shape.of(topology_of(extra=[rest, Exchange("all", "direct", alternate="rest"), delay]))

    assert {(edge.source[1], edge.target[1], edge.kind) for edge in shape.edges} == {
        ("all", "rest", EdgeKind.ALTERNATE),
        ("delay", "rest", EdgeKind.DEAD_LETTER),
    }
    assert shape.nodes[(False, "delay")].detail == "other · quorum · 90 s"
    assert "⇢ unroutable messages to rest" in text(shape)
    assert "--o" in mermaid(shape)
    assert 'class="edge alternate"' in svg(shape)
    assert "messages that no binding accepts" in svg(shape)
    assert "messages that no binding accepts" not in svg(shaped(RetryThenPark())[0])


@pytest.mark.parametrize(
    ("milliseconds", "said"),
    [(0, "0 ms"), (50, "50 ms"), (90_000, "90 s"), (120_000, "2 min"), (7_200_000, "2 h"), (86_400_000, "1 d")],
)
def test_durations_are_reported_in_the_largest_unit(milliseconds: int, said: str) -> None:
    assert duration(milliseconds) == said


def test_a_hostile_name_is_escaped_in_every_drawing() -> None:
    # A handler's names are refused at import; a declaration's may be the broker's.
    topology = Topology(
        exchanges={HOSTILE: ExchangeDeclaration(name=HOSTILE, type="topic")},
        queues={HOSTILE: QueueDeclaration(name=HOSTILE)},
        bindings=(BindingDeclaration(source=HOSTILE, destination=HOSTILE, key=HOSTILE),),
    )
    shape = Shape.of(topology)

    drawn = svg(shape, title=HOSTILE)

    tags = {element.tag.removeprefix(SVG) for element in tree(drawn).iter()}
    assert tags == {"svg", "title", "style", "defs", "marker", "path", "rect", "g", "text"}
    assert "<script" not in mermaid(shape)
    assert all(char.isprintable() or char == "\n" for char in drawn + mermaid(shape))
    assert definitions(topology)["queues"][0]["name"] == HOSTILE


def test_the_drawing_has_dark_and_light_colours_and_loads_nothing() -> None:
    drawn = svg(shaped(RetryThenPark())[0])

    assert "prefers-color-scheme: dark" in drawn
    assert drawn.count("http") == 1  # the name of SVG itself


@pytest.mark.parametrize("role", Role)
def test_every_role_has_a_colour_in_light_and_in_dark(role: Role) -> None:
    drawn = svg(Shape.of(Topology(queues={"q": QueueDeclaration(name="q", role=role)}), []))
    colour = "other" if role is Role.REPLY else role.value

    assert f"var(--{colour})" in drawn
    assert drawn.count(f"--{colour}: #") == 2


def test_an_empty_topology_is_drawn_all_the_same() -> None:
    empty = Shape.of(Topology())

    assert text(empty) == ""
    assert mermaid(empty) == "flowchart LR"
    assert tree(svg(empty)).tag == f"{SVG}svg"


def test_an_external_queue_has_the_paths_that_the_project_states_and_no_others() -> None:
    """Its dead letters were drawn to our parked queue, which nothing makes the queue of somebody else do."""
    stated = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "elsewhere"}
    theirs = [Queue("theirs", existing=True), Queue("known", existing=True, arguments=stated)]
    drawn = []
    for queue in theirs:
        found = work_queues_of(
            [Subscription(name="h", run=lambda _: None, queue=queue, policy=RetryThenPark(), park="work.parked")]
        )
        shape = Shape.of(layout(found, extra=[Queue("elsewhere")]), copies_of(found))
        drawn.append({(one.kind, one.target[1]) for one in shape.edges if one.source[1] == queue.name})
        assert f"  {queue.name}" in text(shape)
        assert "work · existing" in text(shape)

    assert {kind for kind, _target in drawn[0]} == {EdgeKind.COPY}
    assert (EdgeKind.DEAD_LETTER, "elsewhere") in drawn[1]


def test_definitions_leave_out_existing_queues_and_exchanges() -> None:
    theirs = Exchange("theirs", existing=True)
    told = definitions(
        topology_of(extra=[Queue("mine", bindings=[theirs.bind("k")]), Queue("not mine", existing=True)])
    )

    assert told["exchanges"] == []
    assert [one["name"] for one in told["queues"]] == ["mine"]
    assert [(one["source"], one["destination"]) for one in told["bindings"]] == [("theirs", "mine")]

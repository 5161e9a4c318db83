"""Declarations joined from parts, which may repeat but not contradict each other."""

import pytest

from django_rmq_retry import Exchange
from django_rmq_retry.errors import TopologyConflict
from django_rmq_retry.topology import BindingDeclaration, ExchangeDeclaration, QueueDeclaration, Role, Topology
from django_rmq_retry.topology.declarations import differences, exchanges_of

QUEUE = QueueDeclaration(name="q", role=Role.WORK, arguments={"x-queue-type": "quorum"})
BOUND = BindingDeclaration(source="e", destination="q", key="a")


def test_two_topologies_join_to_one_with_each_part_once() -> None:
    one = Topology(queues={"q": QUEUE}, bindings=(BOUND,))
    two = Topology(exchanges={"e": ExchangeDeclaration(name="e")}, queues={"q": QUEUE}, bindings=(BOUND,))
    both = one + two

    assert list(both) == [ExchangeDeclaration(name="e"), QUEUE, BOUND]
    assert both + both == both
    assert both.role("q") is Role.WORK


def test_joining_nothing_changes_nothing() -> None:
    one = Topology(queues={"q": QUEUE})

    assert one + Topology() == one
    assert Topology() + one == one


def test_a_conflict_names_each_differing_argument() -> None:
    other = QueueDeclaration(name="q", role=Role.WORK, arguments={"x-queue-type": "classic", "x-max-length": 5})
    with pytest.raises(TopologyConflict) as caught:
        _ = Topology(queues={"q": QUEUE}) + Topology(queues={"q": other})

    assert (caught.value.what, caught.value.name) == ("queue", "q")
    assert str(caught.value) == (
        "The queue 'q' is defined twice with different arguments: x-queue-type: 'quorum' in one place, 'classic' in "
        "another; "
        "x-max-length: None in one place, 5 in another. Define it once and use that object in both places."
    )


def test_bindings_with_different_arguments_are_two_bindings() -> None:
    one = BindingDeclaration(source="e", destination="q", arguments={"x-match": "all", "a": 1})
    two = BindingDeclaration(source="e", destination="q", arguments={"x-match": "all", "a": 2})

    assert (Topology(bindings=(one,)) + Topology(bindings=(two,))).bindings == (one, two)


def test_differences_are_reported_argument_by_argument() -> None:
    other = QueueDeclaration(name="q", role=Role.PARKED, arguments={"x-queue-type": "quorum", "x-expires": 5})

    assert differences(QUEUE, other) == {"role": (Role.WORK, Role.PARKED), "x-expires": (None, 5)}
    assert differences(QUEUE, QUEUE) == {}


def test_source_exchanges_are_declared_first() -> None:
    first = Exchange("first", "fanout")
    second = Exchange("second", "topic", bindings=[first.bind()])
    third = Exchange("third", "topic", bindings=[second.bind("a.#"), first.bind()])
    found = exchanges_of(third)

    assert sorted(found.exchanges) == ["first", "second", "third"]
    assert list(found.exchanges)[-1] == "third"
    assert [(bound.source, bound.destination, bound.key) for bound in found.bindings] == [
        ("first", "second", ""),
        ("second", "third", "a.#"),
        ("first", "third", ""),
    ]
    assert all(bound.to_exchange for bound in found.bindings)

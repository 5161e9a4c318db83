"""What the row of a process tells of the queues that it has given back."""

from collections.abc import Collection

import pytest
from django.db import OperationalError, connections

from django_rmq_retry.breakers.let_go import MOST_TOLD, LetGo
from django_rmq_retry.breakers.table import controls_alias
from django_rmq_retry.models import ConsumerProcess
from tests.admin import made

pytestmark = [pytest.mark.django_db, pytest.mark.database]


def told() -> object:
    return ConsumerProcess.objects.values_list("let_go", flat=True).get()


def test_what_is_left_of_stopped_queues_is_told_until_they_are_taken_again() -> None:
    left: dict[str, Collection[str] | None] = {"payments": None, "mails": set()}
    let_go, rows = LetGo("me", left_of=left.__getitem__), list[object]()
    let_go.look(left)
    made.consumer(name="me")
    let_go.look(left)
    rows.append(told())
    left["payments"] = {"b", "a"}
    let_go.look(left)
    rows.append(told())
    let_go.takes("mails")
    rows.append(told())
    left["payments"] = None
    let_go.look(["payments"])
    rows.append(told())

    both = {"mails": [], "payments": ["a", "b"]}
    assert rows == [{"mails": []}, both, {"payments": ["a", "b"]}, {}]


@pytest.mark.parametrize(("more", "names"), [(0, MOST_TOLD), (1, None)])
def test_of_too_many_messages_none_is_told(more: int, names: int | None) -> None:
    made.consumer(name="me")
    LetGo("me", left_of=lambda _queue: {f"{number}" for number in range(MOST_TOLD + more)}).look(["payments"])
    row = ConsumerProcess.objects.get()

    assert (len(row.let_go["payments"]) if row.let_go else None) == names


@pytest.mark.django_db(transaction=True)
def test_a_statement_that_failed_although_it_was_carried_out_is_taken_back() -> None:
    """The connection was lost before its answer: the row would tell that nothing is left while a handler runs."""
    made.consumer(name="me")
    let_go = LetGo("me", left_of=lambda _queue: set())

    def unanswered(execute: object, *query: object) -> None:
        assert callable(execute)
        execute(*query)
        raise OperationalError("the connection is lost")

    with connections[controls_alias()].execute_wrapper(unanswered), pytest.raises(OperationalError):
        let_go.look(["payments"])
    before = told()
    let_go.takes("payments")

    assert (before, told()) == ({"payments": []}, {})

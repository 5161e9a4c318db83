"""The counters of error groups."""

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_rmq_retry.models import ErrorGroup, State
from django_rmq_retry.models.parked import COUNTED_AS, COUNTERS
from django_rmq_retry.parked.groups import Origin, counted_origins, origins_of, recount
from tests.parked.made import group, parked

pytestmark = [pytest.mark.django_db, pytest.mark.database]


def counts(pk: int) -> list[int]:
    return [getattr(ErrorGroup.objects.get(pk=pk), name) for name in COUNTERS]


def test_each_state_has_a_counter() -> None:
    assert COUNTED_AS.keys() == set(State)
    assert set(COUNTED_AS.values()) == set(COUNTERS)


def test_a_state_change_moves_a_message_between_counters() -> None:
    bank = group(parked=3, processed=1)

    ErrorGroup.objects.count_moved(bank.pk, State.PARKED, State.REQUEUEING, 2)
    ErrorGroup.objects.count_moved(bank.pk, State.REQUEUEING, State.REQUEUED)

    assert counts(bank.pk) == [1, 2, 1, 0]

    ErrorGroup.objects.count_moved(bank.pk, None, State.PARKED)
    ErrorGroup.objects.count_moved(bank.pk, State.PROCESSED, None)

    assert counts(bank.pk) == [2, 2, 0, 0]


def test_a_wrong_counter_stops_at_zero() -> None:
    bank = group(parked=1)

    ErrorGroup.objects.count_moved(bank.pk, State.PARKED, State.DISCARDED, 3)

    assert counts(bank.pk) == [0, 0, 0, 3]


def test_deleted_messages_of_many_groups_are_subtracted(django_assert_num_queries: Any) -> None:
    bank, card, rest = group(processed=5, discarded=2), group(processed=3, discarded=4), group(processed=9)
    counted: dict[tuple[int, str], int] = {
        (bank.pk, State.PROCESSED): 2,
        (bank.pk, State.DISCARDED): 2,
        (card.pk, State.PROCESSED): 2,
    }
    first_write = not connection.features.has_select_for_update
    with django_assert_num_queries(3 + first_write):
        ErrorGroup.objects.count_deleted(counted)

    assert [counts(one.pk) for one in (bank, card, rest)] == [[0, 0, 3, 0], [0, 0, 1, 4], [0, 0, 9, 0]]


def test_a_recount_repairs_wrong_counters_and_returns_how_many() -> None:
    bank, card, rest = group(parked=7), group(requeued=1), group(discarded=4)
    parked(group=bank)
    parked(group=bank, state=State.ON_HOLD)
    parked(group=bank, state=State.PROCESSED)
    parked(group=card, state=State.REQUEUEING)

    assert recount([bank.pk, card.pk]) == 1
    assert [counts(one.pk) for one in (bank, card, rest)] == [[2, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 4]]

    assert recount() == 1
    assert counts(rest.pk) == [0, 0, 0, 0]


@pytest.mark.skipif(connection.vendor != "postgresql", reason="only PostgreSQL compiles queries")
def test_the_origins_of_a_page_of_groups_are_found_without_compiling_the_query() -> None:
    groups = [parked().group_id for _ in range(25)]
    with CaptureQueriesContext(connection) as queries:
        origins_of(groups)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE rmq_retry_errorgroup, rmq_retry_parkedmessage")
        cursor.execute(f"EXPLAIN (FORMAT JSON) {queries[0]['sql']}")
        (plan,) = cursor.fetchone()
        cursor.execute("SELECT current_setting('jit_above_cost')")
        (most,) = cursor.fetchone()

    assert plan[0]["Plan"]["Total Cost"] < float(most)


def test_the_origins_of_a_group_are_those_of_its_parked_messages() -> None:
    one, other, empty = group(), group(), group()
    for queue, handler in (("card", "pay"), ("card", "pay"), ("card", ""), ("transfer", "pay"), ("", "")):
        parked(group=one, queue=queue, handler=handler)
    parked(group=one, queue="sent", handler="pay", state=State.REQUEUED)
    parked(group=other, queue="transfer", handler="refund")

    assert origins_of([one.pk, other.pk, empty.pk]) == {
        one.pk: [Origin("", ""), Origin("card", ""), Origin("card", "pay"), Origin("transfer", "pay")],
        other.pk: [Origin("transfer", "refund")],
        empty.pk: [],
    }
    assert counted_origins(one.pk)[0] == (Origin("card", "pay"), 2)
    assert sum(count for _origin, count in counted_origins(one.pk)) == 5
    assert origins_of([]) == {}

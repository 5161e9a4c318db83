"""The counters of error groups."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_rmq_retry.models import ErrorGroup, ParkedMessage, ParkedMinute, ParkedOrigin, State
from django_rmq_retry.models.parked import COUNTED_AS, COUNTERS
from django_rmq_retry.parked import retention
from django_rmq_retry.parked.groups import (
    BUCKETS,
    Origin,
    count_minutes,
    minute_of,
    origins_of,
    parked_lately,
    recount,
)
from tests.parked.arrivals import by_us, store, the_group
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


def test_messages_of_many_groups_change_their_state_by_two_statements(django_assert_num_queries: Any) -> None:
    bank, card, rest = group(parked=5), group(parked=1, discarded=4), group(parked=9)
    counted: dict[tuple[int, str], int] = {
        (bank.pk, State.PARKED): 2,
        (bank.pk, State.ON_HOLD): 1,
        (card.pk, State.PARKED): 3,
        (card.pk, State.DISCARDED): 1,
    }
    first_write = not connection.features.has_select_for_update
    with django_assert_num_queries(2 + first_write):
        ErrorGroup.objects.count_all_moved(counted, State.DISCARDED)

    assert [counts(one.pk) for one in (bank, card, rest)] == [[2, 0, 0, 3], [0, 0, 0, 7], [9, 0, 0, 0]]


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


def test_a_recount_repairs_wrong_origins_of_a_group_that_is_right_otherwise() -> None:
    bank = group(parked=2)
    parked(group=bank, queue="card")
    parked(group=bank, queue="transfer")
    ParkedOrigin.objects.filter(queue="card").update(count=-4, handler="none")

    assert [recount(), recount()] == [1, 0]
    assert origins_of([bank.pk]) == {bank.pk: [Origin("card", ""), Origin("transfer", "")]}


def test_a_message_that_fails_in_another_handler_changes_its_origin() -> None:
    """It stays in its queue, and keeps its type."""
    store(by_us(at=milliseconds(ago(minutes=9)), handler="pay"))
    store(by_us(at=milliseconds(ago(minutes=1)), handler="refund"))

    [origin] = ParkedOrigin.objects.filter(count__gt=0)
    assert (origin.handler, origin.count, recount()) == ("refund", 1, 0)


def test_an_origin_that_counts_nothing_is_deleted_with_its_last_message() -> None:
    bank = group(parked=1, processed=1)
    parked(group=bank, queue="card")
    parked(group=bank, queue="transfer", state=State.PROCESSED, resolved_at=ago(days=9000))
    ParkedOrigin.objects.create(group=bank, queue="transfer", handler="", type="", count=0)
    retention.delete_old()

    assert [origin.queue for origin in ParkedOrigin.objects.all()] == ["card"]


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
    assert origins_of([]) == {}


def milliseconds(at: datetime) -> int:
    return int(at.timestamp() * 1000)


def ago(**span: int) -> datetime:
    return timezone.now() - timedelta(**span)


def test_messages_are_counted_in_the_minute_in_which_they_were_parked() -> None:
    store(*(by_us(id=f"m-{number}", at=milliseconds(ago(minutes=30))) for number in range(3)))
    store(by_us(id="m-3", at=milliseconds(ago(minutes=30))), by_us(id="m-4", at=milliseconds(ago(minutes=2))))
    lately = parked_lately([the_group().pk])

    counts = lately.counts[the_group().pk]
    assert (sum(counts), counts[-1], lately.newest[the_group().pk]) == (5, 1, 1)
    assert sum(counts[-5:-2]) == 4
    assert len(counts) == len(lately.starts) == BUCKETS
    assert {at.second for at in lately.starts} == {0}


def test_a_message_that_is_parked_again_is_counted_both_times() -> None:
    store(by_us(at=milliseconds(ago(minutes=50))))
    ParkedMessage.objects.update(state=State.PROCESSED, resolved_at=ago(minutes=40))
    store(by_us(at=milliseconds(ago(minutes=1))))

    assert sum(parked_lately([the_group().pk]).counts[the_group().pk]) == 2


def test_another_copy_of_a_parked_message_is_no_message_that_failed_again() -> None:
    """Live status told six that had failed again: a worker's death had left a second copy of five."""
    store(by_us(at=milliseconds(ago(minutes=50))))
    store(by_us(at=milliseconds(ago(minutes=1))))

    assert sum(parked_lately([the_group().pk]).counts[the_group().pk]) == 1
    assert not ParkedMinute.objects.filter(new=False).exists()
    assert the_group().last_seen > ago(minutes=2)


def test_a_trend_reads_no_message() -> None:
    groups = [parked().group_id for _ in range(3)]
    with CaptureQueriesContext(connection) as queries:
        parked_lately(groups[:2])

    assert ["parkedmessage" in query["sql"] for query in queries if query["sql"].startswith("SELECT")] == [False]


def test_minutes_that_no_trend_shows_are_deleted() -> None:
    store(by_us(id="m-1", at=milliseconds(ago(minutes=1))))
    count_minutes([(the_group().pk, minute_of(ago(hours=5)), True, 7)], using="default")
    store(by_us(id="m-2", at=milliseconds(ago(hours=6))), by_us(id="m-3", at=milliseconds(ago(minutes=3))))
    retention.delete_old()

    left = ParkedMinute.objects.filter(group=the_group()).order_by("minute")
    assert [row.count for row in left] == [1, 1]


def test_a_count_of_the_same_minute_is_added() -> None:
    one, other, at = group().pk, group().pk, minute_of(timezone.now())
    count_minutes([(one, at, True, 2), (other, at, True, 1)], using="default")
    count_minutes([(one, at, True, 3)], using="default")

    assert list(ParkedMinute.objects.order_by("group").values_list("group", "minute", "count")) == [
        (one, at, 5),
        (other, at, 1),
    ]

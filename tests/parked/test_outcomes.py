"""Outcomes of requeued copies."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from django_rmq_retry.models import ErrorGroup, ItemState, ParkedMessage, RequeueItem, RequeueRun, State
from django_rmq_retry.models.parked import COUNTERS
from django_rmq_retry.parked.groups import recount
from tests.parked.made import copy_failed, copy_succeeded, group, item, minutes, parked
from tests.tooling.marks import nightly_on_sqlite

pytestmark = [pytest.mark.django_db, pytest.mark.database]
COUNTED = {State.PARKED: "parked", State.ON_HOLD: "parked", State.PROCESSED: "processed", State.DISCARDED: "discarded"}


def record(state: State = State.REQUEUED, **told: Any) -> ParkedMessage:
    """In its second cycle, in a group of its own that counts it."""
    return parked(state=state, cycle=2, group=group(**{COUNTED.get(state, "requeued"): 1}), **told)


def after(known: ParkedMessage, *, at: float = 10, cycle: int = 2) -> ParkedMessage:
    """The record after a copy of a cycle has succeeded, this number of minutes after noon."""
    copy_succeeded(known.pk, cycle, at=minutes(at))
    return ParkedMessage.objects.get(pk=known.pk)


def counts(known: ParkedMessage) -> list[int]:
    found = ErrorGroup.objects.get(pk=known.group_id)
    return [getattr(found, name) for name in COUNTERS]


def run_of(known: RequeueItem) -> tuple[int, int, int, int]:
    run = RequeueRun.objects.get(pk=known.run_id)
    return run.sent, run.processed, run.failed, run.unconfirmed


@pytest.mark.parametrize("state", [State.REQUEUED, State.REQUEUEING, State.PARKED, State.ON_HOLD])
def test_a_success_closes_its_record(state: State) -> None:
    held = {"held_until": minutes(12), "hold_reason": "bank"}
    found = after(record(state, claimed_until=minutes(11), unconfirmed=True, **held))

    assert (found.state, found.resolved_at, found.succeeded_at) == (State.PROCESSED, minutes(10), minutes(10))
    assert (found.unconfirmed, found.claimed_until, found.held_until, found.hold_reason) == (False, None, None, "")
    assert (found.revision, counts(found)) == (2, [0, 0, 1, 0])


@pytest.mark.parametrize("state", [State.REQUEUED, State.REQUEUEING])
def test_a_clock_that_differs_does_not_keep_a_record_open(state: State) -> None:
    assert after(record(state, parked_at=minutes(60))).state == State.PROCESSED


@pytest.mark.parametrize("state", [State.PARKED, State.ON_HOLD])
def test_a_success_older_than_the_newest_failure_only_sets_its_time(state: State) -> None:
    found = after(record(state, parked_at=minutes(11)))

    assert (found.state, found.succeeded_at, found.resolved_at) == (state, minutes(10), None)
    assert counts(found) == [1, 0, 0, 0]
    # It is counted as one of those that were handled already.
    assert recount() == 0


def test_an_unconfirmed_copy_that_succeeds_closes_its_record_despite_clocks() -> None:
    assert after(record(State.PARKED, parked_at=minutes(11), unconfirmed=True)).state == State.PROCESSED


@pytest.mark.parametrize("state", list(State))
def test_a_success_of_an_older_cycle_only_sets_its_time(state: State) -> None:
    found = after(record(state), cycle=1)

    assert (found.state, found.succeeded_at, found.resolved_at) == (state, minutes(10), None)


@pytest.mark.parametrize("state", [State.PROCESSED, State.DISCARDED])
def test_a_resolved_record_stays_as_it_was_resolved(state: State) -> None:
    found = after(record(state, resolved_at=minutes(5)))

    assert (found.state, found.resolved_at, found.succeeded_at) == (state, minutes(5), minutes(10))


def test_a_success_reported_twice_changes_nothing() -> None:
    known = record()
    place = item(known)
    first = after(known)

    second = after(known)

    assert first.revision == second.revision
    assert (counts(second), run_of(place)) == ([0, 0, 1, 0], (1, 1, 0, 0))


def test_the_latest_success_is_kept() -> None:
    known = record(State.DISCARDED)

    assert after(known, at=10).succeeded_at == minutes(10)
    assert after(known, at=5).succeeded_at == minutes(10)
    assert after(known, at=20).succeeded_at == minutes(20)


def test_an_outcome_for_a_deleted_record_is_ignored() -> None:
    copy_succeeded(10**6, 1, at=minutes(1))
    copy_failed(10**6, 1, at=minutes(1))

    assert not ParkedMessage.objects.exists()


@pytest.mark.parametrize(
    ("before", "counted"),
    [
        (ItemState.CLAIMED, (2, 1, 0, 0)),
        (ItemState.SENT, (1, 1, 0, 0)),
        (ItemState.UNCONFIRMED, (2, 1, 0, 0)),
        (ItemState.FAILED, (1, 1, 0, 0)),
    ],
)
def test_a_success_counts_its_item_as_processed_once(before: ItemState, counted: tuple[int, ...]) -> None:
    known = record()
    place = item(known, state=before)
    RequeueRun.objects.update(failed=before == ItemState.FAILED, unconfirmed=before == ItemState.UNCONFIRMED)

    after(known)
    found = RequeueItem.objects.get()

    assert (found.state, found.ended_at, run_of(place)) == (ItemState.PROCESSED, minutes(10), counted)


def twice_in(place: RequeueItem) -> int:
    return RequeueRun.objects.get(pk=place.run_id).handled_twice


def test_a_run_counts_each_message_that_was_handled_again_once() -> None:
    known, other = record(), record()
    run = item(known).run
    place, once, older = item(other, run=run), item(other, cycle=1), item(known, cycle=1)
    seen = []

    for at in (1, 2, 2, 3):
        after(known, at=at)
        seen.append(twice_in(place))
    after(other, at=4)

    assert seen == [0, 1, 1, 1]
    assert [twice_in(one) for one in (place, once, older)] == [1, 0, 0]
    assert RequeueItem.objects.get(run=run, message=known).handled == 3


@pytest.mark.parametrize(("then", "counted"), [([], (0, 1)), ([False], (1, 0)), ([True, True], (1, 0))])
def test_a_run_counts_what_was_delivered_before_as_a_doubt_until_it_is_known(
    then: list[bool], counted: tuple[int, int]
) -> None:
    """A worker was killed after the bank had the money: "finished, 120 processed", and one was paid twice."""
    place = item(known := record())

    for at, redelivered in enumerate([True, *then], 1):
        copy_succeeded(known.pk, at=minutes(at), redelivered=redelivered)
    run = RequeueRun.objects.get(pk=place.run_id)

    assert (run.handled_twice, run.perhaps_twice) == counted


def test_an_outcome_noted_again_after_an_unconfirmed_commit_is_no_second_handling() -> None:
    place = item(known := record())

    for at in (1, 2, 1, 2):
        after(known, at=at)

    assert (twice_in(place), RequeueItem.objects.get().handled) == (1, 2)


def test_a_delivery_that_did_nothing_is_no_second_handling() -> None:
    place = item(known := record())

    after(known, at=1)
    copy_succeeded(known.pk, at=minutes(2), handled=False)
    found = ParkedMessage.objects.get()

    assert (found.succeeded_at, found.state, twice_in(place)) == (minutes(1), State.PROCESSED, 0)


def test_a_second_handling_counts_although_the_first_one_closed_nothing() -> None:
    place = item(known := record(State.PARKED, parked_at=minutes(30)), state=ItemState.FAILED)

    after(known, at=10)
    after(known, at=20)

    assert (ParkedMessage.objects.get().state, twice_in(place)) == (State.PARKED, 1)


def test_items_of_other_cycles_and_messages_do_not_change() -> None:
    known, other = record(), record()
    mine, older, others = item(known), item(known, cycle=1), item(other)
    left_out, pending = item(known, state=ItemState.SKIPPED), item(known, state=ItemState.PENDING)

    after(known)
    found = {place.pk: place.state for place in RequeueItem.objects.all()}

    assert [found[place.pk] for place in (mine, older, others, left_out, pending)] == [
        *(ItemState.PROCESSED, ItemState.SENT, ItemState.SENT, ItemState.SKIPPED, ItemState.PENDING)
    ]


def test_a_late_success_is_counted_in_the_run_that_sent_it() -> None:
    known = record()
    waits, fell = item(known, cycle=1), item(known, cycle=1, state=ItemState.FAILED)

    after(known, cycle=1)

    assert RequeueItem.objects.get(pk=waits.pk).state == ItemState.PROCESSED
    assert RequeueItem.objects.get(pk=fell.pk).state == ItemState.FAILED
    assert ParkedMessage.objects.get().state == State.REQUEUED


@pytest.mark.parametrize("state", [State.REQUEUED, State.REQUEUEING])
def test_a_copy_that_fails_without_being_parked_reopens_its_record(state: State) -> None:
    known = record(state, claimed_until=minutes(11))
    place = item(known)

    copy_failed(known.pk, at=minutes(10))
    found = ParkedMessage.objects.get()

    assert (found.state, found.error, found.error_text, found.parked_at) == (
        *(State.PARKED, "BankDown", "no answer", minutes(10)),
    )
    assert (found.claimed_until, found.revision) == (None, 2)
    assert (counts(found), ErrorGroup.objects.get().failed_again) == ([1, 0, 0, 0], 1)
    assert (RequeueItem.objects.get().state, run_of(place)) == (ItemState.FAILED, (1, 0, 1, 0))


@pytest.mark.parametrize(("state", "cycle"), [(State.REQUEUED, 1), (State.PROCESSED, 2), (State.PARKED, 2)])
def test_an_older_failure_changes_no_record(state: State, cycle: int) -> None:
    known = record(state)

    copy_failed(known.pk, cycle, at=minutes(10))
    found = ParkedMessage.objects.get()

    assert (found.state, found.error, found.revision) == (state, "", 1)


steps = st.tuples(
    st.sampled_from([copy_succeeded, copy_failed]),
    st.integers(0, 3),
    st.integers(0, 3),
    st.integers(-5, 5),
)
starts = st.lists(
    st.tuples(st.sampled_from(list(State)), st.integers(1, 2), st.sampled_from(list(ItemState)), st.integers(0, 1)),
    min_size=1,
    max_size=4,
)


@nightly_on_sqlite
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(starts=starts, acts=st.lists(steps, max_size=12))
def test_counters_match_a_recount_after_any_outcomes(
    starts: list[tuple[State, int, ItemState, int]], acts: list[tuple[Callable[..., None], int, int, int]]
) -> None:
    groups = [group(), group()]
    run = RequeueRun.objects.create(created_at=minutes(0), by="ann", total=len(starts))
    known = [parked(state=state, cycle=cycle, group=groups[which]) for state, cycle, _, which in starts]
    for message, (_, _, state, _) in zip(known, starts, strict=True):
        item(message, run=run, state=state)
    recount([one.pk for one in groups])
    set_counts(run)

    for act, which, cycle, at in acts:
        act(known[which % len(known)].pk, cycle, at=minutes(at))

    assert recount([one.pk for one in groups]) == 0
    assert counted(run) == counts_kept(run)


def counted(run: RequeueRun) -> list[int]:
    states = list(RequeueItem.objects.filter(run=run).values_list("state", flat=True))
    found = [states.count(state) for state in (ItemState.PROCESSED, ItemState.FAILED, ItemState.UNCONFIRMED)]
    return [*found, states.count(ItemState.SENT) + found[0] + found[1]]


def counts_kept(run: RequeueRun) -> list[int]:
    run.refresh_from_db()
    return [run.processed, run.failed, run.unconfirmed, run.sent]


def set_counts(run: RequeueRun) -> None:
    processed, failed_, unconfirmed, sent = counted(run)
    RequeueRun.objects.filter(pk=run.pk).update(processed=processed, failed=failed_, unconfirmed=unconfirmed, sent=sent)

"""Discard, restore, hold, release and notes: what changes, what is counted, and what the audit log says of it."""

from datetime import timedelta

import pytest
from django.utils import timezone

from django_rmq_retry.models import OperatorAction, ParkedMessage, State
from django_rmq_retry.parked import actions
from django_rmq_retry.parked.actions import Done, discard, hold, restore, unhold, unhold_due
from django_rmq_retry.parked.operators import NothingChosen, Outdated, Refused
from django_rmq_retry.parked.retention import purge
from django_rmq_retry.parked.selection import Selection
from tests.operators.invariants import check_books, check_counters
from tests.operators.made import ANN, again, group_of, record

pytestmark = [pytest.mark.django_db, pytest.mark.database]
HOUR = timedelta(hours=1)


def chosen(*messages: ParkedMessage) -> Selection:
    return Selection.of_ids([one.pk for one in messages])


def acts() -> list[tuple[str, str, int]]:
    return [(one.action, one.reason, one.count) for one in OperatorAction.objects.order_by("number")]


def test_a_discarded_message_can_be_restored() -> None:
    one = record()

    assert discard(chosen(one), ANN, category="duplicate") == Done(changed=1)
    assert (again(one).state, again(one).resolution, group_of(one).discarded) == (State.DISCARDED, "duplicate", 1)
    assert restore(chosen(one), ANN, reason="it was none") == Done(changed=1)
    assert (again(one).state, again(one).resolution, again(one).resolved_at) == (State.PARKED, "duplicate", None)
    assert acts() == [("discard", "duplicate", 1), ("restore", "it was none", 1)]
    check_counters()


def test_a_large_discard_is_committed_and_logged_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actions, "MESSAGES_AT_ONCE", 2)
    for _ in range(5):
        record()

    assert discard(Selection.of_filter({"state": ["parked"]}), ANN, category="test").changed == 5
    assert [count for _verb, _reason, count in acts()] == [2, 2, 1]
    check_books()


def test_a_selection_that_has_grown_is_refused() -> None:
    one = record()
    frozen = Selection.of_filter({"state": ["parked"]})
    two = record(parked_at=one.parked_at)
    wider = Selection(filter=frozen.filter, max_id=two.pk, as_of=frozen.as_of, count=frozen.count)

    with pytest.raises(Outdated):
        discard(wider, ANN, category="test")
    with pytest.raises(NothingChosen):
        discard(Selection.of_ids([10**6]), ANN, category="test")


def test_a_hold_expires_and_the_message_is_parked_again() -> None:
    one, two = record(), record()
    hold(chosen(one, two), ANN, until=timezone.now() + HOUR, reason="bank is closed")
    ParkedMessage.objects.filter(pk=one.pk).update(held_until=timezone.now())

    assert (again(one).state, again(one).hold_reason, group_of(one).parked) == (State.ON_HOLD, "bank is closed", 2)
    assert unhold_due() == 1
    assert (again(one).state, again(one).held_until, again(two).state) == (State.PARKED, None, State.ON_HOLD)
    assert unhold(chosen(two), ANN) == Done(changed=1)
    check_counters()


def old(state: State, *, days: int) -> ParkedMessage:
    return record(state=state, resolved_at=timezone.now() - timedelta(days=days))


def test_purge_deletes_only_messages_resolved_before_the_limit() -> None:
    parked, young = record(parked_at=timezone.now() - timedelta(days=999)), old(State.PROCESSED, days=1)
    old(State.PROCESSED, days=91)
    old(State.DISCARDED, days=91)

    assert purge(ANN, older_than=timedelta(days=90)).counts == {"processed": 1, "discarded": 1}
    assert ParkedMessage.objects.count() == 4
    assert purge(ANN, older_than=timedelta(days=90), dry=False, batch=1, rest=0).total == 2
    assert set(ParkedMessage.objects.values_list("pk", flat=True)) == {parked.pk, young.pk}
    check_counters()


def test_purge_refuses_open_messages_of_any_age() -> None:
    for state in ("parked", "on_hold", "requeueing", "requeued"):
        with pytest.raises(Refused, match="are kept, whatever their age"):
            purge(ANN, older_than=timedelta(0), states=[state], dry=False)

"""What was chosen by a filter was promised: what leaves it before the button is pressed is named and not sent."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from django_rmq_retry.models import ItemReason, ParkedMessage, RequeueRun, State
from django_rmq_retry.parked.actions import discard, unhold_due
from django_rmq_retry.parked.approvals import approve
from django_rmq_retry.parked.operators import Actor, NothingChosen
from django_rmq_retry.parked.selection import Selection
from tests.operators.driving import Clock, Targets
from tests.operators.made import (
    BOB,
    again,
    discard_messages,
    driver_of,
    hold_messages,
    list_in_parts,
    record,
    requeue_run,
    restore_messages,
    unhold_messages,
)
from tests.operators.second_person import asked, needing_second_person

pytestmark = [pytest.mark.django_db, pytest.mark.database]
PARKED = {"state": ["parked"]}
Act = Callable[[list[int]], Any]


def resend(numbers: list[int]) -> None:
    """Another operator's run is sending them."""
    # By the database's clock, of which this process knows no more than about what it is.
    later = timezone.now() + timedelta(seconds=1)
    ParkedMessage.objects.filter(pk__in=numbers).update(state=State.REQUEUED, requeued_at=later, cycle=1, revision=9)


def fail_again(numbers: list[int]) -> None:
    """Another operator's run has sent them, and they were parked again."""
    later = timezone.now() + timedelta(seconds=1)
    changes: dict[str, Any] = {"requeued_at": later, "parked_at": later, "cycle": 1, "revision": 9}
    ParkedMessage.objects.filter(pk__in=numbers).update(**changes)


LEAVING: list[tuple[Act, str]] = [
    (discard_messages, ItemReason.RESOLVED),
    (hold_messages, ItemReason.ON_HOLD),
    (resend, ItemReason.SENT_BEFORE),
    (fail_again, ItemReason.SENT_BEFORE),
]
each_way = pytest.mark.parametrize(("leave", "why"), LEAVING, ids=["discarded", "held", "sent", "sent and failed"])


def listed(run: RequeueRun) -> dict[int, str]:
    """The messages of a run after its driver has listed them, each with why it is left out."""
    driver = driver_of(run, clock=Clock(), targets=Targets())
    run.refresh_from_db()
    while run.listing:
        driver.step()
        run.refresh_from_db()
    return dict(run.items.values_list("message_id", "skip_code"))


@pytest.mark.parametrize("part", [0, 2], ids=["at once", "by its driver"])
@each_way
def test_a_run_names_what_left_its_filter_after_the_preview(
    leave: Act, why: str, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if part:
        list_in_parts(monkeypatch, part, at_once=1)
    some = [record() for _ in range(6)]
    shown = Selection.of_filter(PARKED)
    leave([some[2].pk])
    run = requeue_run(shown, reason="the bank is back")

    assert listed(run) == {one.pk: why if one is some[2] else "" for one in some}
    assert (run.total, run.skipped, run.unsent) == (6, 1, 5)
    assert run.causes == [[some[0].group_id, 6]]


def test_nothing_that_left_is_sent_if_it_comes_back_before_the_run_has_listed_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    list_in_parts(monkeypatch, 2, at_once=1)
    some = [record() for _ in range(6)]
    shown = Selection.of_filter(PARKED)
    discard_messages([some[2].pk])
    run = requeue_run(shown, reason="the bank is back")
    restore_messages([some[2].pk])

    assert listed(run)[some[2].pk] == ItemReason.RESOLVED
    assert (run.total, run.skipped, run.unsent) == (6, 1, 5)


def end_hold(one: ParkedMessage) -> None:
    ParkedMessage.objects.filter(pk=one.pk).update(held_until=timezone.now() - timedelta(minutes=1))
    unhold_due()


CLOSED: list[tuple[Act, Callable[[ParkedMessage], Any]]] = [
    (discard_messages, lambda one: restore_messages([one.pk])),
    (hold_messages, lambda one: unhold_messages([one.pk])),
    (hold_messages, end_hold),
]


@pytest.mark.parametrize("part", [0, 2], ids=["at once", "by its driver"])
@pytest.mark.parametrize(("close", "reopen"), CLOSED, ids=["discarded", "held", "held until now"])
def test_what_was_closed_during_the_preview_is_not_sent_in_place_of_what_left(
    close: Act, reopen: Callable[[ParkedMessage], Any], part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The count was the one of the preview, so nothing told that one of the payments was another one."""
    if part:
        list_in_parts(monkeypatch, part, at_once=1)
    some = [record() for _ in range(6)]
    close([some[0].pk])
    shown = Selection.of_filter(PARKED)
    discard_messages([some[2].pk])
    reopen(some[0])
    run = requeue_run(shown, reason="the bank is back")

    assert again(some[0]).state == State.PARKED
    assert listed(run) == {one.pk: ItemReason.RESOLVED if one is some[2] else "" for one in some[1:]}
    assert (run.total, run.skipped, run.unsent) == (5, 1, 4)
    assert Selection.of_filter(PARKED).count == 5


def test_what_was_restored_during_the_preview_of_a_discard_is_not_discarded_in_place_of_what_left() -> None:
    some = [record() for _ in range(4)]
    discard_messages([some[0].pk])
    shown = Selection.of_filter(PARKED)
    hold_messages([some[2].pk])
    restore_messages([some[0].pk])
    discard(shown, BOB, category="test")

    assert [again(one).state for one in some] == ["parked", "discarded", "on_hold", "discarded"]


def test_a_run_does_not_name_what_was_not_shown_in_the_preview() -> None:
    """It was on hold when the others were chosen: which of the two had left cannot be told, so neither is named."""
    some = [record() for _ in range(3)]
    hold_messages([some[0].pk])
    shown = Selection.of_filter(PARKED)
    discard_messages([some[0].pk])
    before = requeue_run(shown)
    discard_messages([some[1].pk])
    after = requeue_run(shown, include=["under_way"])

    assert listed(before) == {some[1].pk: "", some[2].pk: ""}
    assert (listed(after), after.total, after.skipped) == ({some[2].pk: ""}, 2, 1)


def test_a_filter_that_nothing_is_left_of_starts_no_run() -> None:
    one = record()
    shown = Selection.of_filter(PARKED)
    discard_messages([one.pk])

    with pytest.raises(NothingChosen):
        requeue_run(shown)
    assert not RequeueRun.objects.exists()


@pytest.mark.parametrize("leave", [leave for leave, _why in LEAVING])
def test_a_request_has_what_left_its_filter_after_the_preview_and_never_sends_it(
    leave: Act, ann: Actor, bob: Actor, settings: Any
) -> None:
    needing_second_person(settings)
    some = [record() for _ in range(6)]
    shown = Selection.of_filter(PARKED)
    leave([some[2].pk])
    request = asked(lambda actor: requeue_run(shown, actor, reason="the bank is back"), ann)
    if again(some[2]).state == State.DISCARDED:
        restore_messages([some[2].pk])
    approve(request.pk, bob)
    run = RequeueRun.objects.get()
    codes = dict(run.items.values_list("message_id", "skip_code"))

    assert (request.count, run.total, run.unsent) == (6, 6, 5)
    assert [pk for pk, code in codes.items() if code] == [some[2].pk]

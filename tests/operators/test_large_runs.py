"""Large runs: started at once, and listed and skipped part by part by their driver."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry.models import (
    ItemReason,
    ItemState,
    OperatorAction,
    ParkedMessage,
    RequeueRun,
    RunState,
    RunWait,
    State,
)
from django_rmq_retry.parked.actions import discard, restore
from django_rmq_retry.parked.run_driver import undriven
from django_rmq_retry.parked.selection import Selection
from tests.operators.made import (
    BOB,
    QUEUE,
    again,
    claimed_of,
    drive_run,
    driver_of,
    list_in_parts,
    list_part_of,
    pause_run,
    record,
    requeue_run,
    resume_run,
    stop_run,
)

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]
PARKED = {"state": ["parked"]}


@pytest.fixture(autouse=True)
def parts(monkeypatch: pytest.MonkeyPatch) -> None:
    list_in_parts(monkeypatch, 3, at_once=3)


def started(count: int = 8, **options: Any) -> RequeueRun:
    for _ in range(count):
        record()
    return begun(**options)


def begun(**options: Any) -> RequeueRun:
    return requeue_run(Selection.of_filter(PARKED), **{"rate": 1000, **options})


def now(run: RequeueRun) -> RequeueRun:
    return RequeueRun.objects.get(pk=run.pk)


def a_part(run: RequeueRun) -> None:
    RequeueRun.objects.filter(pk=run.pk).update(driver="me")
    list_part_of(run)


def all_parts(run: RequeueRun) -> RequeueRun:
    while now(run).listing:
        a_part(run)
    return now(run)


def listed(run: RequeueRun) -> list[int]:
    return list(run.items.order_by("place").values_list("message_id", flat=True))


class TestStart:
    def test_a_small_requeue_run_is_listed_at_once(self) -> None:
        run = started(3)

        assert (run.items.count(), run.listing, run.wait) == (3, False, "")

    def test_a_large_requeue_run_is_counted_at_once_and_listed_later(self) -> None:
        run = started(4)
        act = OperatorAction.objects.get()

        assert (run.items.count(), run.total, run.state, run.wait) == (0, 4, RunState.RUNNING, RunWait.LISTING)
        assert (act.count, act.run, "left_out" in act.facts, "listing" in act.facts["selection"]) == (
            4, run.pk, False, False,
        )  # fmt: skip

    def test_messages_selected_by_id_are_listed_at_once(self) -> None:
        run = requeue_run([record().pk for _ in range(5)])

        assert run.items.count() == 5


class TestListing:
    @pytest.mark.usefixtures("wired")
    def test_the_driver_lists_a_large_run_and_sends_the_oldest_first(self) -> None:
        run = started(8)
        oldest = record(parked_at=timezone.now() - timedelta(days=1))
        run = drive_run(begun())

        assert listed(run) == [
            oldest.pk,
            *ParkedMessage.objects.exclude(pk=oldest.pk).order_by("pk").values_list("pk", flat=True),
        ]
        assert (run.total, run.sent, run.wait, run.listing) == (9, 9, "", False)

    @pytest.mark.parametrize("count", [4, 5, 6, 7])
    def test_the_last_part_of_a_listing_may_be_full_or_partial(self, count: int) -> None:
        run = all_parts(started(count))

        assert list(run.items.order_by("place").values_list("place", flat=True)) == list(range(1, count + 1))

    def test_messages_parked_at_the_same_moment_are_all_listed(self) -> None:
        at = timezone.now() - timedelta(minutes=1)
        several = [record(parked_at=at).pk for _ in range(8)]
        run = begun()
        a_part(run)

        assert listed(run) == several[:3]
        assert listed(all_parts(run)) == several

    def test_messages_parked_after_the_start_are_not_listed(self) -> None:
        run = started(8)
        a_part(run)
        late = {record().pk, record(parked_at=timezone.now() - timedelta(days=1)).pk}

        assert late.isdisjoint(listed(all_parts(run)))
        assert now(run).total == 8

    def test_messages_discarded_before_they_are_listed_are_left_out(self) -> None:
        run = started(8)
        a_part(run)
        gone = ParkedMessage.objects.order_by("-pk")[0]
        ParkedMessage.objects.filter(pk=gone.pk).update(state=State.DISCARDED)
        run = all_parts(run)

        assert gone.pk not in listed(run)
        assert (run.total, run.skipped, run.unsent, OperatorAction.objects.get().count) == (8, 1, 7, 8)

    def test_a_message_parked_again_during_the_listing_is_listed_once(self) -> None:
        run = started(8)
        a_part(run)
        first, last = run.items.get(place=1).message, ParkedMessage.objects.order_by("-pk")[0]
        ParkedMessage.objects.filter(pk=first.pk).update(parked_at=last.parked_at)
        run = all_parts(run)

        assert (sorted(listed(run)), run.total) == (sorted(ParkedMessage.objects.values_list("pk", flat=True)), 8)

    def test_a_run_lists_at_most_the_counted_number_of_messages(self) -> None:
        closed = [record(state=State.DISCARDED).pk for _ in range(4)]
        run = started(8)
        a_part(run)
        ParkedMessage.objects.filter(pk__in=closed).update(
            state=State.PARKED, parked_at=ParkedMessage.objects.order_by("-pk")[0].parked_at
        )

        assert (all_parts(run).total, run.items.count()) == (8, 8)

    def test_a_later_listing_applies_the_terms_of_the_start(self) -> None:
        doubtful = [record(unconfirmed=True).pk for _ in range(2)]
        careful, bold = started(6), begun(include=["unconfirmed", "under_way"])
        careful, bold = all_parts(careful), all_parts(bold)

        assert (
            sorted(careful.items.filter(skip_code=ItemReason.UNCONFIRMED).values_list("message_id", flat=True))
            == doubtful
        )
        assert (careful.skipped, bold.skipped) == (2, 0)

    @pytest.mark.usefixtures("wired")
    def test_a_message_changed_after_its_listing_is_skipped(self) -> None:
        run = all_parts(started(5))
        ParkedMessage.objects.filter(pk=run.items.get(place=4).message_id).update(revision=9)
        run = drive_run(run, "me")

        assert (run.items.get(place=4).skip_code, run.sent, run.skipped) == (ItemReason.CHANGED, 4, 1)

    @pytest.mark.usefixtures("wired")
    def test_a_restored_message_is_not_sent_before_somebody_requeues_it(self) -> None:
        """The page that restores it says so; a run that had listed it before the discard sends it no more."""
        run = all_parts(started(5))
        one = Selection.of_ids([run.items.get(place=4).message_id])
        discard(one, BOB, category="duplicate")
        restore(Selection.of_ids(one.revisions), BOB, reason="it was none")
        run = drive_run(run, "me")

        assert (run.items.get(place=4).skip_code, run.sent, run.skipped) == (ItemReason.CHANGED, 4, 1)
        assert one.queryset().get().state == State.PARKED

    def test_listing_needs_no_broker(self, away: None) -> None:
        run = started(8, planned=True)
        while run.listing:
            run = drive_run(run, outcomes=True, for_seconds=2)

        assert (run.items.count(), run.state, run.wait) == (8, RunState.PLANNED, RunWait.BROKER_AWAY)

    def test_only_the_driver_of_a_run_lists_it(self) -> None:
        run = started(8)
        RequeueRun.objects.filter(pk=run.pk).update(driver="other")
        list_part_of(run)

        assert run.items.count() == 0

    @pytest.mark.usefixtures("wired")
    def test_a_paused_run_is_listed_after_it_resumes(self) -> None:
        run = started(8)
        a_part(run)
        pause_run(run, BOB, reason="look first")
        assert (undriven(5), drive_run(run, outcomes=True).items.count()) == ([], 3)
        a_part(run)
        assert run.items.count() == 3
        resume_run(run, BOB)

        assert drive_run(run).sent == 8


class TestStop:
    def test_a_run_stopped_during_its_listing_lists_no_more_messages(self, wired: BlockingChannel) -> None:
        run = started(8)
        a_part(run)
        stopped = stop_run(run, BOB, reason="wrong ones")
        a_part(run)
        run = drive_run(run, outcomes=True)

        assert (stopped.state, stopped.total, stopped.skipped, stopped.listing) == (RunState.STOPPED, 8, 8, False)
        assert (run.items.count(), wired.queue_declare(QUEUE, passive=True).method.message_count) == (3, 0)
        assert [act.count for act in OperatorAction.objects.order_by("number")] == [8, 8]

    def test_a_run_stopped_before_its_listing_has_left_all_out_and_is_finished(self) -> None:
        run = stop_run(started(8))

        assert (run.state, run.total, run.skipped, run.unsent) == (RunState.STOPPED, 8, 8, 0)
        assert run.finished_at is not None

    def test_stopping_a_large_run_skips_one_part_at_once_and_its_driver_the_rest(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        list_in_parts(monkeypatch, 3, at_once=3, patience=-1.0)
        run = all_parts(started(8))
        run = stop_run(run, reason="wrong ones")
        assert (run.state, run.skipped, run.finished_at, undriven(5)) == (RunState.STOPPED, 3, None, [run.pk])
        assert claimed_of(run, state=ItemState.PENDING) == []
        one = driver_of(run, "next")
        one.step()
        assert (now(run).skipped, now(run).finished_at) == (6, None)
        run = drive_run(run, "next", outcomes=True)

        assert (run.skipped, run.total, run.note, undriven(5)) == (8, 8, "wrong ones", [])
        assert run.finished_at is not None
        assert set(run.items.values_list("state", "skip_code")) == {(ItemState.SKIPPED, ItemReason.STOPPED)}
        assert {again(one.message).state for one in run.items.all()} == {State.PARKED}

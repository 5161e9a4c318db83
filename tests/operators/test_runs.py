"""Runs: rate, guards, first messages, keys and depths; who drives them, and what is left when one is killed."""

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.utils import timezone
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry.amqp import CONFIRMED
from django_rmq_retry.amqp.contracts import Cause, unanswered
from django_rmq_retry.models import (
    Action,
    ConsumerProcess,
    ItemReason,
    ItemState,
    OperatorAction,
    ParkedMessage,
    QueueControl,
    RequeueItem,
    RequeueRun,
    RunState,
    RunWait,
    State,
)
from django_rmq_retry.parked import copies, item_sender
from django_rmq_retry.parked.claims import Claim, ClaimResult, claim, end_expired_claims, store_results
from django_rmq_retry.parked.lease import RUN_LEASE
from django_rmq_retry.parked.next_items import queue_of_test
from django_rmq_retry.parked.operators import Outdated, Refused
from django_rmq_retry.parked.pace import RunPace
from django_rmq_retry.parked.run_steering import change_rate, pause_run, resume_run, stop_run
from django_rmq_retry.parked.run_steps import RunSteps
from tests.admin.made import consumer
from tests.operators.driving import Clock, Targets
from tests.operators.invariants import check_counters
from tests.operators.made import ANN, BOB, QUEUE, again, claimed_of, drive_run, driver_of, record, requeue_run
from tests.parked.made import copy_failed, copy_succeeded
from tests.tooling.brokers import change_broker
from tests.tooling.marks import nightly_on_sqlite
from tests.tooling.proxy import Mode, proxy_to
from tests.tooling.waiting import wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]


def started(count: int = 1, *, key: Callable[[int], str] = lambda _: "", **options: Any) -> RequeueRun:
    messages = [record(key=key(number)) for number in range(count)]
    return requeue_run([one.pk for one in messages], **{"reason": "x", **options})


def now(run: RequeueRun) -> RequeueRun:
    return RequeueRun.objects.get(pk=run.pk)


def depth(amqp: BlockingChannel) -> int:
    return int(amqp.queue_declare(QUEUE, passive=True).method.message_count)


def states(run: RequeueRun) -> list[str]:
    return list(run.items.order_by("place").values_list("state", flat=True))


def outcome(run: RequeueRun, place: int, *, good: bool) -> None:
    """Report the consumer's result for the message at this place."""
    item = run.items.get(place=place)
    (copy_succeeded if good else copy_failed)(item.message_id, item.cycle)


def outcomes(run: RequeueRun, places: range, *, good: bool) -> None:
    for place in places:
        outcome(run, place, good=good)


def stepped(one: RunSteps, clock: Clock, times: int = 1) -> None:
    """Drive a run for so many seconds."""
    for _ in range(times):
        one.step()
        clock.now += 1


def held_for(run: RequeueRun, *, minutes: int) -> None:
    """The run has waited for its first outcomes for so long."""
    RequeueRun.objects.filter(pk=run.pk).update(held_at=timezone.now() - timedelta(minutes=minutes))


def test_a_run_never_has_more_outcomes_than_sent_messages() -> None:
    run = started(3)
    RequeueRun.objects.update(driver="me", state=RunState.RUNNING)
    claims = claimed_of(run)
    outcome(run, 1, good=True)
    outcome(run, 2, good=False)
    early = now(run)
    store_results(run.pk, [ClaimResult(claim=one, result=CONFIRMED) for one in claims])
    late = now(run)

    assert (early.sent, early.processed, early.failed) == (2, 1, 1)
    assert (late.sent, late.processed, late.failed) == (3, 1, 1)


def page_sends(run: RequeueRun) -> None:
    """A request of the run's page, which drives it for one step."""
    one = driver_of(run, "page", targets=Targets())
    one.step()
    one.end()


class TestRate:
    @pytest.mark.parametrize("rate", [0.5, 3.0, 20.0, 333.0])
    def test_the_rate_holds_whatever_the_length_of_the_steps(self, rate: float) -> None:
        clock = Clock()
        pace, sent = RunPace(clock), 0
        for step in range(600):
            room = pace.room(rate)
            pace.spend(room)
            sent += room
            clock.now += 0.03 if step % 2 else 0.17

        assert rate * 60 * 0.9 <= sent <= rate * 60 * 1.1 + 1

    def test_the_rate_does_not_catch_up_after_a_pause(self) -> None:
        clock = Clock()
        pace = RunPace(clock)
        pace.room(20)
        clock.now += 1000

        assert pace.room(20) == 20

    def test_each_slice_is_as_large_as_the_rate_allows(self, wired: BlockingChannel) -> None:
        run, clock = started(30, rate=20), Clock()
        one = driver_of(run, clock=clock, targets=Targets())
        one.step()
        assert depth(wired) == 1
        clock.now += 0.5
        one.step()

        assert depth(wired) == 11
        assert now(run).sent == 11

    def test_the_pace_goes_on_from_one_driver_to_the_next(self, wired: BlockingChannel) -> None:
        run = started(60, rate=20, stop_at=None)
        page_sends(run)
        RequeueRun.objects.update(paced_at=timezone.now() - timedelta(seconds=1))
        page_sends(run)

        assert depth(wired) == 21

    def test_a_new_driver_does_not_send_before_the_rate_allows_it(self, wired: BlockingChannel) -> None:
        run = started(60, rate=0.01)
        RequeueRun.objects.update(paced_at=timezone.now())
        for _ in range(3):
            page_sends(run)

        assert depth(wired) == 1

    @pytest.mark.usefixtures("wired")
    def test_a_slow_run_keeps_its_driver_and_its_rate(self) -> None:
        run, clock, waits = started(2, rate=0.05), Clock(), list[float]()
        one = driver_of(run, clock=clock, targets=Targets())
        while now(run).sent < 2 and len(waits) < 10:
            wait = one.step()
            assert wait is not None
            waits.append(wait)
            clock.now += wait

        assert max(waits) < RUN_LEASE.total_seconds()
        assert sum(waits[:-1]) >= 20 - 1e-6


class TestSteering:
    @pytest.mark.usefixtures("wired")
    def test_a_stopped_run_leaves_the_rest_parked_and_still_counts_outcomes(self) -> None:
        run, clock = started(2), Clock()
        driver_of(run, clock=clock, targets=Targets()).step()
        stop_run(run.pk, BOB, reason="wrong ones")
        outcome(run, 1, good=True)

        assert states(run) == ["processed", "skipped"]
        assert (now(run).state, now(run).skipped, now(run).processed) == (RunState.STOPPED, 1, 1)
        assert run.items.get(place=2).skip_code == ItemReason.STOPPED
        assert ParkedMessage.objects.filter(state=State.PARKED).count() == 1

    def test_a_stop_counts_what_it_holds_back_without_what_is_being_sent(self) -> None:
        """The audit log had 102 messages of a run that left 100 out: two were just being sent."""
        run = started(3)
        run.items.filter(place=1).update(state=ItemState.CLAIMED)
        stop_run(run.pk, BOB, reason="wrong ones")

        assert OperatorAction.objects.get(action=Action.STOP).count == 2

    def test_a_finished_run_cannot_be_paused_resumed_or_stopped(self) -> None:
        run = started()
        stop_run(run.pk, ANN)

        for act in (pause_run, resume_run, stop_run):
            with pytest.raises(Outdated, match="has another state now: Stopped"):
                act(run.pk, ANN)
        with pytest.raises(Refused, match="a number above 0"):
            change_rate(started().pk, ANN, rate=0)

    def test_a_new_rate_applies_from_the_next_slice(self) -> None:
        run = started()

        assert change_rate(run.pk, ANN, rate=5).rate == 5
        facts: Any = OperatorAction.objects.get(action="slow").facts
        assert facts == {"before": {"rate": 20.0}, "after": {"rate": 5.0}}


class TestTimes:
    @pytest.mark.usefixtures("wired")
    def test_the_sent_time_of_an_item_is_the_requeued_time_of_its_message(self) -> None:
        run = started(2, rate=100)
        driver_of(run, clock=Clock(), targets=Targets()).step()
        item = RequeueItem.objects.filter(run=run, state="sent").select_related("message").get()

        assert item.sent_at == item.message.requeued_at


class TestGuards:
    @pytest.fixture(autouse=True)
    def worker(self) -> ConsumerProcess:
        """A consumer of this project, which tells outcomes."""
        return consumer(queues=[QUEUE])

    @pytest.mark.usefixtures("wired")
    def test_the_guard_pauses_a_run_when_too_many_copies_fail_again(self) -> None:
        other = started(8, rate=100)
        clock = Clock()
        one = driver_of(other, clock=clock, targets=Targets())
        one.step()
        clock.now += 0.05
        one.step()
        for place in range(1, 6):
            outcome(other, place, good=place > 2)
        clock.now += 1
        one.step()

        assert (now(other).state, now(other).wait) == (RunState.PAUSED, RunWait.GUARD)
        assert states(other)[6:] == ["pending", "pending"]

    @pytest.mark.usefixtures("wired")
    def test_a_fast_run_sends_no_more_than_twenty_before_it_has_outcomes(self) -> None:
        run, clock = started(30, rate=1000), Clock()
        one = driver_of(run, clock=clock, targets=Targets())
        stepped(one, clock, 4)
        before = now(run)
        outcomes(run, range(1, 5), good=True)
        stepped(one, clock)
        held = now(run)
        outcome(run, 5, good=True)
        stepped(one, clock)

        assert (before.sent, before.wait, held.sent, held.wait) == (
            20,
            RunWait.OUTCOMES_WAIT,
            20,
            RunWait.OUTCOMES_WAIT,
        )
        assert (now(run).sent, now(run).wait, now(run).paced_sent) == (30, "", 20)

    @pytest.mark.usefixtures("wired")
    def test_a_fast_run_whose_first_messages_fail_again_leaves_the_rest_unsent(self) -> None:
        run, clock = started(30, rate=1000), Clock()
        one = driver_of(run, clock=clock, targets=Targets())
        stepped(one, clock, 3)
        outcomes(run, range(1, 4), good=True)
        outcomes(run, range(4, 6), good=False)
        stepped(one, clock)

        assert (now(run).state, now(run).wait, now(run).sent) == (RunState.PAUSED, RunWait.GUARD, 20)

    @pytest.mark.usefixtures("wired")
    @pytest.mark.parametrize(("count", "limit"), [(20, 20), (30, None)])
    def test_a_small_run_and_one_without_a_guard_wait_for_no_outcome(self, count: int, limit: float | None) -> None:
        run, clock = started(count, rate=1000, stop_at=limit), Clock()
        stepped(driver_of(run, clock=clock, targets=Targets()), clock, 3)

        assert (now(run).sent, now(run).state) == (count, RunState.WAITING)

    @pytest.mark.usefixtures("wired")
    def test_the_next_driver_of_a_run_sends_no_twenty_of_its_own(self) -> None:
        run = started(30, rate=1000)
        for name in ("one", "two"):
            clock = Clock()
            driver = driver_of(run, name, clock=clock, targets=Targets())
            stepped(driver, clock, 3)
            driver.end()

        assert (now(run).sent, now(run).wait) == (20, RunWait.OUTCOMES_WAIT)

    @pytest.mark.usefixtures("wired")
    def test_a_run_whose_first_messages_nobody_reads_waits_for_a_consumer(self) -> None:
        run, clock, targets = started(30, rate=1000), Clock(), Targets()
        targets.consumers = 0
        one = driver_of(run, clock=clock, targets=targets)
        stepped(one, clock, 3)
        held_for(run, minutes=10)
        stepped(one, clock)
        without = now(run)
        targets.consumers = 1
        stepped(one, clock, 2)
        with_one = now(run)

        assert (without.state, without.wait) == (RunState.RUNNING, RunWait.NO_CONSUMER)
        assert (with_one.state, with_one.wait) == (RunState.RUNNING, RunWait.OUTCOMES_WAIT)

    @pytest.mark.usefixtures("wired")
    @pytest.mark.parametrize("queues", [[], ["mail"]])
    def test_programs_that_are_not_ours_get_all_of_a_run(self, worker: ConsumerProcess, queues: list[str]) -> None:
        """They never tell an outcome: of what went back to a hand-written loop, or to Celery, twenty were sent."""
        ConsumerProcess.objects.filter(pk=worker.pk).update(queues=queues)
        run, clock = started(30, rate=1000), Clock()
        one = driver_of(run, clock=clock, targets=Targets())
        stepped(one, clock, 3)
        held_for(run, minutes=1)
        stepped(one, clock, 2)

        assert (now(run).sent, now(run).wait) == (30, "")

    @pytest.mark.usefixtures("wired")
    def test_a_run_whose_first_messages_have_no_outcome_in_time_pauses_until_an_operator_goes_on(self) -> None:
        run, clock = started(30, rate=1000), Clock()
        one = driver_of(run, clock=clock, targets=Targets())
        stepped(one, clock, 3)
        held_for(run, minutes=6)
        stepped(one, clock)
        paused = now(run)
        resume_run(run.pk, ANN)
        stepped(one, clock)

        assert (paused.state, paused.wait, paused.sent) == (RunState.PAUSED, RunWait.OUTCOMES_SILENT, 20)
        assert (now(run).sent, now(run).state) == (30, RunState.RUNNING)

    @pytest.mark.usefixtures("wired")
    def test_slow_handlers_keep_a_run_waiting_and_do_not_pause_it(self) -> None:
        run, clock = started(30, rate=1000), Clock()
        one = driver_of(run, clock=clock, targets=Targets())
        stepped(one, clock, 3)
        outcome(run, 1, good=True)
        held_for(run, minutes=6)
        stepped(one, clock)

        assert (now(run).state, now(run).wait) == (RunState.RUNNING, RunWait.OUTCOMES_WAIT)

    @pytest.mark.usefixtures("wired")
    def test_an_outage_while_a_run_waits_for_outcomes_does_not_pause_it(self) -> None:
        run, clock, targets = started(30, rate=1000), Clock(), Targets()
        one = driver_of(run, clock=clock, targets=targets)
        stepped(one, clock, 3)
        held_for(run, minutes=6)
        targets.reachable = False
        stepped(one, clock)
        away = now(run).wait
        targets.reachable = True
        stepped(one, clock, 2)

        assert away == RunWait.BROKER_AWAY
        assert (now(run).state, now(run).wait) == (RunState.RUNNING, RunWait.OUTCOMES_WAIT)

    @pytest.mark.usefixtures("wired")
    def test_an_operator_can_send_the_rest_without_waiting_for_outcomes(self) -> None:
        run, clock = started(30, rate=1000), Clock()
        one = driver_of(run, clock=clock, targets=Targets())
        stepped(one, clock, 3)
        resume_run(run.pk, ANN)
        stepped(one, clock)

        assert (now(run).sent, now(run).wait) == (30, "")
        with pytest.raises(Outdated):
            resume_run(run.pk, ANN)

    @pytest.mark.usefixtures("wired")
    @pytest.mark.parametrize("limit", [None, 100])
    def test_a_guard_that_is_switched_off_pauses_no_run(self, limit: float | None) -> None:
        run, clock = started(8, rate=100, stop_at=limit), Clock()
        one = driver_of(run, clock=clock, targets=Targets())
        one.step()
        clock.now += 0.05
        one.step()
        for place in range(1, 6):
            outcome(run, place, good=False)
        clock.now += 1
        one.step()

        assert (run.stop_at, now(run).state) == (None, RunState.RUNNING)
        assert states(run)[6:] == ["sent", "sent"]

    @nightly_on_sqlite
    @pytest.mark.usefixtures("wired")
    def test_the_guard_pauses_a_resumed_run_again_on_new_failures(self) -> None:
        run, clock = started(500, stop_at=20, rate=100), Clock()
        one = driver_of(run, clock=clock, targets=Targets())
        one.step()
        clock.now += 0.05
        one.step()
        for place in range(1, 6):
            outcome(run, place, good=place > 2)
        clock.now += 1
        one.step()
        assert (now(run).state, now(run).wait) == (RunState.PAUSED, RunWait.GUARD)
        resume_run(run.pk, ANN, reason="tested")
        one.step()
        clock.now += 1
        one.step()
        for place in range(7, 12):
            outcome(run, place, good=place > 8)
        one.step()

        assert states(run)[6:11] == ["failed", "failed", "processed", "processed", "processed"]
        assert (now(run).state, now(run).wait) == (RunState.PAUSED, RunWait.GUARD)

    @pytest.mark.usefixtures("wired")
    def test_the_run_sends_the_rest_after_its_first_message_succeeds(self) -> None:
        run, clock = started(3, canary=True, rate=100), Clock()
        one = driver_of(run, clock=clock, targets=Targets())
        for _ in range(3):
            one.step()
            clock.now += 1
        assert states(run) == ["sent", "pending", "pending"]
        assert now(run).wait == RunWait.CANARY_WAITS
        outcome(run, 1, good=True)
        one.step()

        assert states(run) == ["processed", "sent", "sent"]
        assert now(run).wait == ""

    @pytest.mark.usefixtures("wired")
    def test_the_run_pauses_after_its_first_message_fails(self) -> None:
        run, clock = started(3, canary=True, rate=100), Clock()
        one = driver_of(run, clock=clock, targets=Targets())
        one.step()
        outcome(run, 1, good=False)
        clock.now += 1
        one.step()
        assert (now(run).state, now(run).wait) == (RunState.PAUSED, RunWait.CANARY_FAILED)
        resume_run(run.pk, ANN, reason="looked into")
        drive_run(run)

        assert states(run) == ["failed", "sent", "sent"]

    @pytest.mark.usefixtures("wired")
    def test_after_a_failed_canary_another_one_is_sent_alone_and_the_rest_after_it_succeeds(self) -> None:
        run, clock = started(4, canary=True, rate=100), Clock()
        one = driver_of(run, clock=clock, targets=Targets())
        one.step()
        outcome(run, 1, good=False)
        clock.now += 1
        one.step()
        resume_run(run.pk, ANN, canary=True)
        for _ in range(3):
            one.step()
            clock.now += 1
        assert (states(run), now(run).wait) == (["failed", "sent", "pending", "pending"], RunWait.CANARY_WAITS)
        outcome(run, 2, good=True)
        one.step()

        assert states(run) == ["failed", "processed", "sent", "sent"]
        assert (now(run).wait, now(run).canary_since) == ("", None)

    @pytest.mark.usefixtures("wired")
    def test_after_a_failure_one_of_the_queue_in_which_most_failed_is_the_next_canary(self) -> None:
        """All transfers had failed. A card was sent as the test, and succeeded: all transfers would have followed."""
        run, clock = (
            started(6, canary=True, rate=100, key=lambda number: f"PAY-{number % 2}" * (number in (2, 4))),
            Clock(),
        )
        of_other = run.items.filter(place__in=(2, 3)).values("message")
        ParkedMessage.objects.filter(pk__in=of_other).update(queue="cards")
        one = driver_of(run, clock=clock, targets=Targets())
        one.step()
        outcome(run, 1, good=False)
        clock.now += 1
        one.step()
        resume_run(run.pk, ANN, canary=True)
        one.step()

        assert queue_of_test(now(run)) == QUEUE
        # The fifth waits for the third, which has its key.
        assert states(run) == ["failed", "pending", "pending", "sent", "pending", "pending"]
        outcome(run, 4, good=False)
        clock.now += 1
        one.step()
        resume_run(run.pk, ANN, canary=True)
        one.step()
        assert states(run) == ["failed", "pending", "pending", "failed", "pending", "sent"]

    @pytest.mark.usefixtures("wired")
    def test_another_canary_that_fails_pauses_the_run_again(self) -> None:
        run, clock = started(4, canary=True, rate=100), Clock()
        one = driver_of(run, clock=clock, targets=Targets())
        for place in (1, 2):
            one.step()
            outcome(run, place, good=False)
            clock.now += 1
            one.step()
            assert (now(run).state, now(run).wait) == (RunState.PAUSED, RunWait.CANARY_FAILED)
            resume_run(run.pk, ANN, canary=True)
        one.step()
        assert states(run) == ["failed", "failed", "sent", "pending"]
        pause_run(run.pk, ANN)
        resume_run(run.pk, ANN)
        clock.now += 1
        one.step()
        assert now(run).wait == RunWait.CANARY_WAITS

    @pytest.mark.usefixtures("wired")
    def test_the_late_success_of_a_silent_canary_does_not_answer_for_the_next_one(self) -> None:
        run, clock = started(3, canary=True, rate=100), Clock()
        one = driver_of(run, clock=clock, targets=Targets())
        one.step()
        RequeueItem.objects.filter(state=ItemState.SENT).update(sent_at=timezone.now() - timedelta(seconds=61))
        clock.now += 1
        one.step()
        assert now(run).wait == RunWait.CANARY_SILENT
        resume_run(run.pk, ANN, canary=True)
        one.step()
        outcome(run, 1, good=True)
        clock.now += 1
        one.step()

        assert (states(run), now(run).wait) == (["processed", "sent", "pending"], RunWait.CANARY_WAITS)

    @pytest.mark.usefixtures("wired")
    def test_a_run_that_its_guard_paused_can_send_one_before_the_rest(self) -> None:
        run, clock = started(9, rate=100), Clock()
        one = driver_of(run, clock=clock, targets=Targets())
        one.step()
        clock.now += 0.05
        one.step()
        for place in range(1, 6):
            outcome(run, place, good=place > 2)
        clock.now += 1
        one.step()
        assert now(run).wait == RunWait.GUARD
        resume_run(run.pk, ANN, canary=True)
        for _ in range(2):
            one.step()
            clock.now += 1
        assert states(run)[6:] == ["sent", "pending", "pending"]
        outcome(run, 6, good=True)
        one.step()
        assert states(run)[6:] == ["sent", "pending", "pending"]
        outcome(run, 7, good=True)
        one.step()
        [pause] = now(run).guard_pauses or []

        assert states(run)[6:] == ["processed", "sent", "sent"]
        assert (pause["failed"], pause["ended"], pause["tested"] > pause["at"]) == (2, 5, True)

    @pytest.mark.usefixtures("wired")
    @pytest.mark.parametrize("canary", [True, False], ids=["with another one", "without"])
    def test_the_guard_counts_no_canary_that_failed_before_the_resume(self, *, canary: bool) -> None:
        """The first message that was processed again had the run paused: "4 of 5 failed again"."""
        run, clock = started(9, canary=True, rate=100), Clock()
        one = driver_of(run, clock=clock, targets=Targets())
        for place in range(1, 5):
            stepped(one, clock)
            outcome(run, place, good=False)
            stepped(one, clock)
            assert now(run).wait == RunWait.CANARY_FAILED
            resume_run(run.pk, ANN, canary=canary or place < 4, reason="looked into")
        stepped(one, clock)
        outcome(run, 5, good=True)
        stepped(one, clock, 2)

        assert (now(run).sent, now(run).state, now(run).wait) == (9, RunState.WAITING, "")

    @pytest.mark.usefixtures("wired")
    def test_the_guard_waits_for_the_canary_whatever_becomes_of_what_was_sent_before(self) -> None:
        run, clock = started(30, rate=1000), Clock()
        one = driver_of(run, clock=clock, targets=Targets())
        stepped(one, clock, 3)
        outcomes(run, range(1, 6), good=False)
        stepped(one, clock)
        assert now(run).wait == RunWait.GUARD
        resume_run(run.pk, ANN, canary=True)
        stepped(one, clock)
        outcomes(run, range(6, 16), good=False)
        stepped(one, clock)
        waiting = now(run)
        outcome(run, 21, good=True)
        stepped(one, clock)

        assert (waiting.sent, waiting.state, waiting.wait) == (21, RunState.RUNNING, RunWait.CANARY_WAITS)
        assert (now(run).sent, now(run).state, now(run).guarded_outcomes) == (30, RunState.RUNNING, (0, 0))

    @pytest.mark.usefixtures("wired")
    def test_a_run_of_which_all_is_sent_is_not_paused(self) -> None:
        """It asked an operator whether to send the other 0 messages."""
        run, clock = started(6, rate=100), Clock()
        one = driver_of(run, clock=clock, targets=Targets())
        one.step()
        clock.now += 0.05
        one.step()
        before = now(run)
        outcomes(run, range(1, 6), good=False)
        stepped(one, clock)
        waiting = now(run).state
        outcome(run, 6, good=False)
        stepped(one, clock)

        assert (before.sent, before.state, waiting) == (6, RunState.RUNNING, RunState.WAITING)
        assert (now(run).state, now(run).failed, now(run).wait) == (RunState.FINISHED, 6, "")

    @pytest.mark.usefixtures("wired")
    def test_a_canary_that_is_the_last_one_pauses_nothing(self) -> None:
        run, clock = started(1, canary=True), Clock()
        one = driver_of(run, clock=clock, targets=Targets())
        stepped(one, clock)
        outcome(run, 1, good=False)
        stepped(one, clock)

        assert (now(run).state, now(run).failed, now(run).wait) == (RunState.FINISHED, 1, "")

    @pytest.mark.usefixtures("wired")
    def test_a_run_resumed_without_another_canary_sends_the_rest(self) -> None:
        run, clock = started(3, canary=True, rate=100), Clock()
        one = driver_of(run, clock=clock, targets=Targets())
        for place in (1, 2):
            one.step()
            outcome(run, place, good=False)
            clock.now += 1
            one.step()
            resume_run(run.pk, ANN, canary=place == 1, reason="looked into")
        one.step()

        assert states(run) == ["failed", "failed", "sent"]

    @pytest.mark.usefixtures("wired")
    def test_an_operators_note_and_the_drivers_code_are_separate(self) -> None:
        run = started(9, stop_at=20, rate=1)
        noted = pause_run(run.pk, ANN, reason="look first")
        resume_run(run.pk, ANN)
        one = driver_of(run, targets=Targets())
        one.step()
        RequeueRun.objects.filter(pk=run.pk).update(failed=5)
        one.step()

        assert (noted.note, noted.wait, noted.explanation) == ("look first", "", "look first")
        assert (now(run).note, now(run).wait) == ("", "guard")

    @pytest.mark.usefixtures("wired")
    def test_the_run_pauses_if_its_first_message_has_no_outcome_in_time(self) -> None:
        run, clock = started(2, canary=True), Clock()
        one = driver_of(run, clock=clock, targets=Targets())
        one.step()
        RequeueItem.objects.filter(state=ItemState.SENT).update(sent_at=timezone.now() - timedelta(seconds=61))
        clock.now += 1
        one.step()

        assert (now(run).state, now(run).wait) == (RunState.PAUSED, RunWait.CANARY_SILENT)

    @pytest.mark.usefixtures("wired")
    @pytest.mark.parametrize("stop", [{"paused": True}, {"opened": True}], ids=["paused", "breaker open"])
    def test_the_minute_of_a_first_message_in_a_stopped_queue_begins_with_its_end(self, stop: dict[str, Any]) -> None:
        """The run paused itself, and asked its operator to check a message that a colleague's pause held."""
        run, clock = started(2, canary=True), Clock()
        one = driver_of(run, clock=clock, targets=Targets())
        one.step()
        control = QueueControl.objects.create(queue=QUEUE, **stop)
        RequeueItem.objects.filter(state=ItemState.SENT).update(sent_at=timezone.now() - timedelta(minutes=9))
        stepped(one, clock)
        control.delete()
        stepped(one, clock)
        assert (now(run).state, now(run).wait) == (RunState.RUNNING, RunWait.CANARY_WAITS)

        RequeueRun.objects.update(held_at=timezone.now() - timedelta(seconds=61))
        stepped(one, clock)
        assert (now(run).state, now(run).wait) == (RunState.PAUSED, RunWait.CANARY_SILENT)

    @pytest.mark.usefixtures("wired")
    def test_the_measured_rate_ignores_the_wait_for_the_first_message(self) -> None:
        run, clock = started(3, canary=True), Clock()
        one = driver_of(run, clock=clock, targets=Targets())
        for _ in range(2):
            one.step()
            clock.now += 1
        waited = now(run)
        RequeueRun.objects.update(paced_at=timezone.now() - timedelta(seconds=50))
        outcome(run, 1, good=True)
        one.step()
        after = now(run)

        assert waited.wait == RunWait.CANARY_WAITS
        assert after.paced_at is not None
        assert after.paced_at > timezone.now() - timedelta(seconds=40)
        assert (after.paced_sent, after.sent > 1, after.wait) == (1, True, "")

    @pytest.mark.usefixtures("wired")
    def test_the_measured_rate_ignores_a_standstill(self) -> None:
        run, clock = started(3, rate=1), Clock()
        driver_of(run, "killed", clock=clock, targets=Targets()).step()
        past = timezone.now() - timedelta(minutes=5)
        RequeueRun.objects.update(beat_at=past, paced_at=past, leased_until=past)
        driver_of(run, clock=clock, targets=Targets()).step()
        after = now(run)

        assert after.paced_at is not None
        assert (after.paced_at > past, after.paced_sent, after.sent) == (True, 1, 2)

    @pytest.mark.usefixtures("wired")
    def test_the_measured_rate_forgets_what_was_long_ago(self) -> None:
        run, past = started(3, rate=1), timezone.now() - timedelta(minutes=5)
        one = driver_of(run, clock=Clock(), targets=Targets())
        one.step()
        RequeueRun.objects.update(paced_at=past, sent=100)
        one.step()
        after = now(run)

        assert after.paced_at is not None
        assert (after.paced_at > past, after.paced_sent) == (True, 50)


class TestKeys:
    @pytest.mark.usefixtures("wired")
    def test_a_message_waits_for_the_outcome_of_the_previous_one_of_its_key(self) -> None:
        run, clock = started(4, key=lambda number: f"payment:{number % 2}", rate=100), Clock()
        one = driver_of(run, clock=clock, targets=Targets())
        for _ in range(3):
            one.step()
            clock.now += 1
        assert states(run) == ["sent", "sent", "pending", "pending"]
        assert now(run).wait == RunWait.KEYS_WAIT
        outcome(run, 1, good=True)
        outcome(run, 2, good=False)
        one.step()

        assert states(run) == ["processed", "failed", "sent", "skipped"]
        assert run.items.get(place=4).skip_code == ItemReason.KEY_FAILED

    @pytest.mark.usefixtures("wired")
    def test_a_run_that_sends_as_outcomes_come_keeps_its_reason_while_some_wait(self) -> None:
        """Between two outcomes it was noted four times a second that it sends, and that it sends nothing."""
        run, clock = started(3, key=lambda _: "payment:7", rate=100), Clock()
        one = driver_of(run, clock=clock, targets=Targets())
        stepped(one, clock, 2)
        first, at = now(run), timezone.now()
        outcome(run, 1, good=True)
        stepped(one, clock)
        second = now(run)
        outcome(run, 2, good=True)
        stepped(one, clock)

        assert (first.sent, first.wait, first.idle_since(at)) == (1, RunWait.KEYS_WAIT, None)
        assert first.idle_since(at + timedelta(seconds=11)) is not None
        assert (second.sent, second.wait) == (2, RunWait.KEYS_WAIT)
        assert (now(run).sent, now(run).wait) == (3, "")

    @pytest.mark.usefixtures("wired")
    def test_included_duplicates_do_not_wait_for_each_other(self) -> None:
        run = started(3, key=lambda _: "payment:7", rate=100, include=["duplicates"])
        drive_run(run)

        assert states(run) == ["sent", "sent", "sent"]


class TestTargets:
    @pytest.mark.usefixtures("wired")
    def test_a_run_waits_while_the_queue_is_deep(self) -> None:
        run, clock, targets = started(5, max_depth=3, rate=100), Clock(), Targets(2)
        one = driver_of(run, clock=clock, targets=targets)
        for _ in range(3):
            clock.now += 1
            one.step()
        full, at = now(run), timezone.now()
        targets.depth = 2
        clock.now += 1
        one.step()
        filled = now(run)
        targets.depth = 0
        clock.now += 1
        one.step()

        assert (full.sent, full.wait, full.idle_since(at)) == (2, RunWait.QUEUE_DEEP, None)
        assert full.idle_since(at + timedelta(seconds=11)) is not None
        assert (filled.sent, filled.wait) == (4, RunWait.QUEUE_DEEP)
        assert (now(run).sent, now(run).wait) == (5, "")

    @pytest.mark.usefixtures("wired")
    @pytest.mark.parametrize(("seconds", "restarts"), [(50, False), (70, True)], ids=["a slow handler", "a pause"])
    def test_the_measured_rate_ignores_the_time_in_which_the_queue_did_not_empty(
        self, seconds: int, *, restarts: bool
    ) -> None:
        run, clock, targets = started(9, max_depth=0, rate=100), Clock(), Targets()
        one = driver_of(run, clock=clock, targets=targets)
        stepped(one, clock, 2)
        past = timezone.now() - timedelta(seconds=seconds)
        RequeueRun.objects.update(sent_at=past, paced_at=past)
        targets.depth = 0
        one.step()
        after = now(run)

        assert (after.sent, after.wait, after.paced_sent) == (2, RunWait.QUEUE_DEEP, 2 if restarts else 1)
        assert after.paced_at is not None
        assert (after.paced_at > past) is restarts

    @pytest.mark.usefixtures("wired")
    def test_a_run_waits_while_the_queue_depth_is_unknown(self) -> None:
        run = started(max_depth=3)
        driver_of(run, targets=Targets(None)).step()

        assert (now(run).sent, now(run).wait) == (0, RunWait.DEPTH_UNKNOWN)

    def test_the_run_reads_the_queue_depth_from_the_broker(self, wired: BlockingChannel) -> None:
        for _ in range(3):
            wired.basic_publish("", QUEUE, b"{}")
        run = drive_run(started(2, max_depth=2), outcomes=True, for_seconds=1)
        assert (run.sent, run.wait) == (0, RunWait.QUEUE_DEEP)
        wired.queue_purge(QUEUE)

        assert drive_run(run).sent == 2


class TestBroker:
    @pytest.mark.usefixtures("wired")
    def test_a_planned_run_starts_when_the_broker_answers(self) -> None:
        run, clock, targets = started(planned=True), Clock(), Targets(answers=False)
        one = driver_of(run, clock=clock, targets=targets)
        one.step()
        assert (now(run).state, now(run).wait) == (RunState.PLANNED, RunWait.BROKER_AWAY)
        targets.reachable = True
        one.step()
        one.step()

        assert (now(run).state, now(run).sent, now(run).wait) == (RunState.RUNNING, 1, "")

    @pytest.mark.usefixtures("wired")
    @pytest.mark.parametrize("paused", [False, True])
    def test_a_run_keeps_from_when_to_when_it_waited_for_the_broker(self, *, paused: bool) -> None:
        """A run that an outage had held up for 40 s said nothing of it afterwards."""
        run, targets, before = started(2, max_depth=3), Targets(None, answers=False), timezone.now()
        one = driver_of(run, targets=targets)
        one.step()
        during = now(run)
        if paused:
            pause_run(run.pk, ANN)
            resume_run(run.pk, ANN)
        targets.reachable, targets.depth = True, 0
        one.step()
        [[begun, ended]] = now(run).ended_outages

        assert (during.wait, during.ended_outages, len(during.outages or [])) == (RunWait.BROKER_AWAY, [], 1)
        assert before <= begun < ended <= timezone.now()

    @pytest.mark.usefixtures("wired")
    def test_a_claim_that_took_too_long_is_not_sent_and_is_no_outage_of_the_broker(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The database had not answered for a minute, and the page said that the run had waited for the broker."""
        run, clock = started(2), Clock()
        one = driver_of(run, clock=clock, targets=Targets())

        def slow(*claiming: Any) -> list[Any]:
            clock.now += 60
            return claim(*claiming)

        with monkeypatch.context() as slowly:
            slowly.setattr(item_sender, "claim", slow)
            one.step()
        late = now(run)
        one.step()

        assert (late.sent, late.wait, late.outages) == (0, "", None)
        assert now(run).sent == 2

    @pytest.mark.usefixtures("wired")
    @pytest.mark.parametrize(
        ("wait", "paused", "count", "kept"),
        [("", False, 3, 1), (RunWait.BROKER_AWAY, False, 3, 0), ("", True, 3, 0), ("", False, 1, 0)],
        ids=["nothing heard", "an outage", "a pause", "all sent"],
    )
    def test_a_run_keeps_from_when_to_when_nothing_was_heard_of_it(
        self, wait: str, *, paused: bool, count: int, kept: int
    ) -> None:
        run, past = started(count), timezone.now() - timedelta(minutes=5)
        driver_of(run, "killed", targets=Targets()).step()
        RequeueRun.objects.update(beat_at=past, leased_until=past, wait=wait)
        if paused:
            pause_run(run.pk, ANN)
            resume_run(run.pk, ANN)
        driver_of(run, targets=Targets()).step()

        assert [(begun, past < ended) for begun, ended in now(run).ended_silences] == [(past, True)] * kept

    def test_a_run_resumes_by_itself_when_the_broker_is_back(
        self, away: None, settings: Any, broker_url: str, amqp: BlockingChannel
    ) -> None:
        run = started(2, rate=100)
        drive_run(run, outcomes=True, for_seconds=1)
        assert (states(run), now(run).wait) == (["pending", "pending"], RunWait.BROKER_AWAY)
        amqp.queue_declare(QUEUE)
        change_broker(settings, broker_url)
        drive_run(run)

        assert (states(run), depth(amqp)) == (["sent", "sent"], 2)

    def test_a_run_says_that_the_broker_is_away_while_its_publishes_still_wait(
        self, settings: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It said "Sending" until their deadline; under load its lease had ended by then, so it said so throughout."""
        monkeypatch.setattr(copies, "QUIET_SECONDS", 0.02)
        run, seen, owners = started(2, rate=100), [], []

        class Away(Targets):
            def is_reachable(self) -> bool:
                seen.append((now(run).wait, states(run)))
                if len(seen) > 1:
                    owners.append(driver_of(run, "second", targets=Targets()).step())
                return False

            def ready(self, queue: str) -> int | None:
                RequeueRun.objects.update(leased_until=timezone.now() - timedelta(seconds=1))
                return super().ready(queue)

        change_broker(settings, "amqp://guest:guest@127.0.0.1:1/", PUBLISH_TIMEOUT=1, CONNECT_TIMEOUT=1)
        RequeueRun.objects.update(max_depth=1000)
        driver_of(run, targets=Away()).step()

        assert [wait for wait, _states in seen[:2]] == ["", RunWait.BROKER_AWAY]
        assert [kinds[0] for _wait, kinds in seen[:2]] == ["claimed", "claimed"]
        assert set(owners) == {None}
        assert (states(run), now(run).wait) == (["pending", "pending"], RunWait.BROKER_AWAY)

    @pytest.mark.usefixtures("wired")
    def test_a_driver_without_a_broker_leaves_the_run_to_one_that_has_a_connection(self) -> None:
        run = started(2, rate=100)
        RequeueRun.objects.update(wait=RunWait.BROKER_AWAY)
        driver_of(run, "first", targets=Targets(answers=False)).step()
        driver_of(run, "second", targets=Targets()).step()

        assert (now(run).sent, now(run).wait, now(run).driver) == (1, "", "second")

    def test_a_slice_asks_a_broker_that_hangs_once(self) -> None:
        """Each question about one of thousands of messages waited for seconds, and the lease ended meanwhile."""
        run, asked = started(20, max_depth=3, rate=100), []

        class Hanging(Targets):
            def is_reachable(self) -> bool:
                asked.append("broker")
                return False

            def ready(self, queue: str) -> int | None:
                asked.append(queue)
                return None

        ParkedMessage.objects.filter(pk__in=list(ParkedMessage.objects.values_list("pk", flat=True)[:10])).update(
            queue="another"
        )
        driver_of(run, targets=Hanging()).step()

        assert len(asked) == 2
        assert now(run).wait == RunWait.BROKER_AWAY

    def test_a_full_queue_is_retried(self, wired: BlockingChannel) -> None:
        wired.queue_delete(QUEUE)
        wired.queue_declare(QUEUE, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
        run = started(2, rate=100)
        drive_run(run, outcomes=True, for_seconds=1.5)
        assert (sorted(states(run)), now(run).wait) == (["pending", "sent"], RunWait.QUEUE_FULL)
        wired.queue_purge(QUEUE)
        drive_run(run)

        check_counters()
        assert states(run) == ["sent", "sent"]

    def test_a_run_that_sends_whenever_a_full_queue_has_room_keeps_its_reason(self, wired: BlockingChannel) -> None:
        """Each message that the queue took ended the reason, which the next one brought back."""
        wired.queue_delete(QUEUE)
        wired.queue_declare(QUEUE, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
        run, clock = started(5, rate=1), Clock()
        one = driver_of(run, clock=clock, targets=Targets())
        stepped(one, clock, 2)
        full = now(run)
        wired.queue_purge(QUEUE)
        stepped(one, clock)
        taken = now(run)
        wired.queue_purge(QUEUE)
        clock.now += 10
        stepped(one, clock)

        assert (full.sent, full.wait) == (1, RunWait.QUEUE_FULL)
        assert (taken.sent, taken.wait) == (2, RunWait.QUEUE_FULL)
        assert (now(run).sent, now(run).wait) == (3, "")

    def test_missing_confirms_pause_the_run_and_double_nothing(
        self, settings: Any, broker_url: str, amqp: BlockingChannel
    ) -> None:
        amqp.queue_declare(QUEUE)
        parts = urlsplit(broker_url)
        run, clock = started(30, rate=10), Clock()
        with proxy_to(parts.port or 5672) as proxy:
            address = f"guest:guest@127.0.0.1:{proxy.port}{parts.path}"
            change_broker(settings, f"amqp://{address}", PUBLISH_TIMEOUT=10)
            one = driver_of(run, clock=clock, targets=Targets())
            one.step()
            settings.RMQ_RETRY = {"URL": f"amqp://{address}", "PUBLISH_TIMEOUT": 0.5}
            silent = driver_of(run, clock=clock, targets=Targets())
            proxy.set(Mode.BLACKHOLE_TO_CLIENT)
            for _ in range(3):
                silent.step()
                clock.now += 0.5
            proxy.set(Mode.PASS)
            change_broker(settings, broker_url)
        told = now(run)

        assert (told.state, told.wait, told.sent) == (RunState.PAUSED, RunWait.NOT_CONFIRMED, 1)
        assert told.unconfirmed == 2
        assert ParkedMessage.objects.filter(unconfirmed=True, state=State.PARKED).count() == 2
        wait_until(lambda: depth(amqp) == 3, what="what was sent before nobody confirmed")
        check_counters()

    def test_missing_confirms_pause_no_run_of_which_nothing_is_left(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """It asked its operator whether to send the other 0 messages."""

        def unconfirmed(claims: Sequence[Claim], **_: object) -> list[ClaimResult]:
            return [ClaimResult(claim=one, result=unanswered(Cause.TIMEOUT, "no confirm")) for one in claims]

        run, clock = started(2, rate=10), Clock()
        monkeypatch.setattr(item_sender, "publish", unconfirmed)
        stepped(driver_of(run, clock=clock, targets=Targets()), clock, 3)

        assert (now(run).state, now(run).unconfirmed, now(run).wait) == (RunState.FINISHED, 2, "")


class TestLeases:
    @pytest.mark.usefixtures("wired")
    def test_a_run_has_one_driver_at_a_time(self) -> None:
        run, clock = started(4), Clock()
        first = driver_of(run, "first", clock=clock, targets=Targets())
        first.step()

        assert driver_of(run, "second", targets=Targets()).step() is None
        assert now(run).sent == 1
        first.end()
        assert driver_of(run, "second", targets=Targets()).step() is not None
        assert first.step() is None
        assert now(run).sent == 2

    @pytest.mark.usefixtures("wired")
    @pytest.mark.parametrize("canary", [False, True], ids=["by an operator", "by its canary"])
    def test_a_paused_run_has_no_driver_and_one_at_once_when_it_is_resumed(self, *, canary: bool) -> None:
        """The lease outlasted the pause: for 15 s nobody sent, and its page told of a process that did not answer."""
        run, clock = started(3, canary=canary, rate=100), Clock()
        first = driver_of(run, "first", clock=clock, targets=Targets())
        first.step()
        if canary:
            outcome(run, 1, good=False)
            stepped(first, clock)
        else:
            pause_run(run.pk, ANN)
        assert first.step() is None
        first.end()
        paused = now(run)
        resume_run(run.pk, ANN, canary=canary)

        assert (paused.state, paused.leased_until) == (RunState.PAUSED, None)
        assert driver_of(run, "second", clock=clock, targets=Targets()).step() is not None
        assert (now(run).driver, now(run).sent > 1) == ("second", True)

    def test_a_driver_that_lost_its_lease_claims_nothing(self) -> None:
        run = started()
        RequeueRun.objects.filter(pk=run.pk).update(driver="other")

        assert claimed_of(run) == []
        assert states(run) == ["pending"]

    def test_no_message_is_claimed_from_a_run_paused_meanwhile(self) -> None:
        run = started()
        RequeueRun.objects.filter(pk=run.pk).update(driver="me")
        pause_run(run.pk, ANN)

        assert claimed_of(run) == []
        check_counters()
        assert again(run.items.get().message).state == State.PARKED

    def test_an_expired_claim_marks_its_message_unconfirmed(self) -> None:
        run = started()
        RequeueRun.objects.filter(pk=run.pk).update(driver="me")
        [one] = claimed_of(run)
        assert end_expired_claims() == 0
        ParkedMessage.objects.update(claimed_until=timezone.now() - timedelta(seconds=5))
        assert end_expired_claims() == 1
        message = ParkedMessage.objects.get()

        assert (message.state, message.unconfirmed, message.cycle) == (State.PARKED, True, one.cycle)
        check_counters()
        assert (states(run), now(run).unconfirmed) == (["unconfirmed"], 1)
        assert drive_run(run, outcomes=True, for_seconds=5).state == RunState.FINISHED

    def test_an_unconfirmed_message_is_sent_only_if_it_is_included(self, wired: BlockingChannel) -> None:
        one = record(unconfirmed=True)
        left_out = drive_run(requeue_run([one.pk]))
        assert (states(left_out), depth(wired)) == (["skipped"], 0)
        drive_run(requeue_run([one.pk], include=["unconfirmed"]))

        assert depth(wired) == 1

    @pytest.mark.usefixtures("wired")
    def test_a_success_finishes_the_run(self) -> None:
        run = started()
        drive_run(run)
        outcome(run, 1, good=True)
        ended = drive_run(run, outcomes=True, for_seconds=5)

        assert (ended.state, ended.processed, ended.sent) == (RunState.FINISHED, 1, 1)
        assert ended.leased_until is None

    @pytest.mark.usefixtures("wired")
    def test_a_run_waits_for_outcomes_for_at_most_an_hour(self) -> None:
        run = started()
        drive_run(run)
        RequeueItem.objects.update(sent_at=timezone.now() - timedelta(hours=2))

        assert drive_run(run, outcomes=True, for_seconds=5).wait == RunWait.NO_OUTCOME

    @pytest.mark.usefixtures("wired")
    @pytest.mark.parametrize("stop", [{"paused": True}, {"opened": True}], ids=["paused", "breaker open"])
    def test_a_stopped_queue_is_no_hour_without_an_outcome(self, stop: dict[str, Any]) -> None:
        """After an hour of a pause the run had ended, and its page led to a discard of what waited in the queue."""
        run = started()
        drive_run(run)
        RequeueItem.objects.update(sent_at=timezone.now() - timedelta(hours=2))
        [queue] = RequeueItem.objects.values_list("message__queue", flat=True)
        control = QueueControl.objects.create(queue=queue, **stop)
        stopped = drive_run(run, outcomes=True, for_seconds=0.5)
        control.delete()
        resumed = drive_run(run, outcomes=True, for_seconds=0.5)
        assert (stopped.state, resumed.state) == (RunState.WAITING, RunState.WAITING)

        RequeueRun.objects.update(held_at=timezone.now() - timedelta(hours=1, seconds=1))
        assert drive_run(run, outcomes=True, for_seconds=5).wait == RunWait.NO_OUTCOME

    @pytest.mark.usefixtures("wired")
    def test_a_run_does_not_say_that_outcomes_are_missing_once_they_came(self) -> None:
        run = started()
        drive_run(run)
        RequeueItem.objects.update(sent_at=timezone.now() - timedelta(hours=2))
        before = drive_run(run, outcomes=True, for_seconds=5).explanation
        outcome(run, 1, good=True)

        assert (before, now(run).explanation) == ("Some messages have no outcome after an hour.", "")

    def test_a_driver_ends_and_gives_up_its_lease_on_request(self) -> None:
        run, ended = started(planned=True), threading.Event()
        ended.set()

        assert drive_run(run, outcomes=True, ended=ended).leased_until is None

"""Counters of processes in shared memory, and their text for Prometheus."""

import os
import threading
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from django_rmq_retry import Queue, RetryThenPark
from django_rmq_retry.handlers import Subscription, work_queues_of
from django_rmq_retry.handlers.contracts import FinishedAttempt
from django_rmq_retry.messages import Properties, Reason, encode_properties
from django_rmq_retry.policies import ACK, DUPLICATE, Verdict, discard, park, retry
from django_rmq_retry.telemetry.exposition import exposition_text, families_of
from django_rmq_retry.telemetry.meter import Board, Meter, Slot
from tests.handlers.factories import delivery

NOW = 1_000_000.0
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def subscribed(name: str = "charge", queue: str = "payments") -> Subscription:
    policy = RetryThenPark(attempts=3)
    return Subscription(name=name, run=lambda _message: None, queue=Queue(queue), policy=policy, park=f"{queue}.parked")


CHARGE = subscribed()


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def metered(*, processes: int = 1) -> tuple[Board, Meter, Clock]:
    board, clock = Board(work_queues_of([CHARGE]), processes=processes), Clock()
    return board, Meter(board, clock=clock, epoch=lambda: NOW), clock


def ended(verdict: Verdict, *, seconds: float = 0.2, subscription: Subscription | None = CHARGE, **more: Any) -> Any:
    arrival = delivery(queue="payments", **more)
    return FinishedAttempt(delivery=arrival, verdict=verdict, subscription=subscription, seconds=seconds)


def samples(board: Board) -> Samples:
    """The samples, read by Prometheus' own parser."""
    text = exposition_text(families_of(board, alive=1, version="1.0"))
    found = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {(sample.name, tuple(sorted(sample.labels.items()))): sample.value for sample in found}


def one(found: Samples, name: str, **labels: str) -> float:
    return found[f"rmq_retry_{name}", tuple(sorted(labels.items()))]


def of_charge(found: Samples, name: str, **labels: str) -> float:
    return one(found, name, queue="payments", handler="charge", **labels)


def test_each_verdict_is_counted_by_handler() -> None:
    board, meter, _clock = metered()
    meter.acked(CHARGE, 0.003, b"")
    meter.flush()
    for verdict in (retry(5), retry(5), park(Reason.EXHAUSTED, "gave up"), discard("superseded"), ACK, DUPLICATE):
        meter.note(ended(verdict))
    found = samples(board)

    counts = {name: of_charge(found, "attempts_total", verdict=name) for name in ("ack", "retry", "park", "discard")}
    assert counts == {"ack": 2, "retry": 2, "park": 1, "discard": 1}
    assert of_charge(found, "attempts_total", verdict="duplicate") == 1
    assert of_charge(found, "parked_total", reason="retries_exhausted") == 1
    assert (of_charge(found, "wait_seconds_count"), of_charge(found, "wait_seconds_sum")) == (2, 10)


def test_durations_fall_into_their_buckets() -> None:
    board, meter, _clock = metered()
    for seconds in (0.0005, 0.001, 0.2, 999.0):
        meter.acked(CHARGE, seconds, b"")
    meter.flush()
    meter.note(ended(DUPLICATE, seconds=50))
    found = samples(board)

    assert of_charge(found, "handler_seconds_bucket", le="0.001") == pytest.approx(2, abs=1)
    assert of_charge(found, "handler_seconds_bucket", le="0.25") == 3
    assert of_charge(found, "handler_seconds_bucket", le="60") == 3
    assert of_charge(found, "handler_seconds_bucket", le="+Inf") == of_charge(found, "handler_seconds_count") == 4
    assert of_charge(found, "handler_seconds_sum") == pytest.approx(999.2015)


def test_a_message_without_a_handler_and_one_in_quarantine_are_counted_for_their_queue() -> None:
    board, meter, _clock = metered()
    nobodys = ended(park(Reason.UNHANDLED, "no handler"), subscription=None)
    meter.note(nobodys)
    quarantined = delivery(queue="payments.quarantine")
    crashed = park(Reason.CRASHED, "came back")
    meter.note(FinishedAttempt(delivery=quarantined, verdict=crashed, subscription=None, seconds=0))
    found = samples(board)

    assert one(found, "parked_total", queue="payments", handler="", reason="no_handler") == 1
    assert one(found, "parked_total", queue="payments", handler="", reason="worker_stopped") == 1
    assert one(found, "attempts_total", queue="payments", handler="", verdict="park") == 2


def test_of_the_successes_between_two_flushes_the_age_of_one_is_measured() -> None:
    board = Board(work_queues_of([CHARGE]))
    clock = Clock()
    meter = Meter(board, clock=clock, epoch=lambda: NOW + clock.now)
    ended_at = int(NOW + clock.now)
    for timestamp in (ended_at - 32, ended_at - 500):
        meter.acked(CHARGE, 2.0, encode_properties(Properties(timestamp=timestamp)))
    clock.now += 7.0
    meter.flush()
    meter.flush()
    meter.acked(CHARGE, 0.0, b"\xff\xff\x01")
    meter.flush()
    found = samples(board)

    assert (of_charge(found, "age_seconds_count"), of_charge(found, "age_seconds_sum")) == (1, 30)
    assert of_charge(found, "attempts_total", verdict="ack") == 3


def test_successes_of_many_threads_and_handlers_are_all_counted() -> None:
    refund = subscribed("refund", "refunds")
    board = Board(work_queues_of([CHARGE, refund]))
    meter = Meter(board, clock=Clock())

    def work() -> None:
        for _ in range(1000):
            meter.acked(CHARGE, 0.0, b"")
            meter.acked(refund, 1.0, b"")

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        meter.flush()
    meter.flush()
    found = samples(board)

    assert of_charge(found, "attempts_total", verdict="ack") == of_charge(found, "handler_seconds_count") == 8000
    assert one(found, "handler_seconds_sum", queue="refunds", handler="refund") == 8000


def test_numbers_of_killed_children_are_kept_and_their_states_cleared() -> None:
    board, _meter, clock = metered(processes=2)
    child = os.fork()
    if not child:
        second = Meter(board, 1, clock=clock)
        second.acked(CHARGE, 0.1, b"")
        second.flush()
        second.add(Slot.STARTS)
        second.set(Slot.READY, 1)
        os.kill(os.getpid(), 9)
    os.waitpid(child, 0)
    before = samples(board)
    board.clear_states(1, now=clock.now)
    after = samples(board)

    assert [one(found, "processes_ready") for found in (before, after)] == [1, 0]
    assert [one(found, "process_starts_total") for found in (before, after)] == [1, 1]
    assert of_charge(after, "attempts_total", verdict="ack") == 1
    board.clear_states(0, now=clock.now, over=True)
    assert board.silent(15, now=clock.now + 100) == [2]
    board.clear_states(0, now=clock.now - 10)
    assert (board.silent(1.8, now=clock.now), board.silent(15, now=clock.now + 10)) == ([1, 2], [1])


def test_names_with_quotes_and_line_ends_are_escaped() -> None:
    name = 'a"b\\c\nd'
    board = Board(work_queues_of([subscribed(name=name)]))
    text = exposition_text(families_of(board, alive=0, version="1.0"))

    (found,) = {
        sample.labels["handler"]
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.labels.get("handler")
    }
    assert found == name

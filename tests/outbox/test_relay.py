"""The relay sends rows that commits did not send: once, in order if requested, and past rows that always fail."""

import logging
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import OperationalError, connections, transaction
from django.utils import timezone

from django_rmq_retry import publish
from django_rmq_retry.amqp import CONFIRMED, Cause, PublishResult
from django_rmq_retry.models import OutboxMessage
from django_rmq_retry.models.boxes import PendingRows
from django_rmq_retry.publishing import due_rows, faults, outbox_rows
from django_rmq_retry.publishing import relay as relays
from tests.outbox.made import ROWS, Post, due_again, emptied, kept, left, relay, written_late
from tests.tooling.results import CONNECTION_LOST, NACKED, RETURNED, UNKNOWN, UNSENT, channel_closed_over
from tests.tooling.waiting import wait_until

pytestmark = [pytest.mark.database, pytest.mark.usefixtures("own_database")]


def later(monkeypatch: pytest.MonkeyPatch, seconds: float = 1000.0) -> None:
    """Advance the time, so that each exchange without write permission is probed again."""
    now = time.monotonic() + seconds
    monkeypatch.setattr(faults, "time", SimpleNamespace(monotonic=lambda: now))


def test_the_relay_sends_left_rows_in_order_and_deletes_them(post: Post) -> None:
    left(*(f"q{number}" for number in range(40)))

    assert relay().turn() == relays.Turn(sent=40)
    assert (post.keys, kept("own")) == ([f"q{number}" for number in range(40)], [])


def test_a_row_in_flight_at_its_writer_is_left_alone_until_its_lease_ends(post: Post) -> None:
    left("q")
    ROWS.update(due_at=timezone.now() + timedelta(seconds=60))
    one = relay()
    assert one.turn().nothing

    due_again()
    assert one.turn() == relays.Turn(sent=1)
    assert post.keys == ["q"]


def test_a_batch_is_limited_by_the_bytes_of_its_bodies(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(due_rows, "MOST_BATCH_BYTES", 100)
    left("a", "b", "c", body=b"x" * 60)
    one = relay()

    assert [one.turn().sent for _ in range(4)] == [1, 1, 1, 0]
    assert post.keys == ["a", "b", "c"]


def test_rows_of_an_ordering_key_share_the_byte_limit_of_a_batch(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(due_rows, "MOST_BATCH_BYTES", 100)
    left("a1", "a2", "a3", "a4", body=b"x" * 40, order_key="a")
    one = relay()

    assert [one.turn().sent for _ in range(3)] == [2, 2, 0]
    assert post.keys == ["a1", "a2", "a3", "a4"]


def test_rows_of_an_ordering_key_are_sent_one_after_another(post: Post) -> None:
    left("a1", "a2", "a3", order_key="a")
    left("free")
    left("b1", order_key="b")
    post.silent = True
    turn: list[relays.Turn] = []

    def work() -> None:
        turn.append(relay().turn())
        connections.close_all()

    thread = threading.Thread(target=work)
    thread.start()
    wait_until(lambda: post.keys == ["a1", "free", "b1"], what="the first of each")
    post.answer()
    wait_until(lambda: post.keys[3:] == ["a2"], what="the second of a")
    post.silent = False
    post.answer()
    thread.join(20)

    assert post.keys == ["a1", "free", "b1", "a2", "a3"]
    assert turn == [relays.Turn(sent=5)]
    assert kept("own") == []


def test_a_failing_row_blocks_only_its_own_ordering_key(post: Post) -> None:
    left("bad", "a2", order_key="a")
    left("b1", "b2", order_key="b")
    left("free")
    post.ends["bad"] = RETURNED
    emptied(relay())

    assert sorted(post.keys) == ["b1", "b2", "bad", "free"]
    assert kept("own") == ["bad", "a2"]


def test_rows_behind_a_row_that_is_not_due_wait(post: Post) -> None:
    left("a1", "a2", "a3", order_key="a")
    ROWS.filter(routing_key="a2").update(due_at=timezone.now() + timedelta(seconds=60))
    emptied(relay())

    assert (post.keys, kept("own")) == (["a1"], ["a2", "a3"])


def test_ordering_keys_equal_in_the_database_collation_keep_their_order(post: Post) -> None:
    left("a1", order_key="a")
    left("A1", order_key="A")
    left("a2", order_key="a")
    left("A2", order_key="A")
    emptied(relay())

    assert sorted(post.keys) == ["A1", "A2", "a1", "a2"]
    assert [key for key in post.keys if key[0] == "a"] == ["a1", "a2"]
    assert [key for key in post.keys if key[0] == "A"] == ["A1", "A2"]


def test_two_relays_at_once_double_no_row_and_keep_each_order(post: Post) -> None:
    for number in range(30):
        for key in ("a", "b", "c"):
            left(f"{key}{number}", order_key=key)
        left(f"-{number}", f"+{number}")

    def work() -> None:
        one = relay()

        def over() -> bool:
            # On MariaDB two concurrent deletes sometimes deadlock; the relay then continues.
            with suppress(OperationalError):
                return one.turn().nothing and not ROWS.exists()
            return False

        try:
            wait_until(over, what="an empty outbox")
        finally:
            connections.close_all()

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert len(post.keys) == len(set(post.keys)) == 150
    for key in ("a", "b", "c"):
        assert [one for one in post.keys if one[0] == key] == [f"{key}{number}" for number in range(30)]


def test_a_row_that_the_broker_can_never_accept_fails_with_its_reason(
    post: Post, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(faults, "MOST_FAILED_SENDS", 3)
    left("bad", "good")
    post.ends["bad"] = RETURNED
    one = relay()
    for _ in range(4):
        emptied(one)
        due_again()

    row = ROWS.get()
    assert (row.routing_key, row.attempts, row.error) == ("bad", 3, "312 NO_ROUTE")
    assert row.failed_at is not None
    assert post.keys == ["bad", "good", "bad", "bad"]
    assert [record.levelno for record in caplog.records] == [logging.WARNING, logging.CRITICAL]
    failed: dict[str, Any] = {"failed": 1, "failed_since": row.failed_at, "failed_answer": row.error, "untaken": 1}
    failed |= {"failed_first": str(row), "failed_key": "bad"}
    assert OutboxMessage.objects.using("own").pending() == PendingRows(**failed)


def test_a_failed_row_blocks_its_ordering_key(post: Post) -> None:
    left("bad", "next", order_key="a")
    ROWS.filter(routing_key="bad").update(failed_at=timezone.now())
    emptied(relay())

    assert post.keys == []


WRITE = channel_closed_over(Cause.ACCESS_EXCHANGE)
TOPIC = channel_closed_over(Cause.ACCESS_TOPIC)


@pytest.mark.parametrize(
    "end",
    [NACKED, WRITE, TOPIC],
    ids=["full", "no right to write", "no right to the topic"],
)
def test_a_full_queue_or_a_missing_permission_never_fails_a_row(
    end: PublishResult, post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faults, "MOST_FAILED_SENDS", 3)
    monkeypatch.setattr(faults, "PROBE_MARGIN_SECONDS", -1000.0)
    left("full")
    post.ends["full"] = end
    one = relay()
    for _ in range(6):
        emptied(one)
        due_again()
    post.ends.clear()
    emptied(one)

    assert (post.keys, kept("own")) == (["full"] * 7, [])


def test_without_write_permission_one_row_probes_the_exchange(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    left("s1", "s2", "s3", exchange="shut")
    left("o1")
    post.ends = dict.fromkeys(("s1", "s2", "s3"), WRITE)
    one = relay()
    emptied(one)
    assert post.keys == ["s1", "s2", "s3", "o1", "s1"]

    left("o2")
    due_again()
    emptied(one)
    assert post.keys[5:] == ["o2"]

    later(monkeypatch)
    emptied(one)
    assert post.keys[6:] == ["s1"]

    post.ends.clear()
    due_again()
    later(monkeypatch, 2000.0)
    emptied(one)
    assert (post.keys[7:], kept("own")) == (["s1", "s2", "s3"], [])


def test_an_exchange_without_write_permission_keeps_the_order_of_a_key(
    post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    left("s1", exchange="shut")
    post.ends["s1"] = WRITE
    one = relay()
    emptied(one)
    left("k1", order_key="k")
    left("k2", order_key="k", exchange="shut")
    left("k3", order_key="k")
    emptied(one)
    assert post.keys == ["s1", "k1"]

    post.ends.clear()
    due_again()
    later(monkeypatch)
    emptied(one)
    assert post.keys[2:] == ["s1", "k2", "k3"]


def test_a_deleted_probe_row_leaves_its_exchange_usable(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    left("s1", "s2", exchange="shut")
    post.ends = dict.fromkeys(("s1", "s2"), WRITE)
    one = relay()
    emptied(one)
    ROWS.filter(routing_key="s1").delete()
    post.ends.clear()
    later(monkeypatch)
    emptied(one)

    assert (post.keys[-1], kept("own")) == ("s2", [])


def test_a_row_that_closes_the_channel_is_found_and_the_others_are_sent(
    post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    left("a", "evil", "b")
    refused = channel_closed_over(Cause.OTHER, 406)
    together = True

    def end_of(message: Any) -> PublishResult:
        return refused if together or message.routing_key == "evil" else CONFIRMED

    monkeypatch.setattr(post, "end_of", end_of)
    one = relay()
    assert one.turn() == relays.Turn(failed=3)

    together = False
    emptied(one)
    assert kept("own") == ["evil"]
    assert ROWS.get().attempts == 1


def test_an_unavailable_broker_costs_no_attempts_and_gets_one_probe_row(
    post: Post, caplog: pytest.LogCaptureFixture
) -> None:
    left("a", "b", "c")
    post.ends = dict.fromkeys(("a", "b", "c"), UNSENT)
    one = relay()
    turns = [one.turn() for _ in range(3)]
    assert turns == [relays.Turn(away="connection refused")] * 3
    assert post.keys == ["a", "b", "c", "a", "a"]
    assert set(ROWS.values_list("attempts", flat=True)) == {0}
    assert len(caplog.records) == 1

    post.ends = {}
    emptied(one)
    assert (post.keys[5:], kept("own")) == (["a", "b", "c"], [])


def test_rows_returned_by_a_relay_do_not_wake_it(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a relay without row locks tries an unreachable broker again and again without a pause."""
    for module in (due_rows, relays):
        monkeypatch.setattr(module, "skips_locked", lambda _using: False)
    woken: list[bool] = []
    monkeypatch.setattr(outbox_rows, "wakers", {lambda: woken.append(True)})
    left("a")
    post.ends["a"] = UNSENT
    assert relay().turn().away

    assert woken == []
    assert due_rows.waiting("own")


def test_a_row_that_closes_the_connection_each_time_lets_the_others_pass(post: Post) -> None:
    left("evil", "good")
    post.ends["evil"] = CONNECTION_LOST
    post.ends["good"] = CONNECTION_LOST
    one = relay()
    assert one.turn().away
    post.ends.pop("good")
    for _ in range(6):
        one.turn()

    assert kept("own") == ["evil"]
    assert ROWS.get().failed_at is None


def test_rows_in_flight_at_a_broker_stop_are_not_sent_alone(post: Post) -> None:
    left("a", "b")
    post.ends = dict.fromkeys(("a", "b"), replace(CONNECTION_LOST, code=320))
    assert relay().turn().away

    assert set(ROWS.values_list("alone", "attempts")) == {(False, 0)}


def test_rows_in_flight_at_a_commit_that_loses_the_connection_are_sent_alone(post: Post) -> None:
    post.ends["evil"] = CONNECTION_LOST
    with transaction.atomic(using="own"):
        publish(1, routing_key="evil")
        publish(1, routing_key="good")

    assert list(ROWS.values_list("routing_key", "alone", "attempts")) == [("evil", True, 0)]


def test_rows_sent_alone_alternate_with_other_rows(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relays, "MOST_BATCH_ROWS", 2)
    monkeypatch.setattr(relays, "MOST_ALONE", 1)
    left("lost1", "lost2")
    ROWS.update(alone=True)
    left("a", "b", "c", "d", "e")
    emptied(relay())

    assert post.keys == ["a", "b", "lost1", "c", "d", "lost2", "e"]


def test_a_row_sent_alone_without_a_confirm_blocks_no_other_row(post: Post) -> None:
    post.ends["dead"] = UNKNOWN
    left("dead", "lost")
    ROWS.update(alone=True)
    one = relay()
    for number in range(8):
        left(f"new{number}")
        one.turn()
        one.turn()

    assert kept("own") == ["dead"]
    tries = ROWS.get().attempts
    due_again()
    one.turn()

    assert ROWS.get().attempts == tries + 1


def test_rows_behind_a_row_sent_alone_wait_for_it(post: Post) -> None:
    left("a1", "a2", "a3", order_key="a")
    ROWS.filter(routing_key="a2").update(alone=True)
    left("free")
    emptied(relay())

    assert post.keys == ["a1", "free", "a2", "a3"]


def test_a_confirmed_row_is_not_sent_again_if_its_deletion_failed(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    left("a", "b")
    one = relay()
    with monkeypatch.context() as patch:
        patch.setattr("django_rmq_retry.publishing.outbox_rows.delete", _fail)
        with pytest.raises(ConnectionError):
            one.turn()
    due_again()
    emptied(one)

    assert (post.keys, kept("own")) == (["a", "b"], [])


def test_a_confirmed_row_is_deleted_again_at_once_after_a_deadlock(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    left("a", "b")
    one, ends = relay(), iter([OperationalError("Deadlock found when trying to get lock")])

    def delete(ids: Sequence[int], *, using: str) -> None:
        for error in ends:
            raise error
        settling_delete(ids, using=using)

    settling_delete = outbox_rows.delete
    monkeypatch.setattr(outbox_rows, "delete", delete)

    with pytest.raises(OperationalError):
        one.turn()

    assert (post.keys, kept("own")) == (["a", "b"], [])


def _fail(*_arguments: object, **_options: object) -> None:
    raise ConnectionError("the database is gone")


def test_a_commit_leaves_rows_behind_an_earlier_row_of_their_key_to_the_relay(post: Post) -> None:
    left("a1", order_key="a")
    with transaction.atomic(using="own"):
        publish(1, routing_key="a2", order_key="a")
        publish(1, routing_key="b1", order_key="b")
        publish(1, routing_key="b2", order_key="b")
        publish(1, routing_key="free")
    assert (post.keys, kept("own")) == (["b1", "b2", "free"], ["a1", "a2"])

    emptied(relay())
    assert post.keys[3:] == ["a1", "a2"]


def published_without_a_thread(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    """Publish "first", and let its result arrive late, when no thread can be started."""
    monkeypatch.setattr("django_rmq_retry.publishing.outgoing.SILENT_SECONDS", 0.0)
    post.silent = True
    with transaction.atomic(using="own"):
        publish(1, routing_key="first")
    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", _no_thread)
        post.answer()


def test_a_thread_that_cannot_start_loses_no_later_result(
    post: Post, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Like under a limit of processes: late results are written once there is room again."""
    published_without_a_thread(post, monkeypatch)
    assert [record.getMessage() for record in caplog.records if "could not start" in record.getMessage()] == [
        "The thread that deletes sent rows of the outbox could not start: can't start new thread"
    ]

    with transaction.atomic(using="own"):
        publish(1, routing_key="second")
    post.answer()
    written_late(lambda: not kept("own"))

    assert post.keys == ["first", "second"]


def test_a_result_without_a_thread_is_written_after_the_next_commit(
    post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    published_without_a_thread(post, monkeypatch)

    with transaction.atomic(using="own"):
        publish(1, routing_key="second")
    written_late(lambda: kept("own") == ["second"])


def _no_thread(_thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")

"""The sender: a commit returns at once, and a thread of the process sends the rows and deletes them."""

import os
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connections, transaction
from django.utils import timezone

from django_rmq_retry import publish, publish_many
from django_rmq_retry.amqp import CONFIRMED, PublishResult
from django_rmq_retry.publishing import outbox_rows, outgoing, sender
from django_rmq_retry.publishing.broker_connections import Reach
from django_rmq_retry.publishing.outbox_rows import insert
from django_rmq_retry.publishing.outgoing import Handed, Outgoing
from django_rmq_retry.publishing.publish import message_of
from tests.outbox.made import ROWS, Post, due_again, emptied, kept, left, relay
from tests.tooling.results import CONNECTION_LOST, RETURNED, UNSENT
from tests.tooling.waiting import wait_until

pytestmark = [pytest.mark.database, pytest.mark.usefixtures("own_database", "threaded")]

FREE_SECONDS = 5


def committed(*keys: str, order_key: str = "") -> None:
    """Publish messages to these routing keys in one transaction."""
    with transaction.atomic(using="own"):
        for key in keys:
            publish(1, routing_key=key, order_key=order_key)


def gone(*still: str) -> None:
    wait_until(lambda: kept("own") == list(still) and not sender.sender.holds, what="what is sent is deleted")


def due() -> list[str]:
    """Return the rows that a relay may send now."""
    due = ROWS.filter(due_at__lte=timezone.now() + timedelta(seconds=FREE_SECONDS))
    return list(due.order_by("pk").values_list("routing_key", flat=True))


def beside(*calls: Callable[[], None]) -> None:
    """Run functions in threads of their own, each with its own connections, one after the other."""

    def work(call: Callable[[], None]) -> None:
        try:
            call()
        finally:
            connections.close_all()

    for call in calls:
        thread = threading.Thread(target=work, args=(call,))
        thread.start()
        thread.join(30)


def test_a_commit_returns_while_the_broker_has_not_confirmed(post: Post) -> None:
    post.silent = True
    committed("a", "b")
    assert (post.keys, kept("own")) == (["a", "b"], ["a", "b"])

    post.answer()
    gone()


def test_many_commits_are_deleted_together(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    deleted: list[int] = []
    delete = outbox_rows.delete

    def counted(ids: Any, *, using: str) -> None:
        deleted.append(len(ids))
        delete(ids, using=using)

    monkeypatch.setattr(outbox_rows, "delete", counted)
    # On a slow machine the commits take longer than a broker may be silent.
    monkeypatch.setattr(outgoing, "SILENT_SECONDS", 60.0)
    post.silent = True
    for number in range(20):
        committed(f"q{number}")
    post.answer()
    gone()

    assert sum(deleted) == 20
    assert len(deleted) < 10


def test_rows_leave_in_each_turn_and_are_deleted_in_each_fourth(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    deleted: list[int] = []
    monkeypatch.setattr(outbox_rows, "delete", lambda ids, **_: deleted.append(len(ids)))
    here = Outgoing("own", wake=lambda: None, soon=lambda: True)
    sent: list[int] = []
    for number in range(8):
        rows = insert([message_of(1, routing_key=f"q{number}")], using="own", lease=60)
        here.hand_over(Handed(rows=rows))
        here.turn()
        sent.append(len(post.keys))

    assert sent == [1, 2, 3, 4, 5, 6, 7, 8]
    assert deleted == [4, 4]


def test_the_end_of_a_process_does_not_wait_for_further_results(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outgoing, "GATHER_SECONDS", 60.0)
    committed("a")
    sender.sender.finish(20)

    assert (post.keys, kept("own")) == (["a"], [])


def test_commits_leave_their_messages_to_a_sender_that_is_at_work(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    """It sends them together: the I/O thread would have to be woken for each of them."""
    monkeypatch.setattr(outgoing, "GATHER_SECONDS", 0.5)
    monkeypatch.setattr(sender, "GATHER_SECONDS", 0.5)
    by: list[str] = []
    send = post.send

    def noted(*given: Any, **options: Any) -> None:
        by.append(threading.current_thread().name)
        send(*given, **options)

    monkeypatch.setattr(post, "send", noted)
    for number in range(20):
        committed(f"q{number:02}")
    gone()

    assert by[0] == threading.current_thread().name
    assert "rmq-sender" in by
    assert post.keys == [f"q{number:02}" for number in range(20)]


def test_what_is_not_sent_when_a_process_closes_its_connections_is_the_relays(post: Post) -> None:
    one = Outgoing("own", wake=lambda: None, soon=lambda: True)
    one.hand_over(Handed(rows=insert([message_of(1, routing_key="late")], using="own", lease=60.0)))
    assert (post.keys, due()) == ([], [])

    one.end()
    assert (post.keys, due()) == ([], ["late"])


def test_a_message_that_a_commit_cannot_hand_over_is_left_to_a_relay(
    post: Post, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    def broken(*_given: object) -> None:
        raise RuntimeError("no memory")

    monkeypatch.setattr(Outgoing, "hand_over", broken)
    committed("a")
    committed("b", "c")

    assert (post.keys, kept("own")) == ([], ["a", "b", "c"])
    assert [one.getMessage() for one in caplog.records] == [
        "After the commit 1 message stays in the outbox of 'own' until a relay sends it: no memory",
        "After the commit 2 messages stay in the outbox of 'own' until a relay sends them: no memory",
    ]


def test_a_broker_that_is_down_costs_a_commit_nothing(post: Post, reach: Reach, caplog: Any) -> None:
    """What was in flight goes to the relays as soon as it is known; later commits leave their rows to them at once."""
    post.ends = dict.fromkeys(("first", "second"), UNSENT)
    committed("first")
    wait_until(lambda: reach.away and not sender.sender.holds, what="the outage is known")
    for number in range(5):
        committed(f"later{number}")

    assert post.keys == ["first"]
    assert due() == ["first", *(f"later{number}" for number in range(5))]
    assert len([one for one in caplog.records if "does not answer" in one.getMessage()]) == 1

    post.ends.clear()
    emptied(relay())
    assert not reach.away
    committed("again")
    gone()
    assert post.keys[-1] == "again"


def test_a_broker_that_does_not_answer_is_noticed_by_a_later_commit(
    post: Post, reach: Reach, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outgoing, "SILENT_SECONDS", 0.0)
    post.silent = True
    committed("first")
    committed("second")
    assert reach.away

    committed("third")
    assert (post.keys, due()) == (["first", "second"], ["third"])
    post.answer()
    gone("third")
    assert not reach.away


def test_rows_of_a_key_wait_for_the_rows_of_earlier_commits_in_other_threads(post: Post) -> None:
    post.silent = True
    beside(*(lambda key=key: committed(key, order_key="a") for key in ("a1", "a2", "a3")))
    beside(lambda: committed("free"))
    wait_until(lambda: sorted(post.keys) == ["a1", "free"], what="the first of the key, and the other one")

    post.answer()
    wait_until(lambda: post.keys[2:] == ["a2"], what="the second of the key")
    post.silent = False
    post.answer()
    gone()
    assert post.keys[2:] == ["a2", "a3"]


def test_two_threads_that_publish_for_one_key_keep_its_order(post: Post) -> None:
    turn = threading.Lock()
    numbers = iter(range(40))

    def work() -> None:
        try:
            for _ in range(20):
                # As with the lock of an account's row, which the transaction of the other thread waits for.
                with turn:
                    committed(f"{next(numbers):02}", order_key="account:7")
        finally:
            connections.close_all()

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    wait_until(lambda: not sender.sender.holds, what="the sender has done its part")
    due_again()
    emptied(relay())

    assert (post.keys, kept("own")) == ([f"{number:02}" for number in range(40)], [])


def test_a_row_behind_one_of_another_process_is_left_to_the_relay(post: Post) -> None:
    post.silent = True
    committed("a1", order_key="a")
    wait_until(lambda: post.keys == ["a1"], what="it is in flight")
    left("theirs", order_key="a")
    committed("a3", order_key="a")
    committed("a4", "b1", order_key="a")
    wait_until(lambda: due() == ["theirs", "a3", "a4", "b1"], what="they are the relay's")
    post.silent = False
    post.answer()
    gone("theirs", "a3", "a4", "b1")

    emptied(relay())
    assert (post.keys, kept("own")) == (["a1", "theirs", "a3", "a4", "b1"], [])


def test_a_relay_is_woken_for_a_row_that_waited_for_the_sender(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    woken: list[bool] = []
    monkeypatch.setattr(outbox_rows, "wakers", {lambda: woken.append(True)})
    post.silent = True
    committed("a1", order_key="a")
    wait_until(lambda: post.keys == ["a1"], what="it is in flight")
    left("theirs", order_key="a")
    post.answer()
    gone("theirs")

    wait_until(lambda: woken, what="the relay knows")


def test_a_failed_row_leaves_the_rest_of_its_key_to_the_relay(post: Post) -> None:
    post.ends["bad"] = RETURNED
    committed("bad", "a2", "a3", order_key="a")
    committed("good")
    gone("bad", "a2", "a3")

    assert sorted(post.keys) == ["bad", "good"]
    assert list(ROWS.order_by("pk").values_list("routing_key", "attempts")) == [("bad", 1), ("a2", 0), ("a3", 0)]
    assert due()[-2:] == ["a2", "a3"]


def test_a_row_does_not_overtake_a_failed_one_whose_failure_is_not_written_yet(
    post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outgoing, "GATHER_SECONDS", 0.5)
    post.ends["bad"] = RETURNED
    committed("bad", order_key="a")
    wait_until(lambda: post.keys == ["bad"], what="it is refused")
    committed("a2", order_key="a")
    gone("bad", "a2")

    assert (post.keys, due()[-1:]) == (["bad"], ["a2"])


def test_a_hostile_row_costs_no_other_row(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    def end_of(message: Any) -> PublishResult:
        if message.routing_key == "raises":
            raise ValueError("no frame")
        return CONNECTION_LOST if message.routing_key == "closes" else CONFIRMED

    monkeypatch.setattr(post, "end_of", end_of)
    committed("a", "raises", "b", "closes", "c")
    gone("raises", "closes")

    assert list(ROWS.order_by("pk").values_list("routing_key", "attempts", "alone")) == [
        ("raises", 1, False),
        ("closes", 0, True),
    ]


def test_rows_beyond_what_is_held_are_left_to_the_relay(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outgoing, "MOST_ROWS", 3)
    post.silent = True
    with transaction.atomic(using="own"):
        publish(1, routing_key="a1")
        publish_many([message_of(1, routing_key=f"a{number}") for number in (2, 3, 4)])
        publish(1, routing_key="a5")
    committed("b")
    assert (post.keys, due()) == (["a1", "a2", "a3"], ["a4", "a5", "b"])

    post.answer()
    gone("a4", "a5", "b")
    committed("c")
    wait_until(lambda: post.keys[3:] == ["c"], what="there is room again")


def test_a_commit_that_finds_no_room_any_more_leaves_its_rows_to_the_relay(
    post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There was room when it wrote, and others have committed since."""
    post.silent = True
    with transaction.atomic(using="own"):
        publish("12345", routing_key="late")
        monkeypatch.setattr(outgoing, "MOST_BYTES", 5)
    wait_until(lambda: due() == ["late"], what="it is the relay's")

    assert post.keys == []


def test_a_window_of_rows_is_in_flight(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_rmq_retry.publishing.sending.WINDOW", 2)
    post.silent = True
    committed("a", "b", "c")
    assert post.keys == ["a", "b"]
    post.answer()
    wait_until(lambda: post.keys == ["a", "b", "c"], what="there is room")
    post.answer()
    gone()


def test_a_row_is_not_sent_after_its_lease(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow predecessor has used up the time; a relay may send the row already."""
    post.silent = True
    committed("a1", "a2", order_key="a")
    wait_until(lambda: post.keys == ["a1"], what="the first is in flight")
    monkeypatch.setattr("django_rmq_retry.publishing.sending.time.monotonic", _later(60.0))
    post.answer()
    monkeypatch.undo()
    wait_until(lambda: due() == ["a2"], what="the second is the relay's")

    assert post.keys == ["a1"]


def _later(seconds: float) -> Callable[[], float]:
    at = time.monotonic() + seconds
    return lambda: at


def test_a_savepoint_rolled_back_by_hand_sends_nothing(post: Post) -> None:
    with transaction.atomic(using="own"):
        publish(1, routing_key="before")
        made = connections["own"].savepoint()
        publish(1, routing_key="taken back")
        connections["own"].savepoint_rollback(str(made))
        publish(1, routing_key="after")
    gone()

    assert post.keys == ["before", "after"]


def test_confirmed_rows_are_deleted_when_the_database_is_back(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outgoing, "WRITE_PAUSE_SECONDS", 0.01)
    errors = iter([ConnectionError("gone"), ConnectionError("gone")])
    delete = outbox_rows.delete

    def failing(ids: Any, *, using: str) -> None:
        for error in errors:
            raise error
        delete(ids, using=using)

    monkeypatch.setattr(outbox_rows, "delete", failing)
    committed("a")
    gone()

    assert post.keys == ["a"]


def test_the_thread_ends_when_idle_and_starts_again(post: Post) -> None:
    def running() -> bool:
        return any(thread.name == "rmq-sender" for thread in threading.enumerate())

    for key in ("a", "b"):
        committed(key)
        gone()
        wait_until(lambda: not running(), what="it has ended")

    assert post.keys == ["a", "b"]


def test_a_thread_that_ends_slowly_takes_no_turn_beside_its_successor(
    post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, leave = threading.Event(), threading.Event()
    inside: list[int] = []
    most: list[int] = []
    delete = outbox_rows.delete

    def slow(ids: Any, *, using: str) -> None:
        inside.append(1)
        most.append(len(inside))
        entered.set()
        leave.wait(30)
        delete(ids, using=using)
        inside.pop()

    monkeypatch.setattr(outbox_rows, "delete", slow)
    committed("a")
    assert entered.wait(30)
    # As after a stop that did not wait for it.
    sender.sender._thread = None
    committed("b")
    wait_until(
        lambda: sum(thread.name == "rmq-sender" for thread in threading.enumerate()) == 2, what="a successor runs"
    )
    leave.set()
    gone()

    assert (max(most), sorted(post.keys)) == (1, ["a", "b"])


def test_a_forked_child_sends_its_own_rows_and_not_those_of_its_parent(post: Post) -> None:
    post.silent = True
    committed("parent")
    parents = sender.sender
    child = os.fork()
    if not child:
        os._exit(sender.sender is parents or sender.sender.holds)
    _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 0
    post.answer()
    gone()


def test_what_is_sent_shortly_before_the_end_of_a_process_is_deleted(post: Post) -> None:
    post.silent = True
    committed("a")
    threading.Timer(0.1, post.answer).start()
    sender.sender.finish()

    assert kept("own") == []


def test_the_end_of_a_process_waits_two_seconds_and_not_for_a_broker_that_is_down(post: Post, reach: Reach) -> None:
    post.silent = True
    committed("a")
    began = time.monotonic()
    sender.sender.finish(0.2)
    waited = time.monotonic() - began
    reach.lost("gone")
    began = time.monotonic()
    sender.sender.finish(60.0)

    assert waited >= 0.2
    assert time.monotonic() - began < 30
    assert (sender.FINISH_SECONDS, kept("own")) == (2.0, ["a"])

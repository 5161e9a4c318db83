"""A deadline ends the handler that is late, and touches nothing that follows it."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from django_rmq_retry import Delivery, RetryThenPark, StopTheLine, handler
from django_rmq_retry.consumer import deadlines as room
from django_rmq_retry.consumer.attempt_state import AttemptState
from django_rmq_retry.consumer.deadlines import Deadlines, HandlerAbandoned, SlowHandlers, TimedRun
from django_rmq_retry.errors import DeadlineExceeded
from django_rmq_retry.handlers import Subscription, registry, work_queues_of
from django_rmq_retry.handlers.call import Unready
from tests.handlers.factories import delivery, subscription
from tests.tooling.waiting import wait_until

Act = Callable[[Delivery], object]


def limited(deadlines: Deadlines, act: Act, timeout: float, **options: Any) -> Subscription:
    """A handler with a deadline."""
    found = replace(subscription(RetryThenPark(), name="charge"), run=act, timeout=timeout, **options)
    return deadlines.limited(work_queues_of([found])[0]).subscriptions[0]


def turn(_: object = None) -> None:
    while True:
        pass


def turn_for(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def told(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """What the deadlines have logged: connections that earlier tests left to the process may log that they are lost."""
    return [record for record in caplog.records if record.pathname == room.__file__]


def test_a_handler_over_its_timeout_is_interrupted() -> None:
    interrupted: list[int] = []
    deadlines = Deadlines(lambda: interrupted.append(threading.get_ident()))

    with pytest.raises(DeadlineExceeded) as caught:
        limited(deadlines, turn, 0.05).run(delivery())

    assert str(caught.value) == "Handler charge ran for longer than its timeout of 0.05 s"
    assert [entry.name for entry in caught.traceback][-1] == "turn"
    assert interrupted == [threading.get_ident()]
    assert deadlines.hung == []


def test_a_handler_within_its_timeout_returns_its_result() -> None:
    assert limited(Deadlines(), lambda _: "done", 5).run(delivery()) == "done"


def test_a_strict_handler_ends_before_an_old_broker_takes_its_message_back() -> None:
    deadlines = Deadlines()
    strict = replace(subscription(StopTheLine(), name="post"), run=turn)
    [post] = deadlines.limited(work_queues_of([strict])[0]).subscriptions
    deadlines.strict = 0.05

    with pytest.raises(DeadlineExceeded, match=r"post ran for longer than its timeout of 0.05 s"):
        post.run(delivery())


def test_a_strict_handler_has_no_deadline_where_the_broker_waits() -> None:
    deadlines = Deadlines()
    strict = replace(subscription(StopTheLine(), name="post"), run=lambda _: turn_for(0.1))
    [post] = deadlines.limited(work_queues_of([strict])[0]).subscriptions

    post.run(delivery())
    assert not deadlines.hung


def test_a_handler_that_runs_for_long_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    slow, quick = (
        AttemptState(delivery(), delivery(), began=began, subscription=subscription(RetryThenPark(), name=name))
        for began, name in ((0, "slow"), (900, "quick"))
    )
    watch = SlowHandlers()
    with caplog.at_level(logging.WARNING, "django_rmq_retry"):
        for now in (1_400.0, 1_600.0, 1_700.0):
            watch.look([slow, quick], now)

    assert [record.args for record in told(caplog)] == [("slow", 26)]


def test_catching_every_exception_does_not_swallow_a_deadline() -> None:
    def act(_: Delivery) -> None:
        try:
            turn()
        except Exception:  # noqa: BLE001 - the mistake
            pytest.fail("it was swallowed")

    with pytest.raises(DeadlineExceeded):
        limited(Deadlines(), act, 0.05).run(delivery())


def test_a_handler_that_catches_its_deadline_succeeds_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def act(_: Delivery) -> str:
        try:
            turn()
        except DeadlineExceeded:
            return "tidied up"
        raise AssertionError

    with caplog.at_level(logging.WARNING, "django_rmq_retry"):
        assert limited(Deadlines(), act, 0.05).run(delivery()) == "tidied up"
    assert [record.getMessage() for record in told(caplog)] == [
        "Handler charge returned after its deadline of 0.05 s: it caught DeadlineExceeded, or was about to end."
    ]


def test_an_async_handler_that_catches_its_cancellation_is_logged_with_that_name(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nothing in its code is called DeadlineExceeded."""

    @handler("charge", timeout=0.05, name="charge")
    async def act(_: Delivery) -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "tidied up"
        raise AssertionError

    [work_queue] = registry.work_queues()
    with caplog.at_level(logging.WARNING, "django_rmq_retry"):
        assert Deadlines().limited(work_queue).subscriptions[0].run(delivery()) == "tidied up"
    assert [record.getMessage() for record in told(caplog)] == [
        "Handler charge returned after its deadline of 0.05 s: it caught CancelledError, or was about to end."
    ]


def test_an_error_raised_from_a_deadline_is_the_handlers_error() -> None:
    def act(_: Delivery) -> None:
        try:
            turn()
        except DeadlineExceeded as late:
            raise ConnectionError("the bank is slow") from late

    with pytest.raises(ConnectionError):
        limited(Deadlines(), act, 0.05).run(delivery())


def test_no_deadline_is_raised_after_the_handler_returned() -> None:
    """Once ``run`` has returned, no exception is raised in its thread, whichever way the handler ended."""
    deadlines = Deadlines()
    ended = {"returned": 0, "late": 0}

    def attempts(share: float) -> None:
        charge = limited(deadlines, lambda _: turn_for(0.01 * share), 0.01)
        for _ in range(60):
            try:
                charge.run(delivery())
            except DeadlineExceeded:
                ended["late"] += 1
            else:
                ended["returned"] += 1
            turn_for(0.002)

    threads = [threading.Thread(target=attempts, args=(share,)) for share in (0.9, 0.98, 1.02, 1.1, 3.0)]
    failures: list[object] = []
    hook, threading.excepthook = threading.excepthook, failures.append
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    finally:
        threading.excepthook = hook

    assert failures == []
    assert sum(ended.values()) == 300
    assert ended["late"] >= 60
    assert deadlines._armed == deadlines._expired == {}


def test_a_hanging_handler_is_found_and_its_message_is_taken_over() -> None:
    deadlines = Deadlines()
    held, ended = threading.Lock(), []
    held.acquire()

    def act(_: Delivery) -> None:
        held.acquire()

    def attempt() -> None:
        try:
            limited(deadlines, act, 0.05).run(delivery(body=b"1"))
        except BaseException as error:  # noqa: BLE001 - looked at below
            ended.append(type(error))

    thread = threading.Thread(target=attempt)
    thread.start()
    [run] = wait_until(lambda: deadlines.hung)
    error = run.error()
    taken = deadlines.abandon(run), deadlines.abandon(run)
    held.release()
    thread.join(5)

    assert (run.delivery.body, taken, ended) == (b"1", (True, False), [HandlerAbandoned])
    assert str(error) == "Handler charge did not end within twice its timeout of 0.05 s"
    assert error.__traceback__ is not None
    assert error.__traceback__.tb_frame.f_code is act.__code__


def test_a_handler_that_was_frozen_with_its_process_is_not_taken_for_hung(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(room, "time", SimpleNamespace(monotonic=lambda: now, sleep=time.sleep))
    monkeypatch.setattr(Deadlines, "_ensure_watcher", lambda *_: None)
    deadlines, hung = Deadlines(), []

    def sleep_with_the_process(_: Delivery) -> None:
        nonlocal now
        for moment in (100.0, 103.9, 104.0):
            now = moment
            for run in [*deadlines._armed]:
                deadlines._expire(run)
            hung.append(len(deadlines.hung))

    limited(deadlines, sleep_with_the_process, 4, asynchronous=True).run(delivery())

    assert hung == [0, 0, 1]


def test_a_nested_handler_has_the_deadline_of_the_outer_one() -> None:
    deadlines = Deadlines()
    inner = limited(deadlines, lambda _: turn_for(0.1), 0.01)

    assert limited(deadlines, inner.run, 5).run(delivery()) is None


def test_an_async_handler_is_watched_and_not_interrupted() -> None:
    deadlines = Deadlines()

    assert limited(deadlines, lambda _: turn_for(0.1), 0.02, asynchronous=True).run(delivery()) is None


def test_the_watcher_ends_when_nothing_runs_and_starts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "IDLE_SECONDS", 0.01)
    deadlines = Deadlines()
    charge = limited(deadlines, turn, 0.02)

    for _ in range(3):
        with pytest.raises(DeadlineExceeded):
            charge.run(delivery())
        wait_until(lambda: deadlines._watcher is None)


@pytest.fixture
def unhooked(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception that ends a thread stays there."""
    monkeypatch.setattr(threading, "excepthook", lambda _: None)


def test_a_watcher_that_cannot_start_raises_unready_and_starts_later(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    deadlines, caught = Deadlines(), []
    charge = limited(deadlines, turn, 0.05)

    def attempt() -> None:
        for _ in range(2):
            try:
                charge.run(delivery())
            except BaseException as error:  # noqa: BLE001 - looked at below
                caught.append(error)
                patch.undo()

    thread = threading.Thread(target=attempt, daemon=True)
    started = thread.start
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        started()
        thread.join(10)

    assert [type(error) for error in caught] == [Unready, DeadlineExceeded]
    assert str(caught[0]) == "No thread can be started to watch the deadline of handler charge: can't start new thread."


@pytest.mark.usefixtures("unhooked")
def test_a_watcher_that_cannot_be_replaced_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    deadlines = Deadlines()

    def outlive(_: Delivery) -> None:
        watcher = deadlines._watcher
        assert watcher is not None
        watcher.join(10)
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", fail)
            for _tick in range(3):
                deadlines.keep_watch()

    with monkeypatch.context() as patch:
        patch.setattr(Deadlines, "_watch", lambda _self: None)
        limited(deadlines, outlive, 60).run(delivery())

    said = "No thread can be started to watch the deadline of handler charge: can't start new thread."
    assert [record.getMessage() for record in told(caplog)] == [f"{said} Retrying every second."]


@pytest.mark.usefixtures("unhooked")
def test_a_watcher_that_has_died_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_self: Deadlines, _run: TimedRun) -> None:
        raise MemoryError

    deadlines = Deadlines()
    ended: list[bool] = []

    def outlive(_: Delivery) -> None:
        watcher = deadlines._watcher
        assert watcher is not None
        watcher.join(10)
        ended.append(watcher.is_alive())

    with monkeypatch.context() as patch:
        patch.setattr(Deadlines, "_expire", fail)
        limited(deadlines, outlive, 0.02).run(delivery())

    assert ended == [False]
    with pytest.raises(DeadlineExceeded):
        limited(deadlines, lambda _: turn_for(10), 0.05).run(delivery())

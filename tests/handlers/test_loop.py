"""The event loop in which all async handlers of a process run side by side."""

import asyncio
import contextvars
import logging
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.utils import translation

from django_rmq_retry import RetryThenPark
from django_rmq_retry.consumer.deadlines import Deadlines, TimedRun
from django_rmq_retry.consumer.workers import TwoPools
from django_rmq_retry.handlers import loop as room
from django_rmq_retry.handlers.call import Unready
from django_rmq_retry.handlers.loop import HandlerLoop, LifespanFailed, LoopEnded
from django_rmq_retry.messages.message import Delivery
from tests.handlers.factories import delivery, subscription
from tests.tooling.waiting import wait_until

PATIENCE = 20
Act = Callable[[Delivery], Coroutine[Any, Any, object]]


class Running:
    """A loop, and threads that wait for handlers in it."""

    def __init__(self) -> None:
        self.loop = HandlerLoop()
        self.threads = ThreadPoolExecutor(8)

    def begin(self, act: Act, message: Delivery | None = None) -> "Future[object]":
        return self.threads.submit(self.loop.run, act, message or delivery(), "charge")

    def run(self, act: Act, message: Delivery | None = None) -> object:
        return self.begin(act, message).result(PATIENCE)


@pytest.fixture
def running() -> Iterator[Running]:
    made = Running()
    yield made
    assert made.loop.close(PATIENCE)
    made.threads.shutdown()


async def thread(_: Delivery) -> int:
    return threading.get_ident()


def test_messages_share_one_loop_in_a_thread_of_its_own(running: Running) -> None:
    async def loop(_: Delivery) -> object:
        return asyncio.get_running_loop(), threading.get_ident()

    first, second = running.run(loop), running.run(loop)

    assert first == second
    assert threading.get_ident() not in first  # type: ignore[operator]


def test_handlers_wait_side_by_side(running: Running) -> None:
    """None of them returns before all have begun."""
    begun: list[int] = []
    together = asyncio.Event()

    async def act(_: Delivery) -> int:
        begun.append(1)
        if len(begun) == 8:
            together.set()
        await together.wait()
        return len(begun)

    waits = [running.begin(act) for _ in range(8)]

    assert [one.result(PATIENCE) for one in waits] == [8] * 8


def test_blocking_calls_run_in_the_thread_that_waits(running: Running) -> None:
    found: list[tuple[set[int], int]] = []

    async def act(_: Delivery) -> None:
        calls = (sync_to_async(threading.get_ident)() for _ in range(3))
        callers = {await sync_to_async(threading.get_ident)(), *await asyncio.gather(*calls)}
        found.append((callers, threading.get_ident()))

    for _ in range(2):
        running.run(act)
    waiting = {thread.ident for thread in running.threads._threads}

    for callers, own in found:
        assert len(callers) == 1
        assert callers <= waiting
        assert own not in waiting
    assert len(found) == 2


@pytest.mark.parametrize(
    "error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError(), ValueError("no")]
)
def test_whatever_a_handler_raises_reaches_its_attempt_and_spares_the_loop(
    running: Running, error: BaseException
) -> None:
    async def act(_: Delivery) -> None:
        await asyncio.sleep(0)
        raise error

    with pytest.raises(type(error)):
        running.run(act)
    assert running.run(thread) == running.run(thread)
    assert not running.loop.fault


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_an_exit_in_a_task_that_is_left_behind_spares_the_loop(
    running: Running, error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    left: list[asyncio.Task[None]] = []

    async def leave() -> None:
        raise error

    async def act(_: Delivery) -> str:
        left.append(asyncio.create_task(leave()))
        return "done"

    assert running.run(act) == "done"
    wait_until(left[0].done)
    wait_until(lambda: "the event loop goes on" in caplog.text and running.loop._loop.is_running())
    assert running.run(thread) == running.run(thread)
    assert left[0].exception() is not None


def test_a_handler_that_stops_the_loop_stops_nobody(running: Running) -> None:
    async def act(_: Delivery) -> str:
        asyncio.get_running_loop().stop()
        await asyncio.sleep(0.01)
        return "done"

    assert [running.run(act), running.run(act)] == ["done", "done"]


def test_a_handler_cancelled_before_it_began_is_given_back(running: Running) -> None:
    """Its thread waited for ever: the task was cancelled before the code that ends the wait."""

    async def cancels_all(_: Delivery) -> str:
        while not (others := asyncio.all_tasks() - {asyncio.current_task()}):  # noqa: ASYNC110 - turn by turn
            await asyncio.sleep(0)
        for task in others:
            task.cancel()
        return "done"

    first = running.begin(cancels_all)
    wait_until(lambda: running.loop._coroutines)
    second = running.begin(thread)

    assert first.result(PATIENCE) == "done"
    with pytest.raises(Unready, match=r"^Handler charge was cancelled before it began\.$"):
        second.result(PATIENCE)


def test_a_loop_whose_thread_dies_ends_the_attempts_that_wait_for_it(running: Running) -> None:
    begun = threading.Event()

    async def waits(_: Delivery) -> None:
        begun.set()
        await asyncio.Event().wait()

    async def dies(_: Delivery) -> None:
        # It closes a file that is not its own.
        os.close(running.loop._loop._selector.fileno())  # type: ignore[attr-defined]
        await asyncio.Event().wait()

    waiting = running.begin(waits)
    assert begun.wait(PATIENCE)
    dying = running.begin(dies)

    for one in (waiting, dying):
        with pytest.raises(LoopEnded):
            one.result(PATIENCE)
    wait_until(lambda: running.loop.fault)
    with pytest.raises(LoopEnded):
        running.run(thread)


def test_a_handler_called_from_its_own_loop_is_an_error_and_no_deadlock(running: Running) -> None:
    async def act(message: Delivery) -> object:
        return running.loop.run(thread, message, "inner")

    with pytest.raises(RuntimeError, match="Async handler inner was called from the event loop"):
        running.run(act)


@pytest.mark.parametrize("error", [None, ConnectionError("closed"), ExceptionGroup("two", [ConnectionError("closed")])])
def test_a_closed_loop_cancels_handlers_and_counts_no_attempt(error: Exception | None) -> None:
    """Also if a handler answers with an error of its own: the history had a failed attempt, and a retry, of none."""
    running, begun, notes = Running(), threading.Event(), list[str]()

    async def act(_: Delivery) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            notes.append("tidied up")
            if error is not None:
                raise error

    waiting = running.begin(act)
    assert begun.wait(PATIENCE)
    assert running.loop.close(PATIENCE)

    with pytest.raises(Unready, match="Handler charge was cancelled, because its process stops"):
        waiting.result(PATIENCE)
    assert notes == ["tidied up"]
    assert not running.loop.fault


def test_a_task_left_behind_goes_on_and_is_cancelled_at_the_end() -> None:
    running, notes = Running(), list[str]()
    going = threading.Event()

    async def behind() -> None:
        try:
            await asyncio.sleep(0.01)
            going.set()
            await asyncio.Event().wait()
        finally:
            notes.append("cancelled")

    async def act(_: Delivery) -> str:
        notes.append("returned")
        act.task = asyncio.create_task(behind())  # type: ignore[attr-defined]
        return "done"

    assert running.run(act) == "done"
    assert going.wait(PATIENCE)
    assert running.loop.close(PATIENCE)
    assert notes == ["returned", "cancelled"]


def test_a_task_left_behind_has_no_thread_for_blocking_calls(running: Running) -> None:
    left: list[asyncio.Task[int]] = []
    ended = asyncio.Event()

    async def behind() -> int:
        await ended.wait()
        return await sync_to_async(threading.get_ident)()

    async def act(_: Delivery) -> None:
        left.append(asyncio.create_task(behind()))

    async def end(_: Delivery) -> None:
        ended.set()
        with pytest.raises(RuntimeError, match="The message of this task has ended"):
            await left[0]

    running.run(act)
    running.run(end)


# Handlers that block the loop


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of a second is long."""
    monkeypatch.setattr(room, "BLOCKED_SECONDS", 0.1)
    monkeypatch.setattr(room, "SUSPECT_SECONDS", 0.04)


def blocks(until: threading.Event) -> None:
    """Block its thread, in this function and not in another module."""
    while not until.is_set():
        time.sleep(0.01)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("inner", [False, True])
def test_a_handler_that_blocks_the_loop_is_named_once_with_its_line(
    running: Running, inner: bool, caplog: pytest.LogCaptureFixture
) -> None:
    seen = threading.Event()

    async def act(_: Delivery) -> None:
        await asyncio.sleep(0)
        blocks(seen)

    async def gathers(message: Delivery) -> None:
        await asyncio.gather(act(message))

    message = delivery()
    blocking = running.begin(gathers if inner else act, message)
    blocked = wait_until(lambda: running.loop.blocked_by)
    for _ in range(3):
        running.loop.look()
    seen.set()
    blocking.result(PATIENCE)

    [line] = [record for record in caplog.records if record.__dict__.get("event") == "blocked_loop"]
    assert blocked.token is message.token
    assert line.getMessage().startswith("Handler charge has blocked the event loop for 0.")
    assert f"{Path(__file__)}:" in line.getMessage()
    assert "(act), in " in line.getMessage()
    assert "(blocks). Await what takes long" in line.getMessage()
    assert running.loop.blocked_by is None


@pytest.mark.usefixtures("impatient")
def test_a_handler_that_has_blocked_between_two_looks_is_named_too(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    async def act(_: Delivery) -> None:
        threading.Event().wait(0.3)

    running.run(act)
    # The result is there before the step that gave it has ended.
    [line] = wait_until(lambda: [one for one in caplog.records if one.__dict__.get("event") == "blocked_loop"])

    assert line.__dict__["handler"] == "charge"


def test_a_handler_that_waits_is_not_named(running: Running, caplog: pytest.LogCaptureFixture) -> None:
    # Longer than what counts as blocking, which is a whole second: a busy machine may delay a step by less.
    async def act(_: Delivery) -> None:
        await asyncio.sleep(1.2)
        await sync_to_async(threading.Event().wait)(1.2)

    waiting, pause = running.begin(act), threading.Event()
    while not waiting.done():
        pause.wait(0.01)
        running.loop.look()
        assert running.loop.blocked_by is None
    assert [one for one in caplog.records if one.name == "django_rmq_retry"] == []


# Where a handler hangs


async def deeper() -> None:
    await asyncio.Event().wait()


def stands(until: threading.Event) -> None:
    until.wait(PATIENCE)


@pytest.mark.parametrize("how", ["awaits", "blocks", "calls"])
def test_the_place_of_a_handler_that_hangs_is_in_its_coroutine(
    monkeypatch: pytest.MonkeyPatch, running: Running, how: str
) -> None:
    monkeypatch.setattr(room, "_loop", running.loop)
    begun, until = threading.Event(), threading.Event()

    async def act(_: Delivery) -> None:
        begun.set()
        if how == "awaits":
            await deeper()
        elif how == "blocks":
            stands(until)
        else:
            await sync_to_async(stands)(until)

    charge = replace(subscription(RetryThenPark(), name="charge"), asynchronous=True)
    found: list[TimedRun] = []

    def attempt() -> None:
        run = TimedRun(delivery(), charge, 60)
        found.append(run)
        with suppress(LoopEnded):
            Deadlines().run(lambda message: running.loop.run(act, message, "charge"), run)

    waiting = running.threads.submit(attempt)
    assert begun.wait(PATIENCE)
    functions = wait_until(lambda: [one for one in [names(found[0])] if one[-1] == "wait"])[0]
    until.set()
    running.loop.close(PATIENCE)
    waiting.result(PATIENCE)

    assert ("deeper" if how == "awaits" else "stands") in functions
    assert ("act" in functions) is (how != "calls")


def names(run: TimedRun) -> list[str]:
    """Return the functions in the traceback of a run, the innermost last."""
    functions, traceback = [], run.error().__traceback__
    while traceback is not None:
        functions.append(traceback.tb_frame.f_code.co_name)
        traceback = traceback.tb_next
    return functions


# Forks


def test_a_child_forked_in_the_loop_ends_before_the_loop_goes_on(running: Running, tmp_path: Path) -> None:
    """The child has the tasks of all other messages too: none of them may go on in it."""
    other, notes = asyncio.Event(), tmp_path / "notes"

    async def bystander(_: Delivery) -> None:
        await other.wait()
        with notes.open("a") as file:
            file.write(f"{os.getpid()} ")

    async def act(_: Delivery) -> int:
        other.set()
        child = os.fork()
        if not child:
            await asyncio.sleep(0)
            os._exit(42)
        return os.waitstatus_to_exitcode((await asyncio.to_thread(os.waitpid, child, 0))[1])

    waiting = running.begin(bystander)
    wait_until(lambda: running.loop._coroutines)

    assert running.run(act) == 0
    waiting.result(PATIENCE)
    assert notes.read_text() == f"{os.getpid()} "


def test_a_child_forked_in_a_blocking_call_ends_there(running: Running, tmp_path: Path) -> None:
    notes = tmp_path / "notes"

    def fork() -> int:
        child = os.fork()
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) if child else 42

    async def act(_: Delivery) -> int:
        code = await sync_to_async(fork)()
        with notes.open("a") as file:
            file.write(f"{os.getpid()} ")
        return code

    assert running.run(act) == 0
    assert notes.read_text() == f"{os.getpid()} "


# Context variables

bound: contextvars.ContextVar[str] = contextvars.ContextVar("bound", default="nothing")


def test_context_variables_of_a_message_end_with_it(running: Running) -> None:
    """Also in the thread that waits: what the handler sets is seen by the end of its attempt and by no other one."""
    found: list[tuple[str, str, str]] = []

    async def act(message: Delivery) -> str:
        before = bound.get()
        bound.set(message.body.decode())
        await asyncio.sleep(0.001)
        return before + bound.get()

    def work(message: Delivery) -> None:
        before = bound.get()
        found.append((before, str(running.loop.run(act, message, "charge")), bound.get()))

    pools = TwoPools(0, 4, work, is_async=lambda _: True)
    pools.start()
    for number in range(40):
        pools.add(delivery(body=b"%d" % number))
    assert pools.wait_quiet(PATIENCE)
    pools.stop()

    assert sorted(found) == sorted(("nothing", f"nothing{number}", str(number)) for number in range(40))


def test_a_language_that_a_hook_activates_is_that_of_the_handler(running: Running) -> None:
    """Django keeps it in a variable of asgiref, which belongs to one thread."""
    context = contextvars.copy_context()

    async def act(_: Delivery) -> list[str | None]:
        return [translation.get_language(), await sync_to_async(translation.get_language)()]

    def attempt() -> object:
        with translation.override("fr"):
            return running.loop.run(act, delivery(), "charge")

    assert running.threads.submit(context.run, attempt).result(PATIENCE) == ["fr", "fr"]
    assert running.run(act) != ["fr", "fr"]


# The lifespan


def test_the_lifespan_is_entered_and_left_once_in_one_task() -> None:
    running, notes = Running(), list[Any]()

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[dict[str, int]]:
        notes.append(asyncio.current_task())
        yield {"opened": 1}
        notes.append(asyncio.current_task())

    async def act(message: Delivery) -> object:
        notes.append(message.state)
        return message.state

    assert running.loop.open(lifespan)
    states = running.run(act), running.run(act)
    assert running.loop.close(PATIENCE)

    assert states[0] is states[1]
    assert states[0] == {"opened": 1}
    assert notes[1:3] == [{"opened": 1}] * 2
    assert notes[0] is notes[3]


def fail(error: Exception) -> None:
    raise error


def test_a_lifespan_that_fails_says_so_in_one_sentence(running: Running) -> None:
    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        fail(ConnectionError("the bank is away"))
        yield

    with pytest.raises(LifespanFailed, match=r"^RMQ_RETRY\['LIFESPAN'\] failed .*: ConnectionError: the bank is away$"):
        running.loop.open(lifespan)


def test_a_lifespan_that_runs_into_a_timeout_has_failed(running: Running) -> None:
    """Its TimeoutError was taken for the one of the wait for it, and the process never began."""

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        fail(TimeoutError("the bank does not answer"))
        yield

    end = time.monotonic() + PATIENCE
    with pytest.raises(LifespanFailed, match=r"TimeoutError: the bank does not answer$"):
        running.loop.open(lifespan, stopping=lambda: time.monotonic() > end)


def test_a_lifespan_that_is_no_context_manager_is_told_the_right_form(running: Running) -> None:
    with pytest.raises(
        LifespanFailed, match=r"^RMQ_RETRY\['LIFESPAN'\] failed .*: it returned dict, .*@asynccontextmanager$"
    ):
        running.loop.open(lambda: {"bank": 1})  # type: ignore[arg-type, return-value]


def test_a_stop_does_not_wait_for_a_lifespan_that_hangs(running: Running) -> None:
    stopped: list[str] = []

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        try:
            await asyncio.Event().wait()
        finally:
            # A second cancellation would end this.
            for _ in range(100):
                await asyncio.sleep(0)
            stopped.append("left")
        yield

    assert not running.loop.open(lifespan, stopping=lambda: True)
    assert running.loop.close(PATIENCE)
    assert stopped == ["left"]


def test_the_end_of_a_loop_waits_for_its_threads(running: Running) -> None:
    """A call in a thread went on, and kept a process that was to end, without a limit."""
    begun, done = threading.Event(), threading.Event()

    def call() -> None:
        begun.set()
        done.wait(PATIENCE)

    async def act(_: Delivery) -> None:
        await asyncio.to_thread(call)

    running.begin(act)
    assert begun.wait(PATIENCE)

    assert not running.loop.close(0.5)
    done.set()


def test_a_lifespan_that_fails_at_its_end_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    running = Running()

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        yield
        raise ConnectionError("the bank is away")

    running.loop.open(lifespan)
    with caplog.at_level(logging.ERROR):
        assert running.loop.close(PATIENCE)
    assert "RMQ_RETRY['LIFESPAN'] failed at its end" in caplog.text


@pytest.mark.parametrize("error", [ConnectionError("the token expired"), asyncio.CancelledError(), None])
def test_a_lifespan_that_ends_before_its_process_ends_the_process(
    running: Running, error: BaseException | None
) -> None:
    """Its handlers went on with a client that was closed, and each message failed."""
    task = list[asyncio.Task[Any]]()

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        task.append(asyncio.current_task())  # type: ignore[arg-type]
        try:
            yield
        except asyncio.CancelledError:
            if error is not None:
                raise error from None

    async def act(_: Delivery) -> None:
        task[0].cancel()

    running.loop.open(lifespan)
    assert not running.loop.fault
    running.run(act)

    said = wait_until(lambda: running.loop.fault)
    assert said.startswith("RMQ_RETRY['LIFESPAN'] was ended")
    assert said.endswith("before its process, so handlers have no state to use.")
    assert (str(error or "") in said, "\n" in said) == (True, False)


def test_messages_without_a_lifespan_have_no_state(running: Running) -> None:
    async def act(message: Delivery) -> object:
        return message.state

    assert running.run(act) is None

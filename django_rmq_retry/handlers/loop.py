"""The event loop of a process: all its async handlers run side by side in one thread.

The attempt of an async handler stays in the thread that makes it, which waits here: only the coroutine runs in the
loop. So the transaction, the hooks, the deadline and the database connections of the attempt stay where they are for
any other handler. The thread that waits makes the thread-sensitive calls of its coroutine, such as those of the ORM.
"""

import asyncio
import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Hashable, Sequence
from concurrent import futures
from concurrent.futures import Executor, Future
from contextlib import AbstractAsyncContextManager, suppress
from contextvars import Context, ContextVar, copy_context
from functools import partial
from queue import SimpleQueue
from types import CodeType, FrameType
from typing import Any, NamedTuple, TypeAlias

from asgiref.sync import AsyncToSync, SyncToAsync, async_to_sync

from django_rmq_retry import forks
from django_rmq_retry.handlers.call import Unready
from django_rmq_retry.handlers.contracts import log_failure
from django_rmq_retry.messages.message import Delivery
from django_rmq_retry.messages.texts import ErrorNote

log = logging.getLogger("django_rmq_retry")

BLOCKED_SECONDS = 1.0
"""Seconds after which a handler that does not let the others go on is named in the log."""
SUSPECT_SECONDS = 0.4
"""Seconds after which its line is noted, for the case that it goes on before anybody looks again."""
CLOSE_SECONDS = 5.0
"""Seconds in which handlers that are cancelled, and the lifespan, may end."""
LOOK_SECONDS = 0.1
LOST = "before its process, so handlers have no state to use."

Lifespan: TypeAlias = Callable[[], AbstractAsyncContextManager[object]]
AsyncFunction: TypeAlias = Callable[[Any], Coroutine[Any, Any, object]]
Handled: TypeAlias = Delivery | Sequence[Delivery]
"""What a coroutine handles: one message, or a batch."""

ASGIREF_LOCAL = "asgiref.local"
"""The name of the context variables of asgiref, which tag their values with the thread that they belong to."""

_steps: ContextVar["_Steps | None"] = ContextVar("rmq_steps", default=None)
"""The message to which the running task belongs: tasks that a handler makes inherit it."""


class Blocking(NamedTuple):
    """A message whose handler does not let others go on."""

    token: Hashable
    """The token of its delivery."""
    since: float
    """The monotonic time of its last ``await``."""


class LoopEnded(Unready):
    """Raised in the thread of an attempt whose event loop has ended: the attempt is not counted."""


class LifespanFailed(Exception):
    """Raised if the lifespan of the project cannot be entered."""


class _Steps:
    """Takes a task from one ``await`` to the next one, and knows since when the current step takes.

    A child that the task forks has the event loop of its parent, with all other messages in it: it must end before that
    loop goes on.
    """

    __slots__ = ("_coroutine", "_loop", "began", "handler", "message", "named", "place")

    def __init__(self, loop: "HandlerLoop", coroutine: Coroutine[Any, Any, Any]) -> None:
        parent = _steps.get()
        self._loop = loop
        self._coroutine = coroutine
        self.handler: str = "" if parent is None else parent.handler
        self.message: Delivery | None = None if parent is None else parent.message
        self.began = 0.0
        self.place = ""
        self.named = False

    def __await__(self) -> Generator[Any, Any, Any]:
        coroutine, loop, forked = self._coroutine, self._loop, forks.count
        value: Any = None
        thrown: BaseException | None = None
        _steps.set(self)
        while True:
            outer, loop.step = loop.step, self
            self.began = time.monotonic()
            try:
                waited = coroutine.send(value) if thrown is None else coroutine.throw(thrown)
            except StopIteration as done:
                forks.end_since(forked)
                return done.value
            except BaseException as raised:
                forks.end_since(forked, raised)
                raise
            finally:
                loop.step, thrown = outer, None
                seconds = time.monotonic() - self.began
                if seconds > BLOCKED_SECONDS:
                    self.name(seconds)
            forks.end_since(forked)
            self.place, self.named, value = "", False, None
            try:
                value = yield waited
            except GeneratorExit:
                coroutine.close()
                raise
            except BaseException as error:  # noqa: BLE001 - passed on: a task that is cancelled
                thrown = error

    def name(self, seconds: float) -> None:
        """Name the handler in the log, once for each step."""
        if self.named:
            return
        self.named = True
        what = f"Handler {self.handler}" if self.handler else "A task that belongs to no message"
        at = f" It was at {self.place}." if self.place else ""
        log.warning(
            "%s has blocked the event loop for %.1f s: no other async handler of this process could go on.%s Await "
            "what takes long, or call it by asyncio.to_thread or sync_to_async.",
            *(what, seconds, at),
            extra={"event": "blocked_loop", "handler": self.handler, "seconds": round(seconds, 3)},
        )


class _Wait(Executor):
    """A thread that waits for a coroutine. Meanwhile it makes the thread-sensitive calls that asgiref submits.

    Only the thread of the loop submits calls and ends the wait, so no call can come after the end.
    """

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self.over = False
        self._result: object = None
        self._error: BaseException | None = None
        self._context: Context | None = None

    def submit(self, function: Callable[..., Any], /, *args: Any, **named: Any) -> "Future[Any]":
        if self.over:
            raise RuntimeError("The message of this task has ended, and with it the thread for its blocking calls.")
        future: Future[Any] = Future()
        self._calls.put(partial(_make, future, partial(function, *args, **named)))
        return future

    def end(self, result: object, error: BaseException | None = None, context: Context | None = None) -> None:
        if not self.over:
            self.over, self._result, self._error, self._context = True, result, error, context
            self._calls.put(None)

    def result(self) -> object:
        """Make calls until the coroutine has ended; take its context variables over, and return or raise its result."""
        while (call := self._calls.get()) is not None:
            call()
        for variable, value in () if self._context is None else self._context.items():
            if variable.name != ASGIREF_LOCAL and variable is not _steps and variable.get(self) is not value:
                variable.set(value)
        error, self._error = self._error, None
        if error is None:
            return self._result
        try:
            raise error
        finally:
            # Its traceback leads back to this frame.
            del error


class HandlerLoop:
    """One event loop, in a thread of its own that ends with ``close``."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.set_task_factory(self._task)
        self._coroutines: dict[int, tuple[asyncio.Task[Any] | None, Any]] = {}
        """The task and coroutine of each thread that waits for one."""
        self._ending = self._ended = self._gone = False
        self._new: deque[tuple[Coroutine[Any, Any, None], Context, partial[None]]] = deque()
        """Coroutines to begin, each with its context and what to call at its end."""
        self._woken = False
        """True from the first coroutine that waits for the loop to the moment in which it takes all of them."""
        self._waits = set[_Wait]()
        self._state: object = None
        self._opened = False
        self._lost = ""
        """Why handlers have no lifespan any more, as a sentence."""
        self._leave = asyncio.Event()
        self._life: Future[None] | None = None
        self.step: _Steps | None = None
        """The step that the loop takes at this moment."""
        turns = threading.Event()
        self._loop.call_soon(turns.set)
        self._thread = threading.Thread(target=self._turn, name="rmq-loop", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            self._loop.close()
            raise Unready(f"No thread can be started for the event loop of async handlers: {error}.") from error
        # Older versions of asgiref run a coroutine in a loop of its own unless the given one runs at that moment.
        turns.wait()

    @property
    def fault(self) -> str:
        """Why its process has to end, as a sentence; empty as long as handlers can run here."""
        if not self._thread.is_alive() and not self._ending:
            return "The event loop of async handlers has ended unexpectedly."
        return self._lost

    def run(self, function: AsyncFunction, message: Handled, handler: str) -> object:
        """Run an async function in the loop and wait for its result in this thread, which makes its blocking calls."""
        thread = threading.get_ident()
        if thread == self._thread.ident:
            raise RuntimeError(
                f"Async handler {handler} was called from the event loop in which it has to run, so it would wait for "
                "itself. Await it, or use acall and apublish."
            )
        if self._ending or not self._thread.is_alive():
            raise LoopEnded(f"The event loop of handler {handler} has ended.")
        context = copy_context()
        if any(variable.name == ASGIREF_LOCAL for variable in context):
            return self._run_by_asgiref(function, message, handler, thread)
        wait = _Wait()
        self._waits.add(wait)
        coroutine = self._awaited(wait, function, message, handler, thread)
        self._new.append((coroutine, context, partial(self._end_unbegun, wait, coroutine, handler)))
        if not self._woken:
            self._woken = True
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._take_new)
        if self._gone:
            self._end_waits()
        return wait.result()

    def _run_by_asgiref(self, function: AsyncFunction, message: Handled, handler: str, thread: int) -> object:
        """Do the same five times as slowly: only asgiref can move its own variables, such as Django's language.

        It runs the coroutine in the loop that it finds here, as if this thread had been started from it.
        """
        local: Any = SyncToAsync.threadlocal
        before = getattr(local, "main_event_loop", None), getattr(local, "main_event_loop_pid", None)
        local.main_event_loop, local.main_event_loop_pid = self._loop, os.getpid()
        try:
            return async_to_sync(self._followed)(function, message, handler, thread)
        finally:
            local.main_event_loop, local.main_event_loop_pid = before

    def open(self, lifespan: Lifespan, *, stopping: Callable[[], object] = lambda: False) -> bool:
        """Enter the lifespan, whose value messages get as ``state``; return False if ``stopping`` comes first."""
        opened: Future[object] = Future()
        self._life = asyncio.run_coroutine_threadsafe(self._live(lifespan, opened), self._loop)
        while not futures.wait([opened], LOOK_SECONDS).done:
            if stopping():
                return False
        try:
            self._state = opened.result()
        except BaseException as error:
            raise LifespanFailed(
                f"RMQ_RETRY['LIFESPAN'] failed before the first message: {ErrorNote.of(error)}"
            ) from error
        return True

    def close(self, timeout: float = CLOSE_SECONDS) -> bool:
        """Cancel the handlers that still run, leave the lifespan and end; return False if that takes too long.

        The attempts of handlers that are cancelled here are not counted: their messages are not settled.
        """
        end = time.monotonic() + timeout
        self._ending = True
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(lambda: self._loop.create_task(self._end()))
        self._thread.join(max(0.0, end - time.monotonic()))
        return not self._thread.is_alive()

    def look(self) -> None:
        """Name a handler in the log that blocks the loop at this moment; call this at least every half second."""
        step = self.step
        if step is None:
            return
        seconds = time.monotonic() - step.began
        if seconds > SUSPECT_SECONDS and not step.place:
            place = self._where()
            if self.step is step:
                step.place = place
        if seconds > BLOCKED_SECONDS:
            step.name(seconds)

    @property
    def blocked_by(self) -> Blocking | None:
        """The message whose handler blocks the loop at this moment."""
        step = self.step
        if step is None or step.message is None or time.monotonic() - step.began <= BLOCKED_SECONDS:
            return None
        return Blocking(step.message.token, step.began)

    def frames(self, thread: int) -> list[FrameType]:
        """Return the frames of the coroutine for which a thread waits, the innermost first; empty if it waits for none.

        Also empty while the thread itself makes a call of the coroutine: the place is in its own frames.
        """
        _, coroutine = self._coroutines.get(thread, (None, None))
        if coroutine is None or _calls(sys._current_frames().get(thread)):  # noqa: SLF001 - the documented way to look at a thread
            return []
        if coroutine.cr_running:
            return self._running_frames()
        frames: list[FrameType] = []
        awaited: Any = coroutine
        while awaited is not None:
            frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
            if frame is not None:
                frames.append(frame)
            awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
        return frames[::-1]

    def _where(self) -> str:
        """Return the line that the loop executes: in the handler, and in what it calls."""
        own = [frame for frame in self._running_frames() if not _is_between(frame)]
        lines = [f"{one.f_code.co_filename}:{one.f_lineno} ({one.f_code.co_name})" for one in (*own[-1:], *own[:1])]
        return ", in ".join(dict.fromkeys(lines))

    def _running_frames(self) -> list[FrameType]:
        frame = sys._current_frames().get(self._thread.ident or 0)  # noqa: SLF001 - as above
        frames: list[FrameType] = []
        while frame is not None and frame.f_code is not _STEP:
            frames.append(frame)
            frame = frame.f_back
        return frames

    def _task(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        return asyncio.Task(self._stepped(coroutine), loop=loop, **options)

    async def _stepped(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return await _Steps(self, coroutine)

    def _take_new(self) -> None:
        self._woken = False
        while self._new:
            coroutine, context, at_end = self._new.popleft()
            self._loop.create_task(coroutine, context=context).add_done_callback(at_end)

    def _end_unbegun(
        self, wait: _Wait, coroutine: Coroutine[Any, Any, None], handler: str, _task: asyncio.Task[Any]
    ) -> None:
        """End the wait for a task that somebody has cancelled before its first step: its coroutine never begins."""
        if not wait.over:
            coroutine.close()
            self._waits.discard(wait)
            error = LoopEnded if self._ending else Unready
            wait.end(None, error(f"Handler {handler} was cancelled before it began."))

    async def _awaited(self, wait: _Wait, function: AsyncFunction, message: Handled, handler: str, thread: int) -> None:
        # asgiref submits the thread-sensitive calls of this task, and of those that it makes, to this executor.
        AsyncToSync.executors.current = wait
        try:
            result = await self._followed(function, message, handler, thread)
        except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
            wait.end(None, error, copy_context())
        else:
            wait.end(result, None, copy_context())
        finally:
            self._waits.discard(wait)

    async def _followed(self, function: AsyncFunction, message: Handled, handler: str, thread: int) -> object:
        steps = _steps.get()
        if steps is not None:
            steps.message, steps.handler = message if isinstance(message, Delivery) else message[0], handler
        if self._life is not None:
            message = (
                _with_state(message, self._state)
                if isinstance(message, Delivery)
                else [_with_state(one, self._state) for one in message]
            )
        outer = self._coroutines.get(thread)
        coroutine = function(message)
        self._coroutines[thread] = asyncio.current_task(), coroutine
        try:
            return await coroutine
        except (asyncio.CancelledError, Exception):
            # A handler that is cancelled may answer with an error of its own, such as of a client that is closed.
            if self._ending:
                raise LoopEnded(f"Handler {handler} was cancelled, because its process stops.") from None
            raise
        finally:
            # The context goes back to the thread, which must not keep the message.
            _steps.set(None)
            if outer is None:
                del self._coroutines[thread]
            else:
                self._coroutines[thread] = outer

    async def _live(self, lifespan: Lifespan, opened: "Future[object]") -> None:
        """Enter and leave the lifespan in one task, as the cancel scopes of anyio need it."""
        try:
            async with _context_of(lifespan) as state:
                self._opened = True
                opened.set_result(state)
                await self._leave.wait()
        except BaseException as error:  # noqa: BLE001 - raised in open(), or too late for anybody
            if not opened.done():
                opened.set_exception(error)
                return
            if self._leave.is_set():
                log_failure("RMQ_RETRY['LIFESPAN'] failed at its end", error)
                return
            log_failure("RMQ_RETRY['LIFESPAN'] failed while handlers run", error)
            self._lost = f"RMQ_RETRY['LIFESPAN'] was ended by {ErrorNote.of(error)} {LOST}"
        else:
            if not self._leave.is_set():
                self._lost = f"RMQ_RETRY['LIFESPAN'] was ended {LOST}"

    async def _end(self) -> None:
        try:
            await _cancelled([task for task, _ in list(self._coroutines.values()) if task is not None])
            if self._life is not None and self._opened:
                self._leave.set()
                await asyncio.wait([asyncio.wrap_future(self._life)])
            # A lifespan that is not entered yet is one of them: it may clean up, too.
            await _cancelled(list(asyncio.all_tasks() - {asyncio.current_task()}))
            await self._loop.shutdown_asyncgens()
            # At its exit Python would wait without a limit for the threads of asyncio.to_thread.
            await self._loop.shutdown_default_executor()
        finally:
            self._ended = True
            self._loop.stop()

    def _turn(self) -> None:
        try:
            self._run_until_closed()
        except BaseException as error:  # noqa: BLE001 - such as EBADF: code of the project has closed the selector
            log_failure("The event loop of async handlers has failed", error)
        finally:
            self._gone = True
            self._abandon()
            self._end_waits()
            with suppress(Exception):
                self._loop.close()

    def _run_until_closed(self) -> None:
        while not self._ended:
            try:
                self._loop.run_forever()
            except (SystemExit, KeyboardInterrupt) as error:
                # asyncio ends its loop for those of a task. The task is one of many here, and none of ours.
                log_failure("A task that a handler has left behind ended with an exit; the event loop goes on", error)

    def _abandon(self) -> None:
        """End the waits of all threads: nobody will go on with their coroutines."""
        for task in asyncio.all_tasks(self._loop):
            coroutine: Any = task.get_coro()
            with suppress(BaseException):
                coroutine.throw(LoopEnded("The event loop has ended."))

    def _end_waits(self) -> None:
        """End the waits for coroutines that will never be begun."""
        while self._new:
            with suppress(IndexError):
                self._new.popleft()[0].close()
        for wait in self._waits.copy():
            wait.end(None, LoopEnded("The event loop has ended."))


def _context_of(lifespan: Lifespan) -> AbstractAsyncContextManager[object]:
    context: object = lifespan()
    if not isinstance(context, AbstractAsyncContextManager):
        kind = type(context).__name__
        raise TypeError(f"it returned {kind}, not an async context manager; decorate it with @asynccontextmanager")
    return context


def _with_state(message: Delivery, state: object) -> Delivery:
    return message.for_attempt(attempt=message.attempt, data=message.data, key=message.key, state=state)


def _make(future: "Future[Any]", call: Callable[[], Any]) -> None:
    """Make a call of a coroutine in the thread that waits for it. A child that it forks ends here."""
    if not future.set_running_or_notify_cancel():
        return
    forked = forks.count
    try:
        result = call()
    except BaseException as error:  # noqa: BLE001 - raised in the coroutine
        forks.end_since(forked, error)
        future.set_exception(error)
    else:
        forks.end_since(forked)
        future.set_result(result)


_STEP: CodeType = _Steps.__await__.__code__
_CALL: CodeType = SyncToAsync.thread_handler.__code__


async def _cancelled(tasks: "list[asyncio.Task[Any]]") -> None:
    """Cancel the tasks and wait for their ends."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)


def _calls(frame: FrameType | None) -> bool:
    """True if a thread makes a blocking call for the coroutine that it waits for."""
    while frame is not None:
        if frame.f_code is _CALL:
            return True
        frame = frame.f_back
    return False


def _is_between(frame: FrameType) -> bool:
    """True for the frames of this package and of asgiref around a handler."""
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] in ("django_rmq_retry", "asgiref")


_lock = threading.Lock()
_loop: HandlerLoop | None = None
_parents: list[HandlerLoop | None] = []
"""The loops of parent processes, kept because the end of a loop changes a selector that parent and child share."""


def handler_loop() -> HandlerLoop:
    """Return the loop of this process, which the first async handler starts."""
    global _loop  # noqa: PLW0603 - there is one process
    loop = _loop
    if loop is None:
        with _lock:
            loop = _loop = _loop or HandlerLoop()
    return loop


def known_loop() -> HandlerLoop | None:
    """Return the loop of this process; None if no async handler has run."""
    return _loop


def close(timeout: float = CLOSE_SECONDS) -> bool:
    """Close the loop of this process, if there is one; return False if that takes too long."""
    global _loop
    with _lock:
        loop, _loop = _loop, None
    return loop is None or loop.close(timeout)


def _forked() -> None:
    global _loop, _lock
    _parents.append(_loop)
    _loop, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forked)

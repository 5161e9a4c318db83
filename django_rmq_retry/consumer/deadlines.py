"""Deadlines of handlers: an exception raised in the handler's thread, never after the handler has returned."""

import ctypes
import logging
import math
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import wraps
from types import FrameType, TracebackType

from django_rmq_retry.consumer.attempt_state import AttemptState
from django_rmq_retry.errors import DeadlineExceeded, NoKey
from django_rmq_retry.handlers.call import Unready
from django_rmq_retry.handlers.loop import known_loop
from django_rmq_retry.handlers.subscription import Subscription, WorkQueue
from django_rmq_retry.messages.message import Delivery

log = logging.getLogger("django_rmq_retry")

HUNG_FACTOR = 2
"""A handler that still runs after this many times its deadline, and was told to end after the first, counts as hung."""
LONG_RUN_SECONDS = 1500.0
"""Seconds after which a handler is named in the log, some minutes before the broker takes its message back."""
SHORTEST_SLEEP_SECONDS, IDLE_SECONDS = 0.01, 1.0
"""Seconds: the shortest sleep of the watcher thread, and its lifetime without a handler to watch."""


class HandlerAbandoned(BaseException):
    """Raised when a handler returns after its message was settled without it: nothing may be committed."""


class TimedRun:
    """One run of a handler under its deadline, or of another function of the project, its ``part``."""

    __slots__ = (
        *("batch", "delivery", "due", "expired", "over", "part"),
        *("raised", "seconds", "subscription", "thread", "told"),
    )

    def __init__(
        self,
        delivery: Delivery,
        subscription: Subscription,
        seconds: float,
        *,
        part: str = "",
        batch: Sequence[Delivery] = (),
    ) -> None:
        self.delivery = delivery
        self.batch = batch
        """All messages of a call with several: which one is at fault is not known."""
        self.subscription = subscription
        self.seconds = seconds
        self.part = part
        self.due = self.told = math.inf
        self.thread = threading.get_ident()
        self.expired = self.over = False
        # A bare lock, held until the watcher has raised the exception. Only C code touches it, so an asynchronous
        # exception cannot leave it held.
        self.raised = threading.Lock()
        self.raised.acquire()

    @property
    def hung(self) -> bool:
        # Not since it was due: a process that was frozen wakes up with handlers that nobody has told to end.
        return time.monotonic() >= self.told + (HUNG_FACTOR - 1) * self.seconds

    def error(self) -> DeadlineExceeded:
        """Return the DeadlineExceeded of a hung handler, with a traceback to the line that it executes now."""
        error = DeadlineExceeded(self.subscription.name, self.seconds, hung=True, part=self.part)
        return error.with_traceback(self._place())

    def late(self) -> DeadlineExceeded:
        return DeadlineExceeded(self.subscription.name, self.seconds, part=self.part)

    @property
    def interruptible(self) -> bool:
        """True if an exception may be raised in its thread: an async handler is cancelled in its event loop."""
        return bool(self.part) or not self.subscription.runs_in_loop(self.delivery)

    @property
    def exception(self) -> str:
        """The name of the exception that its deadline raises in it."""
        return "DeadlineExceeded" if self.interruptible else "CancelledError"

    def _place(self) -> TracebackType | None:
        traceback = None
        for frame in self._frames():
            traceback = TracebackType(traceback, frame, frame.f_lasti, frame.f_lineno)
        return traceback

    def _frames(self) -> list[FrameType]:
        """Return the frames of the handler, the innermost first; those of a coroutine are not in its thread."""
        loop = None if self.interruptible else known_loop()
        frames = [] if loop is None else loop.frames(self.thread)
        if frames:
            return frames
        frame = sys._current_frames().get(self.thread)  # noqa: SLF001 - the documented way to look at a thread
        while frame is not None and frame.f_code is not Deadlines.run.__code__:
            frames.append(frame)
            frame = frame.f_back
        return frames


class Deadlines:
    """The deadlines of one process. The thread that takes a run out of its table, armed or expired, owns it."""

    def __init__(self, interrupted: Callable[[], None] = lambda: None, *, shortest: float = math.inf) -> None:
        self._interrupted = interrupted
        """Called in the handler's thread after a deadline has interrupted the handler."""
        self.strict: float | None = None
        """The deadline of handlers in strict order that have none of their own; None while the broker needs none."""
        self._armed: dict[TimedRun, bool] = {}
        self._expired: dict[TimedRun, bool] = {}
        self._shortest = shortest
        self._lock = threading.Lock()
        self._watcher: threading.Thread | None = None
        self._unwatched = False
        """True if the log already has the line that no watcher thread can be started."""

    def limited(self, work_queue: WorkQueue) -> WorkQueue:
        """Return the work queue with handlers that end at their deadline."""
        if all(one.timeout is None for one in work_queue.subscriptions) and not work_queue.ordered:
            return work_queue
        return replace(work_queue, subscriptions=tuple(map(self._limited, work_queue.subscriptions)))

    @property
    def hung(self) -> list[TimedRun]:
        """The runs that their deadline could not end."""
        return [run for run in self._expired.copy() if run.hung]

    def keep_watch(self) -> None:
        """Replace a watcher thread that died while handlers run; if no thread can be started, the next call retries."""
        armed = list(self._armed.copy())
        if not armed:
            return
        try:
            with self._lock:
                self._ensure_watcher(armed[0])
        except Unready as error:
            if not self._unwatched:
                self._unwatched = True
                log.warning("%s Retrying every second.", error, extra={"event": "unwatched"})
        else:
            self._unwatched = False

    def abandon(self, run: TimedRun) -> bool:
        """Claim the message of a hung run; return False if the handler has ended in the meantime."""
        return self._expired.pop(run, None) is not None

    def _limited(self, subscription: Subscription) -> Subscription:
        function, seconds = subscription.run, subscription.timeout
        if seconds is None:
            return self._strictly(subscription) if subscription.policy.ordered else subscription
        self._shortest = min(self._shortest, seconds)

        # A failure is grouped without the handler's own function, which is found behind the wrapper.
        @wraps(function)
        def run(delivery: Delivery) -> object:
            return self.run(function, TimedRun(delivery, subscription, seconds))

        whole = subscription.run_batch
        if whole is None:
            return replace(subscription, run=run)

        @wraps(whole)
        def run_batch(batch: Sequence[Delivery]) -> object:
            timed = TimedRun(batch[0], subscription, seconds, batch=batch)
            return self.run(lambda _first: whole(batch), timed)

        return replace(subscription, run=run, run_batch=run_batch)

    def _strictly(self, subscription: Subscription) -> Subscription:
        """Return a handler in strict order that ends before the broker takes its message back, unless it is async."""
        function = subscription.run

        @wraps(function)
        def run(delivery: Delivery) -> object:
            # Read once: the I/O thread changes it when it connects to another version.
            seconds = self.strict
            if seconds is None or subscription.runs_in_loop(delivery):
                return function(delivery)
            return self.run(function, TimedRun(delivery, subscription, seconds))

        return replace(subscription, run=run)

    def run(self, function: Callable[[Delivery], object], run: TimedRun) -> object:
        """Call the function; at most one DeadlineExceeded is raised in it, and none is pending in the thread after."""
        if any(other.thread == run.thread for other in (self._armed | self._expired)):
            # A handler called by another handler, such as in a test, has the deadline of the outer handler.
            return function(run.delivery)
        try:
            try:
                self._arm(run)
                answer = function(run.delivery)
            finally:
                # The exception may also be raised in here; the second call of _end then finds nothing pending.
                self._end(run)
        except BaseException as error:
            self._end(run)
            if run.expired:
                self._claim(run)
            if isinstance(error, DeadlineExceeded) and not error.handler:
                raise run.late().with_traceback(error.__traceback__) from None
            raise
        if run.expired:
            self._claim(run)
        # The event loop may have cancelled a handler that is due before the watcher looks.
        if run.expired or time.monotonic() >= run.due:
            log.warning(
                "%s %s returned after its deadline of %g s: it caught %s, or was about to end.",
                *(f"The {run.part} of handler" if run.part else "Handler", run.subscription.name, run.seconds),
                run.exception,
                extra={"event": "late", "handler": run.subscription.name, "queue": run.delivery.queue},
            )
        return answer

    def run_key(self, function: Callable[[Delivery], object], run: TimedRun) -> None:
        """Call the function that computes an ordering key under its deadline; raise NoKey if it is late."""
        try:
            self.run(function, run)
        except HandlerAbandoned:
            raise
        except Unready:
            # No thread can be started to watch it. Without its key the message would pass others.
            function(run.delivery)
        except BaseException as error:
            if not run.expired:
                raise
            raised = error.__cause__ if isinstance(error, NoKey) and error.__cause__ is not None else error
            late = run.late().with_traceback(raised.__traceback__)
            raise keyless(late) from late

    def _arm(self, run: TimedRun) -> None:
        with self._lock:
            self._ensure_watcher(run)
            # Set only now, because starting a thread takes a while on a busy machine.
            run.due = time.monotonic() + run.seconds
            self._armed[run] = True

    def _ensure_watcher(self, run: TimedRun) -> None:
        if self._watcher is not None and self._watcher.is_alive():
            return
        watcher = threading.Thread(target=self._watch, name="rmq-deadlines", daemon=True)
        try:
            watcher.start()
        except RuntimeError as error:
            raise Unready(
                f"No thread can be started to watch the deadline of handler {run.subscription.name}: {error}."
            ) from error
        self._watcher = watcher

    def _end(self, run: TimedRun) -> None:
        """Make sure that no exception is raised for this run from now on."""
        if run.over or run.due == math.inf:
            return
        try:
            if self._armed.pop(run, None) is None:
                # The watcher took the run first. Once this lock is free, the exception is raised or pending here.
                run.raised.acquire()
                _raise_in(run.thread, None)
        except DeadlineExceeded:
            pass
        run.over = True

    def _claim(self, run: TimedRun) -> None:
        if self._expired.pop(run, None) is None:
            raise HandlerAbandoned
        self._interrupted()

    def _watch(self) -> None:
        idle_since = time.monotonic()
        while True:
            armed = self._armed.copy()
            for run in armed:
                if run.due <= time.monotonic():
                    self._expire(run)
            now = time.monotonic()
            idle_since = now if armed else idle_since
            if now - idle_since > IDLE_SECONDS and self._ends():
                return
            # A run armed during the sleep is due after the shortest deadline at the earliest.
            nearest = min((run.due for run in armed if not run.expired), default=math.inf)
            time.sleep(max(SHORTEST_SLEEP_SECONDS, min(nearest - now, self._shortest, IDLE_SECONDS)))

    def _ends(self) -> bool:
        with self._lock:
            if self._armed:
                return False
            self._watcher = None
            return True

    def _expire(self, run: TimedRun) -> None:
        if self._armed.pop(run, None) is None:
            return
        run.expired, run.told = True, time.monotonic()
        self._expired[run] = True
        if run.interruptible:
            _raise_in(run.thread, DeadlineExceeded)
        run.raised.release()


class SlowHandlers:
    """Names in the log, once, each handler that has run for so long that the broker may take its message back."""

    def __init__(self) -> None:
        self._named: set[AttemptState] = set()

    def look(self, running: Iterable[AttemptState], now: float) -> None:
        slow = {attempt for attempt in running if now - attempt.began > LONG_RUN_SECONDS}
        for attempt in slow - self._named:
            subscription = attempt.subscription
            if subscription is not None and subscription.ack == "auto":
                continue
            # On a quorum queue in order RabbitMQ 4.3 waits for as long as the handler takes; older versions do not.
            log.warning(
                "Handler %s has worked on one message for %d minutes. RabbitMQ may take its message back after "
                "consumer_timeout, by default 30 minutes; then another process handles it too. Give the handler a "
                "timeout=, split its work, or raise consumer_timeout.",
                *(subscription.name if subscription else "?", (now - attempt.began) // 60),
                extra={"event": "slow", "handler": subscription.name if subscription else ""},
            )
        self._named = slow


def keyless(late: DeadlineExceeded) -> NoKey:
    """Return the error of a message whose ordering key was not computed in time."""
    error = NoKey(f"raised DeadlineExceeded: {late}")
    error.__cause__ = late
    return error


def _raise_in(thread: int, kind: type[BaseException] | None) -> None:
    """Make a thread raise this exception at its next bytecode; None cancels an exception that is still pending."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), None if kind is None else ctypes.py_object(kind))

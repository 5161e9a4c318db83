"""Deadlines of handlers, raised in the handler's thread and never after it has returned."""

import ctypes
import logging
import math
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType

from django_rmq_retry.errors import DeadlineExceeded
from django_rmq_retry.handlers.attempt import Unready
from django_rmq_retry.handlers.subscription import Intake, Subscription
from django_rmq_retry.messages.message import Delivery

log = logging.getLogger("django_rmq_retry")

HUNG = 2
"""Times its deadline after which a handler that is still running counts as hung."""
SHORTEST, IDLE = 0.01, 1.0
"""Seconds: the shortest sleep of the watcher, and how long it lives without a handler to watch."""


class HandlerAbandoned(BaseException):
    """Raised where a handler returns although its message was settled without it: nothing may be committed."""


class Run:
    """One run of a handler under its deadline."""

    __slots__ = ("delivery", "due", "expired", "over", "raised", "seconds", "subscription", "thread")

    def __init__(self, delivery: Delivery, subscription: Subscription, seconds: float) -> None:
        self.delivery = delivery
        self.subscription = subscription
        self.seconds = seconds
        self.due = math.inf
        self.thread = threading.get_ident()
        self.expired = self.over = False
        # A bare lock, held until the exception was raised: only C code touches it, so no exception can leave it held.
        self.raised = threading.Lock()
        self.raised.acquire()

    @property
    def hung(self) -> bool:
        return time.monotonic() >= self.due + (HUNG - 1) * self.seconds

    def error(self) -> DeadlineExceeded:
        """What the handler would have raised, with the place at which it is now."""
        return DeadlineExceeded(self.subscription.name, self.seconds, hung=True).with_traceback(self._place())

    def _place(self) -> TracebackType | None:
        frame, found = sys._current_frames().get(self.thread), None  # noqa: SLF001 - the documented way to look at a thread
        while frame is not None and frame.f_code is not Deadlines.run.__code__:
            found = TracebackType(found, frame, frame.f_lasti, frame.f_lineno)
            frame = frame.f_back
        return found


class Deadlines:
    """Those of one process. A run is in one of two tables; taking it out of its table is what claims it."""

    def __init__(self, interrupted: Callable[[], None] = lambda: None) -> None:
        self._interrupted = interrupted
        """Called in the thread of a handler that was interrupted, whatever it was doing."""
        self._armed: dict[Run, bool] = {}
        self._expired: dict[Run, bool] = {}
        self._shortest = math.inf
        self._lock = threading.Lock()
        self._watcher: threading.Thread | None = None
        self._unwatched = False
        """Whether it was logged that no watcher can be started."""

    def limited(self, intake: Intake) -> Intake:
        """The same intake, with handlers that end at their deadline."""
        if all(one.timeout is None for one in intake.subscriptions):
            return intake
        return replace(intake, subscriptions=tuple(map(self._limited, intake.subscriptions)))

    @property
    def hung(self) -> list[Run]:
        """The runs that their deadline could not end."""
        return [run for run in self._expired.copy() if run.hung]

    def keep_watch(self) -> None:
        """Replace a watcher that has died while handlers run; where no thread can be started, the next call tries."""
        armed = list(self._armed.copy())
        if not armed:
            return
        try:
            with self._lock:
                self._watched(armed[0])
        except Unready as error:
            if not self._unwatched:
                self._unwatched = True
                log.warning("%s Tried again each second until it can.", error, extra={"event": "unwatched"})
        else:
            self._unwatched = False

    def abandon(self, run: Run) -> bool:
        """Claim the message of a hung run; false where the handler has ended in this moment."""
        return self._expired.pop(run, None) is not None

    def _limited(self, subscription: Subscription) -> Subscription:
        function, seconds = subscription.run, subscription.timeout
        if seconds is None:
            return subscription
        self._shortest = min(self._shortest, seconds)
        return replace(subscription, run=lambda delivery: self.run(function, Run(delivery, subscription, seconds)))

    def run(self, function: Callable[[Delivery], object], run: Run) -> object:
        """Call the function; at most one DeadlineExceeded is raised meanwhile, and none is on its way afterwards."""
        if any(other.thread == run.thread for other in (self._armed | self._expired)):
            # A handler that is called by another one, as in a test, has the deadline of the outer one.
            return function(run.delivery)
        try:
            try:
                self._arm(run)
                answer = function(run.delivery)
            finally:
                # The exception may come in here as well: then it has come, and the second call finds nothing pending.
                self._end(run)
        except BaseException as error:
            self._end(run)
            if run.expired:
                self._claim(run)
            if isinstance(error, DeadlineExceeded) and not error.handler:
                raise DeadlineExceeded(run.subscription.name, run.seconds).with_traceback(error.__traceback__) from None
            raise
        if run.expired:
            self._claim(run)
            log.warning(
                "Handler %s returned after its deadline of %g s: it caught DeadlineExceeded, or was about to end.",
                *(run.subscription.name, run.seconds),
                extra={"event": "late", "handler": run.subscription.name, "queue": run.delivery.queue},
            )
        return answer

    def _arm(self, run: Run) -> None:
        with self._lock:
            self._watched(run)
            # Only now: to start a thread takes a while on a busy machine.
            run.due = time.monotonic() + run.seconds
            self._armed[run] = True

    def _watched(self, run: Run) -> None:
        if self._watcher is None or not self._watcher.is_alive():
            self._watcher = self._started(run)

    def _started(self, run: Run) -> threading.Thread:
        watcher = threading.Thread(target=self._watch, name="rmq-deadlines", daemon=True)
        try:
            watcher.start()
        except RuntimeError as error:
            raise Unready(
                f"No thread can be started to watch the deadline of handler {run.subscription.name}: {error}."
            ) from error
        return watcher

    def _end(self, run: Run) -> None:
        """Let nothing be raised for this run any more."""
        if run.over or run.due == math.inf:
            return
        try:
            if self._armed.pop(run, None) is None:
                # The watcher was first. Once this lock is free the exception was raised here, or is about to be.
                run.raised.acquire()
                _raise_in(run.thread, None)
        except DeadlineExceeded:
            pass
        run.over = True

    def _claim(self, run: Run) -> None:
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
            if now - idle_since > IDLE and self._ends():
                return
            # Whatever is armed meanwhile is due no sooner than after the shortest deadline.
            nearest = min((run.due for run in armed if not run.expired), default=math.inf)
            time.sleep(max(SHORTEST, min(nearest - now, self._shortest, IDLE)))

    def _ends(self) -> bool:
        with self._lock:
            if self._armed:
                return False
            self._watcher = None
            return True

    def _expire(self, run: Run) -> None:
        if self._armed.pop(run, None) is None:
            return
        run.expired = True
        self._expired[run] = True
        # An async handler is cancelled in its own loop: its worker only waits for that.
        if not run.subscription.asynchronous:
            _raise_in(run.thread, DeadlineExceeded)
        run.raised.release()


def _raise_in(thread: int, kind: type[BaseException] | None) -> None:
    """Have a thread raise this at its next bytecode; None takes back what it has not raised yet."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), None if kind is None else ctypes.py_object(kind))

"""The I/O thread, which owns the connections: other threads pass functions to it."""

import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeAlias
from weakref import WeakSet

from django_rmq_retry.amqp.pika_logs import hide_pika_logs, show_pika_logs
from django_rmq_retry.amqp.transport import IoLoop
from django_rmq_retry.errors import MessageUnsent
from django_rmq_retry.messages.message import Message

if TYPE_CHECKING:
    from django_rmq_retry.amqp.connection import Connection

log = logging.getLogger("django_rmq_retry")

Timer: TypeAlias = object
"""A running timer of an `IoThread`, for ``cancel``."""
Call = Callable[[], None]
CATCH_UP_SECONDS = 5.0
"""The longest time that others wait for a loop that was frozen."""


class Loop(Protocol):
    """The part of an I/O thread that runs functions, for those who need no more of it."""

    def call(self, call: Callable[[], None], /) -> None: ...

    def later(self, seconds: float, call: Callable[[], None], /) -> Timer: ...

    def cancel(self, timer: Timer, /) -> None: ...


class IoThread:
    """A thread with an event loop. ``call`` may be used from any thread, ``later`` and ``cancel`` only on this one."""

    def __init__(self, name: str) -> None:
        self.loop = IoLoop()
        self.pid = os.getpid()
        self._calls: deque[Call] = deque()
        self._woken = False
        self._answered, self._unanswered = True, 0
        self._ending: list[Call] = []
        self.connections: WeakSet[Connection] = WeakSet()
        self._began = self._ended = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()
        self._began = True

    @property
    def alive(self) -> bool:
        # Read at every publish; the thread's own is_alive() would cost more than everything else there.
        return self._began and not self._ended and self.pid == os.getpid()

    def check_waiting(self, message: Message) -> None:
        """Raise MessageUnsent on this thread: it would wait for itself, and nothing of the process would be sent."""
        if self.current:
            said = (
                "it was published on the I/O thread, which sends it and would wait for itself. Publish it from another "
                "thread; a log handler that publishes needs a logging.handlers.QueueListener"
            )
            raise MessageUnsent(message.exchange, message.routing_key, said=said)

    @property
    def current(self) -> bool:
        return threading.current_thread() is self._thread

    def call(self, call: Call) -> None:
        """Run a function on the I/O thread soon, after those passed in before; many calls cost one wake-up."""
        self._calls.append(call)
        if not self._woken:
            self._woken = True
            try:
                self.loop.add_callback_threadsafe(self._drain)
            except BaseException:
                # Such as a lack of memory: the next call wakes the loop.
                self._woken = False
                raise

    def unanswered(self) -> int:
        """Return how many checks in a row the loop left unanswered; not seconds: those of a SIGSTOP would count."""
        if self._answered:
            self._answered, self._unanswered = False, 0
            self.call(self._answer)
        else:
            self._unanswered += 1
        return self._unanswered

    def catch_up(self) -> None:
        """Let a loop see what came while the process was frozen, before another thread goes on; quick otherwise."""
        if not self.loop.asleep() or self.current or not self.alive:
            return
        caught_up = threading.Event()
        # At the end of the turn after this one, which may have looked at its sockets before.
        self.call(lambda: self.loop.add_callback_threadsafe(lambda: self.loop.at_end_of_turn.append(caught_up.set)))
        caught_up.wait(CATCH_UP_SECONDS)

    def at_end(self, call: Call) -> None:
        """Run a function when the loop has ended, for any reason; immediately if it has ended already."""
        self._ending.append(call)
        if self._ended:
            call()

    def later(self, seconds: float, call: Call) -> Timer:
        """Run a function after this many seconds. Call it on the I/O thread only; pass the result to ``cancel``."""
        return self.loop.call_later(seconds, lambda: self._guarded(call))

    def cancel(self, timer: Timer) -> None:
        self.loop.remove_timeout(timer)  # type: ignore[arg-type]  # made by call_later

    def stop(self, *, timeout: float) -> bool:
        """End the loop; return True if the thread ended in time."""
        self.call(self.loop.stop)
        if not self.current:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def _answer(self) -> None:
        self._answered = True

    def _drain(self) -> None:
        """Run all functions passed to ``call``, also those that they pass in turn, which need no wake-up."""
        calls = self._calls
        while True:
            while calls:
                try:
                    calls.popleft()()
                except Exception as error:  # noqa: BLE001 - the other functions still run
                    self._failed(error)
            self._woken = False
            # A function added before this assignment caused no wake-up, so check again; one added after it causes
            # a wake-up that may find nothing to do.
            if not calls:
                return
            self._woken = True

    def _guarded(self, call: Call) -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001 - a timer's error must not end the loop
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        """End all connections: the function's work may be half done, and the broker redelivers."""
        log.error("A function failed on the I/O thread; its connections are closed and opened again", exc_info=error)
        for connection in list(self.connections):
            connection.services.fail(error)

    def _run(self) -> None:
        hide_pika_logs()
        try:
            self.loop.start()
        except BaseException as error:
            log.critical("The I/O thread ended: %s: %s", type(error).__name__, error, exc_info=True)
        finally:
            self._ended = True
            for call in self._ending:
                try:
                    call()
                except Exception:
                    # The others still run, because threads wait for the results that they report.
                    text = "A function failed at the end of the I/O thread; the others still run"
                    log.exception(text, extra={"event": "io_end"})
            for connection in list(self.connections):
                # One that was still being opened has a socket that nothing else would close.
                connection.services.abandon()
            self.loop.close()
            show_pika_logs()

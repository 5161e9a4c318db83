"""The I/O thread: one thread, one event loop; what others want done on it they hand over."""

import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from pika.adapters.select_connection import IOLoop

from django_rmq_retry.broker.hushing import hush, speak

if TYPE_CHECKING:
    from pika.adapters.select_connection import _Timeout as Timer

log = logging.getLogger("django_rmq_retry")

Call = Callable[[], None]


class IoThread:
    """Owns an event loop. ``call`` and ``later`` may be used from any thread; everything else happens on this one."""

    def __init__(self, name: str) -> None:
        self.loop = IOLoop()
        self.pid = os.getpid()
        self._calls: deque[Call] = deque()
        self._woken = False
        self._heard, self._unheard = True, 0
        self._ending: list[Call] = []
        self._began = self._ended = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()
        self._began = True

    @property
    def alive(self) -> bool:
        # Asked at every publish; the thread's own is_alive() would cost more than all else there.
        return self._began and not self._ended and self.pid == os.getpid()

    @property
    def current(self) -> bool:
        return threading.current_thread() is self._thread

    def call(self, call: Call) -> None:
        """Run it on the I/O thread soon, after what was handed over before; many calls cost one wake-up."""
        self._calls.append(call)
        if not self._woken:
            self._woken = True
            self.loop.add_callback_threadsafe(self._drain)

    def unheard(self) -> int:
        """How often in a row this was asked and the loop did not answer. Not in seconds: a SIGSTOP would count."""
        if self._heard:
            self._heard, self._unheard = False, 0
            self.call(self._hear)
        else:
            self._unheard += 1
        return self._unheard

    def at_end(self, call: Call) -> None:
        """Run it when the loop has ended, for whatever reason; at once where it has."""
        self._ending.append(call)
        if self._ended:
            call()

    def later(self, seconds: float, call: Call) -> "Timer":
        """Run it on the I/O thread after so many seconds; only on that thread. The result is for ``cancel``."""
        return self.loop.call_later(seconds, call)

    def cancel(self, timer: "Timer") -> None:
        self.loop.remove_timeout(timer)

    def stop(self, *, timeout: float) -> bool:
        """End the loop; tell whether the thread ended in time."""
        self.call(self.loop.stop)
        if not self.current:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def _hear(self) -> None:
        self._heard = True

    def _drain(self) -> None:
        """Run all that was handed over; what a call hands over in turn is run as well, and needs no wake-up."""
        calls = self._calls
        while True:
            while calls:
                calls.popleft()()
            self._woken = False
            # Who handed over before that has woken nobody; who did after it costs one wake-up that finds nothing.
            if not calls:
                return
            self._woken = True

    def _run(self) -> None:
        hush()
        try:
            self.loop.start()
        except BaseException as error:
            log.critical("The I/O thread ended: %s: %s", type(error).__name__, error, exc_info=True)
        finally:
            self._ended = True
            for call in self._ending:
                call()
            self.loop.close()
            speak()

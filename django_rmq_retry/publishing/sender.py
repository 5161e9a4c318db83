"""The thread of a process that sends what its transactions have committed, and deletes what was confirmed."""

import atexit
import logging
import os
import threading
import time

from django.db import connections

from django_rmq_retry.publishing import broker_connections
from django_rmq_retry.publishing.outgoing import GATHER_SECONDS, Handed, Outgoing, staying

log = logging.getLogger("django_rmq_retry")

IDLE_SECONDS = 5.0
"""Seconds without work after which the thread ends, and closes its database connections."""
FINISH_SECONDS = 2.0
"""Seconds that a process which ends gives to what it holds; the rest is the relay's."""
LOOK_SECONDS = 0.001
"""Seconds between two looks whether what was confirmed is deleted."""
AT_EXIT = "interpreter shutdown"
"""The words of Python's error on starting a thread then."""


class Sender:
    """Takes the turns of everything that leaves this process, in one thread that runs only while there is work."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._outgoing: dict[str, Outgoing] = {}
        self._adopted: list[Outgoing] = []
        """What committing threads have stopped waiting for."""
        self._event = threading.Event()
        self._thread: threading.Thread | None = None
        self._asleep = False
        """True if the thread waits until it is woken, not just for more results to write together."""
        self._pausing = False
        """True if the thread takes its turns in a moment, whatever happens until then."""
        self._hurried = False
        """True if the next turns write at once what is known."""
        self._over = False
        self._sent_by_adopted = self._seen = 0

    def outgoing(self, using: str) -> Outgoing:
        """Return what takes the rows of this database."""
        found = self._outgoing.get(using)
        if found is None:
            with self._lock:
                found = self._outgoing.setdefault(using, Outgoing(using, wake=self.wake, soon=lambda: self._pausing))
        return found

    @property
    def holds(self) -> bool:
        """True if committed rows are still to be sent or deleted."""
        return any(one.holds for one in self.all())

    def quiet(self) -> bool:
        """True if nothing is held, and nothing was sent since the last call."""
        # Only now are all rows counted that were held before.
        quiet, before = not self.holds, self._seen
        self._seen = self._sent_by_adopted + sum(one.sent for one in self.all())
        return quiet and self._seen == before

    def send_here(self, using: str, handed: Handed) -> None:
        """Send rows in the thread that has committed them, and wait a moment for their confirms."""
        outgoing = Outgoing(using, wake=_nothing)
        outgoing.hand_over(handed)
        outgoing.wait()
        outgoing.turn(at_once=True)
        if outgoing.holds:
            with self._lock:
                self._adopted.append(outgoing)
            outgoing.woken_by(self.wake)
        # Results for which no thread could be started may be waiting.
        if any(one.has_work for one in self.all()):
            self.wake()

    def wake(self) -> None:
        """Let the thread look at what there is; called by commits and, for each result, by the I/O thread."""
        if self._asleep:
            self._event.set()
        elif self._thread is None:
            self._start()

    def finish(self, seconds: float = FINISH_SECONDS) -> None:
        """Send and delete what is held before the process ends, for some seconds if the broker answers."""
        deadline = time.monotonic() + seconds
        while self.holds and time.monotonic() < deadline:
            self._turns_at_the_end()
            if broker_connections.connections.reach.away:
                break
            for one in self.all():
                one.await_confirms(GATHER_SECONDS)
            time.sleep(LOOK_SECONDS)

    def end(self) -> None:
        """Write the results that came when the connections were closed, and end the thread."""
        with self._lock:
            self._over, thread = True, self._thread
        self._event.set()
        if thread is not None:
            thread.join(FINISH_SECONDS)
        for one in self.all():
            one.end()

    def _turns_at_the_end(self) -> None:
        thread = self._thread
        if thread is not None and thread.is_alive():
            self._hurried = True
            self._event.set()
            return
        # At the interpreter's shutdown no thread can be started.
        for one in self.all():
            one.turn(at_once=True)

    def all(self) -> list[Outgoing]:
        return [*self._outgoing.values(), *self._adopted]

    def _start(self) -> None:
        try:
            with self._lock:
                if self._thread is not None or self._over:
                    return
                thread = threading.Thread(target=self._run, name="rmq-sender", daemon=True)
                thread.start()
                self._thread = thread
        except (RuntimeError, MemoryError) as error:
            # The caller may be the I/O thread, which must not end. The next result, or commit, tries again.
            if AT_EXIT not in str(error):
                log.warning("The thread that deletes sent rows of the outbox could not start: %s", error)

    def _run(self) -> None:
        try:
            while self._wait(self._turns()):
                pass
        finally:
            with self._lock:
                if self._thread is threading.current_thread():
                    self._thread = None
            connections.close_all()

    def _turns(self) -> float | None:
        """Take all turns; return the seconds until the next ones, None if that is not known."""
        at_once, self._hurried = self._hurried, False
        waits = [seconds for one in self.all() if (seconds := one.turn(at_once=at_once)) is not None]
        with self._lock:
            self._sent_by_adopted += sum(one.sent for one in self._adopted if not one.holds)
            self._adopted = [one for one in self._adopted if one.holds]
        return min(waits, default=None)

    def _wait(self, seconds: float | None) -> bool:
        """Wait for the next turns; False if the thread ends."""
        if seconds is not None:
            if seconds:
                self._pausing = seconds <= GATHER_SECONDS
                self._event.wait(seconds)
                self._pausing = False
        else:
            self._asleep = True
            if not any(one.has_work for one in self.all()) and not self._over:
                self._event.wait(IDLE_SECONDS)
            self._asleep = False
        woken = self._event.is_set()
        self._event.clear()
        with self._lock:
            if (seconds is None and not woken) or self._over:
                # Before the last look, so that work which arrives after it starts a successor.
                self._thread = None
                if self._over or not any(one.has_work for one in self.all()):
                    return False
                self._thread = threading.current_thread()
        return True


def _nothing() -> None:
    """Wake nobody: the committing thread waits itself."""


sender = Sender()
"""The sender of this process; a forked child has its own, because the parent sends its rows."""


def _forked() -> None:
    global sender  # noqa: PLW0603 - there is one process
    sender = Sender()


def close() -> None:
    """Send what is held, within two seconds, then close the broker connections; the next use opens new ones."""
    global sender
    sender.finish()
    ending, sender = sender, Sender()
    outgoing, away = ending.all(), broker_connections.connections.reach.away
    before = sum(one.held + one.sent for one in outgoing)
    # That ends what is in flight.
    broker_connections.close()
    ending.end()
    left = before - sum(one.sent for one in outgoing)
    # While the broker is away, the log says it already.
    if left and not away:
        text = "This process ends, and %s in the outbox until a relay sends %s"
        log.warning(text, *staying(left), extra={"event": "outbox_waiting"})


os.register_at_fork(after_in_child=_forked)
atexit.register(close)

"""The supervisor of several consuming processes."""

import _thread
import logging
import mmap
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import FrameType

from django_rmq_retry.exit_codes import Exit

log = logging.getLogger("django_rmq_retry")

SIGNALS = (signal.SIGTERM, signal.SIGINT)

WORK_DONE = 74
"""A child's exit code after it has finished its work. Not 0, because a handler may end the process with 0."""
RENEW = 75
"""A child's exit code after it has ended in good order and a fresh process must take its place."""
ENDED_EARLY = Exit.ERROR
"""The exit code recorded for a child that exits with 0."""
NOT_RESTARTED = (Exit.UNREACHABLE, Exit.DRIFT)
"""Exit codes that a fresh process cannot fix: no broker with --fail-fast, or a queue that cannot be consumed."""
QUICK_SECONDS = 10.0
"""Seconds: a process that ends sooner counts as one that failed to start."""
MOST_QUICK_ENDS = 5
MOST_REACHED_ENDS = 20
"""Limit on quick ends in a row after the broker was reached: one message may end several processes before it parks."""
FIRST_RESTART_SECONDS, LONGEST_RESTART_SECONDS, LONGEST_REACHED_RESTART_SECONDS = 0.5, 30.0, 5.0
TICK_SECONDS = 0.5
KILL_GRACE_SECONDS = 15.0
"""Seconds after the shutdown timeout before a child that still runs is killed."""
TELL_SECONDS = 5
"""Seconds for which a database may take to hear of an end."""


def ignore(_code: int) -> None:
    """Do nothing: ``at_once`` of a child, as its supervisor decides and both may have received the same signal."""


def listen(stop: Callable[[str], None], *, at_once: Callable[[int], None] = os._exit) -> None:
    """Call ``stop`` with the signal's name on the first signal; end the process on the second, whatever it does.

    After a second signal, unacked messages return to their queues, because the broker sees the connection close.
    Signals that a supervisor blocked are delivered from now on. ``stop`` runs in a thread of its own: a signal handler
    interrupts the main thread at any point, even while that thread holds the lock that ``stop`` needs.
    """
    requested = False

    def on_signal(number: int, _frame: FrameType | None) -> None:
        nonlocal requested
        if requested:
            at_once(Exit.INTERRUPTED)
            return
        requested = True
        name = signal.Signals(number).name
        try:
            _thread.start_new_thread(stop, (name,))
        except RuntimeError:
            # No more threads can be started: calling stop() here risks a deadlock, but the process must stop.
            stop(name)

    for number in SIGNALS:
        signal.signal(number, on_signal)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def wait_for(descriptor: int, seconds: float) -> None:
    """Wait until the descriptor can be read, or the time is over."""
    select.select([descriptor], [], [], seconds)


@dataclass(slots=True, kw_only=True)
class Child:
    """The place of one process, and the process that fills it now."""

    number: int
    pid: int = 0
    began: float = 0.0
    quick: int = 0
    due: float = 0.0
    code: int = 0
    over: bool = False


class Supervisor:
    """Starts, watches and replaces several processes. ``run`` returns in the parent, and in each child, its code."""

    def __init__(
        self,
        processes: int,
        work: Callable[[int], int],
        *,
        shutdown: float = 30.0,
        ticked: Callable[[], None] = lambda: None,
        ended: Callable[[int, bool], None] = lambda _number, _over: None,
        tell: Callable[[int, str], None] | None = None,
        wait: Callable[[int, float], object] = wait_for,
    ) -> None:
        self._children = [Child(number=number + 1) for number in range(processes)]
        self._work = work
        self._shutdown = shutdown
        self._ticked = ticked
        self._end_noted = ended
        """Called with the number of each child that has ended, and True if no other one takes its place."""
        self._tell = tell
        """Called, in a process of its own, with the pid of each child that failed, and with what it ended."""
        self._tellers: list[int] = []
        self._wait_for = wait
        """Waits until a descriptor can be read, for at most the given seconds."""
        self._signals = 0
        self._killed = False
        self._deadline: float | None = None
        self._worst = 0
        self._pid = os.getpid()
        # Shared with the children: one byte per child, set to 1 once that child has reached its broker.
        self._reached = mmap.mmap(-1, processes)

    @property
    def here(self) -> bool:
        """True in the supervisor's own process, False in a child."""
        return os.getpid() == self._pid

    def reached(self, number: int) -> None:
        """Record, in a child, that it has reached the broker: a later quick end is not a failure to start."""
        self._reached[number - 1] = 1

    def run(self) -> int:
        # Only the parent holds the writing end: when the parent ends for any reason, each child reads end of file.
        self._lifeline, self._holder = os.pipe()
        self._woken = self._listen()
        while not all(child.over for child in self._children):
            for child in self._children:
                if not child.over and not child.pid and self._due(child) and self._fork(child):
                    return self._be(child)
            self._wait()
            self._reap()
            self._end_if_requested()
            self._ticked()
        for teller in self._tellers:
            os.waitpid(teller, 0)
        return self._code()

    def _due(self, child: Child) -> bool:
        if self._deadline is not None:
            child.over = True
        return not child.over and time.monotonic() >= child.due

    def _fork(self, child: Child) -> bool:
        """Start a process in this place; return True in the new process."""
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        # A signal that arrives before the child has its own handlers would be lost in its copies of the parent's.
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        child.began = time.monotonic()
        self._reached[child.number - 1] = 0
        child.pid = os.fork()
        if child.pid:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
            log.info("Process %s started (pid %s)", child.number, child.pid, extra={"event": "forked"})
        return not child.pid

    def _be(self, child: Child) -> int:
        """Run the child's work, and end when the parent does. Signals stay blocked until ``work`` listens to them."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.close(self._holder)
        for end in self._woken:
            os.close(end)
        threading.Thread(target=self._end_with_parent, name="rmq-lifeline", daemon=True).start()
        code = self._work(child.number)
        # At its exit, the interpreter restores the default handlers: a second signal sent to all would kill the child.
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        return code or WORK_DONE

    def _end_with_parent(self) -> None:
        os.read(self._lifeline, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    def _listen(self) -> tuple[int, int]:
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        os.set_blocking(writer, False)

        def on_signal(_number: int, _frame: FrameType | None) -> None:
            self._signals += 1

        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in SIGNALS:
            signal.signal(number, on_signal)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        return reader, writer

    def _wait(self) -> None:
        reader, _ = self._woken
        self._wait_for(reader, TICK_SECONDS)
        with suppress(BlockingIOError):
            os.read(reader, 4096)

    def _reap(self) -> None:
        self._tellers = [teller for teller in self._tellers if not os.waitpid(teller, os.WNOHANG)[0]]
        for child in self._children:
            if not child.pid:
                continue
            pid, status = os.waitpid(child.pid, os.WNOHANG)
            if pid:
                self._ended(child, os.waitstatus_to_exitcode(status))

    def _ended(self, child: Child, code: int) -> None:
        pid, child.pid = child.pid, 0
        child.code = 0 if code in (WORK_DONE, RENEW) else 128 - code if code < 0 else code or ENDED_EARLY
        child.quick = child.quick + 1 if time.monotonic() - child.began < QUICK_SECONDS else 1
        child.over = code == WORK_DONE or self._deadline is not None
        self._end_noted(child.number, child.over)
        if child.code and self._tell is not None:
            ending = signal.Signals(-code).name if code < 0 else f"exit {code}"
            self._tellers.append(_forked(partial(self._tell, pid, ending), without=self._holder))
        reached = bool(self._reached[child.number - 1])
        if child.code:
            ending = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        else:
            ending = "has ended"
        sentence = f"Process {child.number} (pid {pid}) {ending}"
        if child.over:
            self._worst = max(self._worst, child.code)
            log.log(logging.ERROR if child.code else logging.INFO, sentence, extra={"event": "ended"})
        elif child.code and (
            code in NOT_RESTARTED or child.quick >= (MOST_REACHED_ENDS if reached else MOST_QUICK_ENDS)
        ):
            self._give_up(child, sentence)
        else:
            wait = min(
                FIRST_RESTART_SECONDS * 2 ** (child.quick - 1),
                LONGEST_REACHED_RESTART_SECONDS if reached else LONGEST_RESTART_SECONDS,
            )
            child.due = time.monotonic() + wait
            log.warning("%s; a new one starts in %.1f s", sentence, wait, extra={"event": "ended"})

    def _give_up(self, child: Child, ending: str) -> None:
        child.over = True
        self._worst = max(self._worst, child.code)
        times = f", {child.quick} times in a row" if child.quick > 1 else ""
        log.critical("%s%s; stopping all processes", ending, times, extra={"event": "failed"})
        self._stop()

    def _end_if_requested(self) -> None:
        if self._signals and self._deadline is None:
            log.info(
                "Stopping: the processes finish their messages (max %g s). Signal again to stop now; "
                "unfinished messages return to the queue.",
                self._shutdown,
                extra={"event": "stopping"},
            )
            self._stop()
        late = self._deadline is not None and time.monotonic() >= self._deadline
        if (self._signals > 1 or late) and not self._killed:
            self._killed = True
            self._send(signal.SIGKILL)

    def _stop(self) -> None:
        self._deadline = time.monotonic() + self._shutdown + KILL_GRACE_SECONDS
        self._send(signal.SIGTERM)

    def _send(self, number: signal.Signals) -> None:
        for child in self._children:
            if child.pid:
                os.kill(child.pid, number)

    def _code(self) -> int:
        return Exit.INTERRUPTED if self._signals > 1 else self._worst


def _forked(tell: Callable[[], None], *, without: int) -> int:
    """Run this in a process of its own, and return its pid: a database that hangs must not hold up the supervisor,
    which has no threads because it forks."""
    pid = os.fork()
    if pid:
        return pid
    try:
        signal.set_wakeup_fd(-1)
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        signal.alarm(TELL_SECONDS)
        os.close(without)
        tell()
    finally:
        os._exit(0)

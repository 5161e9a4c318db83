"""Follows a run: a bar on a terminal, a line now and then elsewhere; always on stderr."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from django_rmq_retry.management.base import Exit, RmqCommand
from django_rmq_retry.models import RequeueRun, RunState
from django_rmq_retry.operating.requeueing import me
from django_rmq_retry.operating.running import DRIVEN, Drive

WIDTH = 24
EVERY = 10.0
"""Seconds between two lines where there is no terminal."""
LOOK = 0.25


class Follower:
    """Drives a run as long as nobody else does, and shows how it goes."""

    def __init__(self, command: RmqCommand, run: int) -> None:
        self._command = command
        self._run = run
        self._terminal = command.stderr.isatty()
        self._shown = 0.0
        self._why = ""

    def follow(self, *, wait: float) -> RequeueRun:
        """Until all is sent and has its outcome, but no longer than ``wait`` seconds after the last was sent."""
        drive: Drive | None = None
        waiting_since: float | None = None
        try:
            while True:
                drive = drive or Drive(self._run, me("rmq_parked"))
                with self._whole():
                    pause = drive.step()
                run = RequeueRun.objects.get(pk=self._run)
                self._show(run)
                if run.state not in DRIVEN:
                    return run
                if pause is None:
                    # A consumer drives it; should it die, its lease runs out and this goes on.
                    drive.end()
                    drive = None
                if run.state == RunState.WAITING:
                    waiting_since = waiting_since or time.monotonic()
                    if time.monotonic() - waiting_since >= wait:
                        return run
                time.sleep(LOOK if pause is None else min(pause, LOOK))
        finally:
            if drive is not None:
                drive.end()
            if self._terminal:
                self._write("\r\x1b[K")

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """Ctrl-C waits until what is being sent is confirmed and noted; a second one does not."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        asked = threading.Event()

        def interrupt(_number: int, _frame: object) -> None:
            if asked.is_set():
                raise KeyboardInterrupt
            asked.set()
            self._command.say("Finishing what is being sent. Ctrl-C again stops at once.")

        before = signal.signal(signal.SIGINT, interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)
        if asked.is_set():
            raise KeyboardInterrupt

    def _show(self, run: RequeueRun) -> None:
        if self._terminal:
            self._write(f"\r\x1b[K{bar(run)}")
            return
        if run.why and run.why != self._why:
            self._command.say(f"Run {run.pk}: {run.why}")
        elif time.monotonic() - self._shown >= EVERY:
            self._command.say(f"Run {run.pk}: {bar(run)}")
            self._shown = time.monotonic()
        self._why = run.why

    def _write(self, text: str) -> None:
        self._command.stderr.write(text, lambda it: it, ending="")
        self._command.stderr.flush()


def bar(run: RequeueRun) -> str:
    """``60% ██████████████▌         126/211 20/s  ok 118 again 1``."""
    todo = run.total - run.skipped
    done = run.sent + run.unconfirmed
    share = done / todo if todo else 1.0
    filled = "█" * round(share * WIDTH)
    said = f"{share:4.0%} {filled:<{WIDTH}} {done}/{todo} {run.rate:g}/s  ok {run.processed} again {run.failed}"
    return f"{said}  {run.why}" if run.why else said


def summary(run: RequeueRun) -> str:
    """``Run 73: 207 processed, 3 failed again, 1 left out.``"""
    waiting = run.sent - run.processed - run.failed
    counts = {
        "processed": run.processed,
        "failed again": run.failed,
        "waiting for outcome": max(0, waiting),
        "left out": run.skipped,
        "not confirmed": run.unconfirmed,
        "not sent": max(0, run.total - run.sent - run.skipped - run.unconfirmed),
    }
    said = ", ".join(f"{count} {words}" for words, count in counts.items() if count)
    ended = "" if run.state == RunState.FINISHED else f" ({run.get_state_display().lower()})"
    return f"Run {run.pk}{ended}: {said or 'nothing to send'}."


def code_of(run: RequeueRun) -> Exit:
    """0 only where every message that was chosen was processed."""
    return Exit.DONE if run.processed == run.total else Exit.PARTLY

"""The thread of a consuming process that looks what is switched, and tells what this process has switched itself."""

import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from django.db import connections

from django_rmq_retry.switching.board import LOOK, Board

log = logging.getLogger("django_rmq_retry")

PATIENCE = 2.0
"""Seconds that a consumer waits for the first look before it begins: it is not to take what is paused."""


class Watch:
    """Started before a consumer; a database that is away or hangs holds up nothing else."""

    def __init__(self, board: Board, *, around: Callable[[], AbstractContextManager[object]] = nullcontext) -> None:
        self._board = board
        self._around = around
        self._ended = threading.Event()
        self._woken = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rmq-switches", daemon=True)
        board.changed = self._woken.set

    def start(self) -> None:
        """Returns when it has looked once, or when that takes too long."""
        self._thread.start()
        self._board.looked.wait(PATIENCE)

    def stop(self, timeout: float | None = None) -> bool:
        self._ended.set()
        self._woken.set()
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while not self._ended.is_set():
                self._woken.wait(self._turn())
                self._woken.clear()
            # What has changed since the last turn is told before the process is gone.
            self._turn(last=True)
        finally:
            connections.close_all()

    def _turn(self, *, last: bool = False) -> float:
        try:
            with self._around():
                wait = self._board.turn()
                if last:
                    self._board.end()
        except Exception:
            log.exception("What is switched could not be followed; tried again in %g s", LOOK)
            return LOOK
        return max(wait, 0.02)

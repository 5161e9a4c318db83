"""Signals: the first asks to stop, the second does not ask."""

import os
import signal
from collections.abc import Callable
from types import FrameType

AT_ONCE = 130
SIGNALS = (signal.SIGTERM, signal.SIGINT)


def ignore(_code: int) -> None:
    """For ``at_once`` of a child: its supervisor decides, and both may have been sent the same signal."""


def listen(stop: Callable[[str], None], *, at_once: Callable[[int], None] = os._exit) -> None:
    """Call ``stop`` with the signal's name on the first signal; end the process on the second, whatever it does.

    What is in hand then goes back to its queue by itself, as the broker sees the connection go. Signals that a
    supervisor held back are heard from now on.
    """
    asked = False

    def heard(number: int, _frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            at_once(AT_ONCE)
            return
        asked = True
        stop(signal.Signals(number).name)

    for number in SIGNALS:
        signal.signal(number, heard)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)

"""Signals: the first asks to stop, the second does not ask."""

import os
import signal
from collections.abc import Callable
from types import FrameType

AT_ONCE = 130
SIGNALS = (signal.SIGTERM, signal.SIGINT)


def listen(stop: Callable[[str], None], *, at_once: Callable[[int], None] = os._exit) -> None:
    """Call ``stop`` with the signal's name on the first signal; end the process on the second, whatever it does.

    What is in hand then goes back to its queue by itself, as the broker sees the connection go.
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

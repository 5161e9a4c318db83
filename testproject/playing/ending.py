"""The end of the demo: on request, or because of a problem."""

import signal
import sys
import time
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Asked(Exception):
    """The user or the system requested the end of the demo."""


class Trouble(Exception):
    """The demo cannot continue; the text says why, and how to fix it."""


class Ending:
    """The flag that requests the end. A signal only sets it, so that no step is interrupted."""

    def __init__(self) -> None:
        self.asked = False

    def listen(self) -> None:
        """Handle Ctrl-C, SIGTERM and the end of the terminal, unless nohup ignores it."""
        for number in SIGNALS:
            if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._hear)

    def pause(self, seconds: float = 0.0) -> None:
        """Wait a moment, then raise Asked if the end was requested."""
        time.sleep(seconds)
        if self.asked:
            raise Asked

    def _hear(self, _number: int, _frame: FrameType | None) -> None:
        self.asked = True


def fail(sentence: str) -> None:
    """Print the reason why the demo failed."""
    sys.stderr.write(f"{sentence}\n")

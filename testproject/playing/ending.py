"""How the demo ends: somebody asks it to, or something is wrong that a sentence can say."""

import signal
import sys
import time
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Asked(Exception):
    """Somebody wants the demo to end."""


class Trouble(Exception):
    """The demo cannot go on; the text says why, and what to do."""


class Ending:
    """Whether somebody wants the demo to end. A signal only notes it: nothing is left half begun."""

    def __init__(self) -> None:
        self.asked = False

    def listen(self) -> None:
        """Hear Ctrl-C, SIGTERM and the end of the terminal, unless that is to be outlived (nohup)."""
        for number in SIGNALS:
            if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._hear)

    def pause(self, seconds: float = 0.0) -> None:
        """A moment, after which Asked is raised if somebody has."""
        time.sleep(seconds)
        if self.asked:
            raise Asked

    def _hear(self, _number: int, _frame: FrameType | None) -> None:
        self.asked = True


def fail(sentence: str) -> None:
    """The last words of a demo in trouble."""
    sys.stderr.write(f"{sentence}\n")

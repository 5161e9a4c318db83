"""The running demo: it watches its processes and prints what the consumer logs."""

import os
import sys
import time
from collections.abc import Callable

from django.core.management.color import color_style, no_style

from testproject.playing.children import Child
from testproject.playing.ending import Ending
from testproject.playing.telling import Tally

STEP = 0.1


class Late(Exception):
    """A fact did not come true in time; the text says which."""


class Stage:
    """Prints lines and waits for facts."""

    def __init__(self, ending: Ending) -> None:
        self.tally = Tally()
        self.children: list[Child] = []
        self.consumer: Child | None = None
        self._ending = ending
        plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
        self._style = no_style() if plain else color_style()

    def say(self, text: str = "", style: str = "") -> None:
        """Print a line at once. The demo ends if its terminal was closed."""
        try:
            sys.stdout.write(f"{getattr(self._style, style)(text) if style else text}\n")
            sys.stdout.flush()
        except OSError:
            self._ending.asked = True
            # Leave nothing for the flush at exit, which would fail.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def step(self) -> None:
        """Wait a moment and print what is new."""
        self._ending.pause(STEP)
        for child in self.children:
            child.check()
        for line in self.consumer.news() if self.consumer else ():
            shown = self.tally.line_of(line)
            if shown:
                self.say(f"{time.strftime('%H:%M:%S')}  {shown[0]}", shown[1])

    def wait(self, fact: Callable[[], object], what: str, *, until: float) -> None:
        """Wait until the fact is true; raise Late at that time of time.monotonic()."""
        while not fact():
            if time.monotonic() >= until:
                raise Late(what)
            self.step()

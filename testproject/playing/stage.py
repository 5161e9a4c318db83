"""The demo while it runs: its processes are watched, and what the consumer logs becomes lines."""

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
    """A fact that did not come about in time; the text says which."""


class Stage:
    """Says lines, waits for facts."""

    def __init__(self, ending: Ending) -> None:
        self.tally = Tally()
        self.children: list[Child] = []
        self.consumer: Child | None = None
        self._ending = ending
        plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
        self._style = no_style() if plain else color_style()

    def say(self, text: str = "", style: str = "") -> None:
        """A line at once. Where nobody can read it any more (a terminal that was closed) the demo ends."""
        try:
            sys.stdout.write(f"{getattr(self._style, style)(text) if style else text}\n")
            sys.stdout.flush()
        except OSError:
            self._ending.asked = True
            # Nothing is left for the flush at exit to trip over.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def step(self) -> None:
        """A moment of the demo."""
        self._ending.pause(STEP)
        for child in self.children:
            child.check()
        for line in self.consumer.news() if self.consumer else ():
            told = self.tally.hear(line)
            if told:
                self.say(f"{time.strftime('%H:%M:%S')}  {told[0]}", told[1])

    def wait(self, fact: Callable[[], object], what: str, *, until: float) -> None:
        """Go on until the fact is true; Late if it is not by then, in the seconds of time.monotonic()."""
        while not fact():
            if time.monotonic() >= until:
                raise Late(what)
            self.step()

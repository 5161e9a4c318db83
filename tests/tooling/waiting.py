"""Waiting in tests: for a fact with a deadline, never for a fixed time."""

import os
from collections.abc import Callable
from threading import Event
from time import monotonic
from typing import TypeVar

T = TypeVar("T")

STEP = 0.02
CORES = os.cpu_count() or 1


def longer(seconds: float) -> float:
    """Return a deadline's seconds, multiplied on a machine that has more to do than its cores can."""
    return seconds * max(1.0, os.getloadavg()[0] / CORES)


def wait_until(predicate: Callable[[], T | None], timeout: float = 30.0, *, what: str = "", step: float = STEP) -> T:
    """Poll until the result is true and return it; raise AssertionError after the deadline."""
    began = monotonic()
    pause = Event()
    while True:
        answer = predicate()
        if answer:
            return answer
        if monotonic() - began >= longer(timeout):
            raise AssertionError(f"Not within {timeout:g} s: {what or repr(predicate)}; the last answer was {answer!r}")
        pause.wait(step)

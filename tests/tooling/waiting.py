"""Waiting in tests: for a fact with a deadline, never for a fixed time."""

from collections.abc import Callable
from threading import Event
from time import monotonic
from typing import TypeVar

T = TypeVar("T")

STEP = 0.02


def wait_until(predicate: Callable[[], T], timeout: float = 30.0, *, what: str = "", step: float = STEP) -> T:
    """Poll until the result is true and return it; raise AssertionError after the deadline."""
    deadline = monotonic() + timeout
    pause = Event()
    while True:
        answer = predicate()
        if answer:
            return answer
        if monotonic() >= deadline:
            raise AssertionError(f"Not within {timeout:g} s: {what or repr(predicate)}; the last answer was {answer!r}")
        pause.wait(step)

"""A host whose clock is wrong: the time that Python is told is shifted, in a process of its own or in a test."""

import os
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from django.utils import timezone

if TYPE_CHECKING:
    import pytest

VARIABLE = "RMQ_TEST_CLOCK"
"""In the environment of a process: seconds by which its clock is wrong, or a file that holds them."""
DAY = 86_400.0
YEAR = 365 * DAY
_time, _time_ns, _now = time.time, time.time_ns, timezone.now


def shift() -> None:
    """For the settings of a process; without the variable its clock is right."""
    told = os.environ.get(VARIABLE, "")
    if told:
        off = _reader(told)
        for place, name, clock in _clocks(off):
            setattr(place, name, clock)


def shifted(monkeypatch: "pytest.MonkeyPatch", seconds: float) -> None:
    """In this process, until the test ends."""
    for place, name, clock in _clocks(lambda: seconds):
        monkeypatch.setattr(place, name, clock)


def _clocks(off: Callable[[], float]) -> list[tuple[object, str, Callable[[], object]]]:
    return [
        (time, "time", lambda: _time() + off()),
        (time, "time_ns", lambda: _time_ns() + int(off() * 1_000_000_000)),
        (timezone, "now", lambda: _now() + timedelta(seconds=off())),
    ]


def _reader(told: str) -> Callable[[], float]:
    if not Path(told).is_absolute():
        seconds = float(told)
        return lambda: seconds

    def read() -> float:
        # Written anew while the process runs; until it is there the clock is right.
        try:
            return float(Path(told).read_text())
        except (OSError, ValueError):
            return 0.0

    return read

"""A host with a wrong clock: Python's time is shifted, in a process of its own or in one test."""

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
"""The environment variable with the seconds of the shift, or a file that holds them."""
DAY = 86_400.0
YEAR = 365 * DAY
_time, _time_ns, _now = time.time, time.time_ns, timezone.now


def shift() -> None:
    """Shift the clock of a process, called from its settings; without the variable nothing changes."""
    told = os.environ.get(VARIABLE, "")
    if told:
        off = _reader(told)
        for place, name, clock in _clocks(off):
            setattr(place, name, clock)


def shifted(monkeypatch: "pytest.MonkeyPatch", seconds: float) -> None:
    """Shift the clock of this process until the test ends."""
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
        # The file is written while the process runs; until it exists the clock is right.
        try:
            return float(Path(told).read_text())
        except (OSError, ValueError):
            return 0.0

    return read

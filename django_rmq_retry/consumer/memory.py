"""The memory of a process, and the limit at which a consumer ends."""

import os
import resource
import sys
from pathlib import Path

MB = 1024 * 1024
STATM = Path("/proc/self/statm")


def used() -> int:
    """Return the bytes of resident memory, or the process's peak on a system without /proc."""
    try:
        return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


class MemoryLimit:
    """A limit on memory: a consumer calls it at every tick and stops for the reason returned above ``limit`` MB."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.exceeded = False

    def __call__(self) -> str | None:
        held = used()
        if held <= self._limit * MB:
            return None
        self.exceeded = True
        return f"{held // MB} MB of memory are in use, and the limit is {self._limit} MB"

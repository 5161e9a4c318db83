"""How much memory this process holds, and a reason to stop when it is too much."""

import os
import resource
import sys
from pathlib import Path

MB = 1024 * 1024
STATM = Path("/proc/self/statm")


def used() -> int:
    """Bytes of resident memory; where the system does not tell, the most there ever was."""
    try:
        return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


class Memory:
    """Asked at every tick of a consumer: why to stop, if more than ``limit`` MB are in use."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.exceeded = False

    def __call__(self) -> str | None:
        held = used()
        if held <= self._limit * MB:
            return None
        self.exceeded = True
        return f"{held // MB} MB of memory are in use, more than {self._limit} MB"

"""Memory and CPU time of a process, from /proc."""

from contextlib import suppress
from pathlib import Path


def resident(pid: int) -> float:
    """Return the resident memory in megabytes."""
    return _status(pid, "VmRSS:")


def most_resident(pid: int) -> float:
    """Return the peak resident memory in megabytes."""
    return _status(pid, "VmHWM:")


def cpu(pid: int) -> float:
    """Return the CPU time of all threads in milliseconds, by the scheduler's clock."""
    return _scheduled(pid, 0)


def delayed(pid: int) -> float:
    """Return the milliseconds in which threads were ready to run but had no core."""
    return _scheduled(pid, 1)


def _scheduled(pid: int, place: int) -> float:
    threads = Path(f"/proc/{pid}/task").iterdir()
    total = 0
    for thread in threads:
        # A thread may have ended since it was listed.
        with suppress(FileNotFoundError, ProcessLookupError):
            total += int((thread / "schedstat").read_text().split()[place])
    return total / 1e6


def _status(pid: int, name: str) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) / 1024
    return 0.0

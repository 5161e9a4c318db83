"""What the kernel knows of a process: its memory and its CPU time."""

from pathlib import Path


def resident(pid: int) -> float:
    """Megabytes in memory."""
    return _status(pid, "VmRSS:")


def most_resident(pid: int) -> float:
    """The most megabytes that were in memory at once."""
    return _status(pid, "VmHWM:")


def cpu(pid: int) -> float:
    """Milliseconds that all its threads have run, by the scheduler's clock."""
    return _scheduled(pid, 0)


def delayed(pid: int) -> float:
    """Milliseconds that all its threads were ready to run and had no core."""
    return _scheduled(pid, 1)


def _scheduled(pid: int, place: int) -> float:
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[place]) for thread in threads) / 1e6


def _status(pid: int, name: str) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) / 1024
    return 0.0

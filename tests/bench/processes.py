"""What the kernel knows of a process: its memory and its CPU time."""

from pathlib import Path


def resident(pid: int) -> float:
    """Megabytes in memory."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def cpu(pid: int) -> float:
    """Milliseconds that all its threads have run, by the scheduler's clock."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e6

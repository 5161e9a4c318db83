"""Where a process runs, so that others on the same machine know whether it still exists."""

import os
import socket
from pathlib import Path

from django_rmq_retry.messages.texts import COLUMN_BYTES, short

PROC = Path("/proc")
DEAD = ("Z", "X")
"""The states of a process that has ended: its parent has not asked for its exit code yet."""


def own_host() -> str:
    """Return the name of this machine, as the rows of its processes have it."""
    return short(socket.gethostname(), COLUMN_BYTES)


def own_place() -> str:
    """Return the boot of this machine, the namespace of process ids and the start of this process; empty if unknown."""
    try:
        return f"{machine()}{_stat(os.getpid())[1]}"
    except (OSError, ValueError, IndexError):
        return ""


def machine() -> str:
    """Return what all processes have in common whose ids can be compared; raise an OSError without ``/proc``."""
    boot = (PROC / "sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{(PROC / 'self/ns/pid').stat().st_ino}/"


def has_ended(place: str, pid: int) -> bool:
    """Return True if the process with this place on this machine does not exist any more; a frozen one does."""
    try:
        os.kill(pid, 0)
        state, start = _stat(pid)
    except ProcessLookupError:
        return True
    except (OSError, ValueError, IndexError):
        # It is another user's, or cannot be read.
        return False
    return state in DEAD or not place.endswith(f"/{start}")


def _stat(pid: int) -> tuple[str, str]:
    """Return the state of a process and its start in ticks since the boot: a later process may have the same id."""
    # The name of the program may hold anything, so what follows it is read.
    fields = (PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    return fields[0], fields[19]

"""Features that a container or an old Python may lack: pseudo-terminals, shared memory, safe unpacking."""

import multiprocessing
import os
import signal
import tarfile
from pathlib import Path

from tests.tooling.services import Unavailable, go_without

NO_TERMINAL = "this machine gives no pseudo-terminal ({error}). Mount devpts at /dev/pts"
NO_SEMAPHORE = "processes cannot share a semaphore here ({error}). Mount a tmpfs that everyone may write to at /dev/shm"


def open_terminal() -> tuple[int, int]:
    """Open a pseudo-terminal, like os.openpty(); skip the test if the machine has none."""
    try:
        return os.openpty()
    except OSError as error:
        go_without(Unavailable(None, f"{NO_TERMINAL.format(error=error.strerror or error)}."))


def no_semaphore() -> str | None:
    """Return the reason why multiprocessing does not work here, or None."""
    try:
        multiprocessing.get_context("fork").Semaphore()
    except OSError as error:
        return f"{NO_SEMAPHORE.format(error=error.strerror or error)}."
    return None


def unpack(archive: Path, folder: Path) -> None:
    """Extract a tar archive; Python before 3.11.4 has no filter, and our archives need none."""
    with tarfile.open(archive) as files:
        if hasattr(tarfile, "data_filter"):
            files.extractall(folder, filter="data")
        else:
            files.extractall(folder)  # noqa: S202 - made by git or fetched by npm


def restore_hangups() -> None:
    """Let a child end on SIGHUP, although `nohup make test` ignores it."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

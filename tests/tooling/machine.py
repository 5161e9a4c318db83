"""Features that a container or an old Python may lack: pseudo-terminals, shared memory, safe unpacking."""

import fcntl
import multiprocessing
import os
import signal
import struct
import subprocess
import tarfile
import termios
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tests.tooling.services import Unavailable, go_without

NO_TERMINAL = "this machine gives no pseudo-terminal ({error}). Mount devpts at /dev/pts"
NO_SEMAPHORE = "processes cannot share a semaphore here ({error}). Mount a tmpfs that everyone may write to at /dev/shm"


def open_terminal(*, rows: int = 0, columns: int = 0) -> tuple[int, int]:
    """Open a pseudo-terminal, like os.openpty(); skip the test if the machine has none. 0: of no known size."""
    try:
        master, slave = os.openpty()
    except OSError as error:
        go_without(Unavailable(None, f"{NO_TERMINAL.format(error=error.strerror or error)}."))
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    return master, slave


def run_in_terminal(
    command: Sequence[str], slave: int, *, folder: Path, environment: Mapping[str, str]
) -> "subprocess.Popen[bytes]":
    """Start a command in a session of its own, which the terminal controls; close this side of the terminal."""
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - one call of the system, no lock
    )
    os.close(slave)
    return process


def written_to(master: int) -> Iterator[bytes]:
    """Yield everything written to a terminal until its last writer is gone."""
    # Linux reports EIO where other systems report the end.
    with suppress(OSError):
        while piece := os.read(master, 65536):
            yield piece


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

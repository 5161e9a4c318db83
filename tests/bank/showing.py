"""The demo as a process, with a folder of the test: its output, and the processes and files that remain."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

from tests.bank.bank import ROOT
from tests.tooling.machine import restore_hangups
from tests.tooling.waiting import wait_until

PATIENCE = 120
OPENED = "Ctrl-C ends everything."


class Demo:
    """One ``make demo`` without make; its temporary files are in ``folder``."""

    def __init__(self, folder: Path, *words: str, **env: str) -> None:
        self.folder = folder
        self._log = folder.parent / f"{folder.name}.log"
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("RMQ_", "BANK_", "DJANGO_"))}
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "testproject.demo", *words],
                env=clean | {"TMPDIR": str(folder)} | env,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=restore_hangups,  # noqa: PLW1509 - one call of the system, no lock
            )

    @property
    def said(self) -> str:
        return self._log.read_text()

    def await_said(self, text: str) -> None:
        wait_until(lambda: text in self.said or self.process.poll() is not None, PATIENCE, what=text)
        assert text in self.said, self.said

    def await_code(self) -> int:
        return self.process.wait(PATIENCE)

    def children(self) -> dict[int, str]:
        """Return the processes in the demo's folder, except the demo itself: pid to command line."""
        return {pid: line for pid, line in _playing_in(self.folder) if pid != self.process.pid}

    def pid_of(self, word: str) -> int:
        return next(pid for pid, line in self.children().items() if word in line.split())


@contextmanager
def showing(folder: Path, *words: str, **env: str) -> Iterator[Demo]:
    """Start a demo that ends with the test, even with a failing one."""
    folder.mkdir(exist_ok=True)
    demo = Demo(folder, *words, **env)
    try:
        yield demo
    finally:
        if demo.process.poll() is None:
            demo.process.terminate()
            demo.process.wait(PATIENCE)


def page(url: str) -> str:
    """Return the page of a web server; empty without a server."""
    try:
        with urlopen(url, timeout=30) as answer:  # noqa: S310 - the demo's own admin
            return str(answer.read().decode())
    except OSError:
        return ""


def _playing_in(folder: Path) -> Iterator[tuple[int, str]]:
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environment = (process / "environ").read_bytes().split(b"\0")
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if f"TMPDIR={folder}".encode() in environment and command:
            yield int(process.name), command

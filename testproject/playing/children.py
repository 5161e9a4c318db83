"""The processes of the demo: commands of manage.py, each with a log in the demo's folder."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from testproject.playing.ending import Trouble

ROOT = Path(__file__).parents[2]
GRACE = 15.0
MOST = 12
"""Lines of a log that are shown of a process that has ended by itself."""


class Child:
    """One process. It reads nothing; but when its standard input ends it does too."""

    def __init__(self, folder: Path, name: str, words: tuple[str, ...]) -> None:
        self.name = name
        self._log = folder / f"{name}.log"
        self._read = 0
        with self._log.open("wb") as log:
            # A session of its own: the Ctrl-C of a terminal is the demo's, which ends its children one after another.
            self.process = subprocess.Popen(  # noqa: S603 - our own manage.py
                [sys.executable, "-m", "testproject.playing.tied", *words],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=ROOT,
                env=os.environ | {"PYTHONUNBUFFERED": "1"},
                start_new_session=True,
            )

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def said(self) -> str:
        """All of its output."""
        return self._log.read_text(errors="replace")

    def news(self) -> list[str]:
        """The whole lines that it has written since the last call."""
        with self._log.open("rb") as log:
            log.seek(self._read)
            new = log.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._read += len(whole)
        return whole.decode(errors="replace").splitlines()

    def check(self) -> None:
        """Trouble if it runs no more."""
        if self.ended:
            last = "\n".join(f"    {line}" for line in self.said().splitlines()[-MOST:])
            raise Trouble(f"{self.name} has ended by itself, with {self.process.returncode}. It said last:\n{last}")

    def end(self) -> None:
        """Ask it to end, and make it where it does not."""
        self.process.terminate()
        try:
            self.process.wait(GRACE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.stdin:
            self.process.stdin.close()


@contextmanager
def beside(folder: Path, *words: str) -> Iterator[Child]:
    """Run ``manage.py`` with these words meanwhile."""
    child = Child(folder, words[0], words)
    try:
        yield child
    finally:
        child.end()

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
"""The most log lines shown of a process that ended on its own."""


class Child:
    """A child process. It ends when its standard input ends, which it does not read."""

    def __init__(self, folder: Path, name: str, words: tuple[str, ...]) -> None:
        self.name = name
        self._log = folder / f"{name}.log"
        self._read = 0
        with self._log.open("wb") as log:
            # A session of its own, so that Ctrl-C reaches only the demo, which ends its children one after another.
            self.process = subprocess.Popen(  # noqa: S603 - the project's own manage.py
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

    def output(self) -> str:
        """The whole output."""
        return self._log.read_text(errors="replace")

    def news(self) -> list[str]:
        """Return the complete lines written since the last call."""
        with self._log.open("rb") as log:
            log.seek(self._read)
            new = log.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._read += len(whole)
        return whole.decode(errors="replace").splitlines()

    def check(self) -> None:
        """Raise Trouble if the process has ended."""
        if self.ended:
            last = "\n".join(f"    {line}" for line in self.output().splitlines()[-MOST:])
            raise Trouble(f"{self.name} has ended by itself, with {self.process.returncode}. It said last:\n{last}")

    def end(self) -> None:
        """Terminate the process; kill it if it does not end."""
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
    """Run ``manage.py`` with these arguments inside the block."""
    child = Child(folder, words[0], words)
    try:
        yield child
    finally:
        child.end()

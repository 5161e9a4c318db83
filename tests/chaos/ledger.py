"""The ledger of a run, outside the system under test: append-only files, one for each process and word.

A written line is in the page cache of the kernel: it survives SIGKILL, and the end of broker and database.
"""

import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

ATTEMPTED, CONFIRMED, ROLLED = "attempted", "confirmed", "rolled"
BEGAN, FAILED, DID, RAN, CALLED = "began", "failed", "did", "ran", "called"
DISCARDED, REPAIRED, HARM = "discarded", "repaired", "harm"
DOWN, PAUSED, RESUMED = "down", "paused", "resumed"


def now() -> int:
    """Return milliseconds of a monotonic clock that all processes of the machine share."""
    return time.monotonic_ns() // 1_000_000


class Ledger:
    """The ledger files of one process."""

    def __init__(self, folder: Path, writer: str) -> None:
        self._folder = folder / "ledger"
        self._folder.mkdir(exist_ok=True)
        self._writer = writer
        self._open: dict[str, int] = {}

    def note(self, word: str, *parts: object) -> None:
        """Write one line."""
        self._write(word, " ".join(map(str, parts)) + "\n")

    def note_all(self, word: str, names: Iterable[str]) -> None:
        """Write a line for each, in one write."""
        self._write(word, "".join(f"{name}\n" for name in names))

    def _write(self, word: str, text: str) -> None:
        file = self._open.get(word)
        if file is None:
            path = self._folder / f"{word}-{self._writer}"
            file = self._open[word] = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(file, text.encode())


class Counting:
    """Counts the lines that all processes wrote under one word; counted lines are not read again."""

    def __init__(self, folder: Path, word: str) -> None:
        self._folder = folder / "ledger"
        self._word = word
        self._read: dict[Path, int] = {}
        self._lines = 0

    def look(self) -> int:
        for path in self._folder.glob(f"{self._word}-*"):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                found = file.read()
            self._read[path] = self._read.get(path, 0) + len(found)
            self._lines += found.count(b"\n")
        return self._lines


def lines(folder: Path, word: str, writer: str = "*") -> Iterator[list[str]]:
    """Yield the lines that all processes, or one, wrote under one word; a line cut off by a kill is ignored."""
    for path in sorted((folder / "ledger").glob(f"{word}-{writer}")):
        whole, _, _being_written = path.read_text().rpartition("\n")
        for line in whole.splitlines():
            yield line.split(" ")


def names(folder: Path, word: str, writer: str = "*") -> Iterator[str]:
    """Yield the first word of each line."""
    return (line[0] for line in lines(folder, word, writer))

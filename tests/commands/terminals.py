"""A terminal with a command in it, and the text that an operator would see there."""

import fcntl
import os
import re
import signal
import struct
import subprocess
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.shop.running import ROOT, Shop
from tests.tooling.machine import open_terminal, run_in_terminal, written_to
from tests.tooling.waiting import wait_until

PIECE = re.compile(r"\x1b\[(?P<number>[\d;]*)(?P<what>[A-Za-z])|[\r\n]|[^\x1b\r\n]+")


def screen(text: str) -> list[str]:
    """The rows, without colours: as far as a terminal knows carriage returns, new lines and erasing."""
    rows, at = [""], 0
    for piece in PIECE.finditer(text):
        if piece[0] == "\n":
            rows.append("")
            at = 0
        elif piece[0] == "\r":
            at = 0
        elif piece["what"] in ("J", "K"):
            rows[-1] = rows[-1][:at]
        elif piece["what"] is None:
            rows[-1] = rows[-1][:at].ljust(at) + piece[0] + rows[-1][at + len(piece[0]) :]
            at += len(piece[0])
    return [row.rstrip() for row in rows]


class Terminal:
    """``with terminal(shop, "rmq_consume") as seen: seen.until(lambda rows: rows[-1] == "…")``."""

    def __init__(self, process: "subprocess.Popen[bytes]", master: int) -> None:
        self._process = process
        self._master = master
        self._read: list[bytes] = []
        self._reader = threading.Thread(target=self._collect)
        self._reader.start()

    @property
    def text(self) -> str:
        return b"".join(self._read).decode(errors="replace")

    @property
    def rows(self) -> list[str]:
        return screen(self.text)

    def until(self, text: str) -> None:
        """Wait until the last row holds this."""
        wait_until(lambda: text in self.rows[-1], timeout=20, what=f"{text!r} in the last of {self.rows}")

    def shows(self, text: str) -> None:
        """Wait until a row above the last one holds this."""
        wait_until(lambda: any(text in row for row in self.rows[:-1]), timeout=20, what=f"{text!r} in {self.rows}")

    def resize(self, columns: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

    def press_ctrl_c(self) -> None:
        """Type as a keyboard does: the terminal echoes it, and signals every process in the foreground."""
        os.write(self._master, b"\x03")

    def code(self) -> int:
        code = self._process.wait(timeout=30)
        self._reader.join(timeout=5)
        return code

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
        self.code()
        os.close(self._master)

    def _collect(self) -> None:
        for piece in written_to(self._master):
            self._read.append(piece)


@contextmanager
def terminal(shop: Shop, *words: str, columns: int = 100, **changed: str) -> Iterator[Terminal]:
    """One of its own, that the command controls."""
    master, slave = open_terminal(rows=24, columns=columns)
    process = run_in_terminal(shop.command(words), slave, folder=ROOT, environment=shop.environment(**changed))
    seen = Terminal(process, master)
    try:
        yield seen
    finally:
        seen.end()

"""A terminal with a command in it, and what a person would see there."""

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
from tests.tooling.machine import open_terminal
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
        """As the keyboard does: the terminal echoes it, and signals everybody in the foreground."""
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
        try:
            while piece := os.read(self._master, 65536):
                self._read.append(piece)
        except OSError:
            # Linux says EIO where others say the end.
            return


@contextmanager
def terminal(shop: Shop, *words: str, columns: int = 100, **changed: str) -> Iterator[Terminal]:
    """One of its own, that the command controls."""
    master, slave = open_terminal()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen(
        shop.command(words),
        env=shop.environment(**changed),
        cwd=ROOT,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - one call of the system, no lock
    )
    os.close(slave)
    seen = Terminal(process, master)
    try:
        yield seen
    finally:
        seen.end()

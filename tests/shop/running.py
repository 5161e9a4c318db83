"""Run the shop's commands as processes."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from tests.tooling import processes
from tests.tooling.waiting import wait_until

ROOT = Path(__file__).parents[2]


@dataclass(slots=True)
class Running:
    """A running command; its output is collected."""

    process: "processes.Started"
    out: list[str] = field(default_factory=list)
    err: list[str] = field(default_factory=list)
    readers: list[threading.Thread] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.out)

    @property
    def errors(self) -> str:
        return "".join(self.err)

    @property
    def pid(self) -> int:
        return self.process.pid

    def says(self, text: str, *, times: int = 1) -> None:
        """Wait until the output contains this text."""
        wait_until(
            lambda: self.text.count(text) >= times or self._early(text, times), timeout=20, what=f"{text!r} {self.out}"
        )

    def signal(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def code(self) -> int:
        """Wait for the exit."""
        code = self.process.wait(timeout=30)
        for reader in self.readers:
            reader.join(timeout=5)
        return code

    def _early(self, text: str, times: int) -> bool:
        if self.process.poll() is None:
            return False
        self.code()
        if self.text.count(text) >= times:
            return True
        raise AssertionError(f"Ended with {self.process.returncode} before it said {text!r}: {self.text} {self.errors}")


@dataclass(slots=True)
class Shop:
    """The shop on a broker."""

    url: str
    notes: Path
    records: dict[str, str] = field(default_factory=dict)
    """Return the environment for a database; without one, parked messages stay in their queues."""

    def environment(self, **changed: str) -> dict[str, str]:
        own = {
            "DJANGO_SETTINGS_MODULE": "tests.shop.settings",
            "PYTHONPATH": str(ROOT),
            "PYTHONIOENCODING": "utf-8",
            "RMQ_URL": self.url,
            "SHOP_NOTES": str(self.notes),
        }
        return {**os.environ, **own, **self.records, **changed}

    def run(self, *words: str, given: str | bytes = "", **changed: str) -> "subprocess.CompletedProcess[str]":
        """Run a command to its end."""
        told = processes.run(
            self.command(words),
            given=given if isinstance(given, bytes) else given.encode(),
            env=self.environment(**changed),
            text=False,
        )
        out, err = told.stdout.decode("utf-8", "replace"), told.stderr.decode("utf-8", "replace")
        return subprocess.CompletedProcess(told.args, told.returncode, out, err)

    def declared(self) -> Self:
        """Declare the queues."""
        told = self.run("rmq_declare")
        assert told.returncode == 0, told.stderr
        return self

    @contextmanager
    def running(self, *words: str, **changed: str) -> Iterator[Running]:
        """Start a command; its process group is killed at the end."""
        piped = subprocess.PIPE
        process = processes.start(
            self.command(words), env=self.environment(**changed), stdout=piped, stderr=piped, text=True, session=True
        )
        running = Running(process)
        for stream, lines in ((process.stdout, running.out), (process.stderr, running.err)):
            reader = threading.Thread(target=lambda stream=stream, lines=lines: lines.extend(stream), daemon=True)
            running.readers.append(reader)
            reader.start()
        try:
            yield running
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGCONT)
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=10)
            for reader in running.readers:
                reader.join(timeout=10)
            for stream in (process.stdout, process.stderr):
                if stream:
                    stream.close()

    def noted(self, text: str = "") -> list[str]:
        """Return the notes that contain this text, without their process ids."""
        if not self.notes.exists():
            return []
        lines = (line.partition(" ")[2] for line in self.notes.read_text().splitlines())
        return [line for line in lines if text in line]

    def pids(self) -> list[int]:
        """Return the ids of the processes that ran a handler."""
        return [int(line.split()[0]) for line in self.notes.read_text().splitlines()]

    @staticmethod
    def command(words: tuple[str, ...]) -> list[str]:
        return [sys.executable, "-W", "error", "-m", "django", *words]

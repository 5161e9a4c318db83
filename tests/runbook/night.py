"""A bank at night: its broker, its database, its consumers, and an operator at a terminal."""

import os
import re
import shlex
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.embedded.served import served
from tests.tooling import processes
from tests.tooling.machine import open_terminal, written_to
from tests.tooling.waiting import wait_until

ROOT = Path(__file__).parents[2]
ROWS, COLUMNS = 40, 118
PROMPT = "$ "
STEADY = (
    (re.compile(r"amqp://[^\s,;\"]+"), "amqp://BROKER"),
    (re.compile(r"127\.0\.0\.1:\d+"), "HOST"),
    (re.compile(r"\bport \d+"), "port N"),
    (re.compile(r"\d{4}-\d\d-\d\d[T ][\d:.]+(Z|\+00:00)?"), "TIME"),
    (re.compile(r"\d\d:\d\d:\d\d"), "CLOCK"),
    (re.compile(r"\b(\d+ (s|m|h|min) (ago|ahead)|now)\b"), "AGO"),
    (re.compile(r"\d+(\.\d+)? (s|ms)\b"), "SPAN"),
    (re.compile(r"\b(seconds|after|pid|attempt|ts)=\S+"), r"\1=…"),
    (re.compile(r"\battempt \d+"), "attempt N"),
    (re.compile(r"--selection \S+"), "--selection TOKEN"),
    (re.compile(r"\w+@[\w.-]+"), "WHO"),
    (re.compile(r"Process \d \(pid \d+\)"), "Process N"),
    (re.compile(r"\btests\.runbook\.handlers:"), "bank.handlers:"),
    (re.compile(r"\s+"), " "),
)
"""The parts of an output that differ from run to run, the module of the scenes, and the width of its columns."""


def steady(line: str) -> str:
    for pattern, instead in STEADY:
        line = pattern.sub(instead, line)
    return line.strip()


class Night:
    """One night. The broker is embedded and may be stopped; commands are processes."""

    def __init__(self, folder: Path, records: dict[str, str], port: int) -> None:
        self.folder = folder
        self.log = folder / "consumer.log"
        self._port = port
        self._code = 0
        self._own = {
            "DJANGO_SETTINGS_MODULE": "tests.runbook.settings",
            "PYTHONPATH": str(ROOT),
            "BANK_URL": f"amqp://guest:guest@127.0.0.1:{port}/%2F",
            "BANK_FOLDER": str(folder),
            "LOGNAME": "ann",
            "NO_COLOR": "1",
            "TERM": "xterm",
            **records,
        }

    @contextmanager
    def broker(self) -> Iterator[None]:
        with served(port=self._port, file=self.folder / "broker.sqlite3"):
            yield

    def deploy(self, *handlers: str, **variables: str) -> None:
        """Let the processes that start from now on have these handlers and variables."""
        self._own |= {"BANK_HANDLERS": " ".join(handlers), **variables}

    def down(self) -> None:
        (self.folder / "down").touch()

    def up(self) -> None:
        (self.folder / "down").unlink()

    def manage(self, *words: str) -> str:
        """Run a command that must succeed."""
        ran = processes.run(self._command(*words), env=self._environment)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return str(ran.stdout)

    def call(self, code: str) -> None:
        """Call a function of the bank's handlers."""
        self.manage("shell", "-v", "0", "-c", f"from tests.runbook import handlers; handlers.{code}")

    def shows(self, text: str, *words: str) -> None:
        """Wait until the output of a command has this text. Until then the command may fail: nothing matches yet."""
        command = self._command(*words)
        wait_until(
            lambda: text in str(processes.run(command, env=self._environment).stdout),
            what=f"{text!r} in {words}",
            step=0.2,
        )

    @contextmanager
    def consumer(self, *words: str) -> Iterator[None]:
        with self.log.open("wb") as out:
            process = processes.start(
                self._command("rmq_consume", *words), env=self._environment, stdout=out, stderr=out
            )
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            with suppress(Exception):
                process.wait(timeout=10)
            process.kill()
            process.wait()

    def logs(self, text: str, *, times: int = 1) -> None:
        wait_until(lambda: self.log.read_text().count(text) >= times, what=f"{text!r} in {self.log.read_text()}")

    def types(self, line: str) -> list[str]:
        """Return the lines that a command writes on the operator's terminal; a consumer writes into the journal."""
        words = shlex.split(line)
        if words == ["echo", "$?"]:
            return [str(self._code)]
        master, slave = open_terminal(rows=ROWS, columns=COLUMNS)
        pieces: list[bytes] = []
        reader = threading.Thread(target=lambda: pieces.extend(written_to(master)))
        reader.start()
        try:
            process = processes.start(
                self._command(*words[2:]), env=self._environment, stdin=slave, stdout=slave, stderr=slave
            )
        finally:
            os.close(slave)
        self._code = process.wait(timeout=60)
        reader.join(timeout=10)
        os.close(master)
        # A terminal shows of each line what was written after its last return.
        lines = b"".join(pieces).decode().replace("\r\n", "\n").split("\n")[:-1]
        return [line.rpartition("\r")[2].replace("\x1b[K", "").rstrip() for line in lines]

    @property
    def _environment(self) -> dict[str, str]:
        return {**os.environ, **self._own}

    def _command(self, *words: str) -> list[str]:
        return [sys.executable, "-W", "error", "-m", "django", *words]

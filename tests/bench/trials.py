"""One trial: a fresh process, the times it reports, and its end."""

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import IO

from tests.bench import processes
from tests.bench.task import Task

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0
TIME_TO_STOP = 10.0
SETTLING, RESTING = 1.0, 3.0


@dataclass(slots=True, kw_only=True)
class Result:
    """The result of a trial; `error` is the reason if it failed."""

    error: str = ""
    rate: float = 0.0
    cpu_us: float = 0.0
    startup: float = 0.0
    stop: float = 0.0
    resident: float = 0.0
    idle_cpu: float = 0.0


@dataclass(slots=True)
class Child:
    """The process of a trial, and the marks received so far."""

    process: subprocess.Popen[bytes]
    told: int
    began: float
    marks: dict[str, dict[str, float]] = field(default_factory=dict)
    _rest: bytes = b""

    def wait_for(self, mark: str) -> bool:
        """Return True once the mark arrives; False if the process ends first, or at the timeout."""
        deadline = time.monotonic() + PATIENCE
        while mark not in self.marks:
            if not self._read(deadline - time.monotonic()):
                return False
        return True

    def end(self) -> float:
        """Send SIGTERM and return the seconds until the exit, when the pipe closes."""
        asked = time.monotonic()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        while self._read(asked + TIME_TO_STOP - time.monotonic()):
            pass
        took = time.monotonic() - asked
        if self.process.poll() is None and took >= TIME_TO_STOP:
            self.process.kill()
        self.process.wait()
        return took

    def _read(self, seconds: float) -> bool:
        with selectors.DefaultSelector() as selector:
            selector.register(self.told, selectors.EVENT_READ)
            if not selector.select(max(0.0, seconds)):
                return False
        piece = os.read(self.told, 65536)
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            told = json.loads(line)
            self.marks[told.pop("mark")] = told
        return bool(piece)


def timed(module: str, task: Task) -> Result:
    """Measure messages per second and CPU per message, from the mark `start` to the mark `end`."""
    with spawned(module, task) as (child, log):
        done = child.wait_for("end")
        took = child.end()
        if not done:
            return Result(error=last_words(log))
    start, end = child.marks["start"], child.marks["end"]
    return Result(
        rate=task.messages / (end["at"] - start["at"]),
        cpu_us=(end["cpu"] - start["cpu"]) * 1e6 / task.messages,
        stop=took,
    )


def at_rest(module: str, task: Task) -> Result:
    """Measure a process that handles one message, is idle, and is stopped."""
    with spawned(module, task) as (child, log):
        if not child.wait_for("first"):
            child.end()
            return Result(error=last_words(log))
        _pass(SETTLING)
        resident, before = processes.resident(child.process.pid), processes.cpu(child.process.pid)
        _pass(RESTING)
        idle = (processes.cpu(child.process.pid) - before) / RESTING
        took = child.end()
        if child.process.returncode:
            return Result(error=f"exit code {child.process.returncode}: {last_words(log)}")
    return Result(startup=child.marks["first"]["at"] - child.began, stop=took, resident=resident, idle_cpu=idle)


@contextmanager
def spawned(module: str, task: Task) -> Iterator[tuple[Child, IO[bytes]]]:
    """Run a trial's process, and kill it at the end if it has not been ended; its output is in the file."""
    read, write = os.pipe()
    with tempfile.TemporaryFile() as log:
        began = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-m", module],
            cwd=ROOT,
            env=task.environment(write),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[write],
        )
        os.close(write)
        child = Child(process, read, began)
        try:
            yield child, log
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            os.close(read)


def last_words(log: IO[bytes]) -> str:
    """Return the end of a process's output, for an error."""
    log.seek(0)
    return log.read().decode(errors="replace").strip()[-400:] or "the process did not finish in time"


def _pass(seconds: float) -> None:
    Event().wait(seconds)

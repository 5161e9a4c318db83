"""Run a suite in processes: its output is read continuously, and a silent process is killed."""

import os
import selectors
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from time import monotonic

from tests.foreign.judging import Outcomes
from tests.foreign.suites import Suite

PATIENCE = 90.0
"""Seconds without output after which a test counts as hanging. pika gives its own tests 16."""
LONGEST = 1200.0
"""Seconds for one command."""
_ENDS = {
    "PASSED": "passed", "XFAIL": "passed", "FAILED": "failed", "ERROR": "failed", "XPASS": "failed",
    "SKIPPED": "skipped", "pass": "passed", "fail": "failed", "skip": "skipped",
    "ok": "passed", "FAIL": "failed", "skipped": "skipped",
}  # fmt: skip


class Hung(Exception):
    """A command had no output, or ran too long."""


def run(suite: Suite, folder: Path, port: int, log: Path) -> Outcomes:
    """Run all commands of a suite in its copy; the whole output goes to `log`."""
    outcomes = Outcomes()
    url = f"amqp://guest:guest@127.0.0.1:{port}"
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "AMQP_URI": f"{url}/%2F", "URL": url, **suite.environment}
    for words in suite.commands():
        _run(words, suite, folder, environment=environment, outcomes=outcomes, log=log)
    return outcomes


def _run(
    words: Sequence[str], suite: Suite, folder: Path, *, environment: Mapping[str, str], outcomes: Outcomes, log: Path
) -> None:
    last = "the collection of its tests"
    failures = len(outcomes.failed)
    with subprocess.Popen(
        words,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as process:
        try:
            for line in lines(process, log):
                found = suite.line.match(line)
                if found is not None:
                    last = found["test"]
                    note(outcomes, last, found["end"])
            ended = process.wait(PATIENCE)
        except (Hung, subprocess.TimeoutExpired):
            outcomes.broken.append(f"{last} hangs: killed, and what follows it in {words[-1]} was not run.")
            return
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    if ended and len(outcomes.failed) == failures:
        outcomes.broken.append(f"{words[-1]} ended with code {ended} at {last}, though no test had failed: {log}.")


def lines(process: "subprocess.Popen[bytes]", log: Path) -> Iterator[str]:
    """Yield the lines of a process, and an unfinished one if the process stops writing."""
    assert process.stdout is not None
    descriptor = process.stdout.fileno()
    until = monotonic() + LONGEST
    rest = b""
    with selectors.DefaultSelector() as selector, log.open("ab") as copy:
        selector.register(descriptor, selectors.EVENT_READ)
        while True:
            if monotonic() > until or not selector.select(PATIENCE):
                yield rest.decode("utf-8", "replace")
                raise Hung
            data = os.read(descriptor, 65536)
            copy.write(data)
            *whole, rest = (rest + data).split(b"\n")
            yield from (line.decode("utf-8", "replace") for line in whole)
            if not data:
                return


def note(outcomes: Outcomes, test: str, end: str | None) -> None:
    """Record the outcome of a test. A passed test whose teardown fails has failed."""
    kind = _ENDS.get(end or "")
    if kind is None:
        return
    if end == "ERROR" and test in outcomes.passed:
        outcomes.passed.remove(test)
    known = {*outcomes.passed, *outcomes.failed, *outcomes.skipped}
    names = (test if number == 1 else f"{test} #{number}" for number in range(1, len(known) + 2))
    getattr(outcomes, kind).append(next(name for name in names if name not in known))

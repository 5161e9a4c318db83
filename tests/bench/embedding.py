"""The embedded broker of one trial, in its own process: `python -m tests.bench.embedding`."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from django_rmq_retry.embedded import place as locating
from django_rmq_retry.embedded.wire import server as starting
from tests.tooling.waiting import wait_until

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedded:
    """A running broker."""

    url: str
    pid: int


@contextmanager
def embedded(*, durable: bool) -> Iterator[Embedded]:
    """Start a fresh broker, with a file or in memory only."""
    with tempfile.TemporaryDirectory(prefix="rmq-bench-embedded-") as place:
        folder = Path(place) / "broker"
        line = [sys.executable, "-m", __name__, str(folder), json.dumps(durable)]
        with subprocess.Popen(line, cwd=ROOT) as process:
            try:
                port = wait_until(lambda: _port(folder), what="the embedded broker")
                yield Embedded(url=f"amqp://guest:guest@127.0.0.1:{port}/%2F", pid=process.pid)
            finally:
                process.terminate()


def _port(folder: Path) -> int | None:
    try:
        return locating.port_of(folder)
    except locating.NotRunning:
        return None


if __name__ == "__main__":
    starting.serve(Path(sys.argv[1]), durable=json.loads(sys.argv[2]))

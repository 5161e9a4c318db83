"""The consumer of the demo with its metrics, on a free port of this host."""

import re
import socket
import time
from contextlib import ExitStack
from pathlib import Path
from urllib.request import urlopen

from testproject.playing.children import Child, beside
from testproject.playing.ending import Trouble
from testproject.playing.stage import Stage

HOST = "127.0.0.1"
PATIENCE = 60.0
TRIES = 5
TAKEN = "The HTTP server cannot listen on"


def measured(stack: ExitStack, stage: Stage, folder: Path, *consumer: str) -> str:
    """Run the consumer until the stack ends; return the address of its metrics."""
    for _ in range(TRIES):
        port = _free()
        child = stack.enter_context(beside(folder, *consumer, "--http", f"{HOST}:{port}"))
        address = f"http://{HOST}:{port}/metrics"
        stage.wait(
            lambda child=child, address=address: child.ended or _answers(address),  # type: ignore[misc]
            "the consumer's start",
            until=time.monotonic() + PATIENCE,
        )
        if not _was_late(child):
            stage.consumer = child
            stage.children.append(child)
            return address
    raise Trouble(f"Other programs took each of {TRIES} free ports of {HOST} before the consumer could listen there.")


def attempts(address: str, verdict: str) -> int:
    """Return the number of attempts with this verdict, over all handlers."""
    with urlopen(address, timeout=PATIENCE) as page:  # noqa: S310 - the demo's own consumer
        text = page.read().decode()
    counted = re.findall(rf'^rmq_retry_attempts_total{{.*verdict="{verdict}".*}} (\d+)$', text, re.MULTILINE)
    return sum(map(int, counted))


def _answers(address: str) -> bool:
    try:
        with urlopen(address, timeout=PATIENCE):  # noqa: S310 - the demo's own consumer
            return True
    except OSError:
        return False


def _was_late(child: Child) -> bool:
    return child.ended and TAKEN in child.output()


def _free() -> int:
    """Return a port that is free now. Another program may take it before the consumer does."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])

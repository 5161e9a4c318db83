"""The output of commands, on a terminal and into a pipe, against files under golden/.

RMQ_TEST_GOLDEN=write writes them again; look at the difference before it is committed.
"""

import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import IO, Any
from unittest.mock import patch

from django.core.management import load_command_class

from tests.tooling.machine import open_terminal

FOLDER = Path(__file__).parent / "golden"
STEADY = (
    (re.compile(r'amqp://[^\s"]+'), "amqp://guest@broker/bank"),
    (re.compile(r"RabbitMQ \d+\.\d+\.\d+"), "RabbitMQ 4.1.2"),
    (re.compile(r"round trip \d+ ms"), "round trip 2 ms"),
    (re.compile(r'"round_trip_seconds": [\d.e-]+'), '"round_trip_seconds": 0.002'),
    (re.compile(r"--selection \S+"), "--selection TOKEN"),
    (re.compile(r'"selection": "\S+"'), '"selection": "TOKEN"'),
    # Of the document itself; the times of its contents are given by the test.
    (re.compile(r'^  "at": "[\d:.TZ-]+"', re.MULTILINE), '  "at": "2026-11-21T03:02:11.482Z"'),
)
"""The parts that differ from run to run."""


def steady(text: str) -> str:
    for pattern, instead in STEADY:
        text = pattern.sub(instead, text)
    return text


def golden(name: str, now: str) -> str:
    """The output of a command when it was last approved."""
    path = FOLDER / name
    if os.environ.get("RMQ_TEST_GOLDEN") == "write":
        path.write_text(now)
    return path.read_text()


def on_terminal(*words: str) -> str:
    """All that a command writes on a terminal, as it is seen there, and its exit code."""
    master, slave = open_terminal()
    pieces: list[bytes] = []
    reader = threading.Thread(target=lambda: pieces.extend(_read(master)))
    reader.start()
    with os.fdopen(slave, "w", encoding="utf-8", buffering=1) as terminal:
        code = _run(words, terminal, terminal)
    reader.join(timeout=10)
    os.close(master)
    written = b"".join(pieces).decode().replace("\r\n", "\n").replace("\x1b", "\\e")
    return steady(f"{written}[exit {code}]\n")


def into_pipes(*words: str) -> str:
    """The output of a command on stdout and stderr without a terminal, and its exit code."""
    out, err = (TextIOWrapper(BytesIO(), encoding="utf-8", newline="") for _ in range(2))
    code = _run(words, out, err)
    texts = [stream.buffer.getvalue().decode() for stream in (out, err)]
    return steady(f"{texts[0]}[stderr]\n{texts[1]}[exit {code}]\n")


WAYS: dict[str, Callable[..., str]] = {"terminal": on_terminal, "pipe": into_pipes}


def _run(words: tuple[str, ...], out: IO[str], err: IO[str]) -> int:
    """As manage.py would."""
    with _streams(out, err):
        command: Any = load_command_class("django_rmq_retry", words[0])
        try:
            command.run_from_argv(["manage.py", *words])
        except SystemExit as end:
            return int(end.code or 0)
        finally:
            out.flush()
            err.flush()
    return 0


@contextmanager
def _streams(out: IO[str], err: IO[str]) -> Iterator[None]:
    with patch.object(sys, "stdout", out), patch.object(sys, "stderr", err):
        yield


def _read(master: int) -> Iterator[bytes]:
    try:
        while piece := os.read(master, 65536):
            yield piece
    except OSError:
        # Linux says EIO where others say the end.
        return

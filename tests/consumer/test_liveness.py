import json
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from django_rmq_retry.consumer import process
from django_rmq_retry.consumer.process import Liveness
from tests.tooling.waiting import wait_until


class Io:
    """A stand-in for the I/O thread, which answers when the test calls it."""

    def __init__(self) -> None:
        self.asked: list[Callable[[], None]] = []

    def answer(self) -> None:
        while self.asked:
            self.asked.pop()()


@pytest.fixture
def io(monkeypatch: pytest.MonkeyPatch) -> Io:
    monkeypatch.setattr(process, "EVERY", 0.0)
    return Io()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "live.json"


def alive(path: Path, io: Io) -> Liveness:
    return Liveness(path, lambda: {"queues": ("payments.charge",)}, ask=io.asked.append)


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def test_no_heartbeat_is_written_before_the_io_thread_answers(path: Path, io: Io) -> None:
    live = alive(path, io)

    live.beat()
    live.beat()

    assert not path.exists()


def test_each_answer_allows_one_heartbeat(path: Path, io: Io) -> None:
    live = alive(path, io)
    live.beat()
    io.answer()
    live.beat()
    path.unlink()
    live.beat()
    deaf = path.exists()
    io.answer()
    live.beat()

    assert (deaf, path.exists()) == (False, True)


def test_the_liveness_file_has_pid_and_time(path: Path) -> None:
    process.write(path, {"queues": ("payments.charge",)})
    told = read(path)

    assert told["queues"] == ["payments.charge"]
    assert (told["pid"], abs(told["beat"] - time.time()) < 60) == (os.getpid(), True)


def test_a_write_leaves_nothing_else_behind(path: Path) -> None:
    process.write(path, {})
    with pytest.raises(TypeError):
        process.write(path, {1j: 1})  # type: ignore[dict-item]  # no JSON key

    assert list(path.parent.iterdir()) == [path]


def test_a_file_that_cannot_be_written_is_reported_once(
    tmp_path: Path, io: Io, caplog: pytest.LogCaptureFixture
) -> None:
    live = alive(tmp_path / "missing" / "live.json", io)
    for _ in range(3):
        live.beat()
        io.answer()

    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_the_liveness_file_is_removed_at_the_end(path: Path, io: Io) -> None:
    live = alive(path, io)
    process.write(path, {})
    live.end()
    live.end()

    assert not path.exists()


def test_old_and_missing_files_are_not_fresh(path: Path, tmp_path: Path) -> None:
    process.write(path, {})
    new = process.fresh([path])
    os.utime(path, (1, 1))

    assert (new, process.fresh([path]), process.fresh([tmp_path / "none"])) == (True, False, False)


def test_a_process_measures_its_memory() -> None:
    before = process.used()
    held = bytearray(os.urandom(1)) * (64 * process.MB)

    wait_until(lambda: process.used() - before > 50 * process.MB, timeout=2)
    assert len(held) == 64 * process.MB


def test_too_much_memory_is_a_reason_to_stop() -> None:
    little, much = process.Memory(1), process.Memory(100_000)
    why = little() or ""

    assert (why.endswith("MB of memory are in use, and the limit is 1 MB"), little.exceeded) == (True, True)
    assert (much(), much.exceeded) == (None, False)

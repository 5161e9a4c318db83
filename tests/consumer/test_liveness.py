import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from django_rmq_retry.consumer import liveness, memory
from django_rmq_retry.consumer.events import Events
from django_rmq_retry.consumer.liveness import LivenessFile, Pulse
from django_rmq_retry.telemetry.meter import Board, Meter, Slot
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
    monkeypatch.setattr(liveness, "WRITE_SECONDS", 0.0)
    return Io()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "live.json"


def alive(path: Path, io: Io) -> Pulse:
    file = LivenessFile(path, lambda: {"queues": ("payments.charge",)})
    return Pulse([file.beat], ask=io.asked.append)


def test_no_heartbeat_is_written_before_the_io_thread_answers(path: Path, io: Io) -> None:
    live = alive(path, io)

    live.tick()
    live.tick()

    assert not path.exists()


def test_each_answer_allows_one_heartbeat(path: Path, io: Io) -> None:
    live = alive(path, io)
    live.tick()
    io.answer()
    live.tick()
    path.unlink()
    live.tick()
    deaf = path.exists()
    io.answer()
    live.tick()

    assert (deaf, path.exists()) == (False, True)


def test_a_write_leaves_nothing_else_behind(path: Path) -> None:
    liveness.write(path, {})
    with pytest.raises(TypeError):
        liveness.write(path, {1j: 1})  # type: ignore[dict-item]  # no JSON key

    assert list(path.parent.iterdir()) == [path]


def test_a_file_that_cannot_be_written_is_reported_once(
    tmp_path: Path, io: Io, caplog: pytest.LogCaptureFixture
) -> None:
    live = alive(tmp_path / "missing" / "live.json", io)
    for _ in range(3):
        live.tick()
        io.answer()

    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_old_and_missing_files_are_not_fresh(path: Path, tmp_path: Path) -> None:
    liveness.write(path, {})
    new = liveness.fresh([path])
    os.utime(path, (1, 1))

    assert (new, liveness.fresh([path]), liveness.fresh([tmp_path / "none"])) == (True, False, False)


@pytest.mark.parametrize(("since", "ready"), [(None, 1.0), (1.0, 1.0), (60.0, 0.0)])
def test_a_process_whose_threads_are_stuck_is_not_ready(since: float | None, ready: float) -> None:
    board = Board((), processes=1)
    stuck = None if since is None else time.monotonic() - since
    consumer: Any = SimpleNamespace(running=2, waiting=0, copies=0, online=True, ready=True, stuck_since=stuck)
    meter, events = Meter(board, clock=time.monotonic), Events(time.monotonic)
    liveness.States(meter, consumer, events, threads=2).write()

    assert board.slot(0, Slot.READY) == ready


def test_a_process_measures_its_memory() -> None:
    before = memory.used()
    held = bytearray(os.urandom(1)) * (64 * memory.MB)

    wait_until(lambda: memory.used() - before > 50 * memory.MB, timeout=2)
    assert len(held) == 64 * memory.MB

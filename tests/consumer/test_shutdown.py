"""Signals, raised in this very process; its own handlers are put back afterwards."""

import queue
import signal
import threading
from collections.abc import Iterator

import pytest

from django_rmq_retry.consumer import supervisor

PATIENCE = 20


@pytest.fixture(autouse=True)
def before() -> Iterator[None]:
    kept = {number: signal.getsignal(number) for number in supervisor.SIGNALS}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.fixture
def stops() -> "queue.SimpleQueue[str]":
    return queue.SimpleQueue()


def test_listening_unblocks_a_blocked_signal(stops: "queue.SimpleQueue[str]") -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, supervisor.SIGNALS)
    signal.raise_signal(signal.SIGTERM)
    supervisor.listen(stops.put)

    assert stops.get(timeout=PATIENCE) == "SIGTERM"


def test_a_signal_may_interrupt_the_thread_with_the_stop_lock() -> None:
    stopped, lock = threading.Event(), threading.Lock()

    def stop(_name: str) -> None:
        if lock.acquire(timeout=PATIENCE):
            stopped.set()

    supervisor.listen(stop)
    with lock:
        signal.raise_signal(signal.SIGTERM)

    assert stopped.wait(PATIENCE)


def test_a_process_that_cannot_start_a_thread_still_stops(
    monkeypatch: pytest.MonkeyPatch, stops: "queue.SimpleQueue[str]"
) -> None:
    def refuse(*_arguments: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("_thread.start_new_thread", refuse)
    supervisor.listen(stops.put)
    signal.raise_signal(signal.SIGTERM)

    assert stops.get(timeout=PATIENCE) == "SIGTERM"

import logging
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from django_rmq_retry.consumer.workers import Workers
from tests.tooling.waiting import wait_until


def made(threads: int, run: Callable[[int], object]) -> Workers[int]:
    def work(job: int) -> None:
        run(job)

    return Workers(threads, work)


@pytest.fixture
def hasty() -> Iterator[None]:
    """Threads change places as often as they can, so that a race shows itself."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@contextmanager
def at_work(threads: int, run: Callable[[int], object]) -> Iterator[Workers[int]]:
    workers = made(threads, run)
    workers.start()
    try:
        yield workers
    finally:
        workers.stop()
        wait_until(lambda: not any(thread.is_alive() for thread in workers._threads), 5, what="every thread ends")


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("threads", [1, 2, 8])
def test_every_job_runs_once(threads: int) -> None:
    ran: Counter[int] = Counter()
    lock = threading.Lock()

    def run(job: int) -> None:
        with lock:
            ran[job] += 1

    with at_work(threads, run) as workers:
        for job in range(20_000):
            workers.add(job)
        assert workers.wait_quiet(20)

    assert ran == dict.fromkeys(range(20_000), 1)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 5), st.lists(st.integers(1, 9), min_size=1, max_size=20))
def test_bursts_of_jobs_of_any_size_all_run(threads: int, bursts: list[int]) -> None:
    ran: list[int] = []
    with at_work(threads, ran.append) as workers:
        for burst in bursts:
            for job in range(burst):
                workers.add(job)
            assert workers.wait_quiet(5)

    assert len(ran) == sum(bursts)


@pytest.mark.usefixtures("hasty")
def test_a_job_added_while_a_thread_falls_asleep_runs() -> None:
    served = threading.Semaphore(0)
    with at_work(2, lambda _: served.release()) as workers:
        for job in range(5000):
            workers.add(job)

            assert served.acquire(timeout=5)


def test_slow_jobs_spread_over_all_threads() -> None:
    together = threading.Barrier(4)
    with at_work(4, lambda _: together.wait(5)) as workers:
        for job in range(4):
            workers.add(job)

        assert workers.wait_quiet(5)
        assert not together.broken


def test_a_burst_wakes_sleeping_threads_one_by_one() -> None:
    inside, go = threading.Semaphore(0), threading.Event()

    def run(_: int) -> None:
        inside.release()
        go.wait(5)

    with at_work(3, run) as workers:
        workers.add(0)
        assert inside.acquire(timeout=5)
        workers.add(1)
        workers.add(2)

        assert inside.acquire(timeout=5)
        assert inside.acquire(timeout=5)
        assert (workers.running, workers.waiting) == (3, 0)
        go.set()


def test_withdrawn_jobs_never_run_and_running_jobs_stay() -> None:
    ran: list[int] = []
    begun, go = threading.Event(), threading.Event()

    def run(job: int) -> None:
        begun.set()
        go.wait(5)
        ran.append(job)

    with at_work(1, run) as workers:
        for job in range(5):
            workers.add(job)
        assert begun.wait(5)
        taken = workers.take_back()
        assert not workers.wait_quiet(0.01)
        go.set()
        assert workers.wait_quiet(5)

    assert taken == [1, 2, 3, 4]
    assert ran == [0]


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("threads", [1, 3])
def test_concurrent_withdrawals_lose_and_duplicate_no_job(threads: int) -> None:
    ran: list[int] = []
    taken: list[int] = []
    with at_work(threads, ran.append) as workers:

        def add() -> None:
            for job in range(5000):
                workers.add(job)

        adding = threading.Thread(target=add)
        adding.start()
        while adding.is_alive():
            taken += workers.take_back()
        adding.join()
        assert workers.wait_quiet(5)

    assert sorted(ran + taken) == list(range(5000))


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(1), KeyboardInterrupt(), GeneratorExit()])
def test_any_exception_of_a_job_leaves_its_thread_alive(error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    ran: list[int] = []

    def run(job: int) -> None:
        if job == 0:
            raise error
        ran.append(job)

    with at_work(1, run) as workers:
        workers.add(0)
        workers.add(1)

        assert workers.wait_quiet(5)
        assert workers.dead == []
        assert ran == [1]
        assert "A worker thread raised an error outside any handler" in caplog.text


def test_a_log_filter_that_raises_ends_no_worker_thread(capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(record: logging.LogRecord) -> bool:
        raise SystemExit(record.getMessage())

    ran: list[int] = []

    def run(job: int) -> None:
        if job == 0:
            raise ValueError("of the job")
        ran.append(job)

    log = logging.getLogger("django_rmq_retry")
    log.addFilter(refuse)
    try:
        with at_work(1, run) as workers:
            workers.add(0)
            workers.add(1)

            assert workers.wait_quiet(5)
            assert (workers.dead, workers.running, ran) == ([], 0, [1])
    finally:
        log.removeFilter(refuse)
    # Where the log fails, stderr has both errors.
    said = capsys.readouterr().err
    assert "ValueError: of the job" in said
    assert "SystemExit: A worker thread raised an error outside any handler" in said


def test_a_dead_worker_thread_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(_: Workers[int]) -> None:
        raise MemoryError

    # What the thread dies of is shown by threading, as it must; only this test need not see it.
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    monkeypatch.setattr(Workers, "_work_off", breaks)
    workers = made(2, lambda _: None)
    workers.start()
    workers.add(1)

    assert wait_until(lambda: workers.dead, 5) in (["rmq-worker-1"], ["rmq-worker-2"])
    workers.stop()


def test_stopping_lets_a_running_job_end() -> None:
    go, ended = threading.Event(), threading.Event()

    def run(_: int) -> None:
        go.wait(5)
        ended.set()

    with at_work(2, run) as workers:
        workers.add(1)
        wait_until(lambda: workers.running == 1, 5)
        workers.stop()
        go.set()

        assert ended.wait(5)
        assert workers.dead == []

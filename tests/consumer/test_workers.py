import logging
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from django_rmq_retry import RetryThenPark
from django_rmq_retry.consumer.batch_attempt import BatchPipeline
from django_rmq_retry.consumer.consumer import Consumer, ConsumerLimits, sizes_of
from django_rmq_retry.consumer.workers import TwoPools, Workers
from django_rmq_retry.handlers import Match, WorkQueue, work_queues_of
from tests.consumer.attempts import surroundings
from tests.consumer.taps import Tap
from tests.handlers.factories import subscription
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


def of_queue(name: str, *asynchronous: bool) -> WorkQueue:
    """A queue with a handler for each flag."""
    subscriptions = [
        replace(
            subscription(RetryThenPark(), queue=name, name=f"{name} {number}", match=Match(type=str(number))),
            asynchronous=flag,
        )
        for number, flag in enumerate(asynchronous)
    ]
    return work_queues_of(subscriptions)[0]


PLAIN, ASYNC, MIXED = of_queue("plain", False), of_queue("async", True, True), of_queue("mixed", True, False)


@pytest.mark.parametrize(
    ("work_queues", "sizes"),
    [
        ([PLAIN], (4, 0)),
        ([ASYNC], (0, 100)),
        ([PLAIN, ASYNC], (4, 100)),
        ([MIXED], (4, 0)),
        ([], (4, 0)),
    ],
)
def test_only_queues_whose_handlers_are_all_async_have_threads_that_wait(
    work_queues: list[WorkQueue], sizes: tuple[int, int]
) -> None:
    assert sizes_of(work_queues, threads=4, asynchronous=100) == sizes


@pytest.mark.parametrize(
    ("work_queue", "prefetch", "most", "held"),
    [(PLAIN, 10, None, 10), (ASYNC, 10, None, 100), (ASYNC, 500, None, 500), (ASYNC, 10, 3, 3), (MIXED, 10, None, 10)],
)
def test_the_prefetch_of_async_handlers_allows_as_many_as_may_run_at_once(
    work_queue: WorkQueue, prefetch: int, most: int | None, held: int
) -> None:
    made = Consumer(
        [work_queue],
        Tap(),
        BatchPipeline([work_queue], surroundings()),
        threads=4,
        prefetch=prefetch,
        asynchronous=100,
        limits=ConsumerLimits(messages=most),
    )

    assert made._lines[0].prefetch == held


def test_a_job_goes_to_the_pool_that_is_for_it() -> None:
    names: dict[int, str] = {}

    def run(job: int) -> None:
        names[job] = threading.current_thread().name

    pools = TwoPools(2, 3, run, is_async=lambda job: job % 2 == 1)
    pools.start()
    for job in range(20):
        pools.add(job)
    assert pools.wait_quiet(5)
    pools.stop()

    assert {names[job].rpartition("-")[0] for job in range(0, 20, 2)} == {"rmq-worker"}
    assert {names[job].rpartition("-")[0] for job in range(1, 20, 2)} == {"rmq-async"}


def test_a_hung_handler_of_one_pool_does_not_hide_a_running_one_of_the_other() -> None:
    held = {0: threading.Event(), 1: threading.Event()}
    pools: TwoPools[int] = TwoPools(1, 1, lambda job: held[job].wait(20), is_async=bool)
    pools.start()
    pools.add(0)
    pools.add(1)
    wait_until(lambda: pools.running == 2)

    assert not pools.wait_quiet(0.01, hung=lambda: 1)
    held[1].set()
    assert pools.wait_quiet(5, hung=lambda: 1)
    held[0].set()
    assert pools.wait_quiet(5)
    pools.stop()

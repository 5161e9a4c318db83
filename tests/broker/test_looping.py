import logging
import threading

import pytest

from django_rmq_retry.amqp.connection import IoThread
from tests.broker.live import io_thread
from tests.tooling.waiting import wait_until


def test_calls_run_on_the_io_thread_in_the_order_in_which_they_were_handed_over() -> None:
    with io_thread() as io:
        ran: list[tuple[int, bool]] = []
        over = threading.Event()
        for number in range(100):
            io.call(lambda number=number: ran.append((number, io.current)))  # type: ignore[misc]  # bound early
        io.call(over.set)

        assert over.wait(5)
        assert ran == [(number, True) for number in range(100)]
        assert not io.current


def test_no_call_is_lost_however_many_threads_hand_over() -> None:
    with io_thread() as io:
        ran: list[int] = []

        def hand_over() -> None:
            for _ in range(2000):
                io.call(lambda: ran.append(1))

        threads = [threading.Thread(target=hand_over) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        wait_until(lambda: len(ran) == 12000, 5, what="every call ran")


def test_a_cancelled_timer_never_rings() -> None:
    with io_thread() as io:
        rung: list[str] = []
        over = threading.Event()

        def begin() -> None:
            io.cancel(io.later(0.01, lambda: rung.append("cancelled")))
            io.later(0.05, over.set)

        io.call(begin)

        assert over.wait(5)
        assert rung == []


def test_an_error_on_the_io_thread_ends_it_loudly_and_tells_who_asked_to_know(
    caplog: pytest.LogCaptureFixture,
) -> None:
    io, told = IoThread("rmq-test"), threading.Event()
    io.at_end(told.set)
    io.start()

    with caplog.at_level(logging.CRITICAL):
        io.call(lambda: 1 / 0)  # type: ignore[arg-type]  # it does not return
        assert told.wait(5)

    assert not io.alive
    assert "The I/O thread ended: ZeroDivisionError" in caplog.text


def test_calls_to_an_ended_thread_harm_nobody() -> None:
    io = IoThread("rmq-test")
    io.start()
    assert io.stop(timeout=5)

    told = threading.Event()
    io.call(lambda: pytest.fail("nobody runs it any more"))
    io.at_end(told.set)

    assert told.is_set()
    assert not io.alive
    assert io.stop(timeout=5)

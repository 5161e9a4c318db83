import logging
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry.amqp import Access
from django_rmq_retry.amqp.caller import PikaCaller
from django_rmq_retry.amqp.io_thread import IoThread
from django_rmq_retry.amqp.link import Link
from django_rmq_retry.amqp.protocol import IoServices
from django_rmq_retry.amqp.transport import IoLoop
from django_rmq_retry.errors import MessageUnsent
from tests.amqp.live import io_thread, publisher_on, to
from tests.tooling.waiting import longer, wait_until


def test_calls_run_on_the_io_thread_in_the_order_in_which_they_were_handed_over() -> None:
    with io_thread() as io:
        ran: list[tuple[int, bool]] = []
        over = threading.Event()
        for number in range(100):
            io.call(lambda number=number: ran.append((number, io.current)))  # type: ignore[misc]  # bound early
        io.call(over.set)

        assert over.wait(longer(5))
        assert ran == [(number, True) for number in range(100)]
        assert not io.current


def test_a_loop_that_cannot_be_woken_is_woken_by_the_next_call(monkeypatch: pytest.MonkeyPatch) -> None:
    with io_thread() as io:
        ran: list[int] = []
        over = threading.Event()
        with monkeypatch.context() as scarce:
            scarce.setattr(io.loop, "add_callback_threadsafe", refuse)
            with pytest.raises(MemoryError):
                io.call(lambda: ran.append(1))
        io.call(over.set)

        assert over.wait(longer(5))
        assert ran == [1]


def test_a_turn_that_a_freeze_has_interrupted_counts_as_none() -> None:
    """Python's poll returns nothing then, whatever came meanwhile, such as the end of the connection."""
    loop = IoLoop()
    loop.activate_poller()
    loop.turned = loop._ended = frozen = time.monotonic() - 60

    loop.process_timeouts()
    assert loop.turned == frozen
    loop.process_timeouts()
    assert loop.turned > frozen
    loop.close()


def refuse(_call: object) -> None:
    raise MemoryError


def test_no_call_is_lost_when_many_threads_submit() -> None:
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


def test_a_cancelled_timer_never_runs() -> None:
    with io_thread() as io:
        rung: list[str] = []
        over = threading.Event()

        def begin() -> None:
            io.cancel(io.later(0.01, lambda: rung.append("cancelled")))
            io.later(0.05, over.set)

        io.call(begin)

        assert over.wait(longer(5))
        assert rung == []


@pytest.mark.parametrize("way", ["call", "later"])
def test_an_error_in_a_function_ends_only_the_connections_of_its_thread(
    broker_url: str, amqp: BlockingChannel, caplog: pytest.LogCaptureFixture, way: str
) -> None:
    amqp.queue_declare("q", durable=True)
    fail: Any = lambda: 1 / 0  # noqa: E731 - it is passed on
    with io_thread() as io, io_thread() as other_io:
        publisher, other = publisher_on(io, broker_url), publisher_on(other_io, broker_url)
        publisher.publish(to("q"))
        other.publish(to("q"))
        begin: Any = fail if way == "call" else lambda: io.later(0.0, fail)
        io.call(begin)
        wait_until(lambda: "No connection to" in caplog.text, what="its connection is lost")
        publisher.publish(to("q"))
        other.publish(to("q"))
        publisher.close()
        other.close()

    assert caplog.text.count("No connection to") == 1

    [record] = [one for one in caplog.records if one.levelno == logging.ERROR]
    assert record.getMessage() == "A function failed on the I/O thread; its connections are closed and opened again"
    assert record.exc_info is not None
    assert record.exc_info[0] is ZeroDivisionError


def test_a_publish_or_call_on_the_io_thread_is_refused_at_once(broker_url: str) -> None:
    """A log handler that publishes runs there with each log record of that thread; it would wait for itself."""
    errors: list[Exception] = []
    over = threading.Event()
    with io_thread() as io:
        publisher, caller = publisher_on(io, broker_url), PikaCaller(io, Access.parse(broker_url))

        def attempt(send: Callable[[], object]) -> None:
            try:
                send()
            except Exception as error:  # noqa: BLE001 - its type is what the test compares
                errors.append(error)

        def run() -> None:
            attempt(lambda: publisher.publish(to("q")))
            attempt(lambda: publisher.publish_many([to("q")]))
            attempt(lambda: caller.call(to("q", correlation_id="c"), timeout=5))
            over.set()

        io.call(run)
        assert over.wait(longer(1))

    assert [type(error) for error in errors] == [MessageUnsent] * 3
    assert "the I/O thread, which sends it and would wait for itself" in str(errors[0])


def test_a_system_exit_on_the_io_thread_ends_it_and_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    io, told = IoThread("rmq-test"), threading.Event()
    io.at_end(told.set)
    io.start()

    with caplog.at_level(logging.CRITICAL):
        io.call(sys.exit)
        assert told.wait(longer(5))

    assert not io.alive
    assert "The I/O thread ended: SystemExit" in caplog.text


def test_a_failing_at_end_function_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    io, told = IoThread("rmq-test"), threading.Event()
    io.at_end(lambda: list[int]().remove(0))
    io.at_end(told.set)
    io.start()

    assert io.stop(timeout=5)
    assert told.is_set()
    [record] = [one for one in caplog.records if one.levelno == logging.ERROR]
    assert getattr(record, "event", None) == "io_end"


def test_calls_to_an_ended_thread_are_ignored() -> None:
    io = IoThread("rmq-test")
    io.start()
    assert io.stop(timeout=5)

    told = threading.Event()
    io.call(lambda: pytest.fail("it must not run any more"))
    io.at_end(told.set)

    assert told.is_set()
    assert not io.alive
    assert io.stop(timeout=5)


@pytest.mark.parametrize("turns", range(4))
def test_a_loop_that_ends_while_a_connection_is_being_opened_leaves_no_socket(
    monkeypatch: pytest.MonkeyPatch, turns: int
) -> None:
    sockets: list[socket.socket] = []
    connect = IoServices.connect_socket

    with socket.create_server(("127.0.0.1", 0)) as mute, io_thread() as io:

        def end_after(turns: int) -> None:
            if turns:
                io.loop.add_callback_threadsafe(lambda: end_after(turns - 1))
            else:
                io.loop.stop()

        def connect_and_end(self: IoServices, sock: socket.socket, *args: Any, **options: Any) -> Any:
            sockets.append(sock)
            connecting = connect(self, sock, *args, **options)
            end_after(turns)
            return connecting

        monkeypatch.setattr(IoServices, "connect_socket", connect_and_end)
        access = Access.parse(f"amqp://guest:guest@127.0.0.1:{mute.getsockname()[1]}/")
        link = Link(io, access, purpose="test", opened=ignore, lost=lambda _reason, _wait: None, refused=ignore)
        io.call(link.open)
        wait_until(lambda: not io.alive)

    assert [one.fileno() for one in sockets] == [-1]


def ignore(_what: object) -> None:
    """Nothing."""

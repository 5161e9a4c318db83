"""The transport on sockets that accept and return what a test says: reads, joined writes, TLS waits and the end."""

import ssl
from typing import Any, cast
from unittest.mock import Mock

import pytest
from pika.exceptions import InvalidFrameError

from django_rmq_retry.amqp.transport import MOST_WRITTEN_BYTES, IoLoop, Opening, Transport


class Socket:
    """Accepts ``takes`` bytes at a time, and returns or raises what it is given."""

    def __init__(
        self, *, takes: int = 1 << 20, gives: list[Any] | None = None, refuses: list[Any] | None = None
    ) -> None:
        self.takes = takes
        self.gives = gives or []
        self.refuses = refuses or []
        """The errors that the next sends raise."""
        self.sent: list[bytes] = []
        self.ended: list[str] = []

    def fileno(self) -> int:
        return 7

    def send(self, data: bytes | memoryview) -> int:
        if self.refuses:
            raise self.refuses.pop(0)
        self.sent.append(bytes(data[: self.takes]))
        return len(self.sent[-1])

    def recv(self, size: int) -> bytes:
        given = self.gives.pop(0)
        if isinstance(given, Exception):
            raise given
        return cast("bytes", given)

    def shutdown(self, how: int) -> None:
        self.ended.append("shutdown")
        raise OSError("the other side is gone")

    def close(self) -> None:
        self.ended.append("close")


class Protocol:
    """Records its calls."""

    def __init__(self) -> None:
        self.received: list[bytes] = []
        self.lost: list[BaseException | None] = []

    def data_received(self, data: bytes) -> None:
        self.received.append(data)
        if data == b"garbage":
            raise InvalidFrameError("no frame")

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: BaseException | None) -> None:
        self.lost.append(error)


class Made:
    """A transport, its socket and its protocol; ``readable`` and ``writable`` are the loop's events."""

    def __init__(self, loop: Any = None, **socket: Any) -> None:
        self.services = Mock()
        self.services.get_native_ioloop.return_value = loop
        self.sock = Socket(**socket)
        self.protocol = Protocol()
        self.transport = Transport(cast("Any", self.sock), cast("Any", self.protocol), self.services)

    def readable(self) -> None:
        self.services.set_reader.call_args.args[1]()

    def writable(self) -> None:
        self.services.set_writer.call_args.args[1]()

    def write(self, *chunks: bytes) -> None:
        for chunk in chunks:
            self.transport.write(chunk)

    @property
    def writer_changes(self) -> tuple[int, int]:
        return self.services.set_writer.call_count, self.services.remove_writer.call_count


def test_waiting_bytes_are_written_in_order_with_one_call() -> None:
    made = Made()
    made.write(b"a", b"b" * MOST_WRITTEN_BYTES, b"c", b"d")
    made.writable()
    made.write(b"e")
    made.writable()

    assert made.sock.sent == [b"a" + b"b" * MOST_WRITTEN_BYTES, b"cd", b"e"]
    assert made.writer_changes == (2, 2)
    assert made.transport.get_write_buffer_size() == 0


def test_bytes_that_a_full_socket_does_not_accept_are_sent_next_time() -> None:
    made = Made(takes=3)
    made.write(b"ab", b"cdef", b"g")
    made.writable()
    left = made.transport.get_write_buffer_size(), made.writer_changes
    made.writable()
    made.writable()

    assert left == (4, (1, 0))
    assert made.sock.sent == [b"abc", b"def", b"g"]
    assert made.writer_changes == (1, 1)


def test_the_io_thread_writes_at_the_end_of_a_turn_and_watches_only_a_full_socket() -> None:
    loop = IoLoop()
    made = Made(loop, takes=3)
    made.write(b"a", b"b")
    loop.process_timeouts()
    assert (made.sock.sent, made.writer_changes) == ([b"ab"], (0, 0))
    made.write(b"cdef")
    loop.process_timeouts()
    assert made.writer_changes == (1, 0)
    made.write(b"g")
    made.writable()

    assert made.sock.sent == [b"ab", b"cde", b"fg"]
    assert made.writer_changes == (1, 1)
    loop.close()


@pytest.mark.parametrize("reason", [BlockingIOError(), InterruptedError(), ssl.SSLWantWriteError()])
def test_a_socket_that_accepts_nothing_is_tried_again(reason: OSError) -> None:
    made = Made(refuses=[reason])
    made.write(b"ab")
    made.writable()
    assert (made.sock.sent, made.writer_changes) == ([], (1, 0))
    made.writable()

    assert made.sock.sent == [b"ab"]


def test_a_tls_write_that_waits_for_a_read_continues_after_it() -> None:
    made = Made(refuses=[ssl.SSLWantReadError()], gives=[b"x"])
    made.write(b"ab")
    made.writable()
    assert made.writer_changes == (1, 1)
    made.readable()
    made.writable()

    assert (made.sock.sent, made.protocol.received) == ([b"ab"], [b"x"])


def test_a_tls_read_that_waits_for_a_write_continues_after_it() -> None:
    made = Made(gives=[ssl.SSLWantWriteError(), b"x"])
    made.readable()
    assert made.writer_changes == (1, 0)
    made.writable()

    assert made.protocol.received == [b"x"]
    assert made.writer_changes == (1, 1)


@pytest.mark.parametrize(
    ("gives", "error"),
    [
        ([b""], None),
        ([ConnectionResetError("reset by peer")], ConnectionResetError),
        ([BlockingIOError(), ssl.SSLWantReadError(), b"garbage"], InvalidFrameError),
    ],
)
def test_eof_errors_and_invalid_frames_close_the_connection_once(
    gives: list[Any], error: type[BaseException] | None
) -> None:
    made = Made(gives=list(gives))
    made.write(b"never sent")
    for _ in gives:
        made.readable()
    made.transport.abort()
    made.write(b"never sent")
    [[[lost], _]] = made.services.add_callback_threadsafe.call_args_list
    assert made.protocol.lost == []
    lost()

    assert [None if one is None else type(one) for one in made.protocol.lost] == [error]
    assert (made.sock.ended, made.sock.sent) == (["shutdown", "close"], [])


def test_an_error_of_a_send_ends_the_connection() -> None:
    made = Made(refuses=[BrokenPipeError("gone")])
    made.write(b"ab")
    made.writable()
    [[[lost], _]] = made.services.add_callback_threadsafe.call_args_list
    lost()

    assert [type(one) for one in made.protocol.lost] == [BrokenPipeError]


def opening(*, tls: Any = None) -> tuple[Opening, list[Any], Mock, Socket]:
    results: list[Any] = []
    services, sock = Mock(), Socket()
    made = Opening(cast("Any", sock), services, tls=tls, server_name=None, done=results.append)
    return made, results, services, sock


def test_a_cancelled_connection_attempt_closes_its_socket_and_reports_nothing() -> None:
    one, results, services, sock = opening()
    first, second = one.cancel(), one.cancel()
    services.add_callback_threadsafe.call_args.args[0]()

    assert (first, second, results, sock.ended) == (True, False, [], ["close"])


def test_a_connection_attempt_that_has_ended_cannot_be_cancelled() -> None:
    one, results, services, sock = opening()
    services.add_callback_threadsafe.call_args.args[0]()

    assert (one.cancel(), results, sock.ended) == (False, [sock], [])


def test_a_failed_handshake_is_reported_and_closes_the_socket() -> None:
    tls = Mock()
    tls.wrap_socket.side_effect = ValueError("no server name")
    _, results, services, sock = opening(tls=tls)
    services.add_callback_threadsafe.call_args.args[0]()

    assert [str(one) for one in results] == ["no server name"]
    assert sock.ended == ["close"]

"""Sockets for pika's `nbio_interface`. pika's own transports read 4 KiB at a time, and send each frame by itself."""

import socket
import ssl
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from pika.adapters.select_connection import IOLoop
from pika.adapters.utils.nbio_interface import AbstractIOReference, AbstractStreamProtocol, AbstractStreamTransport
from pika.adapters.utils.selector_ioloop_adapter import SelectorIOServicesAdapter

MOST_READ_BYTES = MOST_WRITTEN_BYTES = 65536
_TLS_READS = 4
"""Reads for each readable event with TLS, where one read returns at most one record of 16 KiB."""
_READS_AFTER_FREEZE = 1024
"""Reads for each readable event after a freeze: behind all that came meanwhile may be the end of the connection."""
ASLEEP_SECONDS = 10.0
"""Seconds since a loop's last turn after which the whole process was asleep: a turn waits five at most."""
_NOT_NOW = (BlockingIOError, InterruptedError)


class IoLoop(IOLoop):
    """An event loop at the end of whose turns transports write, without asking it whether their sockets take bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.at_end_of_turn: deque[Callable[[], None]] = deque()
        self.turned = self._ended = time.monotonic()
        """The time of the end of the last turn that has looked at its sockets for certain."""
        self.frozen = False
        """True if the process was frozen during the last turn."""

    def process_timeouts(self) -> None:
        """Run what follows the events of a turn, which may write, then write."""
        super().process_timeouts()
        while self.at_end_of_turn:
            self.at_end_of_turn.popleft()()
        now = time.monotonic()
        # A turn in which the process was frozen may have looked at no socket: a poll that SIGCONT interrupts is over.
        self.frozen = now - self._ended >= ASLEEP_SECONDS
        if not self.frozen:
            self.turned = now
        self._ended = now

    def asleep(self) -> bool:
        """Return True if its last turn is so long ago that the process was frozen meanwhile; for any thread."""
        return time.monotonic() - self.turned >= ASLEEP_SECONDS


class Transport(AbstractStreamTransport):
    """A connected, non-blocking socket. Used on the thread of its event loop only."""

    def __init__(
        self, sock: socket.socket, protocol: AbstractStreamProtocol, services: SelectorIOServicesAdapter
    ) -> None:
        self._sock = sock
        self._fd = sock.fileno()
        self._protocol = protocol
        self._services = services
        self._reads = _TLS_READS if isinstance(sock, ssl.SSLSocket) else 1
        self._out: deque[bytes | memoryview] = deque()
        self._size = 0
        self._open = True
        loop = services.get_native_ioloop()
        self._loop = loop if isinstance(loop, IoLoop) else None
        # During a TLS key update a read may have to wait for a writable socket, and a write for a readable one.
        self._read_when_writable = self._write_when_readable = False
        services.set_reader(self._fd, self._readable)

    def abort(self) -> None:
        self._end(None)

    def fail(self, error: Exception) -> None:
        self._end(error)

    def close(self) -> None:
        """Close the socket and tell nobody."""
        # A forked process may have a copy of the socket: without a shutdown the connection would stay open.
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()

    def get_protocol(self) -> AbstractStreamProtocol:
        return self._protocol

    def get_write_buffer_size(self) -> int:
        return self._size

    def write(self, data: bytes) -> None:
        if not self._open or not data:
            return
        idle = not self._out
        self._out.append(data)
        self._size += len(data)
        if not idle:
            return
        if self._loop is not None:
            self._loop.at_end_of_turn.append(self._flush)
        else:
            self._services.set_writer(self._fd, self._writable)

    def _readable(self) -> None:
        if self._write_when_readable:
            self._write_when_readable = False
            self._services.set_writer(self._fd, self._writable)
        for _ in range(_READS_AFTER_FREEZE if self._loop is not None and self._loop.frozen else self._reads):
            if not self._open or not self._read():
                return
        if isinstance(self._sock, ssl.SSLSocket) and self._open and self._sock.pending():
            # Bytes that OpenSSL has decrypted already do not make the socket readable.
            self._services.add_callback_threadsafe(self._readable)

    def _read(self) -> bool:
        """Pass on the bytes of one read; return False if there are none now."""
        try:
            data = self._sock.recv(MOST_READ_BYTES)
        except (*_NOT_NOW, ssl.SSLWantReadError):
            return False
        except ssl.SSLWantWriteError:
            self._read_when_writable = True
            self._services.set_writer(self._fd, self._writable)
            return False
        except OSError as error:
            self._end(error)
            return False
        try:
            if data:
                self._protocol.data_received(data)
            elif not self._protocol.eof_received():
                self._end(None)
        except Exception as error:  # noqa: BLE001 - invalid frames, or an error in a callback: the connection ends
            self._end(error)
        return bool(data)

    def _writable(self) -> None:
        if self._read_when_writable:
            self._read_when_writable = False
            self._readable()
        self._write()
        if self._open and (not self._out or self._write_when_readable):
            self._services.remove_writer(self._fd)

    def _flush(self) -> None:
        """Write what the socket takes now. Nearly always that is all, and it need not be watched."""
        self._write()
        if self._open and self._out and not self._write_when_readable:
            self._services.set_writer(self._fd, self._writable)

    def _write(self) -> None:
        while self._open and self._out:
            piece = self._next_piece()
            sent = self._send(piece)
            self._size -= sent
            if sent < len(piece):
                self._out.appendleft(memoryview(piece)[sent:] if sent else piece)
                break

    def _next_piece(self) -> bytes | memoryview:
        """Remove and return the bytes of the next system call; bounded, because unsent bytes are joined again."""
        pieces = [self._out.popleft()]
        size = len(pieces[0])
        while self._out and size < MOST_WRITTEN_BYTES:
            pieces.append(self._out.popleft())
            size += len(pieces[-1])
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _send(self, piece: bytes | memoryview) -> int:
        try:
            return self._sock.send(piece)
        except (*_NOT_NOW, ssl.SSLWantWriteError):
            return 0
        except ssl.SSLWantReadError:
            self._write_when_readable = True
            return 0
        except OSError as error:
            self._end(error)
            return 0

    def _end(self, error: BaseException | None) -> None:
        if not self._open:
            return
        self._open = False
        self._services.remove_reader(self._fd)
        self._services.remove_writer(self._fd)
        # The protocol may have called this method, so it is notified later.
        self._services.add_callback_threadsafe(lambda: self._lost(error))

    def _lost(self, error: BaseException | None) -> None:
        try:
            self._protocol.connection_lost(error)
        finally:
            self.close()


class Opening(AbstractIOReference):
    """A connected socket on its way to a transport: the TLS handshake, if there is one."""

    def __init__(
        self,
        sock: socket.socket,
        services: SelectorIOServicesAdapter,
        *,
        tls: ssl.SSLContext | None,
        server_name: str | None,
        done: Callable[[socket.socket | Exception], None],
    ) -> None:
        self._sock = sock
        self._services = services
        self._tls = tls
        self._server_name = server_name
        self._done = done
        self._pending = True
        services.add_callback_threadsafe(self._start)

    def cancel(self) -> bool:
        pending, self._pending = self._pending, False
        if pending:
            self._unwatch()
            self._sock.close()
        return pending

    def close(self) -> None:
        """Close the socket and tell nobody."""
        self._sock.close()

    def _start(self) -> None:
        if not self._pending:
            return
        if self._tls is None:
            self._end(self._sock)
            return
        try:
            self._sock = self._tls.wrap_socket(
                self._sock,
                do_handshake_on_connect=False,
                suppress_ragged_eofs=False,
                server_hostname=self._server_name,
            )
        except Exception as error:  # noqa: BLE001 - pika reports it as the reason
            self._end(error)
        else:
            self._shake_hands()

    def _shake_hands(self) -> None:
        assert isinstance(self._sock, ssl.SSLSocket)  # noqa: S101 - wrapped in _start
        self._unwatch()
        try:
            self._sock.do_handshake()
        except ssl.SSLWantReadError:
            self._services.set_reader(self._sock.fileno(), self._shake_hands)
        except ssl.SSLWantWriteError:
            self._services.set_writer(self._sock.fileno(), self._shake_hands)
        except Exception as error:  # noqa: BLE001 - pika reports it as the reason
            self._end(error)
        else:
            self._end(self._sock)

    def _unwatch(self) -> None:
        self._services.remove_reader(self._sock.fileno())
        self._services.remove_writer(self._sock.fileno())

    def _end(self, result: socket.socket | Exception) -> None:
        self._pending = False
        if isinstance(result, Exception):
            self._sock.close()
        self._done(result)

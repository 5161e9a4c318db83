"""The embedded broker as a process: one thread serves every socket, on 127.0.0.1 only, and can end without clients."""

import errno
import logging
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from django_rmq_retry.embedded import place
from django_rmq_retry.embedded.engine.behaviour import V4_0, Behaviour
from django_rmq_retry.embedded.engine.refusals import RequestRefused
from django_rmq_retry.embedded.wire.client import Broker, Client
from django_rmq_retry.errors import ConfigurationError

log = logging.getLogger("django_rmq_retry")

HOST = "127.0.0.1"
READ_BYTES = WRITE_BYTES = 262_144
FIRST_CONNECTION_SECONDS = 30.0
"""Seconds for which it waits for the first connection before it ends, if it does not stay for good."""
SWEEP_SECONDS = 1.0
_BACKLOG = 512
_FAREWELL_SECONDS = 2.0

LINGER_SECONDS = 5.0
"""Seconds without a connection after which a broker that a consumer started ends."""
_START_SECONDS, _START_PAUSE_SECONDS = 10.0, 0.05


@dataclass(slots=True, eq=False)
class ServedConnection:
    sock: socket.socket
    client: Client
    events: int = selectors.EVENT_READ


class BrokerServer:
    """Listens as soon as it is constructed; `run` serves until `stop`, which any thread may call."""

    def __init__(self, broker: Broker, *, port: int = 0, linger: float | None = None) -> None:
        self.broker = broker
        self._linger = linger
        """Seconds to stay without a connection; None is unlimited."""
        self._alone_until = time.monotonic() + FIRST_CONNECTION_SECONDS
        self._connections: dict[socket.socket, ServedConnection] = {}
        self._changed: set[ServedConnection] = set()
        self._selector = selectors.DefaultSelector()
        self._stopping = False
        self._swept = time.monotonic()
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind((HOST, port))
        self._listener.listen(_BACKLOG)
        self._listener.settimeout(0)
        self._waker, self._wakened = socket.socketpair()
        for one in (self._waker, self._wakened):
            one.settimeout(0)
        for one in (self._listener, self._wakened):
            self._selector.register(one, selectors.EVENT_READ)
        self.port: int = self._listener.getsockname()[1]

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@{HOST}:{self.port}/%2F"

    def run(self) -> None:
        try:
            while not self._stopping:
                self._turn(self._timeout())
            self._close_connections()
        finally:
            self._close()

    def stop(self) -> None:
        """End `run`, from any thread or a signal handler."""
        self._stopping = True
        with suppress(OSError):
            self._waker.send(b"\0")

    def _timeout(self) -> float | None:
        """Return the seconds until the next timer or sweep."""
        if self.broker.has_events:
            return 0.0
        now = time.monotonic()
        due = self.broker.clock.next_due()
        ends = [] if due is None else [due]
        if self._connections:
            ends.append(self._swept + SWEEP_SECONDS)
        elif self._linger is not None:
            ends.append(self._alone_until)
        return max(0.0, min(ends) - now) if ends else None

    def _turn(self, timeout: float | None) -> None:
        ready = self._selector.select(timeout)
        now = time.monotonic()
        self._advance(now)
        for key, events in ready:
            connection: ServedConnection | None = key.data
            if connection is not None:
                self._serve(connection, events, now)
            elif key.fileobj is self._listener:
                self._accept()
            else:
                self._wakened.recv(64)
        if now - self._swept >= SWEEP_SECONDS:
            self._sweep(now)
        self._write_all(now)

    def _advance(self, now: float) -> None:
        try:
            self.broker.clock.advance(now)
        except Exception:
            log.exception("The embedded broker failed in a timer")

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE):
                    return
                # A retry at once would fail the same way: accept no connections until the next sweep.
                log.warning("The embedded broker accepts no more connections: %s", error)
                self._selector.unregister(self._listener)
                return
            sock.settimeout(0)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = ServedConnection(sock, Client(self.broker))
            self._connections[sock] = connection
            self._selector.register(sock, selectors.EVENT_READ, connection)

    def _serve(self, connection: ServedConnection, events: int, now: float) -> None:
        self._changed.add(connection)
        if not events & selectors.EVENT_READ:
            return
        try:
            data = connection.sock.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(connection)
            return
        connection.client.received_at = now
        # The bytes were sent before now: a time to live that started earlier would also end too early.
        self._advance(time.monotonic())
        connection.client.receive(data)

    def _write_all(self, now: float) -> None:
        """Write this turn's output, to each client in one call; the file is written first."""
        self.broker.write_events()
        self.broker.commit()
        self._changed.update(one for one in self._connections.values() if one.client.out)
        for connection in self._changed:
            if connection.sock in self._connections:
                self._write(connection, now)
        self._changed.clear()

    def _write(self, connection: ServedConnection, now: float) -> None:
        client = connection.client
        out = client.out
        try:
            while out:
                with memoryview(out) as view:
                    sent = connection.sock.send(view[:WRITE_BYTES])
                del out[:sent]
                client.sent_at = now
        except BlockingIOError:
            pass
        except OSError:
            self._drop(connection)
            return
        if client.ended and not out:
            self._drop(connection)
            return
        client.measure()
        # A client that does not read may be waiting for us to read.
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if out else 0)
        if wanted != connection.events:
            connection.events = wanted
            self._selector.modify(connection.sock, wanted, connection)

    def _sweep(self, now: float) -> None:
        self._swept = now
        if self._listener not in self._selector.get_map():
            self._selector.register(self._listener, selectors.EVENT_READ)
        for connection in list(self._connections.values()):
            why = connection.client.beat(now)
            if why:
                log.warning("The embedded broker closes a connection: %s", why)
                self._drop(connection)
        if not self._connections and self._linger is not None and now >= self._alone_until:
            self._stopping = True

    def _drop(self, connection: ServedConnection) -> None:
        if self._connections.pop(connection.sock, None) is None:
            return
        self._alone_until = time.monotonic() + (self._linger or 0.0)
        connection.client.end_session()
        self._selector.unregister(connection.sock)
        connection.sock.close()

    def _close_connections(self) -> None:
        """Close every connection with a reason, and wait a moment until the clients have read it."""
        deadline = time.monotonic() + _FAREWELL_SECONDS
        for connection in self._connections.values():
            connection.client.close(RequestRefused(320, "broker forced connection closure with reason 'shutdown'"))
        while self._connections and (left := deadline - time.monotonic()) > 0:
            self._write_all(time.monotonic())
            self._turn(min(left, 0.1))

    def _close(self) -> None:
        for connection in list(self._connections.values()):
            self._drop(connection)
        self._selector.close()
        for one in (self._listener, self._waker, self._wakened):
            one.close()


_ROOT = Path(__file__).parents[3]


def ensure(folder: Path) -> int:
    """Return the port of the folder's broker; start one if none runs."""
    try:
        return place.port_of(folder)
    except place.NotRunning:
        pass
    place.prepare(folder)
    path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
    with (folder / place.LOG_NAME).open("w") as output:
        # A session of its own: Ctrl-C in a terminal stops the consumer, which needs its broker until it has ended.
        started = subprocess.run(  # noqa: S603 - the package's own module
            [sys.executable, "-m", f"{__package__}.server", str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,
            check=False,
        )
    return _port_when_ready(folder, patience=0.0 if started.returncode else _START_SECONDS)


class Keeper:
    """Returns the port before each connect, and restarts a broker that a consumer had started."""

    def __init__(self) -> None:
        self._brought = False

    def port(self, folder: Path) -> int:
        """Return the port, or raise NotRunning if an operator runs the broker: only the operator restarts it."""
        try:
            known = place.place_of(folder)
        except place.NotRunning:
            if not self._brought:
                raise
            log.warning("The embedded broker has ended. Starting it again", extra={"event": "broker_restarted"})
            return ensure(folder)
        self._brought = known.brought
        return known.port


def serve(
    folder: Path,
    *,
    port: int = 0,
    behaviour: Behaviour = V4_0,
    durable: bool = True,
    linger: float | None = None,
    begun: Callable[[BrokerServer], None] = lambda _server: None,
) -> None:
    """Be the folder's broker until SIGTERM or SIGINT, or until no client has been connected for `linger` seconds."""
    with place.claimed(folder) as publish:
        broker = Broker(behaviour, file=folder / place.FILE_NAME if durable else None)
        try:
            server = BrokerServer(broker, port=port, linger=linger)
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: server.stop())
            publish(place.RunningBroker(port=server.port, brought=linger is not None))
            begun(server)
            server.run()
        finally:
            broker.close()


def _port_when_ready(folder: Path, *, patience: float) -> int:
    """Wait until a broker runs, whichever process started it."""
    deadline = time.monotonic() + patience
    while True:
        try:
            return place.port_of(folder)
        except place.NotRunning:
            if time.monotonic() >= deadline:
                break
        time.sleep(_START_PAUSE_SECONDS)
    output = folder / place.LOG_NAME
    words = output.read_text(errors="replace").strip().rpartition("\n")[2]
    raise ConfigurationError(f"The embedded broker did not start: {words or 'its log is empty'} (log: {output})")


def _run_detached(folder: Path) -> None:
    """Run the broker detached: the process that started it may end first and need not wait for it."""
    readable, writable = os.pipe()
    if os.fork():
        os.close(writable)
        # The pipe stays empty if the broker ended before it was ready.
        sys.exit(0 if os.read(readable, 1) else 1)
    os.close(readable)
    try:
        serve(folder, linger=LINGER_SECONDS, begun=lambda _server: _signal_ready(writable))
    except place.AlreadyRunning:
        _signal_ready(writable)
    except ConfigurationError as error:
        log.error("%s", error)  # noqa: TRY400 - the sentence is complete
        sys.exit(1)


def _signal_ready(writable: int) -> None:
    os.write(writable, b"1")
    os.close(writable)


if __name__ == "__main__":
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    _run_detached(Path(sys.argv[1]))

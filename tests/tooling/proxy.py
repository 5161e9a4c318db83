"""A TCP proxy between a client and its broker that can fail as networks do."""

import select
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum

CHUNK, LOOK = 65536, 0.02
TO_CLIENT, TO_SERVER = "to client", "to server"
GARBAGE = b"\xff" * 8
"""Inserted bytes that shift all later ones, so no frame ends where it should: always noticed."""


class Mode(StrEnum):
    """A fault of the connection; the first four last while they are set."""

    PASS = "pass"
    BLACKHOLE = "blackhole"
    BLACKHOLE_TO_CLIENT = "blackhole to client"
    DELAY = "delay"
    TRICKLE = "trickle"
    RST = "rst"
    HALF_CLOSE = "half-close"
    HALF_CLOSE_TO_SERVER = "half-close to server"
    CORRUPT_TO_CLIENT = "corrupt to client"
    CORRUPT_TO_SERVER = "corrupt to server"
    GARBLE_TO_CLIENT = "garble to client"
    GARBLE_TO_SERVER = "garble to server"

    @property
    def lasting(self) -> bool:
        """True if the fault also affects later connections; the others affect existing ones, once."""
        return self in {Mode.PASS, Mode.BLACKHOLE, Mode.BLACKHOLE_TO_CLIENT, Mode.DELAY, Mode.TRICKLE}


class Pair:
    """One connection through the proxy: two sockets, and a thread for each direction."""

    def __init__(self, proxy: "Proxy", client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._client, self._server = client, server
        self._corrupt: set[str] = set()
        self._garbled: set[str] = set()
        self._deaf = threading.Event()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def hit(self, mode: Mode) -> None:
        """Apply a fault once."""
        if mode is Mode.RST:
            for sock in (self._client, self._server):
                with suppress(OSError):
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._over.set()
        elif mode in {Mode.HALF_CLOSE, Mode.HALF_CLOSE_TO_SERVER}:
            with suppress(OSError):
                (self._client if mode is Mode.HALF_CLOSE else self._server).shutdown(socket.SHUT_WR)
        elif mode in {Mode.GARBLE_TO_CLIENT, Mode.GARBLE_TO_SERVER}:
            self._garbled.add(TO_CLIENT if mode is Mode.GARBLE_TO_CLIENT else TO_SERVER)
        else:
            self._corrupt.add(TO_CLIENT if mode is Mode.CORRUPT_TO_CLIENT else TO_SERVER)

    def close(self) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        back = threading.Thread(target=self._pump, args=(self._server, self._client, TO_CLIENT), daemon=True)
        back.start()
        self._pump(self._client, self._server, TO_SERVER)
        back.join()
        # Closed when no thread waits in them any more: only then the kernel sends its FIN or RST.
        self._client.close()
        self._server.close()

    def _pump(self, source: socket.socket, sink: socket.socket, way: str) -> None:
        before = b""
        with suppress(OSError):
            while data := self._read(source, way):
                poison = self._proxy.poison if way == TO_SERVER else b""
                if poison and poison in before + data:
                    # The server handles what came before, and none of its answers reaches the client.
                    self._deaf.set()
                    sink.sendall(data[: max(0, (before + data).index(poison) - len(before))])
                    sink.shutdown(socket.SHUT_WR)
                    return
                before = data[-len(poison) :] if poison else b""
                if way in self._corrupt:
                    self._corrupt.discard(way)
                    data = bytes([data[0] ^ 0xFF]) + data[1:]
                if way in self._garbled:
                    self._garbled.discard(way)
                    data = GARBAGE + data
                self._write(sink, data)
        self._over.set()

    def _read(self, source: socket.socket, way: str) -> bytes:
        """Return the bytes received once they may pass; nothing at the end."""
        while not self._over.is_set():
            # What was held back as the connection was cut is lost with it.
            if select.select([source], [], [], LOOK)[0] and self._proxy.open(way) and not self._over.is_set():
                return source.recv(CHUNK)
        return b""

    def _write(self, sink: socket.socket, data: bytes) -> None:
        mode = self._proxy.mode
        if self._deaf.is_set() and sink is self._client:
            return
        if mode is Mode.DELAY:
            self._proxy.rest(0.1)
        if mode is not Mode.TRICKLE:
            sink.sendall(data)
            return
        for at in range(0, len(data), 8):
            sink.sendall(data[at : at + 8])
            self._proxy.rest(0.001)


class Proxy:
    """Listens on its own port and passes everything on to another one, or fails."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self.mode = Mode.PASS
        self.poison = b""
        """Bytes over which the connection of their sender is closed, like a broker that fails over a message."""
        self._upstream = (host, port)
        self._pairs: list[Pair] = []
        self._ended = threading.Event()
        self._refusing = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def set(self, mode: Mode) -> None:
        """Set the mode; one that does not last affects the existing connections."""
        if mode.lasting:
            self.mode = mode
            return
        for pair in list(self._pairs):
            pair.hit(mode)

    def open(self, way: str) -> bool:
        """True while bytes pass. Held bytes are not lost, because TCP would send them again."""
        holes = {Mode.BLACKHOLE, Mode.BLACKHOLE_TO_CLIENT} if way == TO_CLIENT else {Mode.BLACKHOLE}
        if self.mode in holes:
            self.rest(LOOK)
        return self.mode not in holes

    def refuse(self) -> None:
        """Refuse connections and cut the existing ones until `accept`."""
        self._refusing = True
        self.set(Mode.RST)

    def accept(self) -> None:
        self._refusing = False

    def rest(self, seconds: float) -> None:
        self._ended.wait(seconds)

    def close(self) -> None:
        self._ended.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        for pair in self._pairs:
            pair.close()

    def _accept(self) -> None:
        while not self._ended.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._refusing:
                client.close()
                continue
            try:
                server = socket.create_connection(self._upstream, 5)
            except OSError:
                client.close()
                continue
            self._pairs.append(Pair(self, client, server))


@contextmanager
def proxy_to(port: int) -> Iterator[Proxy]:
    """Run a proxy inside the block; its threads and sockets end with it."""
    proxy = Proxy(port)
    try:
        yield proxy
    finally:
        proxy.close()

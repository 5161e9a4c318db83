"""A small HTTP server for metrics and health: one loop, bounded, without threads of its own.

The loop is driven by ``step``: by a thread in a single process, and by the main loop of a supervisor, which must not
have other threads when it forks.
"""

import errno
import logging
import math
import os
import selectors
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from ipaddress import ip_address
from itertools import islice

from django_rmq_retry.errors import RmqRetryError
from django_rmq_retry.recurring import Recurring

log = logging.getLogger("django_rmq_retry")

MOST_CLIENTS = 128
"""Open connections; for a further one the oldest is closed that waits for no answer."""
BATCH = 2 * MOST_CLIENTS
"""Connections accepted in one step: with fewer, a flood fills the backlog and a probe is not accepted in time."""
TURN_SECONDS = 0.1
"""Seconds after which a step accepts no more: a supervisor has other work."""
BACKLOG = 8 * MOST_CLIENTS
"""Connections that the system keeps until they are accepted. It drops more; their clients try again after a second."""
MOST_HEAD_BYTES = 8192
"""The largest head of a request in bytes."""
CLIENT_PATIENCE_SECONDS = 2.0
"""Seconds for a request and its answer."""
CHUNK_BYTES = 65_536
LONGEST_STEP_SECONDS = 0.5
ACCEPT_PAUSE_SECONDS = 0.5
"""Seconds without new connections after the system has no file descriptor left, though clients were closed."""

Address = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    status: HTTPStatus = HTTPStatus.OK
    body: str = ""
    content_type: str = "text/plain; charset=utf-8"

    def encoded(self, *, head: bool) -> bytes:
        body = self.body.encode("utf-8", "replace")
        lines = (
            f"HTTP/1.1 {self.status.value} {self.status.phrase}",
            f"Content-Type: {self.content_type}",
            f"Content-Length: {len(body)}",
            "Cache-Control: no-store",
            "Connection: close",
        )
        return "\r\n".join((*lines, "", "")).encode() + (b"" if head else body)


Answer = Callable[[str], Response]
"""Returns the response for a path."""


@dataclass(slots=True, eq=False)
class _Client:
    """One connection: the request so far, and the rest of the answer."""

    ends: float
    request: bytearray = field(default_factory=bytearray)
    answer: memoryview = field(default_factory=lambda: memoryview(b""))


class AddressUnusable(RmqRetryError):
    """The HTTP server cannot listen on its address."""

    def __init__(self, address: Address, reason: str) -> None:
        super().__init__(
            f"The HTTP server cannot listen on {_shown(address)}: {reason}. Pass another address with --http, "
            "or end the process that listens there."
        )


def _shown(address: Address) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _listening(address: Address) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


class HttpServer:
    """Answers GET and HEAD requests. It listens once it is constructed, or raises AddressUnusable."""

    def __init__(self, address: Address, answer: Answer, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._answer = answer
        self._clock = clock
        try:
            self._reserve: int | None = os.open(os.devnull, os.O_RDONLY)
            """A file descriptor to be closed for a new connection when there is no other one left."""
            self._listener = _listening(address)
        except (OSError, OverflowError, TypeError) as error:
            # TypeError: the name of the host cannot be encoded.
            raise AddressUnusable(address, getattr(error, "strerror", None) or str(error)) from error
        self._listener.setblocking(False)  # noqa: FBT003 - Python's own signature
        # A selector without state in the kernel: a forked child can close it without an effect on its parent.
        self._selector = selectors.PollSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._clients: dict[socket.socket, _Client] = {}
        self._accepts_at = math.inf
        """The time at which the listener is registered again; infinite while it is registered."""
        url = f"http://{_shown(self.address)}/"
        log.info("Metrics and health: %s", url, extra={"event": "http", "port": self.address[1]})
        if ip_address(self.address[0]).is_unspecified:
            log.warning(
                "Everybody who reaches a network address of this host can read %smetrics: "
                "pass --http with an address that only your monitoring reaches",
                url,
                extra={"event": "http_open", "port": self.address[1]},
            )

    @property
    def address(self) -> Address:
        host, port = self._listener.getsockname()[:2]
        return host, port

    def wait_for(self, descriptor: int, seconds: float) -> None:
        """Serve like ``step``, and return as soon as the descriptor can be read."""
        if descriptor not in self._selector.get_map():
            self._selector.register(descriptor, selectors.EVENT_READ)
        self.step(seconds)

    def step(self, seconds: float) -> None:
        """Serve what is ready, after waiting for it for at most ``seconds``."""
        ready = self._selector.select(max(0.0, min([seconds, *self._rests()])))
        # Those that have sent a request are first, because new ones may take their places.
        for key, events in ready:
            if isinstance(key.fileobj, socket.socket) and key.fileobj in self._clients:
                self._serve(key.fileobj, events)
        if any(key.fileobj is self._listener for key, _events in ready):
            self._accept()
        now = self._clock()
        if self._accepts_at <= now:
            self._accepts_at = math.inf
            self._selector.register(self._listener, selectors.EVENT_READ)
        for late in [one for one, client in self._clients.items() if client.ends <= now]:
            self._drop(late)
        if self._reserve is None:
            self._restore_reserve()

    def close(self) -> None:
        """Close all sockets. In a forked child this does not affect the parent."""
        for client in [*self._clients]:
            client.close()
        self._clients.clear()
        self._listener.close()
        self._selector.close()
        self._spend_reserve()

    def _rests(self) -> list[float]:
        now = self._clock()
        # All have the same time, so the oldest one's ends first.
        oldest = [client.ends - now for client in islice(self._clients.values(), 1)]
        return [self._accepts_at - now, *oldest]

    def _accept(self) -> None:
        until = self._clock() + TURN_SECONDS
        for _ in range(BATCH):
            client = self._new_client() if self._clock() <= until else None
            if client is None:
                return
            if len(self._clients) >= MOST_CLIENTS:
                self._shed(1)
            client.setblocking(False)  # noqa: FBT003 - Python's own signature
            self._clients[client] = _Client(self._clock() + CLIENT_PATIENCE_SECONDS)
            self._selector.register(client, selectors.EVENT_READ)
            # Its request has often arrived while it waited, and silent clients must not delay a probe.
            self._serve(client, selectors.EVENT_READ)

    def _new_client(self) -> socket.socket | None:
        """Return the next connection, if there is one; without a file descriptor for it, make room twice."""
        for make_room in (self._spend_reserve, self._shed_half, self._pause):
            try:
                return self._listener.accept()[0]
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE):
                    return None
            make_room()
        return None

    def _shed_half(self) -> None:
        self._shed(len(self._clients) // 2 + 1)
        # It was restored with the first descriptor that became free, which may be the only one.
        self._spend_reserve()

    def _pause(self) -> None:
        # The connection stays in the backlog, so the listener would be ready again at once.
        self._selector.unregister(self._listener)
        self._accepts_at = self._clock() + ACCEPT_PAUSE_SECONDS

    def _shed(self, number: int) -> None:
        """Drop the oldest clients; those to which an answer is being sent are last."""
        for client in sorted(self._clients, key=lambda one: bool(self._clients[one].answer))[:number]:
            self._drop(client)

    def _spend_reserve(self) -> None:
        if self._reserve is not None:
            os.close(self._reserve)
            self._reserve = None

    def _restore_reserve(self) -> None:
        if self._reserve is None:
            with suppress(OSError):
                self._reserve = os.open(os.devnull, os.O_RDONLY)

    def _serve(self, client: socket.socket, events: int) -> None:
        state = self._clients[client]
        try:
            if events & selectors.EVENT_READ and not state.answer:
                self._read(client, state)
            if state.answer:
                state.answer = state.answer[client.send(state.answer[:CHUNK_BYTES]) :]
                if not state.answer:
                    client.shutdown(socket.SHUT_WR)
                    self._drop(client)
        except BlockingIOError:
            return
        except OSError:
            self._drop(client)

    def _read(self, client: socket.socket, state: _Client) -> None:
        received = client.recv(MOST_HEAD_BYTES)
        state.request += received
        whole = b"\r\n\r\n" in state.request or b"\n\n" in state.request
        if not whole and received and len(state.request) <= MOST_HEAD_BYTES:
            return
        if not received and not whole:
            self._drop(client)
            return
        state.answer = memoryview(self._response(bytes(state.request), whole=whole))
        self._selector.modify(client, selectors.EVENT_WRITE)

    def _response(self, request: bytes, *, whole: bool) -> bytes:
        words = request.split(b"\n", 1)[0].split()
        if not whole:
            return Response(status=HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE).encoded(head=False)
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):  # noqa: PLR2004 - method, path, version
            return Response(status=HTTPStatus.BAD_REQUEST).encoded(head=False)
        if words[0] not in (b"GET", b"HEAD"):
            return Response(status=HTTPStatus.METHOD_NOT_ALLOWED).encoded(head=False)
        path = words[1].split(b"?", 1)[0].decode("ascii", "replace")
        try:
            response = self._answer(path)
        except Exception as error:  # noqa: BLE001 - the process must not end because of a request
            response = Response(status=HTTPStatus.INTERNAL_SERVER_ERROR, body=f"{type(error).__name__}\n")
        return response.encoded(head=words[0] == b"HEAD")

    def _drop(self, client: socket.socket) -> None:
        if self._clients.pop(client, None) is not None:
            with suppress(KeyError, ValueError):
                self._selector.unregister(client)
            client.close()
            self._restore_reserve()


class HttpThread(Recurring):
    """Drives a server in a process without a supervisor."""

    def __init__(self, server: HttpServer) -> None:
        super().__init__("rmq-http")
        self._server = server

    def turn(self) -> float:
        self._server.step(LONGEST_STEP_SECONDS)
        return 0.0

    def at_end(self) -> None:
        self._server.close()

    def stop(self, timeout: float | None = 2 * LONGEST_STEP_SECONDS) -> bool:
        return super().stop(timeout)

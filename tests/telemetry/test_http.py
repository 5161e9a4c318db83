"""The HTTP server for metrics and health, against clients that misbehave."""

import errno
import http.client
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from unittest import mock

import pytest

from django_rmq_retry.telemetry.http import (
    ACCEPT_PAUSE_SECONDS,
    MOST_CLIENTS,
    MOST_HEAD_BYTES,
    AddressUnusable,
    HttpServer,
    HttpThread,
    Response,
)
from tests.tooling.waiting import longer, wait_until

ROOT = Path(__file__).parents[2]
LARGE = "x" * 3_000_000


def answer(path: str) -> Response:
    if path == "/broken":
        raise ValueError("secret")
    return Response(body=LARGE if path == "/large" else f"{path}\n")


@pytest.fixture
def server() -> Iterator[HttpServer]:
    server = HttpServer(("127.0.0.1", 0), answer)
    thread = HttpThread(server)
    thread.start()
    yield server
    thread.stop()


def get(server: HttpServer, path: str, *, method: str = "GET") -> tuple[int, str]:
    with closing(http.client.HTTPConnection(*server.address, timeout=5)) as connection:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.read().decode()


def test_paths_are_answered_without_their_query(server: HttpServer) -> None:
    assert get(server, "/metrics?name=x") == (200, "/metrics\n")
    assert get(server, "/metrics", method="HEAD") == (200, "")
    assert get(server, "/large") == (200, LARGE)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_other_methods_are_refused(server: HttpServer, method: str) -> None:
    assert get(server, "/metrics", method=method)[0] == 405


def test_an_error_names_its_class_and_no_content(server: HttpServer) -> None:
    assert get(server, "/broken") == (500, "ValueError\n")


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"\x16\x03\x01\x02\r\n\r\n", 400),
        (b"GET /metrics\r\n\r\n", 400),
        (b"GET / SPDY/9\r\n\r\n", 400),
        (b"GET /" + b"x" * MOST_HEAD_BYTES, 431),
        (b"GET /\xff\xfe HTTP/1.1\r\n\r\n", 200),
        (b"GET / HTTP/1.0\n\n", 200),
    ],
)
def test_a_hostile_request_is_answered_and_the_next_one_too(server: HttpServer, request_: bytes, status: int) -> None:
    with closing(socket.create_connection(server.address, timeout=5)) as client:
        client.sendall(request_)
        with suppress(ConnectionResetError):
            assert client.recv(100).startswith(f"HTTP/1.1 {status} ".encode())

    assert get(server, "/metrics")[0] == 200


def elapsed(do: Callable[[], object]) -> float:
    began = time.monotonic()
    do()
    return time.monotonic() - began


def test_silent_and_trickling_clients_delay_no_other_and_are_dropped(server: HttpServer) -> None:
    silent = [socket.create_connection(server.address, timeout=10) for _ in range(MOST_CLIENTS - 2)]
    trickling = silent[0]
    over = threading.Event()

    def trickle() -> None:
        with suppress(OSError):
            while not over.wait(0.05):
                trickling.sendall(b"G")

    thread = threading.Thread(target=trickle)
    thread.start()
    try:
        assert elapsed(lambda: get(server, "/readyz")) < 1
        for one in silent[1:]:
            assert one.recv(1) == b""
    finally:
        over.set()
        thread.join()
        for one in silent:
            one.close()


def test_connections_are_kept_while_the_server_is_at_work() -> None:
    server, waiting = HttpServer(("127.0.0.1", 0), answer), list[socket.socket]()
    try:
        for _ in range(3 * MOST_CLIENTS):
            # A connection that the system drops would be tried again after a second.
            waiting.append(socket.create_connection(server.address, timeout=0.5))
    finally:
        for one in waiting:
            one.close()
        server.close()


def test_a_client_that_does_not_read_is_dropped(server: HttpServer) -> None:
    with closing(socket.socket()) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(10)
        client.connect(server.address)
        client.sendall(b"GET /large HTTP/1.1\r\n\r\n")

        assert get(server, "/metrics")[0] == 200
        wait_until(lambda: _is_closed(client), 10, what="the server has given it up")


def _is_closed(client: socket.socket) -> bool:
    """Return True if the other end is closed: it answers what is sent with a reset."""
    try:
        client.send(b"x")
    except OSError:
        return True
    return False


@pytest.mark.parametrize("host", ["zz::1", "192.0.2.1", "nowhere.invalid", "\udcff"])
def test_a_host_that_is_not_ours_is_named(host: str) -> None:
    shown = f"[{host}]" if ":" in host else host
    with pytest.raises(AddressUnusable) as refused:
        HttpServer((host, 9464), answer)

    assert str(refused.value).startswith(f"The HTTP server cannot listen on {shown}:9464: ")


@pytest.mark.parametrize(("host", "warnings"), [("127.0.0.1", 0), ("::1", 0), ("0.0.0.0", 1), ("::", 1)])  # noqa: S104
def test_a_server_on_all_addresses_warns_once(caplog: pytest.LogCaptureFixture, host: str, warnings: int) -> None:
    HttpServer((host, 0), answer).close()

    assert len([one for one in caplog.records if one.levelname == "WARNING"]) == warnings


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_a_system_without_file_descriptors_is_not_asked_again_at_once(number: int) -> None:
    now, request = [100.0], b"GET / HTTP/1.1\r\n\r\n"
    server = HttpServer(("127.0.0.1", 0), answer, clock=lambda: now[0])
    with closing(server), closing(socket.socket()) as client:
        client.settimeout(5)
        with mock.patch.object(socket.socket, "accept", side_effect=OSError(number, "none left")) as accept:
            client.connect(server.address)
            server.step(5)
            asked = accept.call_count
            for _ in range(20):
                server.step(0.01)
            assert accept.call_count == asked
            assert elapsed(lambda: server.step(5)) < 2, "the pause ends the step"
        now[0] += ACCEPT_PAUSE_SECONDS
        client.sendall(request)
        for _ in range(4):
            server.step(0.1)
        assert client.recv(100).startswith(b"HTTP/1.1 200 ")


@contextmanager
def running(*words: str) -> Iterator[int]:
    """Run a server or a flood in a process of its own; yield the port of a server."""
    command = [sys.executable, "-m", "tests.telemetry.flooding", *words]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = process.stdout.readline().strip()
        try:
            yield int(said) if said.isdecimal() else 0
        finally:
            process.kill()


def answered_in_time(port: int, probes: int) -> int:
    """Return how many of these probes are answered within a second, or more if the machine is busy."""
    number = 0
    for _ in range(probes):
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=longer(1))) as probe, suppress(OSError):
            probe.request("GET", "/livez")
            number += probe.getresponse().status == 200
    return number


@pytest.mark.slow
def test_probes_are_answered_during_a_flood_of_connections() -> None:
    with running("serve", "1024") as port, running("flood", str(port), "100"):
        assert answered_in_time(port, 40) >= 36


@pytest.mark.slow
def test_probes_are_answered_though_silent_connections_have_taken_all_file_descriptors() -> None:
    with running("serve", "20") as port, ExitStack() as silent:
        for _ in range(300):
            silent.enter_context(closing(socket.create_connection(("127.0.0.1", port), timeout=5)))
        assert answered_in_time(port, 10) == 10


def test_one_step_answers_the_probe_behind_more_silent_connections_than_may_be_open() -> None:
    with closing(HttpServer(("127.0.0.1", 0), answer)) as server, ExitStack() as opened:
        for _ in range(MOST_CLIENTS + 8):
            opened.enter_context(closing(socket.create_connection(server.address, timeout=5)))
        probe = opened.enter_context(closing(socket.create_connection(server.address, timeout=5)))
        probe.sendall(b"GET /readyz HTTP/1.1\r\n\r\n")
        server.step(5)

        assert probe.recv(100).startswith(b"HTTP/1.1 200 ")


def test_the_oldest_client_may_send_as_a_new_one_takes_its_place() -> None:
    with (
        closing(HttpServer(("127.0.0.1", 0), answer)) as server,
        closing(socket.socket()) as new,
        ExitStack() as stack,
    ):
        clients = [socket.create_connection(server.address, timeout=5) for _ in range(MOST_CLIENTS)]
        for client in clients:
            stack.enter_context(closing(client))
        server.step(5)
        new.settimeout(5)
        new.connect(server.address)
        clients[0].sendall(b"GET / HTTP/1.1\r\n\r\n")
        server.step(5)
        new.sendall(b"GET / HTTP/1.1\r\n\r\n")
        server.step(5)
        assert new.recv(100).startswith(b"HTTP/1.1 200 ")

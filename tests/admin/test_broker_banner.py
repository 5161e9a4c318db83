"""What pages say while the broker is away: a sentence for people, whatever the socket did."""

import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.test import Client

from django_rmq_retry.admin import broker_look
from tests.admin.looking import Page
from tests.tooling.waiting import wait_until

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("connected")]
PYTHON = re.compile(r"\w+(?:Error|Exception|Timeout)\b|\(['\"]|',\)|Errno|\bNone\b|Traceback")


def reset(accepted: socket.socket) -> None:
    accepted.recv(8)
    accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def close(accepted: socket.socket) -> None:
    accepted.recv(8)


def chatter(accepted: socket.socket) -> None:
    accepted.recv(8)
    accepted.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def refuse_the_version(accepted: socket.socket) -> None:
    accepted.recv(8)
    accepted.sendall(b"AMQP\x00\x01\x00\x00")


@contextmanager
def listening(answer: Callable[[socket.socket], None]) -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    accepted, _ = server.accept()
                except OSError:
                    return
                with accepted:
                    answer(accepted)

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("answer", [reset, close, chatter, refuse_the_version])
def test_a_broker_that_cannot_be_used_is_described_without_the_words_of_python(
    answer: Callable[[socket.socket], None], page: Client, settings: Any
) -> None:
    with listening(answer) as port:
        url = f"amqp://guest:guest@127.0.0.1:{port}/"
        settings.RMQ_RETRY = {**settings.RMQ_RETRY, "URL": url, "CONNECT_TIMEOUT": 2}
        broker_look.forget()
        said = wait_until(lambda: broker_look.look().unreachable)
        found, status = (Page(page.get(f"/admin/rmq_retry/{name}/")).text for name in ("errorgroup", "livestatus"))

    assert f"127.0.0.1:{port}" in said
    assert said in found
    assert said in status
    assert "1 thing needs you" in status
    assert PYTHON.findall(said) == []

"""The connection: no private name of pika, raw sending, closing a channel, heartbeats, the broker's version."""

import inspect
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pika import spec
from pika.exceptions import ChannelClosedByClient, ConnectionWrongStateError
from pika.heartbeat import HeartbeatChecker

from django_rmq_retry.amqp import connection
from django_rmq_retry.amqp.connection import Connection
from django_rmq_retry.amqp.frames import RawProperties
from django_rmq_retry.amqp.protocol import BasicProtocol, IoServices
from django_rmq_retry.amqp.transport import IoLoop, Opening, Transport
from django_rmq_retry.topology import Server
from tests.amqp.offline import delivery, method, wire

PACKAGE = Path(connection.__file__).parent


def private_names(kind: type[Any]) -> set[str]:
    """The private names that a class, its bases and their methods use on ``self``."""
    found = {name for name in dir(kind) if name.startswith("_") and not name.startswith("__")}
    for base in kind.__mro__:
        with suppress(OSError, TypeError):  # built in, or without source
            found |= set(re.findall(r"self\.(_[a-z]\w*)", inspect.getsource(base)))
    return found


@pytest.mark.parametrize("file", sorted(PACKAGE.glob("*.py")), ids=lambda path: path.name)
def test_no_private_name_of_pika_is_used(file: Path) -> None:
    text = file.read_text()

    assert "SLF001" not in text, "ruff finds private names, and must not be configured to ignore them"
    assert not re.search(r"^ *from pika\S* import .*\b_", text, re.MULTILINE)
    assert not re.search(r"\bpika(\.\w+)*\._", text)


@pytest.mark.parametrize("kind", [Connection, IoServices, BasicProtocol, IoLoop, Transport, Opening])
def test_no_private_name_of_a_pika_class_is_overridden(kind: type[Any]) -> None:
    own = set(re.findall(r"(?:self\.|def )(_[a-z]\w*)", inspect.getsource(kind)))

    assert own & set().union(*(private_names(base) for base in kind.__bases__)) == set()


@pytest.mark.parametrize("lost", [True, False])
def test_a_failing_close_callback_stops_no_other_close_callback(
    caplog: pytest.LogCaptureFixture, *, lost: bool
) -> None:
    """As the connection is lost, all other channels and its owner must be notified; otherwise it is closed."""
    ran: list[str] = []
    with wire() as at:
        at.connection.add_on_close_callback(lambda *_: ran.append("connection"))
        at.channel.add_on_close_callback(lambda *_: 1 / 0)
        at.open_channel(2).add_on_close_callback(lambda *_: ran.append("other channel"))
        if lost:
            at.protocol.connection_lost(ConnectionError("lost"))
        else:
            at.feed(method(spec.Channel.Close(404, "NOT_FOUND", 60, 40)))

        assert ran == (["other channel", "connection"] if lost else [])
        assert isinstance(at.transport.failed, ZeroDivisionError) == (not lost)
    assert "A function failed as a channel closed; its connection is closed" in caplog.text
    assert "ZeroDivisionError" in caplog.text


def test_raw_frames_are_sent_as_they_are() -> None:
    with wire() as at:
        at.connection.send_raw(b"frames")
        at.connection.send_raw(b"")

        assert at.sent == [b"frames"]


def test_nothing_is_sent_on_a_closed_connection() -> None:
    with wire() as at:
        at.feed(method(spec.Connection.Close(320, "CONNECTION_FORCED", 0, 0), channel=0))
        at.protocol.connection_lost(None)

        with pytest.raises(ConnectionWrongStateError, match="The connection is closed"):
            at.connection.send_raw(b"frames")


def test_closing_a_channel_sends_one_frame_and_ignores_deliveries_in_flight() -> None:
    closed: list[Any] = []
    with wire() as at:
        at.channel.add_on_close_callback(lambda _, reason: closed.append(reason))
        at.channel.close()
        at.feed(delivery(delivery_tag=1) + delivery(tag="two", delivery_tag=2))
        was_closing = at.channel.is_closing
        at.feed(method(spec.Channel.CloseOk()))

        assert at.sent == [method(spec.Channel.Close(0, "Normal shutdown", 0, 0))]
        assert at.received == []
        assert was_closing
        assert at.channel.is_closed
        assert isinstance(closed[0], ChannelClosedByClient)
        assert at.connection.services.channels == {}


@pytest.mark.parametrize("returned", [b"\xff\xff", b"\x20\0\0\0\0\x0d\x02atT\0\0\x01\x8b\xcf\xe5\x68\0"])
def test_a_returned_message_keeps_its_bytes(returned: bytes) -> None:
    came: list[Any] = []
    with wire() as at:
        at.channel.add_on_return_callback(lambda _ch, _method, properties, body: came.append((properties, body)))
        head = method(spec.Basic.Return(312, "NO_ROUTE", "", "q"))
        at.feed(head + delivery(b"body", returned)[len(method(spec.Basic.Deliver("one", 1, False, "", "q"))) :])

        assert [(type(properties), properties.raw, body) for properties, body in came] == [
            (RawProperties, returned, b"body")
        ]


def test_received_bytes_that_pika_does_not_see_count_for_its_heartbeats() -> None:
    with wire() as at:
        checker = HeartbeatChecker(at.connection, 60)
        before = checker.bytes_received_on_connection
        at.feed(delivery())
        at.feed(method(spec.Basic.Return(312, "NO_ROUTE", "", "q")))

        assert checker.bytes_received_on_connection == before + at.connection.bytes_received > 0
        checker.stop()


@pytest.mark.parametrize(
    ("properties", "product", "version"),
    [
        ({"product": "RabbitMQ", "version": "4.0.5"}, "RabbitMQ", (4, 0, 5)),
        ({"product": "RabbitMQ", "version": "3.13.0-rc.2+7"}, "RabbitMQ", (3, 13, 0)),
        ({"product": "LavinMQ", "version": "2"}, "LavinMQ", (2,)),
        ({"product": b"\xff", "version": b"3.10.8"}, "\ufffd", (3, 10, 8)),
        ({"product": 7, "version": None}, "", ()),
        ({"version": "unknown"}, "", ()),
        ({}, "", ()),
        (None, "", ()),
    ],
)
def test_the_server_version_is_parsed_from_any_properties(
    properties: dict[str, object] | None, product: str, version: tuple[int, ...]
) -> None:
    assert Server.of(properties) == Server(product=product, version=version)

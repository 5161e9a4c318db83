"""What our connection adds to pika's: raw sending, joined writes, a bare close, and knowing its broker."""

from typing import Any, cast
from unittest.mock import Mock

import pytest
from pika import spec
from pika.adapters.utils.io_services_utils import _AsyncPlaintextTransport, _AsyncSSLTransport
from pika.exceptions import ChannelClosedByClient, ConnectionWrongStateError
from pika.heartbeat import HeartbeatChecker

from django_rmq_retry.amqp.connection import ONE_WRITE, PRIVATE, Connection
from django_rmq_retry.amqp.frames import RawProperties
from django_rmq_retry.topology.versions import Server
from tests.broker.offline import HEARTBEAT, delivery, method, wire


@pytest.mark.parametrize(("owner", "name"), [(owner, name) for owner, names in PRIVATE.items() for name in names])
def test_pika_still_has_every_private_name_we_stand_on(owner: str, name: str) -> None:
    with wire() as at:
        kind: Any = _AsyncPlaintextTransport
        transport = kind(Mock(), Mock(), Mock())
        owners = {"connection": at.connection, "channel": at.channel, "transport": transport}

        assert hasattr(owners[owner], name), (
            f"pika no longer has {type(owners[owner]).__name__}.{name}; broker/connection.py has to be adapted"
        )


def test_the_methods_we_override_are_still_called_by_pika() -> None:
    overridden = {"_on_data_available", "_read_frame", "_proto_connection_made"}

    assert overridden == {name for name in PRIVATE["connection"] if name in vars(Connection)}
    assert all(hasattr(Connection.__mro__[1], name) for name in overridden)


def test_raw_frames_are_sent_as_they_are_and_counted() -> None:
    with wire() as at:
        at.connection.send_raw(b"frames")
        at.connection.send_raw(b"")

        assert at.sent == [b"frames"]
        assert (at.connection.bytes_sent, at.connection.frames_sent) == (6, 1)


def test_nothing_is_sent_on_a_closed_connection() -> None:
    with wire() as at:
        at.connection._set_connection_state(at.connection.CONNECTION_CLOSED)

        with pytest.raises(ConnectionWrongStateError, match="The connection is closed"):
            at.connection.send_raw(b"frames")


def test_a_bare_close_sends_one_frame_and_ignores_what_still_comes() -> None:
    closed: list[Any] = []
    with wire() as at:
        at.channel.add_on_close_callback(lambda _, reason: closed.append(reason))
        at.connection.close_channel_bare(at.channel)
        at.feed(delivery(delivery_tag=1) + delivery(tag="two", delivery_tag=2))
        was_closing = at.channel.is_closing
        at.feed(method(spec.Channel.CloseOk()))

        assert at.sent == [method(spec.Channel.Close(0, "Normal shutdown", 0, 0))]
        assert at.received == []
        assert was_closing
        assert at.channel.is_closed
        assert isinstance(closed[0], ChannelClosedByClient)
        assert at.connection._channels == {}


def test_a_bare_close_of_a_channel_that_is_closing_does_nothing() -> None:
    with wire() as at:
        at.connection.close_channel_bare(at.channel)
        at.connection.close_channel_bare(at.channel)

        assert len(at.sent) == 1


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


def test_a_busy_connection_is_not_idle_to_the_heartbeat_checker() -> None:
    with wire() as at:
        checker: Any = HeartbeatChecker(at.connection, 60)
        at.connection._heartbeat_checker = checker
        checker._update_counters()
        idle_before = checker.connection_is_idle, checker._has_received_data
        at.feed(delivery() + HEARTBEAT)

        assert idle_before == (False, False)
        assert checker._has_received_data
        assert checker._heartbeat_frames_received == 1
        checker.stop()


class Socket:
    """Takes so many bytes at a time."""

    def __init__(self, *, takes: int) -> None:
        self.takes = takes
        self.sent: list[bytes] = []

    def fileno(self) -> int:
        return 7

    def pending(self) -> int:
        return 0

    def send(self, data: bytes) -> int:
        self.sent.append(data[: self.takes])
        return len(self.sent[-1])


@pytest.mark.parametrize("kind", [_AsyncPlaintextTransport, _AsyncSSLTransport])
def test_what_waits_is_written_with_one_call_in_its_order(kind: Any) -> None:
    sock, services = Socket(takes=2 * ONE_WRITE), Mock()
    transport = kind(sock, Mock(), services)
    with wire() as at:
        at.connection._proto_connection_made(transport)
        for chunks in ([b"a", b"b" * ONE_WRITE, b"c", b"d"], [b"e"]):
            for chunk in chunks:
                transport.write(chunk)
            services.set_writer.call_args.args[1]()

    assert sock.sent == [b"a" + b"b" * ONE_WRITE, b"cd", b"e"]
    assert services.remove_writer.call_count == 2
    assert transport.get_write_buffer_size() == 0


def test_what_a_full_socket_does_not_take_is_sent_next_time() -> None:
    sock, services = Socket(takes=3), Mock()
    transport: Any = _AsyncPlaintextTransport(cast("Any", sock), Mock(), services)
    with wire() as at:
        at.connection._proto_connection_made(transport)
        for chunk in (b"ab", b"cdef", b"g"):
            transport.write(chunk)
        services.set_writer.call_args.args[1]()

    assert sock.sent == [b"abc", b"def", b"g"]


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
def test_the_broker_is_known_by_whatever_it_says(
    properties: dict[str, object] | None, product: str, version: tuple[int, ...]
) -> None:
    assert Server.of(properties) == Server(product=product, version=version)

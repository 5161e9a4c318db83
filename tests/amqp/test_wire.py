"""On a real broker: no header stops the consumer, and a republished message has the bytes it came with."""

import struct
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ConnectionClosedByClient

from django_rmq_retry.amqp.connection import Connection
from django_rmq_retry.amqp.frames import RawProperties, marshal_publish
from django_rmq_retry.amqp.protocol import Channel
from django_rmq_retry.errors import HeadersTooLarge
from tests.tooling.vhosts import Vhost

pytestmark = pytest.mark.contract

WITHIN = 10


def header(key: bytes, value: bytes) -> bytes:
    return bytes((len(key),)) + key + value


def properties(table: bytes) -> bytes:
    return b"\x30\0" + struct.pack(">I", len(table)) + table + b"\2"


def nested(levels: int) -> bytes:
    content = b""
    for _ in range(levels):
        content = b"\1kF" + struct.pack(">I", len(content)) + content
    return content


SEVEN_THOUSAND = b"".join(header(b"k%04d" % number, b"b\1") for number in range(7000))
UNREADABLE = {
    "timestamp in milliseconds": properties(header(b"at", b"T" + struct.pack(">Q", 1_700_000_000_000))),
    "timestamp of 2^63": properties(header(b"at", b"T" + struct.pack(">Q", 2**63))),
    "900 levels deep": properties(nested(900)),
    "5000 levels deep": properties(nested(5000)),
    "key that is not UTF-8": properties(header(b"\xff\xfe", b"t\1")),
}
READABLE = {
    "smallest integer": properties(header(b"h", b"l\x80" + b"\0" * 7)),
    "56 KiB of headers": properties(header(b"h", b"t\1") + SEVEN_THOUSAND),
    "double": properties(header(b"h", b"d" + struct.pack(">d", 3.75))),
    "decimal": properties(header(b"h", b"D\2" + struct.pack(">i", 1999))),
    "void": properties(header(b"h", b"V")),
    "bytes": properties(header(b"h", b"x\0\0\0\3\0\xff\xce")),
    "text that is not UTF-8": properties(header(b"h", b"S\0\0\0\2\xff\xfe")),
    "array of all sizes": properties(header(b"h", b"A\0\0\0\x11b\xffB\xffs\xff\xffu\xff\xffi" + b"\xff" * 4 + b"t\0")),
}
ALL = UNREADABLE | READABLE


class Session:
    """Consumes queue "q" of a virtual host on a connection of ours until `enough` messages came."""

    def __init__(self, vhost: Vhost, *, enough: int) -> None:
        self.enough = enough
        self.came: list[tuple[str, bytes, bytes]] = []
        self.ended: BaseException | None = None
        self.connection = Connection(
            pika.URLParameters(vhost.url),
            on_open_callback=lambda connection: connection.channel(on_open_callback=self.consume),
            on_open_error_callback=self.stop,
            on_close_callback=self.stop,
        )
        self.answer = b""

    def run(self) -> list[tuple[str, bytes, bytes]]:
        guard = self.connection.ioloop.call_later(WITHIN, lambda: self.stop(None, TimeoutError("nothing came")))
        self.connection.ioloop.start()
        self.connection.ioloop.remove_timeout(guard)
        self.connection.ioloop.close()
        assert isinstance(self.ended, ConnectionClosedByClient), self.ended
        return self.came

    def consume(self, channel: Channel) -> None:
        channel.basic_consume("q", self.receive, auto_ack=True)

    def receive(self, *values: Any) -> None:
        *_, routing_key, raw, body = values
        self.came.append((routing_key, raw, body))
        if len(self.came) == self.enough:
            self.connection.close()
        else:
            self.connection.send_raw(self.answer or publish(raw, routing_key="q"))

    def stop(self, _: object, reason: BaseException) -> None:
        self.ended = reason
        self.connection.ioloop.stop()


def publish(raw: bytes, *, routing_key: str, exchange: str = "") -> bytes:
    names = {"exchange": exchange, "routing_key": routing_key}
    return marshal_publish(1, raw, b"again", **names, mandatory=True, frame_max=131072)


@pytest.mark.parametrize("name", ALL)
def test_every_header_reaches_the_receiver_and_is_republished_byte_for_byte(
    vhost: Vhost, amqp: BlockingChannel, name: str
) -> None:
    amqp.queue_declare("q")
    amqp.basic_publish("", "q", b"first", RawProperties(ALL[name]))

    came = Session(vhost, enough=2).run()

    assert came == [("q", ALL[name], b"first"), ("q", ALL[name], b"again")]


def test_the_broker_accepts_headers_that_exactly_fill_a_frame(vhost: Vhost, amqp: BlockingChannel) -> None:
    raw = properties(header(b"h", b"x" + struct.pack(">I", 131_038) + b"h" * 131_038))
    amqp.queue_declare("q")
    amqp.basic_publish("", "q", b"first")
    session = Session(vhost, enough=2)
    session.answer = publish(raw, routing_key="q")

    came = session.run()

    assert came[1] == ("q", raw, b"again")
    with pytest.raises(HeadersTooLarge, match="take 131053 bytes, but the broker accepts at most 131052"):
        publish(raw + b"!", routing_key="q")


def test_closing_a_channel_keeps_order_for_the_next_single_active_consumer(vhost: Vhost, amqp: BlockingChannel) -> None:
    arguments = {"x-single-active-consumer": True, "x-queue-type": "quorum"}
    amqp.queue_declare("q", durable=True, arguments=arguments)
    for number in range(6):
        amqp.basic_publish("", "q", b"%d" % number)
    channels: list[Channel] = []
    held: list[bytes] = []
    taken: list[bytes] = []

    def hold(*values: Any) -> None:
        held.append(values[6])
        if len(held) == 2:
            session.connection.channel(on_open_callback=wait)

    def wait(channel: Channel) -> None:
        channels.append(channel)
        channel.basic_qos(prefetch_count=1)
        channel.basic_consume("q", take, callback=lambda _: channels[0].close())

    def take(*values: Any) -> None:
        taken.append(values[6])
        channels[1].basic_ack(values[1])
        if len(taken) == 6:
            session.connection.close()

    def start(channel: Channel) -> None:
        channels.append(channel)
        channel.basic_qos(prefetch_count=2)
        channel.basic_consume("q", hold)

    session = Session(vhost, enough=0)
    session.consume = start  # type: ignore[method-assign]  # two consumers instead of one
    session.run()

    assert held == [b"0", b"1"]
    assert taken == [b"0", b"1", b"2", b"3", b"4", b"5"]

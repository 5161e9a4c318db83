"""The wire itself: the handshake, frames that are wrong, heartbeats, sizes."""

import socket
import struct
import time
from typing import Any

import pika
import pytest
from pika import spec
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ProbableAccessDeniedError

from django_rmq_retry.embedded.wire.client import Broker, Client
from django_rmq_retry.embedded.wire.server import BrokerServer, ServedConnection
from django_rmq_retry.messages import Headers, Properties, encode_properties
from tests.embedded.served import MakeServer
from tests.embedded.wire.raw import HEADER, Raw, closed, framed, header, publish
from tests.tooling.waiting import wait_until

ALL: dict[str, Any] = {"capabilities": {"authentication_failure_close": True}}


def test_the_greeting_names_the_embedded_platform(make_server: MakeServer) -> None:
    with Raw(make_server("4.3").port) as raw:
        raw.send(HEADER)
        start = raw.method()
    told = start.server_properties

    assert (told["product"], told["version"]) == ("RabbitMQ", "4.3.6")
    assert "embedded" in told["platform"]
    assert "is not RabbitMQ" in told["information"]


@pytest.mark.parametrize("head", [b"GET / HTTP/1.1\r\n\r\n", b"AMQP\0\1\0\0", b"AMQP\1\1\0\x09"])
def test_another_protocol_header_is_answered_with_the_supported_one(server: BrokerServer, head: bytes) -> None:
    with Raw(server.port) as raw:
        raw.send(head)

        assert raw.frame() == (0, 0, HEADER)


def test_a_protocol_header_may_come_in_pieces(server: BrokerServer) -> None:
    with Raw(server.port) as raw:
        for byte in HEADER:
            raw.send(bytes((byte,)))

        assert raw.method().NAME == "Connection.Start"


def test_a_wrong_login_is_explained_to_clients_that_support_it(server: BrokerServer) -> None:
    with Raw(server.port) as raw, Raw(server.port) as simple:
        assert raw.start(response=b"\0guest\0wrong", **ALL).reply_code == 403
        assert simple.start(response=b"\0guest\0wrong") is None


def test_a_login_by_amqplain_is_accepted(server: BrokerServer) -> None:
    login = Headers.of({"LOGIN": "guest", "PASSWORD": "guest"}).raw
    with Raw(server.port) as raw:
        tune = raw.start(response=login, mechanism="AMQPLAIN")

    assert (tune.NAME, tune.channel_max, tune.frame_max, tune.heartbeat) == ("Connection.Tune", 2047, 131072, 60)


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"channel_max": 0}, "negotiated channel_max = 0 (no limit) is higher than the maximum allowed value (2047)"),
        ({"channel_max": 4000}, "negotiated channel_max = 4000 is higher than the maximum allowed value (2047)"),
        ({"frame_max": 4095}, "negotiated frame_max = 4095 is lower than the minimum allowed value (4096)"),
    ],
)
def test_invalid_limits_are_refused(server: BrokerServer, limits: dict[str, int], words: str) -> None:
    with Raw(server.port) as raw:
        answer = raw.open(**limits)

    assert closed(answer) == ("Connection.Close", 530, f"NOT_ALLOWED - {words}")


def test_a_virtual_host_that_is_not_there_is_refused(server: BrokerServer) -> None:
    with pytest.raises(ProbableAccessDeniedError, match="vhost bank not found"):
        pika.BlockingConnection(pika.URLParameters(server.url.replace("%2F", "bank")))


@pytest.mark.parametrize(
    ("frames", "words"),
    [
        (framed(1, b"\0\x0a\0\x0b\0\0\0\0", channel=0), "SYNTAX_ERROR - cannot decode the arguments of"),
        (publish("q") + header(0, b"\xff\xff"), "SYNTAX_ERROR - content properties cannot be decoded"),
        (framed(1, b"\0\x3c\0\x3c"), "SYNTAX_ERROR - cannot decode the arguments of Basic.Deliver"),
    ],
)
def test_frames_that_cannot_be_decoded_close_the_connection(server: BrokerServer, frames: bytes, words: str) -> None:
    with Raw(server.port) as raw:
        raw.open(channel=1)
        raw.send(frames)
        answer = raw.method()
        raw.say(spec.Connection.CloseOk())

        assert (answer.NAME, answer.reply_code) == ("Connection.Close", 502)
        assert answer.reply_text.startswith(words)
        assert raw.method() is None


def test_a_refusal_closes_the_channel_and_ignores_what_follows(server: BrokerServer) -> None:
    with Raw(server.port) as raw:
        raw.open(channel=1)
        raw.say(spec.Queue.Declare(queue="none", passive=True), spec.Queue.Declare(queue="q"), channel=1)
        answer = raw.method()
        raw.say(spec.Channel.CloseOk(), spec.Channel.Open(), channel=1)
        opened = raw.method()
        raw.say(spec.Queue.Declare(queue="q", passive=True), channel=1)

        assert closed(answer) == ("Channel.Close", 404, "NOT_FOUND - no queue 'none' in vhost '/'")
        assert (answer.class_id, answer.method_id) == (50, 10)
        assert opened.NAME == "Channel.OpenOk"
        assert raw.method().reply_code == 404


@pytest.mark.parametrize(
    ("sent", "named"),
    [
        (framed(1, struct.pack(">IH", 0x3C0028, 0) + b"\1x\1q\0") + header(0), (60, 40)),
        (framed(1, b"\0\x3c\0\x50" + bytes(7) + b"\7\0"), (60, 80)),
        (publish("q") + header(0, b"\x80\0"), (60, 40)),
    ],
)
def test_a_refusal_names_its_method(server: BrokerServer, sent: bytes, named: tuple[int, int]) -> None:
    with Raw(server.port) as raw:
        raw.open(channel=1)
        raw.send(sent)
        answer = raw.method()

    assert (answer.class_id, answer.method_id) == named


def test_a_handshake_has_ten_seconds_even_byte_by_byte() -> None:
    client = Client(Broker())
    begun = client.received_at
    for byte in HEADER + b"\1\0\0":
        client.receive(bytes((byte,)))

    assert client.beat(begun + 9.9) == ""
    assert client.beat(begun + 10.1) == "the client did not answer in time"


def test_a_ttl_starts_at_arrival_and_not_at_processing(server: BrokerServer, monkeypatch: pytest.MonkeyPatch) -> None:
    serve = server._serve
    sent: list[float] = []
    content = framed(2, struct.pack(">HHQH", 60, 0, 0, 0x0100) + b"\x0560000")

    def late(connection: ServedConnection, events: int, now: float) -> None:
        """The rest of the message is sent after the turn that reads it has begun."""
        if not sent:
            sent.append(time.monotonic())
            raw.send(content)
        serve(connection, events, now)

    with Raw(server.port) as raw:
        raw.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        raw.open(channel=1)
        raw.say(spec.Queue.Declare(queue="q"), channel=1)
        raw.method()
        monkeypatch.setattr(server, "_serve", late)
        raw.send(publish("q"))
        queue = server.broker.vhost.router.queues["q"]
        wait_until(lambda: queue.ready.count == 1)
        (waiting,) = queue.ready

    assert waiting.expires >= sent[0] + 60


def test_undecodable_headers_pass_unchanged(server: BrokerServer, channel: BlockingChannel) -> None:
    hostile = encode_properties(Properties(headers=Headers(b"\x02\xff\xfeT" + b"\xff" * 8), message_id="é"))
    channel.queue_declare("q")
    with Raw(server.port) as raw:
        raw.open(channel=1)
        raw.send(publish("q"), header(0, hostile))
        raw.say(spec.Basic.Get(queue="q", no_ack=True), channel=1)
        method, (_, _, payload) = raw.method(), raw.frame()

    assert method.NAME == "Basic.GetOk"
    assert payload[12:] == hostile


def test_a_message_whose_key_is_not_utf8_is_dead_lettered(server: BrokerServer) -> None:
    letters = {"x-max-length": 0, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    place = struct.pack(">IH", 0x3C0028, 0) + b"\x0aamq.fanout\2\xff\xfe\0"
    with Raw(server.port) as raw:
        raw.open(channel=1)
        raw.say(
            spec.Queue.Declare(queue="dead"),
            spec.Queue.Declare(queue="q", arguments=letters),
            spec.Queue.Bind(queue="q", exchange="amq.fanout"),
            channel=1,
        )
        raw.send(framed(1, place), header(0))
        raw.say(spec.Basic.Get(queue="dead", no_ack=True), channel=1)
        answers = [raw.method() for _ in range(4)]
        _, _, payload = raw.frame()

    assert answers[-1].NAME == "Basic.GetOk"
    assert b"routing-keysA\0\0\0\x07S\0\0\0\2\xff\xfe" in payload


@pytest.mark.parametrize("active", [True, False])
def test_flow_active_is_accepted_and_flow_inactive_is_refused(server: BrokerServer, active: bool) -> None:
    with Raw(server.port) as raw:
        raw.open(channel=1)
        raw.say(spec.Channel.Flow(active), channel=1)
        answer = raw.method()

    assert getattr(answer, "active", None) is True if active else answer.reply_text == "NOT_IMPLEMENTED - active=false"


def test_nowait_is_not_answered(server: BrokerServer) -> None:
    with Raw(server.port) as raw:
        raw.open(channel=1)
        raw.say(spec.Queue.Declare(queue="q", nowait=True), spec.Queue.Purge(queue="q"), channel=1)

        assert raw.method().NAME == "Queue.PurgeOk"


def test_more_channels_than_agreed_are_refused(server: BrokerServer) -> None:
    with Raw(server.port) as raw:
        raw.open(channel_max=1, channel=1)
        raw.say(spec.Channel.Open(), channel=2)
        answer = raw.method()

    assert closed(answer)[2] == (
        "NOT_ALLOWED - number of channels opened (1) has reached the negotiated channel_max (1)"
    )


def test_clients_get_a_close_when_the_broker_ends(server: BrokerServer) -> None:
    with Raw(server.port) as raw:
        raw.open()
        server.stop()
        answer = raw.method()
        raw.say(spec.Connection.CloseOk())

    assert closed(answer) == (
        "Connection.Close",
        320,
        "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'",
    )

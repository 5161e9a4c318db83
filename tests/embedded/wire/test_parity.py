"""Bytes on the wire are the same as RabbitMQ's: greeting, limits, frames that are wrong, heartbeats."""

import struct
from contextlib import suppress
from typing import Any

import pika
import pytest
from pika import spec
from pika.amqp_object import Method

from tests.embedded.served import ServedVhost
from tests.embedded.wire.raw import closed, framed, header, opened, publish, raw_to
from tests.tooling.vhosts import Vhost

pytestmark = [pytest.mark.contract, pytest.mark.on_both(rabbitmq=pytest.mark.nightly)]


def version(vhost: Vhost) -> tuple[int, ...]:
    return tuple(int(part) for part in vhost.version.split(".")[:2])


def test_the_greeting_names_the_same_capabilities_and_limits(vhost: Vhost) -> None:
    with raw_to(vhost) as raw:
        raw.send(b"AMQP\0\0\x09\x01")
        start = raw.method()
        response: Any = b"\0guest\0guest"
        raw.say(spec.Connection.StartOk({}, "PLAIN", response, "en_US"))
        tune = raw.method()

    assert start.server_properties["product"] == "RabbitMQ"
    assert start.server_properties["version"].startswith(".".join(map(str, version(vhost))))
    assert sorted(name for name, there in start.server_properties["capabilities"].items() if there) == [
        "authentication_failure_close",
        "basic.nack",
        "connection.blocked",
        "consumer_cancel_notify",
        "consumer_priorities",
        "direct_reply_to",
        "exchange_exchange_bindings",
        "per_consumer_qos",
        "publisher_confirms",
    ]
    assert {b"PLAIN", b"AMQPLAIN"} <= set(start.mechanisms.split())
    assert (tune.channel_max, tune.frame_max, tune.heartbeat) == (2047, 131072, 60)


@pytest.mark.parametrize("frame_max", [4095, 4096, 8192])
def test_the_smallest_frame_is_larger_since_version_4_1(vhost: Vhost, frame_max: int) -> None:
    answer = None
    # RabbitMQ closes the socket with our next method unread, so its own word may be lost on the way.
    with raw_to(vhost) as raw, suppress(ConnectionResetError):
        answer = opened(raw, vhost, frame_max=frame_max)
    least = 8192 if version(vhost) >= (4, 1) else 4096

    assert (answer is not None and answer.NAME == "Connection.OpenOk") == (frame_max >= least)


@pytest.mark.parametrize(
    ("frames", "code", "words"),
    [
        (header(0), 505, "UNEXPECTED_FRAME - expected method frame, got non method frame instead"),
        (
            publish("q") * 2,
            505,
            "UNEXPECTED_FRAME - expected content header for class 60, got non content header frame",
        ),
        (publish("q") + header(5, of=10), 505, "UNEXPECTED_FRAME - expected content header for class 60, got one for"),
        (
            publish("q") + header(5) + publish("q"),
            505,
            "UNEXPECTED_FRAME - expected content body, got non content body",
        ),
        (framed(1, b"\0\x14\0\x0a\0"), 504, "CHANNEL_ERROR - second 'channel.open' seen"),
        (framed(1, b"\0\x5a\0\x0a", channel=7), 504, "CHANNEL_ERROR - expected 'channel.open'"),
        (
            framed(3, b"xx")[:-1] + b"\0",
            501,
            'FRAME_ERROR - type 3, all octets = <<"xx">>: {invalid_frame_end_marker,0}',
        ),
        (
            framed(3, b"\0\1")[:-1] + b"\0",
            501,
            "FRAME_ERROR - type 3, all octets = <<0,1>>: {invalid_frame_end_marker,0}",
        ),
        (struct.pack(">BHI", 2, 1, 200_000), 501, "FRAME_ERROR - type 2, all octets = <<>>: {frame_too_large,200000,"),
        (
            framed(1, struct.pack(">IHB", 0x3C0028, 0, 0) + b"\1q\2") + header(0),
            540,
            "NOT_IMPLEMENTED - immediate=true",
        ),
    ],
)
def test_frames_that_are_wrong_close_the_connection(vhost: Vhost, frames: bytes, code: int, words: str) -> None:
    with raw_to(vhost) as raw:
        opened(raw, vhost)
        raw.send(frames)
        answer = raw.method()

    assert closed(answer)[:2] == ("Connection.Close", code)
    assert answer.reply_text.startswith(words)


def test_heartbeats_come_and_silence_ends_the_connection(vhost: Vhost) -> None:
    kinds = []
    with raw_to(vhost) as raw, suppress(ConnectionResetError):
        opened(raw, vhost, heartbeat=1)
        while (found := raw.frame())[0]:
            kinds.append(found[0])

    assert 8 in kinds


def test_pipelined_publishes_meet_a_limit_at_once_only_on_the_embedded_broker(vhost: Vhost) -> None:
    limited = {"x-queue-type": "quorum", "x-max-length": 2, "x-overflow": "reject-publish"}
    with raw_to(vhost) as raw:
        opened(raw, vhost)
        raw.say(spec.Queue.Declare(queue="q", durable=True, arguments=limited), spec.Confirm.Select(), channel=1)
        raw.method(), raw.method()
        raw.send((publish("q") + header(0)) * 40)
        refused: set[int] = set()
        settled = 0
        while settled < 40:
            told = raw.method()
            tags = range(settled + 1, told.delivery_tag + 1) if told.multiple else [told.delivery_tag]
            refused.update(tags if told.NAME == "Basic.Nack" else ())
            settled += len(tags)

    if isinstance(vhost, ServedVhost):
        assert refused == set(range(4, 41))
    else:
        assert len(refused) <= 37


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_only_clients_with_cancel_notify_get_a_cancel(vhost: Vhost, kind: str) -> None:
    with raw_to(vhost) as knowing, raw_to(vhost) as simple:
        opened(simple, vhost)
        opened(knowing, vhost, consumer_cancel_notify=True)
        knowing.say(spec.Queue.Declare(queue="q", durable=True, arguments={"x-queue-type": kind}), channel=1)
        knowing.method()
        for raw in (simple, knowing):
            raw.say(spec.Basic.Consume(queue="q", consumer_tag="t"), channel=1)
            raw.method()
        simple.say(spec.Queue.Delete(queue="q"), channel=1)
        told = knowing.method()
        simple.say(spec.Basic.Qos(prefetch_count=1), spec.Channel.Close(200, "", 0, 0), channel=1)
        answers = [simple.method().NAME for _ in range(3)]

    assert (told.NAME, told.consumer_tag) == ("Basic.Cancel", "t")
    assert answers == ["Queue.DeleteOk", "Basic.QosOk", "Channel.CloseOk"]


NO_TEXT: Any = b"\xff\xfe"


@pytest.mark.parametrize(
    "asked",
    [
        spec.Queue.Declare(queue=NO_TEXT),
        spec.Queue.Declare(queue=NO_TEXT, passive=True),
        spec.Queue.Bind(queue="q", exchange="amq.direct", routing_key=NO_TEXT),
        spec.Exchange.Declare(exchange="e", type=NO_TEXT),
        spec.Basic.Consume(queue="q", consumer_tag=NO_TEXT),
        spec.Basic.Get(queue=NO_TEXT),
        spec.Basic.Cancel(consumer_tag=NO_TEXT),
        spec.Channel.Close(200, NO_TEXT, 0, 0),
    ],
    ids=lambda asked: asked.NAME,
)
def test_names_that_are_not_utf8_are_refused(vhost: Vhost, asked: Method) -> None:
    with raw_to(vhost) as raw:
        opened(raw, vhost)
        raw.say(asked, channel=1)
        answer = raw.method()

    assert closed(answer) == ("Connection.Close", 501, "FRAME_ERROR - Malformed UTF-8 in shortstr")
    assert (answer.class_id, answer.method_id) == (0, 0)


def test_a_virtual_host_name_that_is_not_utf8_is_refused(vhost: Vhost) -> None:
    with raw_to(vhost) as raw:
        raw.start(capabilities={"authentication_failure_close": True})
        raw.say(spec.Connection.TuneOk(2047, 131072, 0), spec.Connection.Open(NO_TEXT))
        answer = raw.method()

    assert closed(answer) == ("Connection.Close", 501, "FRAME_ERROR - Malformed UTF-8 in shortstr")
    assert (answer.class_id, answer.method_id) == (10, 40)


def test_a_routing_key_that_is_not_utf8_passes_unchanged(vhost: Vhost) -> None:
    with raw_to(vhost) as raw:
        opened(raw, vhost)
        raw.send(framed(1, struct.pack(">IH", 0x3C0028, 0) + b"\0\2\xff\xfe\1"), header(0))
        answer = raw.method()

    assert (answer.NAME, answer.routing_key) == ("Basic.Return", NO_TEXT)


def test_an_exchange_name_that_is_not_utf8_is_not_found(vhost: Vhost) -> None:
    with raw_to(vhost) as raw:
        opened(raw, vhost)
        raw.send(framed(1, struct.pack(">IH", 0x3C0028, 0) + b"\2\xff\xfe\1k\0"), header(0))
        kind, _, payload = raw.frame()

    assert (kind, payload[:4]) == (1, b"\0\x14\0\x28")
    assert b"NOT_FOUND - no exchange '" in payload


def test_no_frame_is_larger_than_was_agreed(vhost: Vhost) -> None:
    body = bytes(range(250)) * 36
    with raw_to(vhost) as raw:
        opened(raw, vhost, frame_max=8192)
        raw.say(spec.Queue.Declare(queue="q"), channel=1)
        raw.send(publish("q"), header(9000), framed(3, body[:8184]), framed(3, body[8184:]))
        raw.say(spec.Basic.Get(queue="q", no_ack=True), channel=1)
        raw.method(), raw.method(), raw.frame()
        frames = [raw.frame()[2] for _ in range(2)]
        raw.send(publish("q"), header(9000), framed(3, body))
        refused = raw.method()

    assert [len(one) for one in frames] == [8184, 816]
    assert b"".join(frames) == body
    assert closed(refused)[:2] == ("Connection.Close", 501)
    assert "{frame_too_large,9000,8184}" in refused.reply_text


@pytest.mark.parametrize("size", [8192, 8193])
def test_a_payload_may_be_as_long_as_the_agreed_frame(vhost: Vhost, size: int) -> None:
    with raw_to(vhost) as raw, suppress(ConnectionResetError, BrokenPipeError):
        opened(raw, vhost, frame_max=8192)
        raw.say(spec.Queue.Declare(queue="q"), channel=1)
        raw.method()
        raw.send(publish("q"), header(size), framed(3, bytes(size)))
        raw.say(spec.Basic.Get(queue="q", no_ack=True), channel=1)
        answer = raw.method()

    if size == 8192:
        assert answer.NAME == "Basic.GetOk"
    else:
        assert closed(answer)[:2] == ("Connection.Close", 501)
        assert "{frame_too_large,8193,8184}" in answer.reply_text


def test_update_secret_is_accepted(broker_url: str) -> None:
    with pika.BlockingConnection(pika.URLParameters(broker_url)) as connection:
        connection.update_secret("a new one", "the old one expires")

        assert connection.channel().queue_declare("q", durable=True).method.queue == "q"

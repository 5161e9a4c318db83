"""Deliveries parsed in one step and frame by frame are the same, wherever the bytes are cut."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pika import spec
from pika.exceptions import InvalidFrameError

from django_rmq_retry.amqp.frames import NAMES_KEPT, Places, Tags
from django_rmq_retry.amqp.protocol import LARGEST_CUT_BYTES, BasicProtocol
from tests.amqp.offline import HEARTBEAT, OneByOne, Received, Wire, delivery, method, wire

NAMES = st.sampled_from([b"", b"q", "schlüssel".encode(), b"\xff\xfe", b"k" * 255]) | st.binary(max_size=20)
DELIVERIES = st.fixed_dictionaries(
    {
        "body": st.binary(max_size=30) | st.integers(0, 400).map(lambda size: b"\xce" * size),
        "raw": st.sampled_from([b"\0\0", b"\x20\0\0\0\0\0", b"\xff\xff\xff"]) | st.binary(max_size=40),
        "tag": st.sampled_from(["one", "two"]),
        "delivery_tag": st.integers(1, 2**64 - 1),
        "redelivered": st.booleans(),
        "exchange": NAMES,
        "routing_key": NAMES,
        "part": st.sampled_from([7, 100, 65536]),
    }
)
OTHERS = st.sampled_from([HEARTBEAT, method(spec.Basic.Ack(5)), method(spec.Basic.QosOk())])


def expected(values: dict[str, Any]) -> Received:
    exchange, routing_key = (values[name].decode("utf-8", "surrogateescape") for name in ("exchange", "routing_key"))
    head = values["tag"], values["delivery_tag"], values["redelivered"]
    return (*head, exchange, routing_key, values["raw"], values["body"])


def counters(wire: Wire) -> tuple[int, int]:
    return wire.connection.bytes_received, wire.connection.frames_received


@pytest.mark.parametrize("cls", [BasicProtocol, OneByOne])
@given(st.lists(DELIVERIES | OTHERS, max_size=8), st.data())
def test_every_delivery_arrives_once_and_whole_wherever_the_bytes_are_cut(
    cls: type[BasicProtocol], sent: list[dict[str, Any] | bytes], data: st.DataObject
) -> None:
    stream = b"".join(item if isinstance(item, bytes) else delivery(**item) for item in sent)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(stream)), max_size=20)))
    with wire(cls) as at, wire(OneByOne) as plain:
        plain.feed(stream)
        for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True):
            at.feed(stream[start:stop])

        assert at.received == [expected(item) for item in sent if isinstance(item, dict)]
        assert counters(at) == counters(plain)
        assert at.left == b""


def test_a_stream_fed_byte_by_byte_gives_the_same() -> None:
    sent = [
        {"body": b"a", "delivery_tag": 1},
        {"body": b"", "delivery_tag": 2},
        {"body": b"b" * 30, "delivery_tag": 3, "part": 10},
        {"body": b"c", "delivery_tag": 4},
    ]
    with wire() as at:
        for byte in b"".join(delivery(**values) for values in sent):  # type: ignore[arg-type]  # one dict, many types
            at.feed(bytes((byte,)))

        assert [values[1] for values in at.received] == [1, 2, 3, 4]
        assert [values[6] for values in at.received] == [b"a", b"", b"b" * 30, b"c"]


@pytest.mark.parametrize("size", [LARGEST_CUT_BYTES + more for more in (-1, 0, 1, 131_072)])
def test_a_large_body_arrives_whole(size: int) -> None:
    body = bytes(range(256)) * (size // 256 + 1)
    data = delivery(body[:size], part=131064) + delivery(b"next", delivery_tag=2)
    with wire() as at:
        for start in range(0, len(data), 4096):
            at.feed(data[start : start + 4096])

        assert [values[6] for values in at.received] == [body[:size], b"next"]


def test_a_delivery_may_be_interleaved_with_frames_of_another_channel() -> None:
    data = delivery(b"body")
    first = data.index(b"\xce") + 1
    with wire() as at:
        at.open_channel(2)
        at.feed(data[:first] + HEARTBEAT)
        heartbeat_came_at_once = at.connection.frames_received == 2
        at.feed(method(spec.Basic.QosOk(), channel=2) + data[first:])

        assert heartbeat_came_at_once
        assert [values[6] for values in at.received] == [b"body"]


@pytest.mark.parametrize("cls", [BasicProtocol, OneByOne])
@given(st.integers(0, 200), st.integers(1, 255))
@example(48, 7)
@settings(max_examples=300)
def test_a_damaged_byte_never_makes_half_a_delivery(cls: type[BasicProtocol], place: int, change: int) -> None:
    good = delivery(b"good", delivery_tag=1)
    data = bytearray(good + delivery(b"damaged", delivery_tag=2, routing_key=b"key"))
    at_byte = len(good) + place % (len(data) - len(good))
    data[at_byte] ^= change
    with wire(cls) as at:
        with suppress(Exception):  # whatever is raised here ends the connection
            at.feed(bytes(data))

        assert at.received[0] == ("one", 1, False, "", "q", b"\0\0", b"good")
        # a size that became 0 says that the message ends there
        assert all(len(values[6]) in (0, 7) for values in at.received[1:])


@pytest.mark.parametrize("which", [1, 2, 3])
def test_a_wrong_end_of_frame_closes_the_connection_and_nothing_is_delivered(which: int) -> None:
    data = bytearray(delivery(b"body", routing_key=b"k"))
    ends = [place for place, byte in enumerate(data) if byte == 0xCE]
    data[ends[which - 1]] = 0
    with wire() as at:
        with pytest.raises(InvalidFrameError):
            at.feed(bytes(data))

        assert at.received == []


def test_a_delivery_frame_with_a_wrong_length_is_refused() -> None:
    data = delivery(b"body", routing_key=b"key").replace(b"\x03key", b"\x02key")
    with wire() as at:
        with pytest.raises(InvalidFrameError, match="longer or shorter than its names"):
            at.feed(data)

        assert at.received == []


def test_a_delivery_for_an_unknown_consumer_is_ignored(caplog: pytest.LogCaptureFixture) -> None:
    with wire() as at:
        at.feed(delivery(tag="gone", delivery_tag=1) + delivery(delivery_tag=2))

        assert [values[1] for values in at.received] == [2]
        assert "Unexpected delivery" in caplog.text


def test_a_delivery_for_a_cancelled_consumer_goes_back_to_its_queue() -> None:
    with wire() as at:
        at.channel.basic_cancel("one")
        at.sent.clear()
        at.feed(delivery(delivery_tag=7) + delivery(tag="two", delivery_tag=8))

        assert [values[1] for values in at.received] == [8]
        assert at.sent == [method(spec.Basic.Reject(7, requeue=True))]


def test_a_consumer_that_cancels_itself_gets_nothing_more() -> None:
    def receive(*values: Any) -> None:
        at.receive(*values)
        at.channel.basic_cancel("one")

    with wire() as at:
        at.channel.consumers["one"] = receive
        at.feed(delivery(delivery_tag=1) + delivery(delivery_tag=2))

        assert [values[1] for values in at.received] == [1]


def test_an_exception_of_a_callback_is_raised_and_its_delivery_counts_as_received() -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("broken")

    with wire() as at:
        at.channel.consumers["one"] = fail
        first, second = delivery(delivery_tag=1), delivery(delivery_tag=2)
        with pytest.raises(RuntimeError, match="broken"):
            at.feed(first + second)

        assert at.left == second
        assert counters(at) == (len(first), 3)


def test_decoded_names_are_cached_up_to_a_limit() -> None:
    tags, places = Tags(), Places()
    for number in range(NAMES_KEPT + 1):
        text = b"%04d" % number
        assert tags[text] == text.decode()
        assert places[b"\0\4" + text] == ("", text.decode())

    assert len(tags) == len(places) == 1
    assert places[b"\0\4" + text][1] is places[b"\0\4" + text][1]

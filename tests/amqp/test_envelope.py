"""Frames are written as pika writes them, and frames that pika reads keep their property bytes."""

from typing import Any

import pika
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pika import frame, spec
from pika.exceptions import InvalidFrameError

from django_rmq_retry.amqp.frames import RawProperties, marshal_publish, read_content_header
from django_rmq_retry.errors import HeadersTooLarge

NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


PUBLISHES = st.fixed_dictionaries(
    {
        "exchange": NAMES,
        "routing_key": NAMES,
        "mandatory": st.booleans(),
        "frame_max": st.integers(90, 200) | st.sampled_from([4096, 131072]),
    }
)


def as_pika_sends(raw: bytes, body: bytes, *, frame_max: int, **method: Any) -> bytes:
    sent: list[bytes] = []
    connection: Any = pika.SelectConnection(pika.ConnectionParameters(), internal_connection_workflow=False)
    connection._adapter_emit_data = sent.append
    connection._body_max_length = frame_max - 8
    connection._send_method(7, spec.Basic.Publish(**method), (RawProperties(raw), body))
    connection.ioloop.close()
    return b"".join(sent)


@given(st.binary(min_size=2, max_size=50), st.binary(max_size=300), PUBLISHES)
def test_a_publish_is_written_as_pika_writes_it(raw: bytes, body: bytes, publish: dict[str, Any]) -> None:
    assert marshal_publish(7, raw, body, **publish) == as_pika_sends(raw, body, **publish)


def test_a_body_is_cut_where_the_frame_is_full() -> None:
    whole = marshal_publish(1, b"\0\0", b"x" * 4088, exchange="", routing_key="q", mandatory=True, frame_max=4096)
    cut = marshal_publish(1, b"\0\0", b"x" * 4089, exchange="", routing_key="q", mandatory=True, frame_max=4096)

    assert whole.endswith(b"\x03\x00\x01\x00\x00\x0f\xf8" + b"x" * 4088 + b"\xce")
    assert cut.endswith(b"x" * 4088 + b"\xce\x03\x00\x01\x00\x00\x00\x01x\xce")


def test_a_message_without_a_body_has_no_body_frame() -> None:
    data = marshal_publish(1, b"\0\0", b"", exchange="", routing_key="q", mandatory=False, frame_max=4096)

    assert data.endswith(b"\x02\x00\x01\x00\x00\x00\x0e\x00\x3c" + b"\0" * 10 + b"\0\0\xce")


def test_headers_that_fill_the_frame_are_sent_and_one_byte_more_is_refused() -> None:
    place = {"exchange": "", "routing_key": "q"}
    marshal_publish(1, b"h" * 4076, b"", **place, mandatory=True, frame_max=4096)

    with pytest.raises(HeadersTooLarge) as caught:
        marshal_publish(1, b"h" * 4077, b"", **place, mandatory=True, frame_max=4096)
    assert (caught.value.size, caught.value.limit) == (4077, 4076)
    assert "take 4077 bytes, but the broker accepts at most 4076 in one frame" in str(caught.value)


def test_a_name_that_is_not_utf8_is_published_byte_for_byte() -> None:
    data = marshal_publish(1, b"\0\0", b"", exchange="\udcff", routing_key="é", mandatory=True, frame_max=4096)

    assert b"\x01\xff\x02\xc3\xa9\x01\xce" in data


def test_a_name_that_is_too_long_is_refused_with_a_sentence() -> None:
    with pytest.raises(ValueError, match=r"The name 'rrr.*'… takes 256 bytes; AMQP takes 255"):
        marshal_publish(1, b"\0\0", b"", exchange="", routing_key="r" * 256, mandatory=True, frame_max=4096)


def test_a_content_header_is_read_without_decoding_the_properties() -> None:
    data = frame.Header(9, 2**40, RawProperties(b"not properties at all")).marshal()

    assert read_content_header(data[7:-1]) == (2**40, b"not properties at all")


@pytest.mark.parametrize("payload", [b"\x00\x3d" + b"\0" * 12, b"\x00\x3c", b""])
def test_an_invalid_content_header_is_an_invalid_frame(payload: bytes) -> None:
    with pytest.raises(InvalidFrameError):
        read_content_header(payload)


def test_pika_shows_and_encodes_raw_properties_without_decoding_them() -> None:
    properties = RawProperties(b"\xff\xff")

    assert properties.encode() == [b"\xff\xff"]
    assert repr(properties) == "<RawProperties: 2 bytes>"
    with pytest.raises(NotImplementedError, match=r"messages\.properties"):
        properties.decode(b"\0\0")

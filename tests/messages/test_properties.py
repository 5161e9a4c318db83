"""Properties survive a round trip byte for byte, whatever bytes they hold."""

import struct
from dataclasses import replace

import pika
import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_rmq_retry.errors import UndecodableHeaders
from django_rmq_retry.messages import Headers, Properties, decode_properties, encode_properties
from django_rmq_retry.messages.properties import EMPTY, has_headers, with_headers

SHORT = st.binary(max_size=255).map(lambda text: bytes((len(text),)) + text)
TABLE = st.sampled_from([b"", b"\1aV", b"\1aT\xff\xff\xff\xff\xff\xff\xff\xff", b"\2\xff\xfet\1"]).map(
    lambda table: struct.pack(">I", len(table)) + table
)
OCTET = st.binary(min_size=1, max_size=1)
WIRE = [SHORT, SHORT, TABLE, OCTET, OCTET, SHORT, SHORT, SHORT, SHORT, st.binary(min_size=8, max_size=8)] + [SHORT] * 4


@st.composite
def valid_properties(draw: st.DrawFn) -> bytes:
    present = draw(st.lists(st.booleans(), min_size=14, max_size=14))
    flags = sum(1 << (15 - place) for place, there in enumerate(present) if there)
    values = [draw(field) for field, there in zip(WIRE, present, strict=True) if there]
    return struct.pack(">H", flags) + b"".join(values)


def full() -> Properties:
    return Properties(
        content_type="application/json",
        content_encoding="utf-8",
        headers=Headers.of({"a": 1}),
        delivery_mode=2,
        priority=9,
        correlation_id="c",
        reply_to="r",
        expiration="1000",
        message_id="é",
        timestamp=2**64 - 1,
        type="t",
        user_id="guest",
        app_id="app",
        cluster_id="x",
    )


@given(valid_properties())
def test_valid_properties_survive_a_round_trip_byte_for_byte(raw: bytes) -> None:
    assert encode_properties(decode_properties(raw)) == raw


@given(st.binary(max_size=80))
def test_arbitrary_bytes_raise_nothing_but_undecodable_headers(raw: bytes) -> None:
    try:
        again = encode_properties(decode_properties(raw))
    except UndecodableHeaders:
        again = raw

    assert again == raw
    assert has_headers(raw) in {True, False}


@given(valid_properties())
def test_has_headers_reads_the_header_flag(raw: bytes) -> None:
    assert has_headers(raw) is (decode_properties(raw).headers is not EMPTY)


def test_a_full_set_is_encoded_as_pika_does() -> None:
    theirs = pika.BasicProperties(
        content_type="application/json",
        content_encoding="utf-8",
        headers={"a": 1},
        delivery_mode=2,
        priority=9,
        correlation_id="c",
        reply_to="r",
        expiration="1000",
        message_id="é",
        timestamp=2**64 - 1,
        type="t",
        user_id="guest",
        app_id="app",
        cluster_id="x",
    )

    raw = encode_properties(full())

    assert raw == b"".join(theirs.encode())
    assert decode_properties(raw) == full()


def test_empty_properties_take_two_bytes() -> None:
    assert encode_properties(Properties()) == b"\0\0"
    assert decode_properties(b"\0\0") == Properties()


def test_an_empty_header_table_is_not_the_same_as_none() -> None:
    assert encode_properties(Properties(headers=Headers())) == b"\x20\0\0\0\0\0"
    assert encode_properties(Properties(headers=EMPTY)) == b"\0\0"


def test_text_that_is_not_utf8_is_kept() -> None:
    properties = decode_properties(b"\x00\x80\x02\xff\xfe")

    assert properties.message_id == "\udcff\udcfe"
    assert encode_properties(replace(properties, type="t")) == b"\x00\xa0\x02\xff\xfe\x01t"


def test_an_undecodable_header_does_not_hide_the_other_properties() -> None:
    table = b"\2atT" + struct.pack(">Q", 1_700_000_000_000)

    properties = decode_properties(b"\x20\x80" + struct.pack(">I", len(table)) + table + b"\x02id")

    assert properties.message_id == "id"
    assert properties.headers.raw == table


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (b"", "they are cut off"),
        (b"\x80", "they are cut off"),
        (b"\x80\0", "they are cut off"),
        (b"\x80\0\x05ab", "they end after 8 of 5 bytes"),
        (b"\0\0x", "they end after 2 of 3 bytes"),
        (b"\0\x40\0\0\0", "they are cut off"),
        (b"\x20\0\0\0\0\x09", "the header table is cut off"),
        (b"\0\1\0\0", "the property flags 0x0001 are not those of AMQP 0-9-1"),
        (b"\0\2", "the property flags 0x0002 are not those of AMQP 0-9-1"),
    ],
)
def test_malformed_properties_are_refused_with_an_explanation(raw: bytes, problem: str) -> None:
    with pytest.raises(UndecodableHeaders) as caught:
        decode_properties(raw)

    assert caught.value.problem == problem
    assert str(caught.value) == f"The message's properties cannot be decoded: {problem}."


@pytest.mark.parametrize(
    ("properties", "sentence"),
    [
        (
            Properties(message_id="m" * 256),
            "Property message_id cannot be 'mmmm.*: it takes 256 bytes and AMQP takes 255",
        ),
        (Properties(priority=256), "Property priority cannot be 256: "),
        (Properties(timestamp=-1), "Property timestamp cannot be -1: "),
        (Properties(type="\ud800"), "Property type cannot be '.ud800': "),
    ],
)
def test_an_invalid_property_value_is_refused_with_an_explanation(properties: Properties, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        encode_properties(properties)


@given(valid_properties(), st.binary(max_size=20))
def test_replacing_the_header_table_keeps_every_other_byte(raw: bytes, other: bytes) -> None:
    sent = decode_properties(raw)
    table = Headers.of({"other": other})
    expected = replace(sent, headers=table) if has_headers(raw) else sent

    assert with_headers(raw, sent, table.raw) == encode_properties(expected)
    assert with_headers(raw, sent, b"") == encode_properties(replace(sent, headers=EMPTY))

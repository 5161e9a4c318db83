"""Headers keep foreign bytes, decode on demand and fail with a name and a sentence, never with anything else."""

import copy
import re
import struct
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_rmq_retry.errors import UndecodableHeaders
from django_rmq_retry.messages import Headers
from django_rmq_retry.messages.properties import EMPTY

KEYS = st.text(st.characters(exclude_categories=["Cs"]), max_size=60).filter(lambda key: len(key.encode()) <= 255)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    TEXT,
    st.binary(max_size=40),
    st.builds(lambda n, e: Decimal((int(n < 0), tuple(map(int, str(abs(n)))), -e)), st.integers(-(2**31), 2**31 - 1),
              st.integers(0, 255)),
    st.integers(0, 253_402_300_799).map(lambda seconds: datetime.fromtimestamp(seconds, UTC)),
)  # fmt: skip
VALUES = st.recursive(SCALARS, lambda v: st.lists(v, max_size=4) | st.dictionaries(KEYS, v, max_size=4), max_leaves=12)
TABLES = st.dictionaries(KEYS, VALUES, max_size=6)


def entry(key: bytes, value: bytes) -> bytes:
    return bytes((len(key),)) + key + value


def boxed(kind: bytes, content: bytes) -> bytes:
    return kind + struct.pack(">I", len(content)) + content


def decodable(key: bytes, value: bytes) -> bool:
    try:
        key.decode()
        dict(Headers(entry(key, value)))
    except (UndecodableHeaders, UnicodeDecodeError):
        return False
    return True


def nested(levels: int, innermost: bytes = b"") -> bytes:
    """Return a header "deep" with this number of nested tables, written without recursion."""
    content = innermost
    for _ in range(levels):
        content = entry(b"k", b"F" + struct.pack(">I", len(content)) + content)
    return b"\x04deep" + content[2:]


@given(TABLES)
def test_encoded_headers_decode_to_the_same_values(table: dict[str, object]) -> None:
    headers = Headers.of(table)

    assert dict(headers) == table
    assert list(headers) == list(table)
    assert Headers(headers.raw) == headers


@given(TABLES, st.data())
def test_replacing_keeps_every_other_entry_byte_for_byte(table: dict[str, object], data: st.DataObject) -> None:
    dropped = data.draw(st.sets(st.sampled_from(sorted(table))) if table else st.just(set()))
    headers = Headers.of(table).replacing(drop=dropped, put={"added": 1})

    kept = b"".join(Headers.of({k: v}).raw for k, v in table.items() if k not in dropped and k != "added")
    assert headers.raw == kept + entry(b"added", b"I\0\0\0\1")


@given(st.binary(max_size=200) | st.binary(max_size=60).map(lambda tail: entry(b"k", b"F\0\0\0" + tail)))
def test_arbitrary_bytes_raise_nothing_but_undecodable_headers(raw: bytes) -> None:
    try:
        headers = Headers(raw)
        headers.check()
        everything = dict(headers)
    except UndecodableHeaders as error:
        said = str(error)
    else:
        said = " ".join(map(ascii, everything))

    assert said.isprintable()


WIRE = st.recursive(
    st.sampled_from(
        [b"V", b"t\1", b"S\0\0\0\1\xff", b"T" + bytes(8), b"T\xff" + bytes(7), b"x\0\0\0\0", b"l" + bytes(8)]
    ),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda values: boxed(b"A", b"".join(values)))
        | st.lists(st.tuples(st.sampled_from([b"k", b"\xff", b"\xc3\xa9"]), inner), max_size=3).map(
            lambda pairs: boxed(b"F", b"".join(entry(*pair) for pair in pairs))
        )
    ),
    max_leaves=6,
)


@given(st.lists(st.tuples(st.sampled_from([b"a", b"b", b"\xff", b"\xc3\xa9"]), WIRE), max_size=5))
def test_check_finds_exactly_the_undecodable_values(pairs: list[tuple[bytes, bytes]]) -> None:
    hostile = [pair for pair in pairs if not decodable(*pair)]
    headers = Headers(b"".join(entry(*pair) for pair in pairs))

    if not hostile:
        headers.check()
        return
    with pytest.raises(UndecodableHeaders) as caught:
        headers.check()
    assert caught.value.header == hostile[0][0].decode(errors="backslashreplace")


@pytest.mark.parametrize(
    ("raw", "header", "problem"),
    [
        (entry(b"at", b"T" + struct.pack(">Q", 1_700_000_000_000)), "at", "the timestamp 1700000000000 lies after the"),
        (entry(b"at", b"T\x80\0\0\0\0\0\0\0"), "at", "the timestamp 9223372036854775808 lies after"),
        (nested(900), "deep", "it is nested more than 64 levels deep"),
        (nested(5000), "deep", "it is nested more than 64 levels deep"),
        (entry(b"\xff\x00key", b"t\1"), "\\xff\\x00key", "the key is not UTF-8"),
        (entry(b"h", b"F\0\0\0\4\1\xfft\1"), "h", "the key is not UTF-8"),
        (entry(b"h", b"A\0\0\0\2I\0"), "h", "it is cut off 3 bytes before its end"),
    ],
)
def test_an_undecodable_value_is_named_and_the_others_stay_readable(raw: bytes, header: str, problem: str) -> None:
    headers = Headers(raw + entry(b"good", b"b\7"))

    with pytest.raises(UndecodableHeaders) as caught:
        headers.check()
    assert caught.value.header == header
    assert problem in caught.value.problem
    assert headers["good"] == 7
    assert headers.replacing(drop=["good"]).raw == raw


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (b"\x01hZ", "its type 'Z' is not known to RabbitMQ"),
        (b"\x01hS\0\0\0\x05ab", "it is cut off 3 bytes before its end"),
        (b"\x01hS\0\0", "its length is cut off"),
        (b"\x01hI\0", "it is cut off 3 bytes before its end"),
        (b"\x01h", "a value is missing at the end of the table"),
        (b"\x09h", "a value is missing at the end of the table"),
    ],
)
def test_a_malformed_table_is_refused(raw: bytes, problem: str) -> None:
    with pytest.raises(UndecodableHeaders) as caught:
        Headers(b"\x04goodV" + raw)

    assert caught.value.problem == problem
    assert str(caught.value) == f"Header 'h' cannot be decoded: {problem}."


def test_nesting_up_to_the_limit_is_decoded() -> None:
    Headers(nested(64, b"\1kV")).check()

    with pytest.raises(UndecodableHeaders):
        Headers(nested(65, b"\1kV")).check()


def test_a_long_hostile_header_name_is_cut_and_escaped() -> None:
    with pytest.raises(UndecodableHeaders) as caught:
        Headers(entry(("\x1b[31m\u202e" + "n" * 200).encode(), b"Z"))

    assert caught.value.header == "\\x1b[31m\\u202e" + "n" * 54 + "…"


def test_a_key_that_is_not_utf8_can_be_listed_and_dropped() -> None:
    headers = Headers(entry(b"\xffkey", b"t\1") + entry(b"good", b"b\7"))

    assert list(headers) == ["\udcffkey", "good"]
    assert headers["\udcffkey"] is True
    assert headers.replacing(drop=["\udcffkey"]).raw == entry(b"good", b"b\7")


@pytest.mark.parametrize(
    ("name", "error", "sentence"),
    [
        (7, TypeError, "A header's name is a text, not 7."),
        ("k" * 256, ValueError, f"Header name '{'k' * 60}…' takes 256 bytes; AMQP takes 255."),
        ("\ud800", ValueError, "surrogates not allowed"),
    ],
)
@pytest.mark.parametrize("table", [lambda name: {name: 1}, lambda name: {"outer": {name: 1}}], ids=["top", "nested"])
def test_a_name_that_amqp_cannot_encode_is_refused(
    table: Callable[[object], dict[str, object]], name: object, error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=re.escape(sentence)):
        Headers.of(table(name))


def test_the_last_duplicate_header_counts_and_replacing_removes_both() -> None:
    headers = Headers(entry(b"k", b"b\1") + entry(b"x", b"V") + entry(b"k", b"b\2"))

    assert headers["k"] == 2
    assert len(headers) == 2
    assert headers.replacing(put={"k": "new"}).raw == entry(b"x", b"V") + entry(b"k", b"S\0\0\0\3new")


def test_headers_are_equal_hashed_and_copied_by_their_bytes() -> None:
    one, other = Headers.of({"a": 1}), Headers(b"\1aI\0\0\0\1")

    assert one == other
    assert len({one, other, copy.deepcopy(one)}) == 1
    assert one != {"a": 1}
    assert repr(one) == "<Headers: 1 entries, 7 bytes>"


def test_empty_headers_are_one_shared_object() -> None:
    assert Headers.of({}) is EMPTY
    assert EMPTY.replacing(drop=["x-death"]) is EMPTY
    assert dict(EMPTY) == {}


def test_a_membership_test_does_not_decode_a_header() -> None:
    headers = Headers(nested(5000))

    assert "deep" in headers
    assert "other" not in headers
    assert headers.get("other") is None

"""Bodies are read so strictly that no two readers can understand one payment differently."""

import datetime
import json
import sys
import time
import tracemalloc
import uuid
from contextlib import suppress
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_rmq_retry import Json, Raw
from django_rmq_retry.errors import UndecodableBody, UnencodableData
from django_rmq_retry.messages import Properties
from django_rmq_retry.messages.codecs import BODY_DEPTH_LIMIT, BodyLimits, decoded
from tests.handlers.factories import delivery

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)

JSON = Json()


def refused(body: bytes, properties: Properties | None = None) -> str:
    with pytest.raises(UndecodableBody) as caught:
        JSON.decode(body, properties)
    return caught.value.problem


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"", "it is not JSON: Expecting value: line 1 column 1 (char 0)"),
        (b"amount=5", "it is not JSON: Expecting value: line 1 column 1 (char 0)"),
        (b'{"a":1} {"a":2}', "it is not JSON: Extra data: line 1 column 9 (char 8)"),
        (b'{"a":1', "it is not JSON: Expecting ',' delimiter: line 1 column 7 (char 6)"),
    ],
)
def test_d1_a_body_that_is_not_json_is_refused(body: bytes, problem: str) -> None:
    assert refused(body) == problem


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b'{"name":"\xff"}', "it is not UTF-8 at byte 9"),
        ('{"a":1}'.encode("utf-16"), "it is not UTF-8 at byte 0"),
        ("7".encode("utf-16-le"), "it is not JSON: Extra data: line 1 column 2 (char 1)"),
        ('{"a":1}'.encode("utf-32-be"), "it is not JSON: Expecting value: line 1 column 1 (char 0)"),
        ('{"a":1}'.encode("utf-8-sig"), "it is not JSON: Expecting value: line 1 column 1 (char 0)"),
        (b'"\xed\xa0\x80"', "it is not UTF-8 at byte 1"),
    ],
)  # fmt: skip
def test_d2_encodings_other_than_utf8_and_byte_order_marks_are_refused(body: bytes, problem: str) -> None:
    assert refused(body) == problem


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", '{"amount":NaN}'])
def test_d3_nan_and_infinity_are_refused(text: str) -> None:
    assert refused(text.encode()).endswith(" is not a number in JSON")


@pytest.mark.parametrize("text", ["1e999", "-1e309", "1e-999", "1e999999999999999999999", "1e-999999999999999999999"])
def test_d3_a_number_with_too_large_an_exponent_is_refused(text: str) -> None:
    assert refused(text.encode()) == "it is not JSON: a number has too large an exponent"


def test_d4_a_whole_number_of_five_thousand_digits_is_refused() -> None:
    assert refused(b"9" * 5000).startswith("it is not JSON: Exceeds the limit (4300 digits) for integer string")


@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"a":' * 100_000, b"[" * 65 + b"]" * 65])
def test_d5_deep_nesting_is_refused_before_it_is_parsed(body: bytes) -> None:
    assert refused(body) == "it is nested more than 64 levels deep"


def test_d5_the_depth_limit_ignores_the_recursion_limit() -> None:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(200_000)
    try:
        problem = refused(b"[" * 100_000 + b"]" * 100_000)
    finally:
        sys.setrecursionlimit(before)

    assert problem == "it is nested more than 64 levels deep"


@pytest.mark.parametrize(
    "data", [[[]] * 1000, "[" * 1000, {'["' * 50: '\\"[' * 50}, json.loads("[" * 64 + "]" * 64), ["\\", "[" * 90, "]"]]
)
def test_d5_many_brackets_without_depth_are_accepted(data: object) -> None:
    assert JSON.decode(json.dumps(data).encode()) == data


@pytest.mark.parametrize("unit", [b'"\\"', b'["', b"\\", b'"[', b'[""'])
def test_d5_checking_the_depth_takes_linear_time(unit: bytes) -> None:
    body = b"[]" * 65 + unit * (1_000_000 // len(unit))
    began = time.perf_counter()
    refused(body)

    assert time.perf_counter() - began < 5


def test_d6_a_duplicate_key_is_refused() -> None:
    assert refused(b'{"amount":1,"amount":1000000}') == "it is not JSON: a key occurs twice in one object"
    assert refused(b'[{"a":{"b":1,"\\u0062":2}}]') == "it is not JSON: a key occurs twice in one object"


def test_d7_decimal_numbers_are_read_exactly() -> None:
    data = JSON.decode(
        b'{"amount":12345678901234567.89,"rate":1.10,"tiny":1e-7,"big":1E+2,"whole":12345678901234567890}'
    )

    assert repr(data) == (
        "{'amount': Decimal('12345678901234567.89'), 'rate': Decimal('1.10'), 'tiny': Decimal('1E-7'), "
        "'big': Decimal('1E+2'), 'whole': 12345678901234567890}"
    )


def test_d8_a_nul_in_a_text_is_data_like_any_other() -> None:
    assert JSON.decode(b'"a\\u0000b"') == "a\0b"


def test_d9_a_lone_surrogate_is_decoded_but_never_published() -> None:
    read = JSON.decode(b'"\\ud800"')

    assert read == "\ud800"
    with pytest.raises(UnencodableData, match="'utf-8' codec can't encode"):
        JSON.encode(read)


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "utf-16", "\udcff", "x" * 255])
def test_d11_a_compressed_body_is_refused_and_never_decompressed(encoding: str) -> None:
    problem = refused(b"{}", Properties(content_encoding=encoding))

    assert problem.startswith("its content-encoding is '")
    assert problem.isascii()
    assert len(problem) <= 110


@pytest.mark.parametrize("encoding", [None, "", "utf-8", "UTF-8", "utf8", "Identity"])
def test_content_encoding_utf8_is_accepted(encoding: str | None) -> None:
    assert JSON.decode(b'{"a":1}', Properties(content_encoding=encoding)) == {"a": 1}


@given(PLAIN)
def test_plain_data_survives_the_round_trip(data: object) -> None:
    assert JSON.decode(JSON.encode(data)) == data


@given(st.decimals(allow_nan=False, allow_infinity=False, places=4, min_value=-(10**15), max_value=10**15))
def test_a_decimal_is_published_as_a_text_of_exactly_its_digits(amount: Decimal) -> None:
    text = JSON.decode(JSON.encode({"amount": amount}))

    assert text == {"amount": str(amount)}
    assert Decimal(str(amount)) == amount


@given(st.binary(max_size=60) | st.text(alphabet='[]{}",:\\019eE.-+ufalsetrunNI ', max_size=60).map(str.encode))
def test_any_body_decodes_or_raises_undecodable_body(body: bytes) -> None:
    with suppress(UndecodableBody):
        JSON.decode(body)


def test_uuid_and_dates_are_encoded_as_strings() -> None:
    data = {
        "id": uuid.UUID("12345678-1234-5678-1234-567812345678"),
        "on": datetime.date(2026, 11, 21),
        "at": datetime.datetime(2026, 11, 21, 9, 15, tzinfo=datetime.UTC),
        "name": "Zoë",
    }

    assert JSON.encode(data).decode() == (
        '{"id":"12345678-1234-5678-1234-567812345678","on":"2026-11-21","at":"2026-11-21T09:15:00+00:00","name":"Zoë"}'
    )


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (float("nan"), "Out of range float values are not JSON compliant"),
        ({"a": float("inf")}, "Out of range float values are not JSON compliant"),
        (Decimal("NaN"), "Decimal NaN has no JSON form"),
        (Decimal("-Infinity"), "Decimal -Infinity has no JSON form"),
        ({"a": object()}, "an object of type object has no JSON form. Pass plain values, such as the pk of"),
        ({1, 2}, "an object of type set has no JSON form. Pass a list."),
        ([b"x"], "an object of type bytes has no JSON form. Use codec=Raw() to send bytes as they are"),
        ({(1, 2): 3}, "keys must be str, int, float, bool or None, not tuple"),
    ],
)
def test_unencodable_data_raises_with_the_problem(data: object, problem: str) -> None:
    with pytest.raises(UnencodableData) as caught:
        JSON.encode(data)

    assert str(caught.value).startswith(f"The data cannot be published: {problem}")


def test_circular_and_too_deep_data_is_refused() -> None:
    circle: list[object] = []
    circle.append(circle)
    deep: object = 1
    for _ in range(200_000):
        deep = [deep]

    with pytest.raises(UnencodableData, match="Circular reference detected"):
        JSON.encode(circle)
    with pytest.raises(UnencodableData):
        JSON.encode(deep)


def test_raw_passes_bytes_through_and_nothing_else() -> None:
    assert Raw().decode(b"\xff\0") == b"\xff\0"
    assert Raw().encode(bytearray(b"\xff")) == b"\xff"
    with pytest.raises(UnencodableData, match="the Raw codec takes bytes, not str"):
        Raw().encode("text")


MANY = b"[" + b"{}," * 400_000 + b"{}]"
STRINGS = b"[" + b'"",' * 600_000 + b'""]'


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (MANY, "it has more elements than RMQ_RETRY['BODY_ELEMENTS'], 500000"),
        (STRINGS, "it has more elements than RMQ_RETRY['BODY_ELEMENTS'], 500000"),
        (b'"' + b"x" * 17_000_000 + b'"', "it is larger than RMQ_RETRY['BODY_BYTES'], 16777216"),
        (b"[" * 100_000, f"it is nested more than {BODY_DEPTH_LIMIT} levels deep"),
    ],
    ids=["many elements", "many strings", "many bytes", "many levels"],
)
def test_a_body_beyond_a_limit_is_refused_before_it_takes_memory(body: bytes, problem: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(UndecodableBody) as caught:
            decoded(delivery(body=body), JSON)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert caught.value.problem == problem
    assert peak < 2 * len(body) + 1_000_000


def test_marks_inside_strings_are_no_elements() -> None:
    text = "1,2;" * 300_000

    assert decoded(delivery(body=f'["{text}"]'.encode()), JSON, BodyLimits(most_elements=100)) == [text]


def test_the_limits_follow_the_settings_and_raw_bodies_have_none() -> None:
    assert len(decoded(delivery(body=MANY), JSON, BodyLimits(most_elements=1_000_000))) == 400_001  # type: ignore[arg-type]
    assert decoded(delivery(body=MANY), Raw(), BodyLimits(most_bytes=1)) == MANY

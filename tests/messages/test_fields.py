"""Each AMQP type to its Python value and back, and what cannot be sent is said in a sentence."""

import math
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal, localcontext
from enum import IntEnum

import pytest

from django_rmq_retry.messages import Headers


def entry(key: bytes, value: bytes) -> bytes:
    return bytes((len(key),)) + key + value


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"t\1", True),
        (b"t\0", False),
        (b"b\xff", -1),
        (b"B\xff", 255),
        (b"s\xff\xfe", -2),
        (b"U\xff\xfe", -2),
        (b"u\xff\xfe", 65534),
        (b"I\xff\xff\xff\xfe", -2),
        (b"i\xff\xff\xff\xfe", 4294967294),
        (b"l\x80\0\0\0\0\0\0\0", -(2**63)),
        (b"L\xff\xff\xff\xff\xff\xff\xff\xfe", -2),
        (b"f\x3f\xc0\0\0", 1.5),
        (b"d\x40\x0e\0\0\0\0\0\0", 3.75),
        (b"D\x02\0\0\0\x6e", Decimal("1.10")),
        (b"D\x00\xff\xff\xff\xff", Decimal(-1)),
        (b"S\0\0\0\2\xc3\xa9", "é"),
        (b"S\0\0\0\2\xc3\x28", b"\xc3("),
        (b"x\0\0\0\2ab", b"ab"),
        (b"A\0\0\0\4t\1b\2", [True, 2]),
        (b"F\0\0\0\3\1aV", {"a": None}),
        (b"T\0\0\0\0\0\0\0\1", datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)),
        (b"V", None),
    ],
)
def test_every_type_of_rabbitmq_is_decoded(value: bytes, expected: object) -> None:
    decoded = Headers(entry(b"h", value))["h"]

    assert decoded == expected
    assert type(decoded) is type(expected)


class Priority(IntEnum):
    HIGH = 7


def test_a_member_of_an_enumeration_is_sent_as_its_number_at_once() -> None:
    """It took minutes: Python walks through a range to find a subclass of int in it."""
    assert Headers.of({"h": Priority.HIGH}).raw == entry(b"h", b"I\0\0\0\7")


def test_a_nan_double_stays_nan() -> None:
    value = Headers(entry(b"h", b"d\x7f\xf8\0\0\0\0\0\0"))["h"]

    assert isinstance(value, float)
    assert math.isnan(value)


def test_a_decimal_does_not_depend_on_the_decimal_context() -> None:
    with localcontext(prec=2):
        value = Headers(entry(b"h", b"D\x02\x7f\xff\xff\xff"))["h"]

    assert str(value) == "21474836.47"


def test_integers_take_the_smallest_size_that_fits() -> None:
    assert Headers.of({"i": 2**31 - 1}).raw == b"\1iI\x7f\xff\xff\xff"
    assert Headers.of({"i": -(2**31)}).raw == b"\1iI\x80\0\0\0"
    assert Headers.of({"i": 2**31}).raw == b"\1il\0\0\0\0\x80\0\0\0"


def test_a_timestamp_is_encoded_in_seconds_of_utc() -> None:
    noon = datetime(2026, 1, 1, 12, 0, 0, 999_999, tzinfo=timezone(timedelta(hours=5)))

    assert Headers.of({"at": noon})["at"] == datetime(2026, 1, 1, 7, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (math.nan, "A header cannot carry nan: RabbitMQ closes the connection of a client that sends it."),
        (-math.inf, "A header cannot carry -inf: RabbitMQ closes the connection of a client that sends it."),
        (2**63, "A header takes integers of 64 bits; send a larger one as text."),
        (Decimal("NaN"), "A header cannot carry the decimal NaN."),
        (Decimal("1e99"), "The decimal 1E+99 does not fit into a header; send it as text."),
        (Decimal(2**31), "The decimal 2147483648 has too many digits for a header; send it as text."),
        (
            datetime(2026, 1, 1, tzinfo=UTC).replace(tzinfo=None),
            "A header takes no naive datetime; give it a time zone.",
        ),
        (datetime(1969, 1, 1, tzinfo=UTC), "A header cannot carry 1969-01-01T00:00:00+00:00: AMQP counts from 1970."),
        (object(), "A header cannot carry object; send it as text or in the body."),
        ({"k" * 256: 1}, f"Header name '{'k' * 60}…' takes 256 bytes; AMQP takes 255."),
    ],
)
def test_an_unsupported_header_value_is_refused_with_an_explanation(value: object, sentence: str) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        Headers.of({"h": value})

    assert caught.value.args == (sentence,)
    assert "in header 'h'" in caught.value.__notes__


def test_a_value_nested_too_deep_is_refused_before_it_is_sent() -> None:
    value: object = 1
    for _ in range(5000):
        value = [value]

    with pytest.raises(ValueError, match="A header may be nested 64 levels deep"):
        Headers.of({"h": value})

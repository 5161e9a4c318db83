"""Headers that no client of good manners sends: each name that means something, with each kind of value."""

import struct
from collections.abc import Iterator, Mapping

from django_rmq_retry.messages.header_names import BROKERS_OWN, TICKET
from django_rmq_retry.messages.properties import encode_entry
from django_rmq_retry.messages.stamp import ADDED
from tests.tooling.tables import entry, nested

NAMES = sorted({*BROKERS_OWN, *ADDED, TICKET, "rmq-retry-answer", "rmq-retry-unrecorded"})
DEATH = {"count": 1, "queue": "payments", "reason": "rejected", "exchange": "", "routing-keys": ["payments"]}


def long_string(raw: bytes) -> bytes:
    return b"S" + struct.pack(">I", len(raw)) + raw


def value(told: object) -> bytes:
    return encode_entry("", told)[1:]


VALUES: Mapping[str, bytes] = {
    "nothing": b"V",
    "true": b"t\1",
    "zero": value(0),
    "below zero": value(-1),
    "31 bits": value(2**31 - 1),
    "63 bits": value(2**63 - 1),
    "the least": value(-(2**63)),
    "a float": value(0.5),
    "no number": b"d" + struct.pack(">d", float("nan")),
    "a decimal": b"D\xff\x7f\xff\xff\xff",
    "a time": b"T" + struct.pack(">Q", 1_700_000_000),
    "a time after the year 9999": b"T" + struct.pack(">Q", 2**63),
    "a text": value("payments"),
    "an empty text": value(""),
    "NUL": value("\0"),
    "lines": value("a\nb\r\n\x1b[31m"),
    "not UTF-8": long_string(b"\xff\xfe"),
    "not UTF-8, and long": long_string(b"\xff" * 2000),
    "bytes": value(b"payments"),
    "bytes that are not UTF-8": value(b"\xff" * 300),
    "a name too long": value("n" * 256),
    "100 kB": value("é" * 50_000),
    "100 kB of bytes": value(b"\xff" * 100_000),
    "numbers": value([1, 2]),
    "texts": value(["payments", "ledger"]),
    "a death": value([DEATH]),
    "a death of 63 bits": value([{**DEATH, "count": 2**63 - 1}] * 3),
    "a death by bytes": value([{**DEATH, "queue": b"\xff"}]),
    "an empty death": value([{}]),
    "a table": value({"queue": "payments"}),
    "nested 64 deep": entry(b"", b"F", struct.pack(">I", len(nested(63))) + nested(63))[1:],
    "nested 5000 deep": entry(b"", b"F", struct.pack(">I", len(nested(5000))) + nested(5000))[1:],
}


def headers(name: str) -> Iterator[tuple[str, bytes]]:
    """Header tables with one name and each value, after a stamp that lets it count."""
    stamp = encode_entry("rmq-retry-queue", "payments")
    for told, raw in VALUES.items():
        one = bytes((len(name),)) + name.encode() + raw
        if name != "rmq-retry-queue":
            one = stamp + one
        yield f"{name}: {told}", one

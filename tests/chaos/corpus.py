"""Hostile messages: each body, header or property has crashed a consumer in the field. All must be parked."""

import random
import struct
from dataclasses import replace

from django_rmq_retry import Message
from django_rmq_retry.messages import Headers, Properties
from tests.tooling.tables import entry, nested

DEEP = 5000


def text(value: bytes) -> bytes:
    return struct.pack(">I", len(value)) + value


BODIES = {
    "empty": b"",
    "no JSON": b"\x00\x01<script>alert(1)</script>",
    "UTF-16": '{"id": 1}'.encode("utf-16"),
    "with a BOM": b'\xef\xbb\xbf{"id": 1}',
    "not UTF-8": b'{"id": "\xff\xfe"}',
    "not a number": b'{"amount": NaN}',
    "infinite": b'{"amount": 1e999}',
    "5000 digits": b'{"amount": ' + b"9" * DEEP + b"}",
    "nested": b"[" * 100_000,
    "a key twice": b'{"amount": 1, "amount": 1000000}',
    "NUL": b'{"name": "\\u0000"}',
    "a lone surrogate": b'{"name": "\\ud800"}',
    "a list": b"[1, 2, 3]",
    "null": b"null",
    "a megabyte": b'{"text": "' + b"x" * 1_000_000 + b'"}',
}
HEADERS = {
    "a timestamp in milliseconds": entry(b"at", b"T", struct.pack(">Q", 1_790_000_000_000)),
    "a timestamp of 2 to the 63rd": entry(b"at", b"T", struct.pack(">Q", 2**63)),
    "tables nested 5000 deep": nested(DEEP),
    "a name that is not UTF-8": entry(b"\xff\xfe", b"S", text(b"x")),
    "forged deaths": entry(b"x-death", b"A", text(b"I" + struct.pack(">i", 1) + b"I" + struct.pack(">i", 2))),
    "a forged count": entry(b"rmq-retry-attempts", b"I", struct.pack(">i", 999)),
    "a forged delivery count": entry(b"x-delivery-count", b"l", struct.pack(">q", 10**6)),
    "7000 keys": b"".join(entry(b"k%d" % number, b"t", b"\x01") for number in range(7000)),
}
PLAIN = Properties(content_type="application/json", delivery_mode=2)
PROPERTIES = {
    "a content type of pickle": replace(PLAIN, content_type="application/python-pickle"),
    "an encoding that is none": replace(PLAIN, content_encoding="gzip"),
    "a reply_to that names another queue": replace(PLAIN, reply_to="chaos.flood"),
    "a type with control characters": replace(PLAIN, type="\x1b[31m\r\n\x00<script>"),
    "the highest priority": replace(PLAIN, priority=255),
}


def message(name: str, queue: str, chance: random.Random) -> Message:
    """Return a message of the corpus, with the given name."""
    body, properties = b'{"id": "hostile"}', PLAIN
    kind = chance.choice(("body", "headers", "properties"))
    if kind == "body":
        body = BODIES[chance.choice(sorted(BODIES))]
    elif kind == "headers":
        properties = replace(PLAIN, headers=Headers(HEADERS[chance.choice(sorted(HEADERS))]))
    else:
        properties = PROPERTIES[chance.choice(sorted(PROPERTIES))]
    return Message(body=body, routing_key=queue, properties=replace(properties, message_id=name))

"""Which message is this? Rows, tickets and the inbox recognize a message by one of these texts.

==============  =========================================================  =====================================
``message:…``   a message with an id, in one work queue                    parked messages, attempts, blocked keys
``nameless:…``  messages without an id, with one body, in one work queue   attempts
``body:…``      messages without an id, with one body                      blocked keys
``copy:…``      one copy in a parked queue, of a message without an id     parked messages
``bytes:…``     what the retries of a message without an id keep           ``once``, blocked keys
==============  =========================================================  =====================================

An id alone identifies no message, because a sender may use one id for two of them.
"""

import hashlib
from dataclasses import replace

from django_rmq_retry.messages.header_names import COUNTS
from django_rmq_retry.messages.message import Delivery
from django_rmq_retry.messages.properties import Properties, encode_properties, reply_of
from django_rmq_retry.messages.stamp import NOT_CONTENT

BODY = "body:"
NAMELESS = ("nameless:", BODY)
"""The prefixes of attempts without an id; the second is that of rows written by earlier versions."""
_BYTES = "bytes:"


def digest(*parts: bytes) -> str:
    """Return one digest of several parts; parts of other lengths never give the same one."""
    return hashlib.sha256(b"".join([hashlib.sha256(part).digest() for part in parts])).hexdigest()


def text_digest(*texts: str) -> str:
    """Return one digest of several texts, whatever their characters and length."""
    return digest(*[text.encode("utf-8", "surrogatepass") for text in texts])


def message_identity(queue: str, message_id: str | None, body: bytes) -> str:
    """Return the identity of a message with an id in one work queue."""
    return f"message:{digest(_encoded(queue), _encoded(message_id or ''), body)}"


def attempt_identity(queue: str, message_id: str | None, body: bytes) -> str:
    """Return the identity of the message of an attempt; without an id, one that all equal bodies of a queue share."""
    return message_identity(queue, message_id, body) if message_id else f"nameless:{digest(_encoded(queue), body)}"


def attempt_identities(queue: str, body: bytes) -> list[str]:
    """Return the identities that attempts of a message without an id have, also those of earlier versions."""
    return [prefix + digest(_encoded(queue), body) for prefix in NAMELESS]


def body_identity(sha256: str) -> str:
    """Return the identity of a message without an id by the SHA-256 of its body, which its record holds."""
    return BODY + sha256


def copy_digest(delivery: Delivery, arrived: Properties) -> str:
    """Return the digest of one copy, without the headers that the broker changes when it redelivers it."""
    raw = delivery.raw
    if any(name in arrived.headers for name in COUNTS):
        raw = encode_properties(replace(arrived, headers=arrived.headers.replacing(drop=COUNTS)))
    return digest(raw, delivery.body)


def message_name(delivery: Delivery) -> str:
    """Return the same for each delivery and retry: the id, or a digest of the content, which others may share."""
    if delivery.id:
        return delivery.id
    arrived = delivery.properties
    content = (
        *(delivery.exchange, delivery.routing_key, arrived.content_type, arrived.content_encoding),
        *(arrived.correlation_id, reply_of(arrived), arrived.timestamp, arrived.type, arrived.app_id),
    )
    return _BYTES + digest(repr(content).encode(), arrived.headers.replacing(drop=NOT_CONTENT).raw, delivery.body)


def named_by_bytes(name: str) -> bool:
    """True if a name is a digest of the content, so that another message may have the same name."""
    return name.startswith(_BYTES)


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")

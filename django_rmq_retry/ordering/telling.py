"""What is remembered of a message that others wait for, and of one that waits: names as digests, and as people read."""

import hashlib
from dataclasses import dataclass
from uuid import uuid4

from django_rmq_retry.core.message import Delivery, Message
from django_rmq_retry.core.naming import name_of, nameless
from django_rmq_retry.core.parking import identity
from django_rmq_retry.core.settling import set_apart
from django_rmq_retry.core.verdict import short
from django_rmq_retry.models import ParkedMessage

NAME = 255
BODY = "body:"
"""Begins what stands for the record of a message without an id: that is found by its bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """One message by its names."""

    shown: str
    name: str
    identity: str

    @classmethod
    def of(cls, delivery: Delivery) -> "Said":
        name = name_of(delivery)
        known = delivery.id
        return cls(
            shown=short(name, NAME),
            # With its body: a sender may give one id to several messages, and the second must not pass the first.
            name=digest(name, _of_body(delivery.body)),
            identity=identity(delivery.queue, known, delivery.body) if known else BODY + _of_body(delivery.body),
        )


def digest(*texts: str) -> str:
    """Of texts, whatever they hold and however long they are."""
    parts = (text.encode("utf-8", "surrogatepass") for text in texts)
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()


def once(delivery: Delivery) -> str:
    """The same for two deliveries of one message; two without an id may be two payments, unless the broker says so."""
    name = name_of(delivery)
    if nameless(name) and not delivery.redelivered:
        return digest(name, uuid4().hex)
    return digest(name, _of_body(delivery.body))


def copy_of(delivery: Delivery, queue: str) -> Message:
    """What goes back to its queue, and to no other, when its turn has come."""
    copy = set_apart(delivery, queue).copy
    assert copy is not None  # noqa: S101 - it always has one
    return copy


def identities(record: ParkedMessage) -> tuple[str, ...]:
    """Under which a record may stand where its message goes first."""
    return (record.identity,) if record.message_id else (record.identity, BODY + record.sha256)


def _of_body(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()

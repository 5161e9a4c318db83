"""What a message is called, so that it is known again: by its id, or by its bytes where it has none."""

import hashlib

from django_rmq_retry.core.deaths import BROKERS_OWN
from django_rmq_retry.core.message import Delivery
from django_rmq_retry.core.settling import KEPT
from django_rmq_retry.core.stamps import OURS, PREFIX

NAMELESS = "bytes:"
_ADDED = OURS | BROKERS_OWN | KEPT | {PREFIX + "ticket"}


def name_of(delivery: Delivery) -> str:
    """The same for every delivery and every retry of one message; two without an id may share one."""
    return delivery.id or NAMELESS + _digest(delivery)


def nameless(name: str) -> bool:
    """Whether a name was made of bytes, so that it may be another message's as well."""
    return name.startswith(NAMELESS)


def _digest(delivery: Delivery) -> str:
    """Of all that a retry's copy keeps: its body, where it came in, what its sender said of it."""
    known = delivery.properties
    said = (
        *(delivery.exchange, delivery.routing_key, known.content_type, known.content_encoding, known.correlation_id),
        *(known.reply_to, known.timestamp, known.type, known.app_id),
    )
    parts = (repr(said).encode(), known.headers.replacing(drop=_ADDED).raw, delivery.body)
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()

"""Parked messages as they lie in a parked queue: read back, identified, and copied for a requeue.

Everything here may be forged or broken by whoever wrote it: what cannot be read is left out, nothing is refused.

It must not know of records; what it is made of is handed in as bytes.
"""

import hashlib
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache

from django_rmq_retry.errors import UndecodableHeaders
from django_rmq_retry.messages.deaths import BROKERS_OWN, Death, Reason, deaths, reason_of, told_of_broker
from django_rmq_retry.messages.headers import EMPTY, Headers
from django_rmq_retry.messages.message import Delivery, Message
from django_rmq_retry.messages.properties import (
    BARE,
    Properties,
    decode_properties,
    encode_properties,
    lasting,
    reply_of,
    with_headers,
)
from django_rmq_retry.messages.stamp import BROKERS, OURS, PREFIX, Stamp
from django_rmq_retry.messages.tracebacks import short

KEPT_RAW = PREFIX + "properties"
"""Properties that cannot be read, or leave no room for ours, travel to the parked queue as bytes under this name."""
KEPT_PACKED = PREFIX + "properties-zlib"
KEPT_LEADING = PREFIX + "properties-leading"
"""So many bytes at the beginning of the body are the properties."""
KEPT = frozenset({KEPT_RAW, KEPT_PACKED, KEPT_LEADING})
ROOM = 120_000
"""Of the 131 072 bytes of a frame; more than this leaves no room for headers of ours."""


def kept_properties(raw: bytes) -> tuple[dict[str, object], bytes]:
    """Properties as one header; or, where they fit into none, as what leads the body, which no frame limits."""
    if len(raw) <= ROOM:
        return {KEPT_RAW: raw}, b""
    packed = zlib.compress(raw)
    if len(packed) <= ROOM:
        return {KEPT_PACKED: packed}, b""
    return {KEPT_LEADING: len(raw)}, raw


TICKET = PREFIX + "ticket"
"""What a requeued copy carries to its record's outcome; kept by every retry, and by the parked copy."""
UNPACKED_LIMIT = 1024 * 1024
"""Properties travel in one frame, of 128 kB by default: what unpacks to more than this is a bomb, and kept packed."""
UNRECORDED = PREFIX + "unrecorded"
UNRECORDED_QUEUE = ".unrecorded"
"""What the queue is called, after a parked queue, that keeps what no database takes."""
"""Why a parked message could not be recorded."""
COUNTS = frozenset({"x-delivery-count", "x-acquired-count"})
"""What the broker changes in a message that it delivers again."""
FOREIGN = "foreign"
"""The reason of what somebody else put into a parked queue without saying why."""


class By(StrEnum):
    """Who parked a message."""

    CONSUMER = "consumer"
    BROKER = "broker"
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parked:
    """One message out of a parked queue, as it was before it was parked."""

    body: bytes
    raw: bytes
    """Its properties, in the broker's bytes, without what was added to park it."""
    properties: Properties
    """Empty where they cannot be decoded."""
    parked_in: str
    queue: str
    """The work queue in which it failed; empty where nobody knows."""
    exchange: str
    routing_key: str
    by: By
    reason: str
    story: Stamp
    detail: str = ""
    error: str = ""
    message: str = ""
    handler: str = ""
    fingerprint: str = ""
    culprit: str = ""
    ticket: str = ""
    parked_at: int = 0
    """Milliseconds of the epoch by the clock of whoever parked it; 0 where it does not say."""
    copy: str
    """A digest of this very copy: one that is delivered again has the same."""

    @property
    def identity(self) -> str:
        """The same for two arrivals of one message, however often it fails or is delivered.

        A message without an id is itself only: two with the same bytes may be two payments.
        """
        named = self.properties.message_id
        if not named:
            return f"copy:{self.copy}"
        return identity(self.queue or self.parked_in, named, self.body)


def identity(queue: str, message_id: str, body: bytes) -> str:
    """Of a message with an id in one work queue; ids that a sender uses again for another body tell it apart."""
    named = hashlib.sha256(message_id.encode("utf-8", "surrogateescape")).digest()
    return f"message:{hashlib.sha256(_of_queue(queue) + named + hashlib.sha256(body).digest()).hexdigest()}"


@lru_cache(maxsize=256)
def _of_queue(queue: str) -> bytes:
    return hashlib.sha256(queue.encode("utf-8", "surrogateescape")).digest()


def read_parked(delivery: Delivery, homes: Mapping[str, str]) -> Parked:
    """A delivery from a parked queue; ``homes`` names the work queue of each queue that belongs to one."""
    try:
        return _read(delivery, delivery.properties, homes)
    except UndecodableHeaders as error:
        known = _decoded(delivery.raw)
        return Parked(
            body=delivery.body,
            raw=delivery.raw,
            properties=known,
            parked_in=delivery.queue,
            queue=homes.get(delivery.queue, ""),
            exchange=delivery.exchange,
            routing_key=delivery.routing_key,
            by=By.OTHER,
            reason=Reason.UNDECODABLE_HEADERS,
            detail=str(error),
            story=Stamp(),
            copy=_bytes_digest(_uncounted(delivery.raw, known), delivery.body),
        )


def set_aside(delivery: Delivery, why: str, *, queue: str) -> Message:
    """The copy of a parked message that cannot be recorded, for a queue where it bothers nobody."""
    put: dict[str, object] = {UNRECORDED: short(why)}
    try:
        known = delivery.properties
        # Whoever puts it back finds its way by x-death; CC would send copies elsewhere.
        headers = known.headers.replacing(drop=BROKERS_OWN - {"x-death"}, put=put)
        if len(headers.raw) <= ROOM:
            return Message(body=delivery.body, routing_key=queue, properties=lasting(known, headers))
    except UndecodableHeaders:
        pass
    kept, leading = kept_properties(delivery.raw)
    properties = Properties(delivery_mode=2, headers=Headers.of({**put, **kept}))
    return Message(body=leading + delivery.body, routing_key=queue, properties=properties)


def _read(delivery: Delivery, arrived: Properties, homes: Mapping[str, str]) -> Parked:
    headers = arrived.headers
    told = {name: _told(headers, name) for name in _TEXTS}
    story = Stamp.read(headers)
    # Our copies bear no x-death: where there is one the broker came last, and what a sender wrote of us is made up.
    died = deaths(headers)
    by = By.BROKER if died else By.CONSUMER if told["reason"] else By.OTHER
    raw, properties, body = _original(delivery, arrived, kept=by is By.CONSUMER)
    queue, exchange, routing_key = _origin(delivery, story, died, homes)
    return Parked(
        body=body,
        raw=raw,
        properties=properties,
        parked_in=delivery.queue,
        queue=queue,
        exchange=exchange,
        routing_key=routing_key,
        by=by,
        reason=reason_of(headers) or told["reason"] or FOREIGN,
        detail=told["detail"],
        error=told["error"],
        message=told["message"],
        handler=told["handler"],
        fingerprint=told["fingerprint"] if by is By.CONSUMER else "",
        culprit=told["culprit"] if by is By.CONSUMER else "",
        ticket=told["ticket"],
        story=story,
        parked_at=_parked_at(headers, died),
        copy=_bytes_digest(_uncounted(delivery.raw, arrived), delivery.body),
    )


_TEXTS = ("reason", "detail", "error", "message", "handler", "fingerprint", "culprit", "ticket")
ADDED = OURS | {PREFIX + name for name in _TEXTS} | KEPT | {UNRECORDED, BARE}
"""What a record tells in columns of its own, so that neither it nor a requeued copy carries it on."""
DROPPED = ADDED - KEPT
"""The same where properties are kept by nobody of ours, or cannot be unpacked."""


def _original(delivery: Delivery, arrived: Properties, *, kept: bool) -> tuple[bytes, Properties, bytes]:
    """The properties, in bytes and read, and the body as they were before they were parked."""
    headers = arrived.headers
    whole, packed, leading = (headers.get(name) if kept else None for name in (KEPT_RAW, KEPT_PACKED, KEPT_LEADING))
    if isinstance(whole, bytes):
        return whole, _decoded(whole), delivery.body
    if isinstance(packed, bytes):
        unpacked = _unpacked(packed)
        if unpacked is not None:
            return unpacked, _decoded(unpacked), delivery.body
    if type(leading) is int and 0 < leading <= len(delivery.body):
        raw = delivery.body[:leading]
        return raw, _decoded(raw), delivery.body[leading:]
    theirs = told_of_broker(headers.get(BROKERS)) if kept else b""
    left = headers.replacing(drop=DROPPED | BROKERS_OWN if theirs else DROPPED)
    if theirs:
        left = Headers(left.raw + theirs)
    properties = replace(arrived, headers=left if left.raw else EMPTY)
    if arrived.reply_to != (reply_to := reply_of(arrived)):
        properties = replace(properties, reply_to=reply_to)
        return encode_properties(properties), properties, delivery.body
    return with_headers(delivery.raw, arrived, left.raw), properties, delivery.body


def _unpacked(packed: bytes) -> bytes | None:
    stream = zlib.decompressobj()
    try:
        raw = stream.decompress(packed, UNPACKED_LIMIT)
    except zlib.error:
        return None
    return raw if stream.eof else None


def _decoded(raw: bytes) -> Properties:
    try:
        return decode_properties(raw)
    except UndecodableHeaders:
        return Properties()


def _origin(
    delivery: Delivery, story: Stamp, died: tuple[Death, ...], homes: Mapping[str, str]
) -> tuple[str, str, str]:
    """The work queue, and the exchange and key by which the message first came."""
    told = homes.get(story.queue, story.queue)
    if died:
        # The newest death stands first; the way in is told by the oldest, where no stamp of this queue tells it.
        newest, oldest = died[0], died[-1]
        queue = homes.get(newest.queue, newest.queue)
        if told and told == queue:
            return queue, story.exchange, story.routing_key
        return queue, oldest.exchange, oldest.keys[0] if oldest.keys else ""
    if told:
        return told, story.exchange, story.routing_key
    return homes.get(delivery.queue, ""), delivery.exchange, delivery.routing_key


def _parked_at(headers: Headers, died: tuple[Death, ...]) -> int:
    if died:
        # Of several deaths in one queue the broker tells the time of the first.
        newest = died[0]
        return newest.at + 999 if newest.at and newest.count == 1 else 0
    told = headers.get(PREFIX + "parked-at")
    return told if type(told) is int and told > 0 else 0


def _told(headers: Headers, name: str) -> str:
    value = headers.get(PREFIX + name)
    return value if isinstance(value, str) else ""


def _bytes_digest(raw: bytes, body: bytes) -> str:
    return hashlib.sha256(hashlib.sha256(raw).digest() + hashlib.sha256(body).digest()).hexdigest()


def _uncounted(raw: bytes, known: Properties) -> bytes:
    """Without what the broker changes when it delivers once more."""
    if not any(name in known.headers for name in COUNTS):
        return raw
    return encode_properties(replace(known, headers=known.headers.replacing(drop=COUNTS)))


STRIPPED = BROKERS_OWN | ADDED | {TICKET}
"""What tells of earlier failures stays in the record: the attempts of the copy are counted from 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Original:
    """A parked message as its record has it: the first version, or the one that was edited last."""

    body: bytes
    raw: bytes
    """Its properties in the broker's bytes."""
    exchange: str
    routing_key: str
    message_id: str = ""
    """Kept where the properties cannot be read."""

    @property
    def properties(self) -> Properties:
        """Read; where they cannot be, nothing but the id."""
        try:
            return decode_properties(self.raw)
        except UndecodableHeaders:
            return Properties(message_id=self.message_id or None, headers=Headers())


def requeued(original: Original, *, queue: str, ticket: str) -> Message:
    """The copy for one queue, and for no other that may be bound to the exchange it first came by.

    The way in stands in its stamp, so that a handler that goes by the routing key is found again.
    """
    stamp = Stamp(exchange=original.exchange, routing_key=original.routing_key, queue=queue)
    known = original.properties
    headers = known.headers.replacing(drop=STRIPPED, put={**stamp.headers(), TICKET: ticket})
    properties = lasting(known, headers)
    return Message(body=original.body, properties=properties, exchange="", routing_key=queue)


NAMELESS = "bytes:"
_ADDED = OURS | BROKERS_OWN | KEPT | {PREFIX + "ticket", BARE}


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
        *(reply_of(known), known.timestamp, known.type, known.app_id),
    )
    parts = (repr(said).encode(), known.headers.replacing(drop=_ADDED).raw, delivery.body)
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()

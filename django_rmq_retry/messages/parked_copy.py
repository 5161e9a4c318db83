"""Parked messages: read, identified and copied. Headers may be forged; unreadable ones are left out, not refused."""

import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from django_rmq_retry.errors import UndecodableHeaders
from django_rmq_retry.messages.deaths import Death, deaths, reason_of, trusted_brokers_part
from django_rmq_retry.messages.header_names import (
    BROKERS,
    BROKERS_OWN,
    KEPT,
    KEPT_LEADING,
    KEPT_PACKED,
    KEPT_RAW,
    PARKED_TEXTS,
    PREFIX,
    TICKET,
    UNRECORDED,
)
from django_rmq_retry.messages.identity import copy_digest, message_identity
from django_rmq_retry.messages.message import Delivery, Message
from django_rmq_retry.messages.properties import (
    EMPTY,
    Headers,
    Properties,
    copied_properties,
    decode_properties,
    encode_properties,
    reply_of,
    with_headers,
)
from django_rmq_retry.messages.reasons import Reason
from django_rmq_retry.messages.stamp import ADDED, Stamp
from django_rmq_retry.messages.texts import short

ROOM_BYTES = 120_000
"""In bytes. A frame takes 131 072; properties larger than this would leave no room for our own headers."""

MOST_UNPACKED_BYTES = 1024 * 1024
"""In bytes. Properties fit one frame (128 kB by default); what unpacks to more is a bomb, and stays packed."""
UNRECORDED_QUEUE = ".unrecorded"
"""The suffix of the queue, named after a parked queue, for messages that the database cannot store."""


def kept_properties(raw: bytes) -> tuple[dict[str, object], bytes]:
    """Return headers with the properties; if they are too large even compressed, bytes for the front of the body."""
    if len(raw) <= ROOM_BYTES:
        return {KEPT_RAW: raw}, b""
    packed = zlib.compress(raw)
    if len(packed) <= ROOM_BYTES:
        return {KEPT_PACKED: packed}, b""
    return {KEPT_LEADING: len(raw)}, raw


class By(StrEnum):
    """The party that parked a message."""

    CONSUMER = "consumer"
    BROKER = "broker"
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedCopy:
    """One message from a parked queue, restored to its state before it was parked."""

    body: bytes
    raw: bytes
    """Its encoded properties, without the headers that were added to park it."""
    properties: Properties
    """The decoded properties; empty if they cannot be decoded."""
    parked_in: str
    queue: str
    """The work queue in which it failed; empty if unknown."""
    exchange: str
    routing_key: str
    by: By
    reason: str
    stamp: Stamp
    detail: str = ""
    error: str = ""
    error_text: str = ""
    handler: str = ""
    fingerprint: str = ""
    culprit: str = ""
    ticket: str = ""
    parked_at: int = 0
    """The parking time in epoch milliseconds, by the clock of the consumer or broker that parked it; 0 if unknown."""
    copy_digest: str
    """The digest of this copy. It stays the same when the copy is redelivered."""

    @property
    def identity(self) -> str:
        """The identity, the same for each failure; without an id that of this copy: equal bytes may be two payments."""
        named = self.properties.message_id
        if not named:
            return f"copy:{self.copy_digest}"
        return message_identity(self.queue or self.parked_in, named, self.body)


def read_parked(delivery: Delivery, homes: Mapping[str, str], waiting: Collection[str] = ()) -> ParkedCopy:
    """Read a delivery from a parked queue.

    ``homes`` maps each queue of a work queue to the work queue's name; ``waiting`` has the queues of retries.
    """
    try:
        return _read(delivery, delivery.properties, homes, waiting)
    except UndecodableHeaders as error:
        decodable = _decoded(delivery.raw)
        return ParkedCopy(
            body=delivery.body,
            raw=delivery.raw,
            properties=decodable,
            parked_in=delivery.queue,
            queue=homes.get(delivery.queue, ""),
            exchange=delivery.exchange,
            routing_key=delivery.routing_key,
            by=By.OTHER,
            reason=Reason.UNDECODABLE_HEADERS,
            detail=str(error),
            stamp=Stamp(),
            copy_digest=copy_digest(delivery, decodable),
        )


def set_aside(delivery: Delivery, why: str, *, queue: str) -> Message:
    """Return the copy of a message that cannot be recorded, for a queue where it blocks no other parked message."""
    put: dict[str, object] = {UNRECORDED: short(why)}
    try:
        arrived = delivery.properties
        # Keep x-death: it gives the origin of the message if an operator moves it back. CC would send copies elsewhere.
        headers = arrived.headers.replacing(drop=BROKERS_OWN - {"x-death"}, put=put)
        if len(headers.raw) <= ROOM_BYTES:
            return Message(body=delivery.body, routing_key=queue, properties=copied_properties(arrived, headers))
    except UndecodableHeaders:
        pass
    kept, leading = kept_properties(delivery.raw)
    properties = Properties(delivery_mode=2, headers=Headers.of({**put, **kept}))
    return Message(body=leading + delivery.body, routing_key=queue, properties=properties)


def _read(delivery: Delivery, arrived: Properties, homes: Mapping[str, str], waiting: Collection[str]) -> ParkedCopy:
    headers = arrived.headers
    texts = {name: _text_header(headers, name) for name in (*PARKED_TEXTS, "ticket")}
    texts["error_text"] = texts.pop("message")
    stamp = Stamp.read(headers)
    # Our copies carry no x-death. If there is one, the broker dead-lettered the message after any copy of ours, and
    # headers in our name may come from the sender.
    died = deaths(headers)
    if copied := _came_back(died, homes.get(delivery.queue), homes, waiting):
        by, texts["reason"] = By.OTHER, texts["reason"] or Reason.FOREIGN.value
    else:
        by = By.BROKER if died else By.CONSUMER if texts["reason"] else By.OTHER
        texts["reason"] = reason_of(headers) or texts["reason"] or Reason.FOREIGN.value
    if by is not By.CONSUMER:
        texts["fingerprint"] = texts["culprit"] = ""
    raw, properties, body = _original(delivery, arrived, kept=by is By.CONSUMER)
    queue, exchange, routing_key = _origin(delivery, stamp, died, homes)
    if copied:
        queue = homes.get(delivery.queue) or next((one.queue for one in died if one.queue not in waiting), "")
    return ParkedCopy(
        body=body,
        raw=raw,
        properties=properties,
        parked_in=delivery.queue,
        queue=queue,
        exchange=exchange,
        routing_key=routing_key,
        by=by,
        stamp=stamp,
        parked_at=_parked_at(headers, () if copied else died),
        copy_digest=copy_digest(delivery, arrived),
        **texts,
    )


def _came_back(died: tuple[Death, ...], home: str | None, homes: Mapping[str, str], waiting: Collection[str]) -> bool:
    """True if its newest death returned it to a work queue: a consumer then copied it here, x-death and all.

    The waiting queue of a former loop is unknown, but the message has died in the work queue before.
    """
    if not died:
        return False
    newest, *older = died
    if newest.queue in waiting:
        return True
    return newest.queue not in homes and newest.queue != home and any(one.queue == home for one in older)


def _original(delivery: Delivery, arrived: Properties, *, kept: bool) -> tuple[bytes, Properties, bytes]:
    """Return raw and decoded properties and body before the parking; ``kept`` if the consumer parked it."""
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
    theirs = trusted_brokers_part(headers.get(BROKERS)) if kept else b""
    # KEPT headers that were not put there by the consumer, or that cannot be unpacked, stay.
    dropped = ADDED - KEPT
    left = headers.replacing(drop=dropped | BROKERS_OWN if theirs else dropped)
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
        raw = stream.decompress(packed, MOST_UNPACKED_BYTES)
    except zlib.error:
        return None
    return raw if stream.eof else None


def _decoded(raw: bytes) -> Properties:
    try:
        return decode_properties(raw)
    except UndecodableHeaders:
        return Properties()


def _origin(
    delivery: Delivery, stamp: Stamp, died: tuple[Death, ...], homes: Mapping[str, str]
) -> tuple[str, str, str]:
    """Return the work queue, and the exchange and routing key to which the message was first published."""
    home = homes.get(stamp.queue, stamp.queue)
    if died:
        # The newest death comes first. The oldest has the original exchange and key, unless this queue's stamp has.
        newest, oldest = died[0], died[-1]
        queue = homes.get(newest.queue, newest.queue)
        if home and home == queue:
            return queue, stamp.exchange, stamp.routing_key
        return queue, oldest.exchange, oldest.keys[0] if oldest.keys else ""
    if home:
        return home, stamp.exchange, stamp.routing_key
    return homes.get(delivery.queue, ""), delivery.exchange, delivery.routing_key


def _parked_at(headers: Headers, died: tuple[Death, ...]) -> int:
    if died:
        # x-death has the time of the first death only, so the time is unknown after several deaths in one queue.
        # The broker cuts to whole seconds; 999 ms give the end of that second.
        newest = died[0]
        return newest.at + 999 if newest.at and newest.count == 1 else 0
    value = headers.get(PREFIX + "parked-at")
    return value if type(value) is int and value > 0 else 0


def _text_header(headers: Headers, name: str) -> str:
    value = headers.get(PREFIX + name)
    return value if isinstance(value, str) else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Original:
    """A parked message as stored in its record: the original version, or the last edited one."""

    body: bytes
    raw: bytes
    """Its encoded properties."""
    exchange: str
    routing_key: str
    message_id: str = ""
    """The message id, used if the properties cannot be decoded."""
    unacked: bool = False
    """True if a consumer had it and did not acknowledge it."""

    @property
    def properties(self) -> Properties:
        """The decoded properties; if they cannot be decoded, only the message id."""
        try:
            return decode_properties(self.raw)
        except UndecodableHeaders:
            return Properties(message_id=self.message_id or None, headers=Headers())


def requeued(original: Original, *, queue: str, ticket: str, traceparent: str = "") -> Message:
    """Return the copy for one queue by name, with the original exchange and key in its stamp; attempts start at 1."""
    stamp = Stamp(
        exchange=original.exchange,
        routing_key=original.routing_key,
        queue=queue,
        traceparent=traceparent,
        unacked=int(original.unacked),
    )
    stored = original.properties
    headers = stored.headers.replacing(drop=BROKERS_OWN | ADDED, put={**stamp.headers(), TICKET: ticket})
    properties = copied_properties(stored, headers)
    return Message(body=original.body, properties=properties, exchange="", routing_key=queue)

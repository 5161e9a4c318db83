"""Messages inside the broker, the events that it sends to clients, and direct reply-to."""

import struct
from collections.abc import Collection
from dataclasses import dataclass

from django_rmq_retry.embedded.engine.refusals import RequestRefused
from django_rmq_retry.embedded.engine.specs import expiration_milliseconds
from django_rmq_retry.errors import UndecodableHeaders
from django_rmq_retry.messages.properties import Headers, Properties, decode_properties

NO_PROPERTIES = b"\0\0"
PERSISTENT = 2
# The flags of the properties, in the order of their values.
_TYPE, _ENCODING, _HEADERS, _MODE, _PRIORITY, _CORRELATION, _REPLY_TO, _EXPIRATION = (
    1 << place for place in range(15, 7, -1)
)
_MESSAGE_ID, _TIMESTAMP, _KIND, _USER_ID, _APP_ID, _CLUSTER_ID = (1 << place for place in range(7, 1, -1))
_REST = 0b1111_1100
_UNUSED = 0b11
_LENGTH = struct.Struct(">I")
_FLAGS = struct.Struct(">H")

MADE_HERE = "amq.rabbitmq.reply-to.embedded."
"""The beginning of each direct reply-to address of an embedded broker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class XDeath:
    queue: str
    reason: str
    exchange: str
    keys: tuple[str, ...]
    time: int
    count: int = 1
    expiration: str | None = None


@dataclass(slots=True, eq=False)
class StoredMessage:
    """A published message, shared by every queue that holds it and never changed."""

    exchange: str
    key: str
    raw: bytes
    body: bytes
    persistent: bool = False
    priority: int | None = None
    expiration: str | None = None
    more: tuple[str, ...] = ()
    """The routing keys in CC and BCC."""
    bcc: tuple[str, ...] = ()
    deaths: tuple[XDeath, ...] = ()
    count: int | None = None
    """The failed deliveries in the queues where it died, as far as the version carries them on."""

    def note(self, seen: "Glance") -> None:
        """Note the properties that queues act on, or refuse an invalid expiration."""
        if seen.expiration is not None:
            self.expiration = str(expiration_milliseconds(seen.expiration))
        self.persistent, self.priority = seen.mode == PERSISTENT, seen.priority

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.key, *self.more)

    @property
    def headers(self) -> Headers:
        return Headers(table_of(self.raw))

    @property
    def properties(self) -> Properties:
        return decode_properties(self.raw)


class Glance:
    """The properties that the broker acts on, read without decoding the others; invalid ones are refused."""

    __slots__ = ("expiration", "flags", "mode", "priority", "reply_to")

    def __init__(self, raw: bytes) -> None:
        try:
            self._read(raw)
        except (IndexError, struct.error):
            raise RequestRefused(502, "content properties cannot be decoded") from None

    def _read(self, raw: bytes) -> None:
        self.flags = flags = raw[0] << 8 | raw[1]
        if flags & _UNUSED:
            raise IndexError
        self.mode: int | None = None
        self.priority: int | None = None
        self.reply_to: bytes | None = None
        self.expiration: str | None = None
        _, at = _table_ends(raw, flags)
        if flags & _MODE:
            self.mode = raw[at]
            at += 1
        if flags & _PRIORITY:
            self.priority = raw[at]
            at += 1
        if flags & _CORRELATION:
            at += 1 + raw[at]
        if flags & _REPLY_TO:
            self.reply_to = raw[at + 1 : at + 1 + raw[at]]
            at += 1 + raw[at]
        if flags & _EXPIRATION:
            self.expiration = raw[at + 1 : at + 1 + raw[at]].decode("utf-8", "replace")
            at += 1 + raw[at]
        if flags & _REST:
            at = _skip_rest(raw, flags, at)
        if at != len(raw):
            raise IndexError

    @property
    def names_user(self) -> bool:
        return bool(self.flags & _USER_ID)

    @property
    def has_headers(self) -> bool:
        return bool(self.flags & _HEADERS)


def _table_ends(raw: bytes, flags: int) -> tuple[int, int]:
    """Return where the header table with its length begins and ends."""
    at = 2
    for flag in (_TYPE, _ENCODING):
        if flags & flag:
            at += 1 + raw[at]
    return at, at + 4 + _LENGTH.unpack_from(raw, at)[0] if flags & _HEADERS else at


def _skip_rest(raw: bytes, flags: int, at: int) -> int:
    if flags & _MESSAGE_ID:
        at += 1 + raw[at]
    if flags & _TIMESTAMP:
        at += 8
    for flag in (_KIND, _USER_ID, _APP_ID, _CLUSTER_ID):
        if flags & flag:
            at += 1 + raw[at]
    return at


def checked_headers(raw: bytes) -> Headers:
    """Decode the headers of a client's message, or refuse it."""
    try:
        return Headers(table_of(raw))
    except (UndecodableHeaders, IndexError):
        raise RequestRefused(502, "the header table cannot be decoded") from None


def decoded_properties(raw: bytes) -> Properties:
    """Decode all properties of a client's message, or refuse it."""
    try:
        return decode_properties(raw)
    except UndecodableHeaders as error:
        raise RequestRefused(502, f"content properties cannot be decoded: {error.problem}") from None


def table_of(raw: bytes) -> bytes:
    start, end = _table_ends(raw, raw[0] << 8 | raw[1])
    return raw[start + 4 : end]


def with_table(raw: bytes, *, drop: Collection[str], add: bytes) -> bytes:
    """Return the properties with encoded entries after the other headers; every other byte is unchanged."""
    flags = raw[0] << 8 | raw[1]
    start, end = _table_ends(raw, flags)
    table = raw[start + 4 : end]
    if any(name.encode() in table for name in drop):
        table = Headers(table).replacing(drop=drop).raw
    table += add
    if not table and not flags & _HEADERS:
        return raw
    return b"".join((_FLAGS.pack(flags | _HEADERS), raw[2:start], _LENGTH.pack(len(table)), table, raw[end:]))


def without_expiration(raw: bytes) -> bytes:
    """Return the properties without their expiration; every other byte is unchanged."""
    flags = raw[0] << 8 | raw[1]
    _, at = _table_ends(raw, flags)
    at += bool(flags & _MODE) + bool(flags & _PRIORITY)
    for flag in (_CORRELATION, _REPLY_TO):
        if flags & flag:
            at += 1 + raw[at]
    return _FLAGS.pack(flags & ~_EXPIRATION) + raw[2:at] + raw[at + 1 + raw[at] :]


@dataclass(slots=True, eq=False)
class Deliver:
    """A delivery to a consumer; `raw` are the properties with the counts of its queue."""

    channel: int
    consumer: str
    tag: int
    message: StoredMessage
    raw: bytes
    redelivered: bool


@dataclass(slots=True, eq=False)
class Got:
    """The answer to basic.get; `left` is the number of messages still ready."""

    tag: int
    message: StoredMessage
    raw: bytes
    redelivered: bool
    left: int


@dataclass(slots=True, eq=False)
class Returned:
    """A mandatory message that no queue accepted."""

    channel: int
    message: StoredMessage
    code = 312
    text = "NO_ROUTE"


@dataclass(slots=True, eq=False)
class Ack:
    """Every publish up to `number` that was not refused is stored."""

    channel: int
    number: int
    multiple: bool = False


@dataclass(slots=True, eq=False)
class Nack:
    """A queue refused a publish."""

    channel: int
    number: int


@dataclass(slots=True, eq=False)
class Cancel:
    """The queue of a consumer was deleted."""

    channel: int
    consumer: str


Event = Deliver | Returned | Ack | Nack | Cancel

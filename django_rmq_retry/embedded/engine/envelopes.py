"""Messages inside the broker, the events that it sends to clients, and direct reply-to."""

import struct
from collections.abc import Collection
from dataclasses import dataclass, replace

from django_rmq_retry.embedded.engine.refusals import Refused
from django_rmq_retry.errors import UndecodableHeaders
from django_rmq_retry.messages.properties import Headers, Properties, decode_properties, encode_properties

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

_MADE_HERE = "amq.rabbitmq.reply-to.embedded."


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """One entry of x-death."""

    queue: str
    reason: str
    exchange: str
    keys: tuple[str, ...]
    time: int
    count: int = 1
    expiration: str | None = None


class Message:
    """A published message, shared by every queue that holds it and never changed."""

    __slots__ = (
        "bcc", "body", "count", "deaths", "exchange", "expiration", "key", "more", "persistent", "priority", "raw"
    )  # fmt: skip

    def __init__(self, exchange: str, key: str, raw: bytes, body: bytes) -> None:
        self.exchange = exchange
        self.key = key
        self.raw = raw
        self.body = body
        self.persistent = False
        self.priority: int | None = None
        self.expiration: str | None = None
        self.more: tuple[str, ...] = ()
        """The routing keys in CC and BCC."""
        self.bcc: tuple[str, ...] = ()
        self.deaths: tuple[Death, ...] = ()
        self.count: int | None = None
        """The failed deliveries in the queues where it died, as far as the version carries them on."""

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
    """The properties that the broker acts on, read without decoding the others."""

    __slots__ = ("expiration", "flags", "mode", "priority", "reply_to")

    def __init__(self, raw: bytes) -> None:
        self.flags = flags = raw[0] << 8 | raw[1]
        if flags & _UNUSED:
            raise IndexError
        self.mode = self.priority = self.reply_to = self.expiration = None
        at = _skip_to_headers(raw, flags)
        if flags & _HEADERS:
            at += 4 + _LENGTH.unpack_from(raw, at)[0]
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

    mode: int | None
    priority: int | None
    reply_to: bytes | None
    expiration: str | None

    @property
    def names_user(self) -> bool:
        return bool(self.flags & _USER_ID)

    @property
    def has_headers(self) -> bool:
        return bool(self.flags & _HEADERS)


def glance(raw: bytes) -> Glance:
    try:
        return Glance(raw)
    except (IndexError, struct.error):
        raise Refused(502, "content properties cannot be decoded") from None


def _skip_to_headers(raw: bytes, flags: int) -> int:
    at = 2
    if flags & _TYPE:
        at += 1 + raw[at]
    if flags & _ENCODING:
        at += 1 + raw[at]
    return at


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
        raise Refused(502, "the header table cannot be decoded") from None


def decoded(raw: bytes) -> Properties:
    """Decode all properties of a client's message, or refuse it."""
    try:
        return decode_properties(raw)
    except UndecodableHeaders as error:
        raise Refused(502, f"content properties cannot be decoded: {error.problem}") from None


def table_of(raw: bytes) -> bytes:
    """Return the encoded header table of the properties."""
    flags = raw[0] << 8 | raw[1]
    at = _skip_to_headers(raw, flags)
    return raw[at + 4 : at + 4 + _LENGTH.unpack_from(raw, at)[0]] if flags & _HEADERS else b""


def with_table(raw: bytes, *, drop: Collection[str], add: bytes) -> bytes:
    """Return the properties with encoded entries after the other headers; every other byte is unchanged."""
    flags = raw[0] << 8 | raw[1]
    at = _skip_to_headers(raw, flags)
    rest = at
    table = b""
    if flags & _HEADERS:
        rest = at + 4 + _LENGTH.unpack_from(raw, at)[0]
        table = raw[at + 4 : rest]
        if any(name.encode() in table for name in drop):
            table = Headers(table).replacing(drop=drop).raw
    table += add
    if not table and not flags & _HEADERS:
        return raw
    return b"".join((_FLAGS.pack(flags | _HEADERS), raw[2:at], _LENGTH.pack(len(table)), table, raw[rest:]))


def without_expiration(raw: bytes) -> bytes:
    """Return the properties without their expiration; every other byte is unchanged."""
    flags = raw[0] << 8 | raw[1]
    at = _skip_to_headers(raw, flags)
    if flags & _HEADERS:
        at += 4 + _LENGTH.unpack_from(raw, at)[0]
    at += bool(flags & _MODE) + bool(flags & _PRIORITY)
    for flag in (_CORRELATION, _REPLY_TO):
        if flags & flag:
            at += 1 + raw[at]
    return _FLAGS.pack(flags & ~_EXPIRATION) + raw[2:at] + raw[at + 1 + raw[at] :]


class Deliver:
    """A delivery to a consumer; `raw` are the properties with the counts of its queue."""

    __slots__ = ("channel", "consumer", "message", "raw", "redelivered", "tag")

    def __init__(
        self, channel: int, consumer: str, tag: int, message: Message, *, raw: bytes, redelivered: bool
    ) -> None:
        self.channel = channel
        self.consumer = consumer
        self.tag = tag
        self.message = message
        self.raw = raw
        self.redelivered = redelivered


class Got:
    """The answer to basic.get; `left` is the number of messages still ready."""

    __slots__ = ("left", "message", "raw", "redelivered", "tag")

    def __init__(self, tag: int, message: Message, *, raw: bytes, redelivered: bool, left: int) -> None:
        self.tag = tag
        self.message = message
        self.raw = raw
        self.redelivered = redelivered
        self.left = left


class Returned:
    """A mandatory message that no queue accepted."""

    __slots__ = ("channel", "code", "message", "text")

    def __init__(self, channel: int, message: Message) -> None:
        self.channel = channel
        self.message = message
        self.code = 312
        self.text = "NO_ROUTE"


class Ack:
    """Every publish up to `number` that was not refused is stored."""

    __slots__ = ("channel", "multiple", "number")

    def __init__(self, channel: int, number: int) -> None:
        self.channel = channel
        self.number = number
        self.multiple = False


class Nack:
    """A queue refused a publish."""

    __slots__ = ("channel", "number")

    def __init__(self, channel: int, number: int) -> None:
        self.channel = channel
        self.number = number


class Cancel:
    """The queue of a consumer was deleted."""

    __slots__ = ("channel", "consumer")

    def __init__(self, channel: int, consumer: str) -> None:
        self.channel = channel
        self.consumer = consumer


Event = Deliver | Returned | Ack | Nack | Cancel


def reply_name(chance: str) -> str:
    return _MADE_HERE + chance


def is_reply_name(key: str) -> bool:
    """True if an embedded broker made this name; its channel may have closed since."""
    return key.startswith(_MADE_HERE)


def with_reply_to(raw: bytes, name: str) -> bytes:
    return encode_properties(replace(decoded(raw), reply_to=name))

"""The options of a publish, and what each of them accepts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django_rmq_retry.amqp.frames import MOST_HEADER_BYTES
from django_rmq_retry.arguments import LONGEST_WAIT_SECONDS, check_seconds, check_wait, seconds_of_wait
from django_rmq_retry.errors import ConfigurationError, HeadersTooLarge
from django_rmq_retry.messages.codecs import ENCODINGS, Codec, Json, untyped
from django_rmq_retry.messages.header_names import BROKERS_OWN, PREFIX
from django_rmq_retry.messages.properties import DIRECT, EMPTY, Headers
from django_rmq_retry.topology.declarations import MOST_NAME_BYTES

MOST_PRIORITY = 255
LATEST_SECOND = 253_402_300_799
"""The last second of the year 9999."""
TEXT_OPTIONS = (
    *("type", "correlation_id", "message_id", "reply_to", "content_type", "content_encoding", "app_id", "user_id"),
)
_SETTABLE = {"CC", "BCC", "x-delay"}
"""Headers for the broker that a publisher may set; x-delay is read by exchanges of the delayed-message plugin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishOptions:
    """The options of one publish: the properties of the message, and its delay and ordering key.

    Values for which the broker would close the channel raise an error, because that would fail all other messages in
    flight on the channel.
    """

    headers: Mapping[str, object] | None = None
    type: str | None = None
    priority: int | None = None
    expiration: float | None = None
    """Seconds after which a message that no consumer took is moved from its queue to the parked queue."""
    correlation_id: str | None = None
    message_id: str | None = None
    reply_to: str | None = None
    content_type: str | None = None
    """The content type; by default that of the codec."""
    content_encoding: str | None = None
    timestamp: datetime | int | None = None
    """The creation time, in whole seconds; by default now."""
    app_id: str | None = None
    user_id: str | None = None
    """The sender's user name. RabbitMQ accepts only the user of the connection."""
    delay: float | timedelta | None = None
    """The time to wait before the message is delivered, in seconds or as a timedelta."""
    at: datetime | None = None
    """The time before which the message is not delivered; one that is past delays it no longer."""
    order_key: str = ""
    """The outbox's ordering key: messages with the same ordering key are sent one after the other."""

    def __post_init__(self) -> None:
        _check_headers(self.headers)
        for name in TEXT_OPTIONS:
            value = getattr(self, name)
            if value is not None and not (
                isinstance(value, str) and len(value.encode(errors="replace")) <= MOST_NAME_BYTES
            ):
                raise ConfigurationError(
                    f"{name}=… takes a text of at most {MOST_NAME_BYTES} bytes, not {value!r:.60}."
                )
        _check_order_key(self.order_key)
        _check_priority(self.priority)
        if self.expiration is not None:
            check_seconds("expiration=…", self.expiration)
        if self.timestamp is not None:
            seconds_of(self.timestamp)
        check_wait("delay=…", self.delay, "at=…", self.at)
        if self.reply_to == DIRECT:
            raise ConfigurationError(
                f"reply_to={DIRECT!r} works only for the connection that reads the answer. Use call(…)."
            )

    def wait(self, now: float) -> float:
        """Return the seconds after which the message may be delivered, counted from ``now`` in seconds since 1970."""
        seconds = seconds_of_wait(self.delay, self.at, now)
        if seconds > LONGEST_WAIT_SECONDS:
            raise ConfigurationError(f"at=… takes a time within the next ten years, not {self.at}.")
        return seconds

    @property
    def waits(self) -> str:
        """The option that delays the message; empty if none does."""
        return "at" if self.at is not None else "delay" if self.delay else ""


def _check_headers(headers: Mapping[str, object] | None) -> None:
    given: object = headers
    if given is not None and not isinstance(given, Mapping):
        raise ConfigurationError(f"headers=… takes a dict, such as {{'tenant': 'acme'}}, not {given!r:.60}.")
    for name in headers or ():
        if not isinstance(name, str):
            raise ConfigurationError(f"A header's name must be a string, not {name!r}.")
        if name.startswith(PREFIX) or name in BROKERS_OWN - _SETTABLE:
            raise ConfigurationError(f"The header {name!r} is reserved. Choose another name.")
        value: object = headers[name]  # type: ignore[index]  # it has a name
        listed = isinstance(value, list) and all(isinstance(one, str) for one in value)
        if name in {"CC", "BCC"} and not listed:
            raise ConfigurationError(f"The header {name!r} takes a list of routing keys, not {value!r}.")


def _check_order_key(key: object) -> None:
    if not isinstance(key, str) or len(key) > MOST_NAME_BYTES or not key.isprintable():
        raise ConfigurationError(
            f"order_key=… takes printable text of at most {MOST_NAME_BYTES} characters, not {key!r:.60}."
        )


def _check_priority(priority: object) -> None:
    whole = isinstance(priority, int) and not isinstance(priority, bool)
    if priority is not None and not (whole and 0 <= priority <= MOST_PRIORITY):  # type: ignore[operator]
        raise ConfigurationError(f"priority=… takes a whole number from 0 to {MOST_PRIORITY}, not {priority!r:.60}.")


def seconds_of(timestamp: datetime | int) -> int:
    """Convert a timestamp to the form of AMQP: whole seconds since the epoch."""
    known: object = timestamp
    if isinstance(known, datetime) and known.tzinfo is not None:
        known = int(known.timestamp())
    if isinstance(known, int) and not isinstance(known, bool) and 0 <= known <= LATEST_SECOND:
        return known
    raise ConfigurationError(
        "timestamp=… takes a datetime with a time zone, such as timezone.now(), or whole seconds since 1970, "
        f"not {timestamp!r:.60}."
    )


PLAIN = PublishOptions()


def options_of(given: Mapping[str, object], function: str = "publish", own: Sequence[str] = ()) -> PublishOptions:
    """Return the options of a publish; the TypeError for an unknown one also names the function's ``own``."""
    if not given:
        return PLAIN
    unknown = sorted(set(given) - set(PublishOptions.__dataclass_fields__))
    if unknown:
        known = ", ".join((*own, *PublishOptions.__dataclass_fields__))
        raise TypeError(f"{function}() has no option {', '.join(unknown)}. Its options are {known}.")
    return PublishOptions(**given)  # type: ignore[arg-type]  # each is checked where it is written


def encoded_headers(headers: Mapping[str, object]) -> Headers:
    """Encode headers. Raise an error for headers over which the broker would close the connection."""
    try:
        encoded = Headers.of(headers) if headers else EMPTY
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"The headers cannot be encoded: {str(error).removesuffix('.')}.") from error
    if len(encoded.raw) > MOST_HEADER_BYTES:
        raise HeadersTooLarge(len(encoded.raw), limit=MOST_HEADER_BYTES)
    return encoded


def check_user(name: str | None, own: str) -> None:
    """Raise ConfigurationError if user_id is not the connection's user, because RabbitMQ would close the channel."""
    if name is not None and name != own:
        raise ConfigurationError(
            f"The broker refuses user_id={name!r:.60}. It accepts only the user of the connection, which is "
            f"{own!r}. Leave user_id out, or name the sender in app_id or a header."
        )


def check_encoding(name: str | None, codec: Codec) -> None:
    """Raise ConfigurationError for JSON with a content-encoding, because a consumer would park it as compressed."""
    if name is not None and isinstance(untyped(codec), Json) and name.lower() not in ENCODINGS:
        raise ConfigurationError(
            f"content_encoding={name!r:.60} requires a codec that writes it, such as Raw(). JSON is written as UTF-8."
        )

"""What a publish says besides its data, checked before anything of it is sent."""

from collections.abc import Mapping
from dataclasses import dataclass

from django_rmq_retry.broker.calling import DIRECT
from django_rmq_retry.core.backoff import check_seconds
from django_rmq_retry.core.deaths import BROKERS_OWN
from django_rmq_retry.core.errors import ConfigurationError, HeadersTooLarge
from django_rmq_retry.core.headers import EMPTY, Headers
from django_rmq_retry.core.stamps import PREFIX
from django_rmq_retry.core.topology import NAME_LIMIT

FRAME_MAX = 131_072
"""What RabbitMQ and pika agree on, unless somebody changed it."""
HEADERS_MOST = FRAME_MAX - 4096
"""Room is left for the other properties."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What one publish says besides its data."""

    headers: Mapping[str, object] | None = None
    type: str | None = None
    priority: int | None = None
    expiration: float | None = None
    """Seconds after which a message nobody took leaves its queue, for where the queue sends it: the parked queue."""
    correlation_id: str | None = None
    message_id: str | None = None
    reply_to: str | None = None
    delay: float | None = None
    """Seconds before which it shall not arrive."""
    order_key: str = ""
    """In the outbox: messages with the same one leave one after the other."""


PLAIN = Options()


def options_of(given: Mapping[str, object]) -> Options:
    """The options of a publish; one that is not known is refused, not ignored."""
    unknown = sorted(set(given) - set(Options.__dataclass_fields__))
    if unknown:
        known = ", ".join(Options.__dataclass_fields__)
        raise TypeError(f"publish() does not know {', '.join(unknown)}; it takes {known}.")
    return Options(**given)  # type: ignore[arg-type]  # each is checked where it is written


def checked_headers(headers: Mapping[str, object] | None) -> Mapping[str, object]:
    """The headers, unless one is not a publisher's to set."""
    for name in headers or ():
        if not isinstance(name, str):
            raise ConfigurationError(f"A header's name is a text, not {name!r}.")
        if name.startswith(PREFIX) or name in BROKERS_OWN - {"CC", "BCC"}:
            raise ConfigurationError(f"The header {name!r} is not a publisher's to set; choose another name.")
        if name in {"CC", "BCC"} and not _names(headers[name]):  # type: ignore[index]  # it has a name
            raise ConfigurationError(f"The header {name!r} takes a list of routing keys, not {headers[name]!r}.")  # type: ignore[index]
    return headers or {}


def encoded(headers: Mapping[str, object]) -> Headers:
    """The headers as they are sent; refused where the broker would close the connection over them."""
    try:
        found = Headers.of(headers) if headers else EMPTY
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"The headers cannot be written: {error}.") from error
    if len(found.raw) > HEADERS_MOST:
        raise HeadersTooLarge(len(found.raw), limit=HEADERS_MOST)
    return found


def _names(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def check(options: Options) -> None:
    """Refuse what the broker answers by closing the channel, at the cost of everybody else's messages on it."""
    for name in ("type", "correlation_id", "message_id", "reply_to"):
        value = getattr(options, name)
        if value is not None and not (isinstance(value, str) and len(value.encode(errors="replace")) <= NAME_LIMIT):
            raise ConfigurationError(f"{name}=… takes a text of at most {NAME_LIMIT} bytes, not {value!r:.60}.")
    key: object = options.order_key
    if not isinstance(key, str) or len(key) > NAME_LIMIT or not key.isprintable():
        raise ConfigurationError(f"order_key=… takes a plain text of at most {NAME_LIMIT} characters, not {key!r:.60}.")
    if options.expiration is not None:
        check_seconds("expiration=…", options.expiration)
    if options.reply_to == DIRECT:
        raise ConfigurationError(f"reply_to={DIRECT!r} works only for who consumes it; use call(…) for an answer.")

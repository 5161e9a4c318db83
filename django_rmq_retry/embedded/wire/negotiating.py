"""How a connection begins: what the server says of itself, who may come in, what both sides agree on."""

import platform
import socket
from collections.abc import Mapping

from django_rmq_retry.core.errors import UndecodableHeaders
from django_rmq_retry.core.headers import Headers
from django_rmq_retry.embedded.engine.refusals import Refused

MECHANISMS = "AMQPLAIN PLAIN"
LOCALES = "en_US"
CHANNEL_MAX = 2047
FRAME_MAX = 131072
HEARTBEAT = 60
LEAST_FRAME = 4096
_CAPABILITIES = (
    "publisher_confirms",
    "exchange_exchange_bindings",
    "basic.nack",
    "consumer_cancel_notify",
    "connection.blocked",
    "consumer_priorities",
    "authentication_failure_close",
    "per_consumer_qos",
    "direct_reply_to",
)
_USER = _PASSWORD = "guest"


def server_properties(version: str) -> dict[str, object]:
    """Clients look at product and version to know what they can use; the rest says what this is."""
    return {
        "capabilities": dict.fromkeys(_CAPABILITIES, True),
        "cluster_name": f"embedded@{socket.gethostname()}",
        "copyright": "django-rmq-retry contributors",
        "information": f"The embedded broker of django-rmq-retry. It behaves as RabbitMQ {version}; it is not RabbitMQ.",
        "platform": f"django-rmq-retry embedded (Python {platform.python_version()})",
        "product": "RabbitMQ",
        "version": version,
    }


def user_of(mechanism: str, response: bytes) -> str:
    """Who it is; as on a fresh RabbitMQ that is guest, from this machine only."""
    if mechanism not in MECHANISMS.split():
        raise Refused(503, f"unknown authentication mechanism '{mechanism}'")
    user, password = _plain(response) if mechanism == "PLAIN" else _table(response)
    if (user, password) != (_USER, _PASSWORD):
        raise Refused(
            403,
            f"Login was refused using authentication mechanism {mechanism}. "
            "The embedded broker knows one user: guest, with the password guest.",
        )
    return user


def _plain(response: bytes) -> tuple[str, str]:
    parts = response.decode("utf-8", "surrogateescape").split("\0")
    return (parts[1], parts[2]) if len(parts) == 3 else ("", "")  # noqa: PLR2004  # authzid, user, password


def _table(response: bytes) -> tuple[str, str]:
    try:
        found = Headers(response)
        return str(found.get("LOGIN", "")), str(found.get("PASSWORD", ""))
    except (UndecodableHeaders, IndexError):
        return "", ""


def agreed(field: str, asked: int, *, most: int, least: int = 0) -> int:
    """A limit that the client may lower but not raise; 0 would be none."""
    if asked and asked < least:
        raise Refused(530, f"negotiated {field} = {asked} is lower than the minimum allowed value ({least})")
    if asked == 0 or asked > most:
        shown = "0 (no limit)" if asked == 0 else str(asked)
        raise Refused(530, f"negotiated {field} = {shown} is higher than the maximum allowed value ({most})")
    return asked


def closes_refused(client: Mapping[object, object]) -> bool:
    """Whether a client wants to be told why it may not come in."""
    capabilities = client.get("capabilities")
    return isinstance(capabilities, dict) and capabilities.get("authentication_failure_close") is True

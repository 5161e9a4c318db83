"""The handshake: server properties, login and tuning."""

import platform
import socket
from collections.abc import Mapping
from typing import Any

from pika import spec
from pika.amqp_object import Method

from django_rmq_retry.embedded.engine.behaviour import Behaviour
from django_rmq_retry.embedded.engine.refusals import Refused
from django_rmq_retry.errors import UndecodableHeaders
from django_rmq_retry.messages.headers import Headers

MECHANISMS = "AMQPLAIN PLAIN"
LOCALES = "en_US"
CHANNEL_MAX = 2047
FRAME_MAX = 131072
HEARTBEAT = 60
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
_LOGIN = ("guest", "guest")


def server_properties(version: str) -> dict[str, object]:
    """Clients derive their features from product and version; the other fields name the embedded broker."""
    return {
        "capabilities": dict.fromkeys(_CAPABILITIES, True),
        "cluster_name": f"embedded@{socket.gethostname()}",
        "copyright": "django-rmq-retry contributors",
        "information": f"The embedded broker of django-rmq-retry: it behaves as RabbitMQ {version} and is not RabbitMQ",
        "platform": f"django-rmq-retry embedded (Python {platform.python_version()})",
        "product": "RabbitMQ",
        "version": version,
    }


def user_of(mechanism: str, response: bytes) -> str:
    """Return the user; as on a fresh RabbitMQ this is guest, from this machine only."""
    if mechanism not in MECHANISMS.split():
        raise Refused(503, f"unknown authentication mechanism '{mechanism}'")
    user, password = _plain(response) if mechanism == "PLAIN" else _table(response)
    if (user, password) != _LOGIN:
        raise Refused(
            403,
            f"Login was refused using authentication mechanism {mechanism}. "
            "The embedded broker has one user: guest, with the password guest.",
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


def _agreed(field: str, method: int, *, most: int, least: int = 0) -> int:
    """Check a limit that the client may lower but not raise; 0 would be unlimited."""
    if method and method < least:
        raise Refused(530, f"negotiated {field} = {method} is lower than the minimum allowed value ({least})")
    if method == 0 or method > most:
        shown = "0 (no limit)" if method == 0 else str(method)
        raise Refused(530, f"negotiated {field} = {shown} is higher than the maximum allowed value ({most})")
    return method


def _has_capability(client: Mapping[object, object], capability: str) -> bool:
    """True if the client announced this capability."""
    capabilities = client.get("capabilities")
    return isinstance(capabilities, dict) and capabilities.get(capability) is True


class Handshake:
    """The methods of channel 0 before the connection is open, in their only order."""

    def __init__(self) -> None:
        self.expected: type[Method] | None = None
        """The method that the client has to send next; None while the client has nothing to send."""
        self.sends_reason = False
        """True if the client can be sent the reason of a refusal."""
        self.supports_cancel = False
        """True if the client accepts basic.cancel from a server."""
        self.user = ""
        self.vhost: str | None = None
        self.channel_max = CHANNEL_MAX
        self.frame_max = FRAME_MAX
        self.heartbeat = 0.0
        self._least_frame = 0

    def begin(self, behaviour: Behaviour) -> Method:
        self.expected = spec.Connection.StartOk
        self._least_frame = behaviour.least_frame
        properties: Any = server_properties(behaviour.version)
        return spec.Connection.Start(0, 9, properties, MECHANISMS, LOCALES)

    def take(self, method: Any) -> Method | None:
        """Take the expected method and return the answer."""
        if self.expected is spec.Connection.StartOk:
            self.sends_reason = _has_capability(method.client_properties, "authentication_failure_close")
            self.supports_cancel = _has_capability(method.client_properties, "consumer_cancel_notify")
            self.user = user_of(method.mechanism, method.response)
            self.sends_reason = True
            self.expected = spec.Connection.TuneOk
            return spec.Connection.Tune(CHANNEL_MAX, FRAME_MAX, HEARTBEAT)
        if self.expected is spec.Connection.TuneOk:
            self.channel_max = _agreed("channel_max", method.channel_max, most=CHANNEL_MAX)
            self.frame_max = _agreed("frame_max", method.frame_max, most=FRAME_MAX, least=self._least_frame)
            self.heartbeat = float(method.heartbeat)
            self.expected = spec.Connection.Open
            return None
        self.expected = None
        self.vhost = method.virtual_host
        return None

"""AMQP methods: those of the handshake in their order, and all others as calls of the engine."""

import platform
import socket
from collections.abc import Callable, Mapping
from typing import Any

from pika import spec
from pika.amqp_object import Method

from django_rmq_retry.amqp.frames import FRAME_MAX
from django_rmq_retry.embedded.engine.behaviour import Behaviour
from django_rmq_retry.embedded.engine.channel import BrokerChannel
from django_rmq_retry.embedded.engine.refusals import RequestRefused
from django_rmq_retry.errors import UndecodableHeaders
from django_rmq_retry.messages.properties import Headers

MECHANISMS = "AMQPLAIN PLAIN"
LOCALES = "en_US"
MOST_CHANNELS = 2047
HEARTBEAT_SECONDS = 60
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


def login_user(mechanism: str, response: bytes) -> str:
    """Return the user; as on a fresh RabbitMQ this is guest, from this machine only."""
    if mechanism not in MECHANISMS.split():
        raise RequestRefused(503, f"unknown authentication mechanism '{mechanism}'")
    login = _plain(response) if mechanism == "PLAIN" else _table(response)
    if login != _LOGIN:
        raise RequestRefused(
            403,
            f"Login was refused using authentication mechanism {mechanism}. "
            "The embedded broker has one user: guest, with the password guest.",
        )
    return _LOGIN[0]


def _plain(response: bytes) -> tuple[str, ...]:
    # The first part is the authorization identity, which RabbitMQ ignores.
    return tuple(response.decode("utf-8", "surrogateescape").split("\0")[1:])


def _table(response: bytes) -> tuple[object, ...]:
    try:
        values = Headers(response)
        return values.get("LOGIN"), values.get("PASSWORD")
    except (UndecodableHeaders, IndexError):
        return ()


def _agreed(field: str, method: int, *, most: int, least: int = 0) -> int:
    """Check a limit that the client may lower but not raise; 0 would be unlimited."""
    if method and method < least:
        raise RequestRefused(530, f"negotiated {field} = {method} is lower than the minimum allowed value ({least})")
    if method == 0 or method > most:
        shown = "0 (no limit)" if method == 0 else str(method)
        raise RequestRefused(530, f"negotiated {field} = {shown} is higher than the maximum allowed value ({most})")
    return method


def _has_capability(client: Mapping[object, object], capability: str) -> bool:
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
        self.channel_max = MOST_CHANNELS
        self.frame_max = FRAME_MAX
        self.heartbeat = 0.0
        self._least_frame = 0

    def begin(self, behaviour: Behaviour) -> Method:
        self.expected = spec.Connection.StartOk
        self._least_frame = behaviour.least_frame
        properties: Any = server_properties(behaviour.version)
        return spec.Connection.Start(0, 9, properties, MECHANISMS, LOCALES)

    def take(self, method: Any) -> Method | None:
        if self.expected is spec.Connection.StartOk:
            self.sends_reason = _has_capability(method.client_properties, "authentication_failure_close")
            self.supports_cancel = _has_capability(method.client_properties, "consumer_cancel_notify")
            self.user = login_user(method.mechanism, method.response)
            self.sends_reason = True
            self.expected = spec.Connection.TuneOk
            return spec.Connection.Tune(MOST_CHANNELS, FRAME_MAX, HEARTBEAT_SECONDS)
        if self.expected is spec.Connection.TuneOk:
            self.channel_max = _agreed("channel_max", method.channel_max, most=MOST_CHANNELS)
            self.frame_max = _agreed("frame_max", method.frame_max, most=FRAME_MAX, least=self._least_frame)
            self.heartbeat = float(method.heartbeat)
            self.expected = spec.Connection.Open
            return None
        self.expected = None
        self.vhost = method.virtual_host
        return None


def call(channel: BrokerChannel, method: Method) -> Method | None:
    """Call the engine for a method; return no answer if the client asked for none (nowait)."""
    function = _CALLS.get(type(method))
    if function is None:
        raise RequestRefused(503, "unimplemented method")
    answer = function(channel, method)
    return None if getattr(method, "nowait", False) else answer


def _passing(
    run: Callable[..., object], places: str, names: str = "", *, answer: type[Method] | None = None
) -> Callable[[BrokerChannel, Any], Method | None]:
    """Return a call that passes fields of the method to the engine, and the result on to the answer."""

    def called(channel: BrokerChannel, asked: Any) -> Method | None:
        named = {name: getattr(asked, name) for name in names.split()}
        result = run(channel, *(getattr(asked, name) for name in places.split()), **named)
        if answer is None:
            return None
        results = result if isinstance(result, tuple) else () if result is None else (result,)
        return answer(*results)

    return called


def _qos(channel: BrokerChannel, asked: Any) -> Method:
    channel.qos(asked.prefetch_count, size=asked.prefetch_size, channel_wide=asked.global_qos)
    return spec.Basic.QosOk()


def _cancel(channel: BrokerChannel, asked: Any) -> Method:
    channel.cancel(asked.consumer_tag)
    return spec.Basic.CancelOk(asked.consumer_tag)


def _flow(_channel: BrokerChannel, asked: Any) -> Method:
    if not asked.active:
        raise RequestRefused(540, "active=false")
    return spec.Channel.FlowOk(True)  # noqa: FBT003 - pika's own signature


_TO_QUEUE, _TO_EXCHANGE = "queue exchange routing_key arguments", "destination source routing_key arguments"
_CALLS: dict[type[Method], Callable[[BrokerChannel, Any], Method | None]] = {
    spec.Access.Request: lambda _channel, _asked: spec.Access.RequestOk(1),
    spec.Basic.Cancel: _cancel,
    spec.Basic.Consume: _passing(
        BrokerChannel.consume, "queue consumer_tag", "no_ack exclusive arguments", answer=spec.Basic.ConsumeOk
    ),
    spec.Basic.Nack: _passing(BrokerChannel.nack, "delivery_tag", "multiple requeue"),
    spec.Basic.Qos: _qos,
    spec.Basic.Recover: _passing(BrokerChannel.recover, "", "requeue", answer=spec.Basic.RecoverOk),
    spec.Basic.RecoverAsync: _passing(BrokerChannel.recover, "", "requeue"),
    spec.Basic.Reject: _passing(BrokerChannel.reject, "delivery_tag", "requeue"),
    spec.Channel.Flow: _flow,
    spec.Confirm.Select: _passing(BrokerChannel.confirm_select, "", answer=spec.Confirm.SelectOk),
    spec.Exchange.Bind: _passing(BrokerChannel.exchange_bind, _TO_EXCHANGE, answer=spec.Exchange.BindOk),
    spec.Exchange.Declare: _passing(
        BrokerChannel.exchange_declare,
        "exchange type",
        "passive durable auto_delete internal arguments",
        answer=spec.Exchange.DeclareOk,
    ),
    spec.Exchange.Delete: _passing(
        BrokerChannel.exchange_delete, "exchange", "if_unused", answer=spec.Exchange.DeleteOk
    ),
    spec.Exchange.Unbind: _passing(BrokerChannel.exchange_unbind, _TO_EXCHANGE, answer=spec.Exchange.UnbindOk),
    spec.Queue.Bind: _passing(BrokerChannel.queue_bind, _TO_QUEUE, answer=spec.Queue.BindOk),
    spec.Queue.Declare: _passing(
        BrokerChannel.queue_declare,
        "queue",
        "passive durable exclusive auto_delete arguments",
        answer=spec.Queue.DeclareOk,
    ),
    spec.Queue.Delete: _passing(BrokerChannel.queue_delete, "queue", "if_unused if_empty", answer=spec.Queue.DeleteOk),
    spec.Queue.Purge: _passing(BrokerChannel.queue_purge, "queue", answer=spec.Queue.PurgeOk),
    spec.Queue.Unbind: _passing(BrokerChannel.queue_unbind, _TO_QUEUE, answer=spec.Queue.UnbindOk),
    spec.Tx.Commit: _passing(BrokerChannel.tx_commit, ""),
    spec.Tx.Rollback: _passing(BrokerChannel.tx_rollback, ""),
    spec.Tx.Select: _passing(BrokerChannel.tx_select, ""),
}

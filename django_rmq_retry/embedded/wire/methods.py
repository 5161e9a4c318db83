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


def user_of(mechanism: str, response: bytes) -> str:
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
        """Take the expected method and return the answer."""
        if self.expected is spec.Connection.StartOk:
            self.sends_reason = _has_capability(method.client_properties, "authentication_failure_close")
            self.supports_cancel = _has_capability(method.client_properties, "consumer_cancel_notify")
            self.user = user_of(method.mechanism, method.response)
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


def _exchange_declare(channel: BrokerChannel, asked: Any) -> Method:
    channel.exchange_declare(
        asked.exchange,
        asked.type,
        passive=asked.passive,
        durable=asked.durable,
        auto_delete=asked.auto_delete,
        internal=asked.internal,
        arguments=asked.arguments,
    )
    return spec.Exchange.DeclareOk()


def _exchange_delete(channel: BrokerChannel, asked: Any) -> Method:
    channel.exchange_delete(asked.exchange, if_unused=asked.if_unused)
    return spec.Exchange.DeleteOk()


def _exchange_bind(channel: BrokerChannel, asked: Any) -> Method:
    channel.exchange_bind(asked.destination, asked.source, asked.routing_key, asked.arguments)
    return spec.Exchange.BindOk()


def _exchange_unbind(channel: BrokerChannel, asked: Any) -> Method:
    channel.exchange_unbind(asked.destination, asked.source, asked.routing_key, asked.arguments)
    return spec.Exchange.UnbindOk()


def _queue_declare(channel: BrokerChannel, asked: Any) -> Method:
    declared = channel.queue_declare(
        asked.queue,
        passive=asked.passive,
        durable=asked.durable,
        exclusive=asked.exclusive,
        auto_delete=asked.auto_delete,
        arguments=asked.arguments,
    )
    return spec.Queue.DeclareOk(declared.queue, declared.messages, declared.consumers)


def _queue_bind(channel: BrokerChannel, asked: Any) -> Method:
    channel.queue_bind(asked.queue, asked.exchange, asked.routing_key, asked.arguments)
    return spec.Queue.BindOk()


def _queue_unbind(channel: BrokerChannel, asked: Any) -> Method:
    channel.queue_unbind(asked.queue, asked.exchange, asked.routing_key, asked.arguments)
    return spec.Queue.UnbindOk()


def _queue_delete(channel: BrokerChannel, asked: Any) -> Method:
    return spec.Queue.DeleteOk(channel.queue_delete(asked.queue, if_unused=asked.if_unused, if_empty=asked.if_empty))


def _qos(channel: BrokerChannel, asked: Any) -> Method:
    channel.qos(asked.prefetch_count, size=asked.prefetch_size, channel_wide=asked.global_qos)
    return spec.Basic.QosOk()


def _consume(channel: BrokerChannel, asked: Any) -> Method:
    tag = channel.consume(
        asked.queue, asked.consumer_tag, no_ack=asked.no_ack, exclusive=asked.exclusive, arguments=asked.arguments
    )
    return spec.Basic.ConsumeOk(tag)


def _cancel(channel: BrokerChannel, asked: Any) -> Method:
    channel.cancel(asked.consumer_tag)
    return spec.Basic.CancelOk(asked.consumer_tag)


def _recover(channel: BrokerChannel, asked: Any) -> Method | None:
    channel.recover(requeue=asked.requeue)
    return spec.Basic.RecoverOk() if type(asked) is spec.Basic.Recover else None


def _confirm_select(channel: BrokerChannel, _asked: Any) -> Method:
    channel.confirm_select()
    return spec.Confirm.SelectOk()


def _flow(_channel: BrokerChannel, asked: Any) -> Method:
    if not asked.active:
        raise RequestRefused(540, "active=false")
    return spec.Channel.FlowOk(True)  # noqa: FBT003 - pika's own signature


_CALLS: dict[type[Method], Callable[[BrokerChannel, Any], Method | None]] = {
    spec.Access.Request: lambda _channel, _asked: spec.Access.RequestOk(1),
    spec.Basic.Cancel: _cancel,
    spec.Basic.Consume: _consume,
    spec.Basic.Nack: lambda channel, asked: channel.nack(
        asked.delivery_tag, multiple=asked.multiple, requeue=asked.requeue
    ),
    spec.Basic.Qos: _qos,
    spec.Basic.Recover: _recover,
    spec.Basic.RecoverAsync: _recover,
    spec.Basic.Reject: lambda channel, asked: channel.reject(asked.delivery_tag, requeue=asked.requeue),
    spec.Channel.Flow: _flow,
    spec.Confirm.Select: _confirm_select,
    spec.Exchange.Bind: _exchange_bind,
    spec.Exchange.Declare: _exchange_declare,
    spec.Exchange.Delete: _exchange_delete,
    spec.Exchange.Unbind: _exchange_unbind,
    spec.Queue.Bind: _queue_bind,
    spec.Queue.Declare: _queue_declare,
    spec.Queue.Delete: _queue_delete,
    spec.Queue.Purge: lambda channel, asked: spec.Queue.PurgeOk(channel.queue_purge(asked.queue)),
    spec.Queue.Unbind: _queue_unbind,
    spec.Tx.Commit: lambda channel, _asked: channel.tx_commit(),
    spec.Tx.Rollback: lambda channel, _asked: channel.tx_rollback(),
    spec.Tx.Select: lambda channel, _asked: channel.tx_select(),
}

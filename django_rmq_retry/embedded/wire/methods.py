"""AMQP methods: those of the handshake in their order, and all others as calls of the engine."""

import platform
import socket
from collections.abc import Callable, Mapping
from typing import Any

from pika import spec
from pika.amqp_object import Method

from django_rmq_retry.embedded.engine.behaviour import Behaviour
from django_rmq_retry.embedded.engine.channel import Channel
from django_rmq_retry.embedded.engine.refusals import Refused
from django_rmq_retry.errors import UndecodableHeaders
from django_rmq_retry.messages.properties import Headers

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

Answer = Method | None
# pika types omitted fields as None.
Fields = Any


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
        values = Headers(response)
        return str(values.get("LOGIN", "")), str(values.get("PASSWORD", ""))
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


def call(channel: Channel, method: Method) -> Answer:
    """Call the engine for a method; return no answer if the client asked for none (nowait)."""
    function = _CALLS.get(type(method))
    if function is None:
        raise Refused(503, "unimplemented method")
    answer = function(channel, method)
    return None if getattr(method, "nowait", False) else answer


def _text(name: str | None) -> str:
    return name or ""


def _exchange_declare(channel: Channel, method: Fields) -> Answer:
    channel.exchange_declare(
        _text(method.exchange),
        _text(method.type),
        passive=method.passive,
        durable=method.durable,
        auto_delete=method.auto_delete,
        internal=method.internal,
        arguments=method.arguments,
    )
    return spec.Exchange.DeclareOk()


def _exchange_delete(channel: Channel, method: Fields) -> Answer:
    channel.exchange_delete(_text(method.exchange), if_unused=method.if_unused)
    return spec.Exchange.DeleteOk()


def _exchange_bind(channel: Channel, method: Fields) -> Answer:
    channel.exchange_bind(_text(method.destination), _text(method.source), _text(method.routing_key), method.arguments)
    return spec.Exchange.BindOk()


def _exchange_unbind(channel: Channel, method: Fields) -> Answer:
    channel.exchange_unbind(
        _text(method.destination), _text(method.source), _text(method.routing_key), method.arguments
    )
    return spec.Exchange.UnbindOk()


def _queue_declare(channel: Channel, method: Fields) -> Answer:
    declared = channel.queue_declare(
        _text(method.queue),
        passive=method.passive,
        durable=method.durable,
        exclusive=method.exclusive,
        auto_delete=method.auto_delete,
        arguments=method.arguments,
    )
    return spec.Queue.DeclareOk(declared.queue, declared.messages, declared.consumers)


def _queue_bind(channel: Channel, method: Fields) -> Answer:
    channel.queue_bind(_text(method.queue), _text(method.exchange), _text(method.routing_key), method.arguments)
    return spec.Queue.BindOk()


def _queue_unbind(channel: Channel, method: Fields) -> Answer:
    channel.queue_unbind(_text(method.queue), _text(method.exchange), _text(method.routing_key), method.arguments)
    return spec.Queue.UnbindOk()


def _queue_purge(channel: Channel, method: Fields) -> Answer:
    return spec.Queue.PurgeOk(channel.queue_purge(_text(method.queue)))


def _queue_delete(channel: Channel, method: Fields) -> Answer:
    count = channel.queue_delete(_text(method.queue), if_unused=method.if_unused, if_empty=method.if_empty)
    return spec.Queue.DeleteOk(count)


def _qos(channel: Channel, method: Fields) -> Answer:
    channel.qos(method.prefetch_count, size=method.prefetch_size, channel_wide=method.global_qos)
    return spec.Basic.QosOk()


def _consume(channel: Channel, method: Fields) -> Answer:
    tag = channel.consume(
        _text(method.queue),
        _text(method.consumer_tag),
        no_ack=method.no_ack,
        exclusive=method.exclusive,
        arguments=method.arguments,
    )
    return spec.Basic.ConsumeOk(tag)


def _cancel(channel: Channel, method: Fields) -> Answer:
    tag = _text(method.consumer_tag)
    channel.cancel(tag)
    return spec.Basic.CancelOk(tag)


def _recover(channel: Channel, method: Fields) -> Answer:
    channel.recover(requeue=method.requeue)
    return spec.Basic.RecoverOk() if type(method) is spec.Basic.Recover else None


def _nack(channel: Channel, method: Fields) -> Answer:
    channel.nack(method.delivery_tag, multiple=method.multiple, requeue=method.requeue)
    return None


def _reject(channel: Channel, method: Fields) -> Answer:
    channel.reject(method.delivery_tag, requeue=method.requeue)
    return None


def _confirm_select(channel: Channel) -> Answer:
    channel.confirm_select()
    return spec.Confirm.SelectOk()


def _flow(method: Fields) -> Answer:
    if not method.active:
        raise Refused(540, "active=false")
    return spec.Channel.FlowOk(True)  # noqa: FBT003 - pika's own signature


def _transaction(channel: Channel, method: Fields) -> Answer:
    methods = {spec.Tx.Select: channel.tx_select, spec.Tx.Commit: channel.tx_commit}
    methods.get(type(method), channel.tx_rollback)()
    return None


_CALLS: dict[type[Method], Callable[[Channel, Fields], Answer]] = {
    spec.Access.Request: lambda _channel, _asked: spec.Access.RequestOk(1),
    spec.Basic.Cancel: _cancel,
    spec.Basic.Consume: _consume,
    spec.Basic.Nack: _nack,
    spec.Basic.Qos: _qos,
    spec.Basic.Recover: _recover,
    spec.Basic.RecoverAsync: _recover,
    spec.Basic.Reject: _reject,
    spec.Channel.Flow: lambda _channel, method: _flow(method),
    spec.Confirm.Select: lambda channel, _asked: _confirm_select(channel),
    spec.Exchange.Bind: _exchange_bind,
    spec.Exchange.Declare: _exchange_declare,
    spec.Exchange.Delete: _exchange_delete,
    spec.Exchange.Unbind: _exchange_unbind,
    spec.Queue.Bind: _queue_bind,
    spec.Queue.Declare: _queue_declare,
    spec.Queue.Delete: _queue_delete,
    spec.Queue.Purge: _queue_purge,
    spec.Queue.Unbind: _queue_unbind,
    spec.Tx.Commit: _transaction,
    spec.Tx.Rollback: _transaction,
    spec.Tx.Select: _transaction,
}

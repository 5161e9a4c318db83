"""AMQP methods as calls of the engine."""

from collections.abc import Callable
from typing import Any

from pika import spec
from pika.amqp_object import Method

from django_rmq_retry.embedded.engine.channel import Channel
from django_rmq_retry.embedded.engine.refusals import Refused

Answer = Method | None
# pika types omitted fields as None.
Fields = Any


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

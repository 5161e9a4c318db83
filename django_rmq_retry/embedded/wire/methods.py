"""AMQP methods as calls of the engine."""

from collections.abc import Callable
from typing import Any

from pika import spec
from pika.amqp_object import Method

from django_rmq_retry.embedded.engine.channel import Channel
from django_rmq_retry.embedded.engine.refusals import Refused

Answer = Method | None
# pika types what a client left out as None.
Asked = Any


def call(channel: Channel, asked: Method) -> Answer:
    """Do what is asked for; a method that asks for no answer (nowait) has none."""
    known = _CALLS.get(type(asked))
    if known is None:
        raise Refused(503, "unimplemented method")
    answer = known(channel, asked)
    return None if getattr(asked, "nowait", False) else answer


def _text(name: str | None) -> str:
    return name or ""


def _exchange_declare(channel: Channel, asked: Asked) -> Answer:
    channel.exchange_declare(
        _text(asked.exchange),
        _text(asked.type),
        passive=asked.passive,
        durable=asked.durable,
        auto_delete=asked.auto_delete,
        internal=asked.internal,
        arguments=asked.arguments,
    )
    return spec.Exchange.DeclareOk()


def _exchange_delete(channel: Channel, asked: Asked) -> Answer:
    channel.exchange_delete(_text(asked.exchange), if_unused=asked.if_unused)
    return spec.Exchange.DeleteOk()


def _exchange_bind(channel: Channel, asked: Asked) -> Answer:
    channel.exchange_bind(_text(asked.destination), _text(asked.source), _text(asked.routing_key), asked.arguments)
    return spec.Exchange.BindOk()


def _exchange_unbind(channel: Channel, asked: Asked) -> Answer:
    channel.exchange_unbind(_text(asked.destination), _text(asked.source), _text(asked.routing_key), asked.arguments)
    return spec.Exchange.UnbindOk()


def _queue_declare(channel: Channel, asked: Asked) -> Answer:
    told = channel.queue_declare(
        _text(asked.queue),
        passive=asked.passive,
        durable=asked.durable,
        exclusive=asked.exclusive,
        auto_delete=asked.auto_delete,
        arguments=asked.arguments,
    )
    return spec.Queue.DeclareOk(told.queue, told.messages, told.consumers)


def _queue_bind(channel: Channel, asked: Asked) -> Answer:
    channel.queue_bind(_text(asked.queue), _text(asked.exchange), _text(asked.routing_key), asked.arguments)
    return spec.Queue.BindOk()


def _queue_unbind(channel: Channel, asked: Asked) -> Answer:
    channel.queue_unbind(_text(asked.queue), _text(asked.exchange), _text(asked.routing_key), asked.arguments)
    return spec.Queue.UnbindOk()


def _queue_purge(channel: Channel, asked: Asked) -> Answer:
    return spec.Queue.PurgeOk(channel.queue_purge(_text(asked.queue)))


def _queue_delete(channel: Channel, asked: Asked) -> Answer:
    count = channel.queue_delete(_text(asked.queue), if_unused=asked.if_unused, if_empty=asked.if_empty)
    return spec.Queue.DeleteOk(count)


def _qos(channel: Channel, asked: Asked) -> Answer:
    channel.qos(asked.prefetch_count, size=asked.prefetch_size, channel_wide=asked.global_qos)
    return spec.Basic.QosOk()


def _consume(channel: Channel, asked: Asked) -> Answer:
    tag = channel.consume(
        _text(asked.queue),
        _text(asked.consumer_tag),
        no_ack=asked.no_ack,
        exclusive=asked.exclusive,
        arguments=asked.arguments,
    )
    return spec.Basic.ConsumeOk(tag)


def _cancel(channel: Channel, asked: Asked) -> Answer:
    tag = _text(asked.consumer_tag)
    channel.cancel(tag)
    return spec.Basic.CancelOk(tag)


def _recover(channel: Channel, asked: Asked) -> Answer:
    channel.recover(requeue=asked.requeue)
    return spec.Basic.RecoverOk() if type(asked) is spec.Basic.Recover else None


def _nack(channel: Channel, asked: Asked) -> Answer:
    channel.nack(asked.delivery_tag, multiple=asked.multiple, requeue=asked.requeue)
    return None


def _reject(channel: Channel, asked: Asked) -> Answer:
    channel.reject(asked.delivery_tag, requeue=asked.requeue)
    return None


def _confirm_select(channel: Channel) -> Answer:
    channel.confirm_select()
    return spec.Confirm.SelectOk()


def _flow(asked: Asked) -> Answer:
    if not asked.active:
        raise Refused(540, "active=false")
    return spec.Channel.FlowOk(True)  # noqa: FBT003 - pika's own signature


def _transaction(channel: Channel, asked: Asked) -> Answer:
    methods = {spec.Tx.Select: channel.tx_select, spec.Tx.Commit: channel.tx_commit}
    methods.get(type(asked), channel.tx_rollback)()
    return None


_CALLS: dict[type[Method], Callable[[Channel, Asked], Answer]] = {
    spec.Access.Request: lambda _channel, _asked: spec.Access.RequestOk(1),
    spec.Basic.Cancel: _cancel,
    spec.Basic.Consume: _consume,
    spec.Basic.Nack: _nack,
    spec.Basic.Qos: _qos,
    spec.Basic.Recover: _recover,
    spec.Basic.RecoverAsync: _recover,
    spec.Basic.Reject: _reject,
    spec.Channel.Flow: lambda _channel, asked: _flow(asked),
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

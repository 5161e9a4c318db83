"""The engine as semantics tests see it, on a virtual clock."""

from collections.abc import Mapping
from itertools import count
from typing import Any

from django_rmq_retry.embedded.engine.behaviour import behaviour
from django_rmq_retry.embedded.engine.clock import Clock
from django_rmq_retry.embedded.engine.envelopes import Ack, Cancel, Deliver, Got, Nack, Returned
from django_rmq_retry.embedded.engine.refusals import RequestRefused
from django_rmq_retry.embedded.engine.session import ClientSession
from django_rmq_retry.embedded.engine.store import DurableStore
from django_rmq_retry.embedded.engine.vhost import Vhost
from django_rmq_retry.messages import Headers, Properties, decode_properties, encode_properties
from tests.embedded.answers import SOON, Arrival, Declared, Refusal, Taking

LASTING = encode_properties(Properties(delivery_mode=2))
EPOCH = 1_700_000_000.0


class EngineRig:
    def __init__(self, version: str, store: DurableStore | None = None) -> None:
        self.version = tuple(map(int, version.split(".")))
        names = (f"made-up-{number}" for number in count(1))
        self.vhost = Vhost("/", Clock(epoch=EPOCH), behaviour(version), random_name=lambda: next(names), store=store)

    def connect(self) -> "EngineClient":
        return EngineClient(self)

    def wait(self, seconds: float) -> None:
        self.vhost.clock.advance(self.vhost.clock.now + seconds)

    def close(self) -> None:
        pass


class EngineClient(Taking):
    def __init__(self, rig: EngineRig) -> None:
        self.rig = rig
        self.session = ClientSession(rig.vhost)
        self.channel = self.session.channel(1)
        self.channel.confirm_select()
        self.delivered: list[Arrival] = []
        self.ended: list[str] = []
        self.outcome = ""

    def __getattribute__(self, name: str) -> Any:
        """Every call: a refusal closes the channel, as a face would."""
        found = object.__getattribute__(self, name)
        if name.startswith("_") or not callable(found):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return found(*args, **kwargs)
            except RequestRefused as refused:
                if refused.hard:
                    self.session.close()
                else:
                    self.session.close_channel(1)
                raise Refusal(refused.code, refused.text, hard=refused.hard) from None

        return call

    def exchange(self, name: str, kind: str = "direct", **options: Any) -> None:
        self.channel.exchange_declare(name, kind, **options)

    def delete_exchange(self, name: str, **options: Any) -> None:
        self.channel.exchange_delete(name, **options)

    def queue(self, name: str, arguments: Mapping[str, object] | None = None, **options: Any) -> Declared:
        told = self.channel.queue_declare(name, arguments=arguments, **{"durable": True, **options})
        return Declared(queue=told.queue, messages=told.messages, consumers=told.consumers)

    def delete_queue(self, name: str, **options: Any) -> int:
        return self.channel.queue_delete(name, **options)

    def purge(self, name: str) -> int:
        return self.channel.queue_purge(name)

    def bind(self, queue: str, exchange: str, key: str = "", arguments: Mapping[str, object] | None = None) -> None:
        self.channel.queue_bind(queue, exchange, key, arguments)

    def unbind(self, queue: str, exchange: str, key: str = "", arguments: Mapping[str, object] | None = None) -> None:
        self.channel.queue_unbind(queue, exchange, key, arguments)

    def bind_exchange(self, destination: str, source: str, key: str = "") -> None:
        self.channel.exchange_bind(destination, source, key)

    def publish(self, key: str, body: str = "", *, exchange: str = "", mandatory: bool = False, **props: Any) -> str:
        headers = props.pop("headers", None)
        known = {**props, **({"headers": Headers.of(headers)} if headers is not None else {})}
        raw = encode_properties(Properties(**known))
        self._read()
        self.outcome = ""
        self.channel.publish(exchange, key, raw, body.encode(), mandatory=mandatory)
        self._read()
        return self.outcome

    def get(self, queue: str, *, within: float = SOON, no_ack: bool = False) -> Arrival | None:
        vhost = self.rig.vhost
        deadline = vhost.clock.now + within
        while True:
            got = self.channel.get(queue, no_ack=no_ack)
            if got is not None:
                return _arrival(got)
            due = vhost.clock.next_due()
            if due is None or due > deadline:
                vhost.clock.advance(deadline)
                return None
            vhost.clock.advance(due)

    def consume(self, queue: str, *, prefetch: int = 0, **options: Any) -> str:
        if prefetch:
            self.channel.qos(prefetch)
        return self.channel.consume(queue, **options)

    def cancel(self, tag: str) -> None:
        self.channel.cancel(tag)

    def qos(self, prefetch: int, *, channel_wide: bool = False) -> None:
        self.channel.qos(prefetch, channel_wide=channel_wide)

    def arrivals(self, count: int, *, within: float = SOON) -> list[Arrival]:
        vhost = self.rig.vhost
        deadline = vhost.clock.now + within
        self._read()
        while len(self.delivered) < count and vhost.clock.now < deadline:
            due = vhost.clock.next_due()
            vhost.clock.advance(deadline if due is None else min(due, deadline))
            self._read()
        found, self.delivered = self.delivered[:count], self.delivered[count:]
        return found

    def cancelled(self, *, within: float = SOON) -> list[str]:
        self._read()
        return self.ended

    def ack(self, arrival: Arrival | int, *, multiple: bool = False) -> None:
        self.channel.ack(_tag(arrival), multiple=multiple)

    def nack(self, arrival: Arrival | int, *, multiple: bool = False, requeue: bool = True) -> None:
        self.channel.nack(_tag(arrival), multiple=multiple, requeue=requeue)

    def reject(self, arrival: Arrival | int, *, requeue: bool = True) -> None:
        self.channel.reject(_tag(arrival), requeue=requeue)

    def recover(self) -> None:
        self.channel.recover()

    def tx(self) -> None:
        self.channel.tx_select()

    def close_channel(self) -> None:
        self.session.close_channel(1)

    def cut(self) -> None:
        self.session.close()

    def _read(self) -> None:
        for event in self.session.drain():
            match event:
                case Deliver():
                    self.delivered.append(_arrival(event))
                case Cancel():
                    self.ended.append(event.consumer)
                case Returned():
                    self.outcome = "returned"
                case Ack() | Nack():
                    self.outcome = self.outcome or type(event).__name__.lower()


def _arrival(event: Deliver | Got) -> Arrival:
    properties = decode_properties(event.raw)
    return Arrival(
        body=event.message.body,
        exchange=event.message.exchange,
        key=event.message.key,
        redelivered=event.redelivered,
        tag=event.tag,
        headers=dict(properties.headers),
        expiration=properties.expiration,
        reply_to=properties.reply_to,
        consumer=event.consumer if isinstance(event, Deliver) else "",
    )


def _tag(arrival: Arrival | int) -> int:
    return arrival.tag if isinstance(arrival, Arrival) else arrival

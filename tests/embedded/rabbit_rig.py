"""A real RabbitMQ as semantics tests see it: a virtual host of their own, pika, and deadlines."""

import socket
from collections.abc import Mapping
from contextlib import suppress
from time import monotonic
from typing import Any

import pika
from pika.exceptions import (
    AMQPConnectionError,
    ChannelClosedByBroker,
    ConnectionClosedByBroker,
    NackError,
    UnroutableError,
)

from tests.embedded.answers import SOON, Arrival, Declared, Refusal, Taking

STEP = 0.01
CLOSED = (ChannelClosedByBroker, ConnectionClosedByBroker)


class RabbitRig:
    def __init__(self, url: str, version: str) -> None:
        self.url = url
        self.version = tuple(int(part) for part in version.split(".")[:2])
        self.clients: list[RabbitClient] = []

    def connect(self) -> "RabbitClient":
        client = RabbitClient(self.url)
        self.clients.append(client)
        return client

    def wait(self, seconds: float) -> None:
        deadline = monotonic() + seconds
        client = next((one for one in self.clients if one.connection.is_open), None) or self.connect()
        while (left := deadline - monotonic()) > 0:
            client.connection.process_data_events(time_limit=left)

    def close(self) -> None:
        for client in self.clients:
            if client.connection.is_open:
                client.connection.close()


class RabbitClient(Taking):
    def __init__(self, url: str) -> None:
        self.connection = pika.BlockingConnection(pika.URLParameters(url))
        self.channel = self.connection.channel()
        self.channel.confirm_delivery()
        self.channel.add_on_cancel_callback(lambda frame: self.ended.append(_text(frame.method.consumer_tag or "")))
        self.delivered: list[Arrival] = []
        self.ended: list[str] = []

    def __getattribute__(self, name: str) -> Any:
        """Every call: a closed channel is a Refusal, whatever pika calls it."""
        found = object.__getattribute__(self, name)
        if name.startswith("_") or not callable(found):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return found(*args, **kwargs)
            except CLOSED as closed:
                hard = isinstance(closed, ConnectionClosedByBroker)
                raise Refusal(closed.reply_code, closed.reply_text, hard=hard) from None

        return call

    def exchange(self, name: str, kind: str = "direct", **options: Any) -> None:
        self.channel.exchange_declare(name, kind, **options)

    def delete_exchange(self, name: str, **options: Any) -> None:
        self.channel.exchange_delete(name, **options)

    def queue(self, name: str, arguments: Mapping[str, object] | None = None, **options: Any) -> Declared:
        settings = {"durable": True, **options}
        told = self.channel.queue_declare(name, arguments=dict(arguments or {}), **settings).method
        return Declared(queue=told.queue, messages=told.message_count, consumers=told.consumer_count)

    def delete_queue(self, name: str, **options: Any) -> int:
        return self.channel.queue_delete(name, **options).method.message_count or 0

    def purge(self, name: str) -> int:
        return self.channel.queue_purge(name).method.message_count or 0

    def bind(self, queue: str, exchange: str, key: str = "", arguments: Mapping[str, object] | None = None) -> None:
        self.channel.queue_bind(queue, exchange, key, arguments=dict(arguments or {}))

    def unbind(self, queue: str, exchange: str, key: str = "", arguments: Mapping[str, object] | None = None) -> None:
        self.channel.queue_unbind(queue, exchange, key, arguments=dict(arguments or {}))

    def bind_exchange(self, destination: str, source: str, key: str = "") -> None:
        self.channel.exchange_bind(destination, source, key)

    def publish(self, key: str, body: str = "", *, exchange: str = "", mandatory: bool = False, **props: Any) -> str:
        properties = pika.BasicProperties(**props)
        try:
            self.channel.basic_publish(exchange, key, body.encode(), properties, mandatory)
        except UnroutableError:
            return "returned"
        except NackError:
            return "nack"
        return "ack"

    def get(self, queue: str, *, within: float = SOON, no_ack: bool = False) -> Arrival | None:
        deadline = monotonic() + within
        while True:
            method, properties, body = self.channel.basic_get(queue, auto_ack=no_ack)
            if method is not None and properties is not None and body is not None:
                return _arrival(method, properties, body)
            if monotonic() >= deadline:
                return None
            self.connection.process_data_events(time_limit=STEP)

    def consume(self, queue: str, *, prefetch: int = 0, **options: Any) -> str:
        if prefetch:
            self.channel.basic_qos(prefetch_count=prefetch)
        names = {"no_ack": "auto_ack", "tag": "consumer_tag"}
        words = {names.get(name, name): value for name, value in options.items()}
        return self.channel.basic_consume(queue, self._delivered, **words)

    def cancel(self, tag: str) -> None:
        # pika itself would give back what it has read and not yet handed over; what is held must stay held.
        self.connection.process_data_events(time_limit=0)
        self.channel.basic_cancel(tag)

    def qos(self, prefetch: int, *, channel_wide: bool = False) -> None:
        self.channel.basic_qos(prefetch_count=prefetch, global_qos=channel_wide)

    def arrivals(self, count: int, *, within: float = SOON) -> list[Arrival]:
        deadline = monotonic() + within
        while len(self.delivered) < count and (left := deadline - monotonic()) > 0:
            self.connection.process_data_events(time_limit=left)
        found, self.delivered = self.delivered[:count], self.delivered[count:]
        return found

    def cancelled(self, *, within: float = SOON) -> list[str]:
        deadline = monotonic() + within
        while not self.ended and (left := deadline - monotonic()) > 0:
            self.connection.process_data_events(time_limit=left)
        return self.ended

    def ack(self, arrival: Arrival | int, *, multiple: bool = False) -> None:
        self.channel.basic_ack(_tag(arrival), multiple=multiple)
        self._synced()

    def nack(self, arrival: Arrival | int, *, multiple: bool = False, requeue: bool = True) -> None:
        self.channel.basic_nack(_tag(arrival), multiple=multiple, requeue=requeue)
        self._synced()

    def reject(self, arrival: Arrival | int, *, requeue: bool = True) -> None:
        self.channel.basic_reject(_tag(arrival), requeue=requeue)
        self._synced()

    def recover(self) -> None:
        self.channel.basic_recover(requeue=True)

    def tx(self) -> None:
        self.channel.tx_select()

    def close_channel(self) -> None:
        """pika cancels the channel's consumers first: what they hold comes back all the same."""
        self.channel.close()

    def cut(self) -> None:
        """pika's own close() would cancel its consumers first."""
        connection: Any = self.connection
        connection._impl._transport._sock.shutdown(socket.SHUT_RDWR)
        with suppress(AMQPConnectionError):
            while True:
                self.connection.process_data_events(time_limit=STEP)

    def _synced(self) -> None:
        """An ack is not answered: a declaration behind it is, also where the ack was refused."""
        self.channel.exchange_declare("amq.direct", passive=True)

    def _delivered(self, _: Any, method: Any, properties: pika.BasicProperties, body: bytes) -> None:
        self.delivered.append(_arrival(method, properties, body))


def _arrival(method: Any, properties: pika.BasicProperties, body: bytes) -> Arrival:
    return Arrival(
        body=body,
        exchange=_text(method.exchange),
        key=_text(method.routing_key),
        redelivered=method.redelivered,
        tag=method.delivery_tag,
        headers=properties.headers or {},
        expiration=properties.expiration,
        reply_to=properties.reply_to,
        consumer=_text(getattr(method, "consumer_tag", "")),
    )


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _tag(arrival: Arrival | int) -> int:
    return arrival.tag if isinstance(arrival, Arrival) else arrival

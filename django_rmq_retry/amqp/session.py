"""Short sessions with a broker, for commands: one request at a time, on the caller's thread, with a timeout."""

import time
from collections.abc import Callable, Mapping
from typing import Any, Self

from pika.adapters.select_connection import IOLoop
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker

from django_rmq_retry.amqp.address import Access, Host
from django_rmq_retry.amqp.connection import Connection, parameters
from django_rmq_retry.amqp.pika_logs import hide_pika_logs, show_pika_logs
from django_rmq_retry.amqp.protocol import Channel
from django_rmq_retry.amqp.refusals import NO_AMQP, Refusal, cause_of, error_text, refusal_in
from django_rmq_retry.errors import BrokerRefused, BrokerUnreachable
from django_rmq_retry.topology.declarations import BindingDeclaration, ExchangeDeclaration, QueueDeclaration, Server

Answered = Callable[[Any], None]
Question = Callable[[Channel, Answered], object]

BROKER_ANSWER_SECONDS = 30.0
"""Seconds to wait for one answer; a cluster without a majority never answers."""

NamedDeclaration = ExchangeDeclaration | QueueDeclaration
METHOD_FIELDS = ("type", "durable", "exclusive", "auto_delete", "internal")
"""Properties that are fields of the method, not arguments; refusals and the management API use these names, too."""


class Session:
    """Requests one after the other: ``session.ask(lambda channel, done: channel.queue_purge(name, callback=done))``."""

    def __init__(self, access: Access, *, purpose: str = "command", patience: float = BROKER_ANSWER_SECONDS) -> None:
        self.access = access
        self.patience = patience
        self._purpose = purpose
        self._connection: Connection | None = None
        self._channel: Channel | None = None
        self._ends: dict[object, BaseException] = {}

    def __enter__(self) -> Self:
        # A refusal is a normal answer here, but pika logs each one as a warning, and lost connections with a traceback.
        hide_pika_logs()
        try:
            self._connection = self._open()
        except BaseException:
            show_pika_logs()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        self._disconnect()
        show_pika_logs()

    @property
    def server(self) -> Server:
        return self.connection.server

    @property
    def connection(self) -> Connection:
        if self._connection is None:
            self._connection = self._open()
        return self._connection

    def ask(self, question: Question) -> Any:
        """Make a request and return its answer, on a channel with no other use: a refusal closes it."""
        answers: list[Any] = []
        channel = self.channel()
        question(channel, answers.append)
        self.wait(lambda: answers, channel)
        return answers[0]

    def channel(self) -> Channel:
        """Return the open channel, or a new one if a refusal closed it."""
        if self._channel is None or not self._channel.is_open or self._connection is None:
            self._channel = self.new_channel()
        return self._channel

    def new_channel(self) -> Channel:
        opened: list[Channel] = []
        channel = self.connection.channel(on_open_callback=opened.append)
        channel.add_on_close_callback(self._ends.__setitem__)
        self.wait(lambda: opened, channel)
        return channel

    def wait(self, ready: Callable[[], object], channel: Channel | None = None) -> None:
        """Run the loop until ``ready()``; raise Refusal if the broker closes, BrokerUnreachable if it is lost."""
        connection = self.connection
        loop = connection.ioloop
        deadline = time.monotonic() + self.patience
        alarm = loop.call_later(self.patience, lambda: None)
        try:
            while not ready():
                self._check(connection, channel)
                if time.monotonic() >= deadline:
                    self._disconnect()
                    raise BrokerUnreachable(self.access.shown, f"it did not answer within {self.patience:g} s")
                loop.poll()
                loop.process_timeouts()
        finally:
            loop.remove_timeout(alarm)

    def _check(self, connection: Connection, channel: Channel | None) -> None:
        # A lost connection also ends its channels, with the same reason.
        for end in (connection, channel):
            error = self._ends.get(end)
            if error is None:
                continue
            if end is connection:
                self._disconnect()
            if isinstance(error, (ChannelClosedByBroker, ConnectionClosedByBroker)):
                raise Refusal(error.reply_code, error.reply_text)
            raise BrokerUnreachable(self.access.shown, error_text(error))

    def _open(self) -> Connection:
        failures: list[str] = []
        for host in self.access.current().hosts or (Host("", 0),):
            connection = self._dial(host)
            if isinstance(connection, Connection):
                return connection
            cause = cause_of(connection)
            refusal = refusal_in(cause)
            # A proxy whose brokers are all down accepts a connection and ends it: that is an outage.
            if refusal and refusal != NO_AMQP:
                raise BrokerRefused(self.access.shown, refusal)
            failures.append(f"{host}: {refusal or error_text(cause)}")
        raise BrokerUnreachable(self.access.shown, "; ".join(failures))

    def _dial(self, host: Host) -> Connection | BaseException:
        results: list[Connection | BaseException] = []
        loop = IOLoop()
        loop.activate_poller()
        Connection(
            parameters(self.access, host, purpose=self._purpose),
            on_open_callback=results.append,
            on_open_error_callback=lambda _, error: results.append(error),
            on_close_callback=self._ends.__setitem__,
            custom_ioloop=loop,
        )
        # pika's own deadline for the whole connection attempt ends this loop.
        while not results:
            loop.poll()
            loop.process_timeouts()
        if not isinstance(results[0], Connection):
            loop.close()
        return results[0]

    def _disconnect(self) -> None:
        connection, self._connection, self._channel = self._connection, None, None
        if connection is None:
            return
        loop = connection.ioloop
        if connection.is_open:
            connection.close()
            deadline = time.monotonic() + 1.0
            alarm = loop.call_later(1.0, lambda: None)
            while not connection.is_closed and time.monotonic() < deadline:
                loop.poll()
                loop.process_timeouts()
            loop.remove_timeout(alarm)
        transport = connection.services.transport
        if not connection.is_closed and transport is not None:
            # The broker does not answer, and the socket would stay open.
            transport.abort()
            loop.process_timeouts()
        loop.close()


def wanted(declaration: NamedDeclaration) -> dict[str, object]:
    """Return the properties and arguments of a declaration in one mapping."""
    own = {name: getattr(declaration, name) for name in METHOD_FIELDS if hasattr(declaration, name)}
    return {**own, **declaration.arguments}


def declaring(declaration: NamedDeclaration, values: Mapping[str, object] | None = None) -> Question:
    """Return a request to declare a queue or exchange, or one with other values; None leaves an argument out."""
    values = wanted(declaration) if values is None else values
    own: dict[str, Any] = {name: value for name, value in values.items() if name in METHOD_FIELDS}
    arguments = {name: value for name, value in values.items() if name not in METHOD_FIELDS and value is not None}
    name = declaration.name
    if isinstance(declaration, QueueDeclaration):
        name = "" if declaration.named_by_broker else name
        return lambda channel, done: channel.queue_declare(name, arguments=arguments, callback=done, **own)
    kind = own.pop("type")
    return lambda channel, done: channel.exchange_declare(name, kind, arguments=arguments, callback=done, **own)


def passively(declaration: NamedDeclaration) -> Question:
    """Return a request that succeeds if the queue or exchange exists, with any arguments."""
    name = declaration.name
    if isinstance(declaration, QueueDeclaration):
        return lambda channel, done: channel.queue_declare(name, passive=True, callback=done)
    return lambda channel, done: channel.exchange_declare(name, passive=True, callback=done)


def binding(declaration: BindingDeclaration) -> Question:
    names = declaration.destination, declaration.source
    how: dict[str, Any] = {"routing_key": declaration.key, "arguments": dict(declaration.arguments)}
    if declaration.to_exchange:
        return lambda channel, done: channel.exchange_bind(*names, **how, callback=done)
    return lambda channel, done: channel.queue_bind(*names, **how, callback=done)


def unbinding(declaration: BindingDeclaration) -> Question:
    names = declaration.destination, declaration.source
    how: dict[str, Any] = {"routing_key": declaration.key, "arguments": dict(declaration.arguments)}
    return lambda channel, done: channel.queue_unbind(*names, **how, callback=done)


def right_for(declaration: NamedDeclaration | BindingDeclaration, what: str, name: str) -> str:
    """Return the permission that a refused declaration needs; older brokers name only the queue or exchange."""
    if isinstance(declaration, BindingDeclaration):
        return "read" if what == "exchange" and name == declaration.source else "write"
    # Dead letters and alternates are written to an exchange with the declaring user's permission.
    return "configure" if name == declaration.name else "write"

"""The embedded broker in the process of a test: its topology, its publisher and its source."""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import count
from typing import Any, cast

from django_rmq_retry.amqp.contracts import (
    CONFIRMED,
    Cause,
    Done,
    Line,
    PublishEnd,
    Publisher,
    PublishResult,
    Receiver,
    unwritable,
)
from django_rmq_retry.amqp.frames import check_frames
from django_rmq_retry.amqp.pauses import Pauses
from django_rmq_retry.amqp.refusals import channel_closed
from django_rmq_retry.amqp.settler import Settler
from django_rmq_retry.embedded.engine.behaviour import V4_0, Behaviour
from django_rmq_retry.embedded.engine.channel import BrokerChannel
from django_rmq_retry.embedded.engine.clock import Clock, Timer
from django_rmq_retry.embedded.engine.entries import Entry
from django_rmq_retry.embedded.engine.envelopes import Deliver, Event, Nack, Returned, StoredMessage
from django_rmq_retry.embedded.engine.queue import BrokerQueue
from django_rmq_retry.embedded.engine.refusals import RequestRefused
from django_rmq_retry.embedded.engine.session import ClientSession
from django_rmq_retry.embedded.engine.vhost import Vhost
from django_rmq_retry.errors import CallUnanswered, HeadersTooLarge
from django_rmq_retry.messages.message import Delivery, Instruction, Message, Settlement
from django_rmq_retry.messages.properties import DIRECT, encode_properties
from django_rmq_retry.topology.declarations import Server, Topology

Sent = Callable[[Message], None]
RunUntil = Callable[[Callable[[], bool], float], None]
"""Runs handlers until the given function returns True, or this many seconds have passed."""

RECONNECT_SECONDS = 0.25


class DirectBroker:
    """A broker for one test, and the loop of its settlers. Time passes only through ``advance``."""

    breakable = True
    """True if a test can break its connections."""

    def __init__(self, behaviour: Behaviour = V4_0, *, epoch: float) -> None:
        names = count(1)
        self.lock = threading.RLock()
        """Held during a publish or call: async code makes them in other threads."""
        self.clock = Clock(epoch=epoch)
        self.vhost = Vhost("/", self.clock, behaviour, random_name=lambda: f"direct-{next(names)}")
        self.server = Server(product="RabbitMQ", version=tuple(map(int, behaviour.version.split("."))))

        self.publisher = DirectPublisher(self)

    def declare(self, topology: Topology) -> None:
        """Create what is missing, also queues and exchanges of other owners, which do not exist in a test."""
        session = ClientSession(self.vhost)
        channel = session.channel(1)
        for exchange in topology.exchanges.values():
            channel.exchange_declare(
                exchange.name,
                exchange.type,
                durable=exchange.durable,
                auto_delete=exchange.auto_delete,
                internal=exchange.internal,
                arguments=exchange.arguments,
            )
        for queue in topology.queues.values():
            channel.queue_declare(queue.name, durable=True, arguments=queue.arguments)
        for binding in topology.bindings:
            bind = channel.exchange_bind if binding.to_exchange else channel.queue_bind
            bind(binding.destination, binding.source, binding.key, binding.arguments)
        session.close()

    @property
    def now(self) -> float:
        """Seconds since the start."""
        return self.clock.now

    def now_ms(self) -> int:
        return round((self.clock.now + self.clock.epoch) * 1000)

    def next_due(self) -> float | None:
        return self.clock.next_due()

    def advance(self, now: float) -> None:
        self.clock.advance(now)

    def call(self, run: Callable[[], None]) -> None:
        run()

    def later(self, seconds: float, run: Callable[[], None]) -> Timer:
        return self.clock.at(self.clock.now + seconds, run)

    def cancel(self, timer: object) -> None:
        cast(Timer, timer).cancel()

    def begin(self, until: float | None) -> None:
        """Prepare a run until that time, or until nothing is left to do."""

    def caller(self, run_until: RunUntil, sent: Sent, *, exclusive: bool) -> "DirectCaller":
        return DirectCaller(self, run_until, sent, exclusive=exclusive)

    def source(self, publisher: Publisher) -> "DirectSource":
        return DirectSource(self, publisher)

    def close(self) -> None: ...

    def queue(self, name: str) -> BrokerQueue | None:
        return self.vhost.router.queues.get(name)

    def messages_in(self, name: str) -> list[Delivery]:
        """Return the ready messages of a queue in order, without removing them."""
        queue = self.queue(name)
        return [] if queue is None else [seen(entry, name) for entry in queue.ready]

    def takers(self, message: Message) -> list[str]:
        exchange = self.vhost.router.exchanges.get(message.exchange)
        if exchange is None:
            return []
        stored = StoredMessage(
            message.exchange, message.routing_key, encode_properties(message.properties), message.body
        )
        return [queue.name for queue in self.vhost.router.route(exchange, stored)]


def seen(entry: Entry, queue: str) -> Delivery:
    """Return a message in a queue as a delivery that cannot be settled."""
    message = entry.message
    return Delivery(
        queue=queue,
        body=message.body,
        raw=message.raw,
        exchange=message.exchange,
        routing_key=message.key,
        redelivered=entry.redelivered,
    )


class DirectPublisher:
    def __init__(self, broker: DirectBroker) -> None:
        self._lock = broker.lock
        self._session = ClientSession(broker.vhost)
        self._channel: BrokerChannel | None = None

    def publish(self, message: Message, *, timeout: float | None = None) -> None:
        result = self._publish(message)
        if not result.confirmed:
            raise result.error(message)

    def publish_many(self, messages: Iterable[Message], *, window: int = 1000, timeout: float | None = None) -> int:
        """Publish one message after the other; raise the first failure."""
        return sum(1 for _ in map(self.publish, messages))

    def send(self, message: Message, done: Done, *, timeout: float | None = None) -> None:
        """Publish a message and call ``done`` before returning."""
        done(self._publish(message))

    def close(self) -> None:
        self._session.close()
        self._channel = None

    def _publish(self, message: Message) -> PublishResult:
        with self._lock:
            try:
                return self._send(message)
            except RequestRefused as refused:
                return channel_closed(refused.code, refused.text, message=message, alone=True)

    def _send(self, message: Message) -> PublishResult:
        """Publish on the channel; raise the engine's refusal, which closes the channel."""
        raw = encode_properties(message.properties)
        try:
            check_frames(message)
        except (HeadersTooLarge, ValueError) as error:
            return unwritable(str(error))
        channel = self._open()
        # The message's user_id was compared with the user of the settings when the message was made.
        channel.user = message.properties.user_id or channel.user
        try:
            channel.publish(message.exchange, message.routing_key, raw, message.body, mandatory=message.mandatory)
        except RequestRefused:
            self.close()
            raise
        events = self._events()
        if any(isinstance(event, Returned) for event in events):
            return PublishResult(kind=PublishEnd.RETURNED, cause=Cause.NO_ROUTE, code=312, text="312 NO_ROUTE")
        if any(isinstance(event, Nack) for event in events):
            return PublishResult(kind=PublishEnd.NACKED, cause=Cause.QUEUE_FULL)
        return CONFIRMED

    def _open(self) -> BrokerChannel:
        if self._channel is None:
            self._channel = self._session.channel(1)
            self._channel.confirm_select()
        return self._channel

    def _events(self) -> list[Event]:
        return self._session.drain()


class DirectCaller(DirectPublisher):
    """An RPC client that runs the handlers while it waits for an answer; `sent` is called with each question."""

    def __init__(self, broker: DirectBroker, run_until: RunUntil, sent: Sent, *, exclusive: bool = False) -> None:
        super().__init__(broker)
        self._run_until = run_until
        self._exclusive = exclusive
        self._sent = sent
        self._answers_to = ""
        self._answers: dict[str, Delivery] = {}

    def call(self, message: Message, *, timeout: float) -> Delivery:
        """Return the answer to a message; the timeout is in the broker's virtual time."""
        name = message.properties.correlation_id or ""

        def answered() -> bool:
            self._events()
            return name in self._answers

        with self._lock:
            self._open()
            question = replace(
                message, properties=replace(message.properties, reply_to=self._answers_to), mandatory=True
            )
            try:
                result = self._send(question)
            except RequestRefused as refused:
                raise CallUnanswered(message.routing_key, timeout=0, sent=True, reason=refused.text) from refused
            if result.kind in (PublishEnd.RETURNED, PublishEnd.UNSENT):
                raise result.error(message)
            self._sent(question)
            self._run_until(answered, timeout)
            answer = self._answers.pop(name, None)
        if answer is None:
            raise CallUnanswered(message.routing_key, timeout=timeout, sent=True)
        return answer

    def _open(self) -> BrokerChannel:
        if self._channel is None:
            channel = super()._open()
            self._answers_to = channel.queue_declare("", exclusive=True).queue if self._exclusive else DIRECT
            channel.consume(self._answers_to, no_ack=True)
        return super()._open()

    def _events(self) -> list[Event]:
        events = super()._events()
        for event in events:
            if isinstance(event, Deliver):
                answer = Delivery(queue=self._answers_to, body=event.message.body, raw=event.raw)
                self._answers[answer.correlation_id or ""] = answer
        return events


class DirectLine:
    since = float("inf")
    quiet = True

    def __init__(self, session: ClientSession, number: int, line: Line) -> None:
        self.line = line
        self.number = number
        self._session = session
        self.open = True
        self.retired = False
        self.in_flight = 0
        self.last_acks: deque[tuple[Any, ...]] = deque(maxlen=0)
        """None is lost here."""
        self._channel = session.channel(number)
        self._channel.qos(line.prefetch)
        self._tag = self._channel.consume(line.queue)

    @property
    def stale(self) -> bool:
        return not self.open and self.line.comes_again

    def ack(self, deliveries: Iterable[Delivery]) -> None:
        for delivery in deliveries:
            self.instruct(delivery, Instruction.ACK)

    def instruct(self, delivery: Delivery, instruction: Instruction) -> None:
        if not self.open:
            return
        self.in_flight -= 1
        tag: int = delivery.token[1]
        match instruction:
            case Instruction.ACK:
                self._channel.ack(tag)
            case Instruction.COUNTED_REQUEUE:
                self._channel.reject(tag)
            case _:
                self._channel.nack(tag, requeue=instruction is Instruction.REQUEUE)

    def when_processed(self, callback: Callable[[bool], None]) -> None:
        """Call back immediately: settlements take effect during the call."""
        callback(self.open)

    def quiesce(self) -> None:
        if not self.line.in_order:
            self._channel.cancel(self._tag)

    def retire(self) -> None:
        self.retired = True
        self.quiesce()

    def count_unsettled(self) -> None:
        """Do nothing: no row tells of a process of a test."""

    def leave_unsettled(self) -> None:
        """Leave a delivery unsettled: the broker returns it to its place in the queue when the channel ends."""
        self.in_flight -= 1

    def close(self) -> None:
        self.open = False
        self._session.close_channel(self.number)


class DirectSource:
    """A consuming connection without a thread: ``poll`` passes on the deliveries that have arrived."""

    alive = True

    def __init__(self, broker: DirectBroker, publisher: Publisher) -> None:
        self._broker = broker
        # Without jitter, so that a test gets pauses of round numbers.
        self._settler = Settler(
            broker, publisher, answer=publisher.send, again=self._hand_over, renew=self._renew, chance=lambda: 0.5
        )
        self._session: ClientSession | None = None
        self._lines: dict[str, DirectLine] = {}
        self._pauses = Pauses(self._lines, return_waiting=self._settler.return_waiting)
        self._wanted: dict[str, Line] = {}
        self._numbers = count(1)
        self._receiver: Receiver | None = None

    def start(self, lines: Sequence[Line], receiver: Receiver) -> None:
        self._wanted, self._receiver = {line.queue: line for line in lines}, receiver
        self._connect()

    def settle(self, delivery: Delivery, settlement: Settlement) -> None:
        self._settler.settle(delivery, settlement)

    def give_back(self, deliveries: Iterable[Delivery]) -> None:
        for delivery in deliveries:
            self._settler.give_back(delivery)

    def report_emptiness(self, answer: Callable[[bool], None]) -> None:
        queues = (self._broker.queue(queue) for queue in self._wanted if queue not in self._pauses)
        answer(not any(queue is not None and (queue.ready.count or queue.held) for queue in queues))

    def pause(self, queue: str) -> None:
        """Stop consuming this queue; its channel ends once all unacked deliveries are settled."""
        self._pauses.pause(queue)

    def resume(self, queue: str, *, prefetch: int | None = None) -> None:
        self._pauses.resume(queue, prefetch, self._wanted.get(queue))
        self._open_lines()

    def quiesce(self) -> None:
        self._settler.stop()
        for line in self._lines.values():
            line.quiesce()

    def stop(self) -> None:
        self.quiesce()
        self._cut()
        if self._receiver is not None:
            self._receiver.closed()

    def die(self) -> None:
        """Act as if the process was killed: requeue the unacked messages, and never connect again."""
        self._receiver = None
        self._cut()

    def lose(self, reason: str) -> None:
        """Lose the connection, and open it again a moment later."""
        self._cut()
        if self._receiver is not None:
            self._receiver.lost(reason, RECONNECT_SECONDS)
        self._broker.later(RECONNECT_SECONDS, self._connect)

    def poll(self) -> None:
        """Pass on the deliveries that have arrived since the last call."""
        if self._session is None:
            return
        lines = {line.number: line for line in self._lines.values()}
        for event in self._session.drain():
            # What arrives late on a line that was given up is requeued when its channel closes.
            if isinstance(event, Deliver) and event.channel in lines:
                self._arrived(lines[event.channel], event)
        self._pauses.close_settled()

    def _connect(self) -> None:
        if self._session is not None or self._receiver is None:
            return
        self._session = ClientSession(self._broker.vhost)
        self._receiver.connected(self._broker.server)
        self._open_lines()

    def _open_lines(self) -> None:
        for queue, line in self._wanted.items():
            if self._session is not None and queue not in self._lines and queue not in self._pauses:
                self._lines[queue] = DirectLine(self._session, next(self._numbers), self._pauses.shaped(line))

    def _cut(self) -> None:
        for line in (*self._lines.values(), *self._pauses.retired):
            line.open = False
        self._lines.clear()
        self._pauses.forget()
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def _arrived(self, line: DirectLine, event: Deliver) -> None:
        line.in_flight += 1
        message = event.message
        delivery = Delivery(
            queue=line.line.queue,
            body=message.body,
            raw=event.raw,
            exchange=message.exchange,
            routing_key=message.key,
            redelivered=event.redelivered,
            token=(line, event.tag),
        )
        self._hand_over(delivery)

    def _hand_over(self, delivery: Delivery) -> None:
        if self._receiver is not None:
            self._receiver.arrived(delivery)

    def _renew(self, delivery: Delivery) -> None:
        """Fail: this broker has no consumer timeout, so a line never has to be opened again."""
        raise AssertionError(f"{delivery} waited for too long on a line that has no limit")

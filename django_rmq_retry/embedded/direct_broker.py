"""The embedded broker in the process of a test: its topology, its publisher and its source."""

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import count
from typing import Any, cast

from django_rmq_retry.amqp.contracts import (
    CONFIRMED,
    Cause,
    Done,
    Line,
    Outcome,
    Publisher,
    PublishResult,
    Receiver,
    unwritable,
)
from django_rmq_retry.amqp.frames import FRAME_MAX, marshal_publish
from django_rmq_retry.amqp.refusals import channel_closed
from django_rmq_retry.amqp.settler import Settler
from django_rmq_retry.embedded.engine.behaviour import V4_0, Behaviour
from django_rmq_retry.embedded.engine.channel import BrokerChannel
from django_rmq_retry.embedded.engine.clock import Clock, Timer
from django_rmq_retry.embedded.engine.entries import Entry
from django_rmq_retry.embedded.engine.envelopes import Deliver, Nack, Returned, StoredMessage
from django_rmq_retry.embedded.engine.queue import BrokerQueue
from django_rmq_retry.embedded.engine.refusals import RequestRefused
from django_rmq_retry.embedded.engine.session import ClientSession
from django_rmq_retry.embedded.engine.vhost import Vhost
from django_rmq_retry.errors import CallUnanswered, HeadersTooLarge, MessageReturned
from django_rmq_retry.messages.message import Delivery, Instruction, Message, Settlement
from django_rmq_retry.messages.properties import DIRECT, encode_properties
from django_rmq_retry.topology.declarations import Server, Topology

Sent = Callable[[Message], None]
RunUntil = Callable[[Callable[[], bool], float], None]
"""Runs handlers until the given function returns True, or this many seconds have passed."""

RECONNECT_SECONDS = 0.25


class DirectBroker:
    """A broker for one test. Nothing happens by itself: time passes only through ``advance``.

    It is also the loop of the settlers of its connections.
    """

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
        for one in topology.bindings:
            bind = channel.exchange_bind if one.to_exchange else channel.queue_bind
            bind(one.destination, one.source, one.key, one.arguments)
        session.close()

    @property
    def now(self) -> float:
        """Seconds since the start."""
        return self.clock.now

    def now_ms(self) -> int:
        """Return the time in milliseconds since the epoch."""
        return round((self.clock.now + self.clock.epoch) * 1000)

    def next_due(self) -> float | None:
        """Return the time of the next timer; None if there is none."""
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
        """Return the names of the queues to which a message is routed."""
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
    """Publishes with confirms."""

    def __init__(self, broker: DirectBroker) -> None:
        self._lock = broker.lock
        self._session = ClientSession(broker.vhost)
        self._channel: BrokerChannel | None = None

    def publish(self, message: Message, *, timeout: float | None = None) -> None:
        """Return when the broker has confirmed the message, else raise the PublishError for its end."""
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
        raw = encode_properties(message.properties)
        where = message.exchange, message.routing_key
        try:
            marshal_publish(
                1, raw, b"", exchange=where[0], routing_key=where[1], mandatory=message.mandatory, frame_max=FRAME_MAX
            )
        except (HeadersTooLarge, ValueError) as error:
            return unwritable(str(error))
        with self._lock:
            if self._channel is None:
                self._channel = self._session.channel(1)
                self._channel.confirm_select()
            # The message's user_id was compared with the user of the settings when the message was made.
            self._channel.user = message.properties.user_id or self._channel.user
            try:
                self._channel.publish(*where, raw, message.body, mandatory=message.mandatory)
            except RequestRefused as refused:
                self.close()
                return channel_closed(refused.code, refused.text, message=message, alone=True)
            events = self._session.drain()
        if any(isinstance(event, Returned) for event in events):
            return PublishResult(kind=Outcome.RETURNED, cause=Cause.NO_ROUTE, code=312, text="312 NO_ROUTE")
        if any(isinstance(event, Nack) for event in events):
            return PublishResult(kind=Outcome.NACKED, cause=Cause.QUEUE_FULL)
        return CONFIRMED


class DirectCaller:
    """An RPC client that runs the handlers while it waits for an answer; `sent` is called with each question."""

    def __init__(self, broker: DirectBroker, run_until: RunUntil, sent: Sent, *, exclusive: bool = False) -> None:
        self._lock = broker.lock
        self._session = ClientSession(broker.vhost)
        self._run_until = run_until
        self._exclusive = exclusive
        self._sent = sent
        self._channel: BrokerChannel | None = None
        self._answers_to = ""
        self._answers: dict[str, Delivery] = {}
        self._returned = ""

    def call(self, message: Message, *, timeout: float) -> Delivery:
        """Return the answer to a message; the timeout is in the broker's virtual time."""
        name = message.properties.correlation_id or ""
        with self._lock:
            self._ask(message)
            self._run_until(lambda: self._has(name), timeout)
            answer = self._answers.pop(name, None)
        if answer is None:
            raise CallUnanswered(message.routing_key, timeout=timeout, sent=True)
        return answer

    def close(self) -> None:
        self._session.close()
        self._channel = None

    def _ask(self, message: Message) -> None:
        where = message.exchange, message.routing_key
        channel = self._open()
        question = replace(message, properties=replace(message.properties, reply_to=self._answers_to))
        self._returned = ""
        channel.user = message.properties.user_id or channel.user
        try:
            channel.publish(*where, encode_properties(question.properties), question.body, mandatory=True)
        except RequestRefused as refused:
            self.close()
            raise CallUnanswered(message.routing_key, timeout=0, sent=True, reason=refused.text) from refused
        self._read()
        if self._returned:
            raise MessageReturned(*where, said=self._returned)
        self._sent(question)

    def _open(self) -> BrokerChannel:
        if self._channel is None:
            self._channel = channel = self._session.channel(1)
            self._answers_to = channel.queue_declare("", exclusive=True).queue if self._exclusive else DIRECT
            channel.consume(self._answers_to, no_ack=True)
        return self._channel

    def _has(self, name: str) -> bool:
        self._read()
        return name in self._answers

    def _read(self) -> None:
        for event in self._session.drain():
            if isinstance(event, Returned):
                self._returned = event.text
            if isinstance(event, Deliver):
                answer = Delivery(queue=self._answers_to, body=event.message.body, raw=event.raw)
                self._answers[answer.correlation_id or ""] = answer


class DirectLine:
    """A queue consumed on its own channel."""

    since = float("inf")

    def __init__(self, session: ClientSession, number: int, line: Line, prefetch: int) -> None:
        self.line = line
        self.prefetch = prefetch
        self._session, self._number = session, number
        self.open = True
        self.deaf = False
        """True if a test drops the line's settlements."""
        self.retired = False
        self.in_flight = 0
        self._channel = session.channel(number)
        self._channel.qos(prefetch)
        self._tag = self._channel.consume(line.queue)

    def ack(self, deliveries: Iterable[Delivery]) -> None:
        for delivery in deliveries:
            self.instruct(delivery, Instruction.ACK)

    def instruct(self, delivery: Delivery, instruction: Instruction) -> None:
        if not self.open or self.deaf:
            return
        self.in_flight -= 1
        token: Any = delivery.token
        match instruction:
            case Instruction.ACK:
                self._channel.ack(token[1])
            case Instruction.COUNTED_REQUEUE:
                self._channel.reject(token[1])
            case _:
                self._channel.nack(token[1], requeue=instruction is Instruction.REQUEUE)

    def when_processed(self, callback: Callable[[bool], None]) -> None:
        """Call back immediately: settlements take effect during the call, unless a test drops them."""
        callback(self.open and not self.deaf)

    def quiesce(self) -> None:
        if not self.line.in_order:
            self._channel.cancel(self._tag)

    def retire(self) -> None:
        self.retired = True
        self.quiesce()

    def leave_unsettled(self) -> None:
        """Leave a delivery unsettled: the broker returns it to its place in the queue when the channel ends."""
        self.in_flight -= 1

    def close(self) -> None:
        self.open = False
        self._session.close_channel(self._number)


class DirectSource:
    """A consuming connection without a thread: ``poll`` passes on the deliveries that have arrived."""

    alive = True

    def __init__(self, broker: DirectBroker, publisher: Publisher) -> None:
        self._broker = broker
        # Without jitter, so that a test gets pauses of round numbers.
        self._settler = Settler(
            broker,
            publisher,
            answer=publisher.send,
            again=self._hand_over,
            renew=self._renew,
            chance=lambda: 0.5,
        )
        self._session: ClientSession | None = None
        self._open: dict[int, DirectLine] = {}
        self._wanted: tuple[Line, ...] = ()
        self._paused: set[str] = set()
        self._narrow: dict[str, int] = {}
        self._last = 0
        self._receiver: Receiver | None = None

    def start(self, lines: Sequence[Line], receiver: Receiver) -> None:
        self._wanted, self._receiver = tuple(lines), receiver
        self._connect()

    def settle(self, delivery: Delivery, settlement: Settlement) -> None:
        self._settler.settle(delivery, settlement)

    def give_back(self, deliveries: Iterable[Delivery]) -> None:
        for delivery in deliveries:
            line = _line(delivery)
            if line.line.in_order:
                line.leave_unsettled()
            else:
                line.instruct(delivery, Instruction.REQUEUE)

    def empty(self, answer: Callable[[bool], None]) -> None:
        """Call back with True if the queues are empty and no message is unacked."""
        queues = (self._broker.queue(line.queue) for line in self._wanted if line.queue not in self._paused)
        answer(not any(queue is not None and (queue.ready.count or queue.held) for queue in queues))

    def pause(self, queue: str) -> None:
        """Stop consuming this queue; its channel ends once all unacked deliveries are settled."""
        self._paused.add(queue)
        for line in list(self._open.values()):
            if line.line.queue == queue and not line.retired:
                line.retire()
                self._settler.return_waiting(line)
        self._close_settled()

    def resume(self, queue: str, *, prefetch: int | None = None) -> None:
        self._paused.discard(queue)
        self._narrow.pop(queue, None)
        if prefetch is not None:
            self._narrow[queue] = prefetch
        for line in self._open.values():
            if line.line.queue == queue and line.prefetch != self._prefetch(line.line):
                line.retire()
        self._close_settled()
        self._open_lines()

    def quiesce(self) -> None:
        self._settler.stop()
        for line in self._open.values():
            line.quiesce()

    def stop(self) -> None:
        self.quiesce()
        self._cut()
        if self._receiver is not None:
            self._receiver.drained()

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

    def lose_ack(self, delivery: Delivery, settlement: Settlement) -> None:
        """Settle, but lose the connection before the broker receives the settlement."""
        _line(delivery).deaf = True
        self.settle(delivery, settlement)
        self.lose("before the acknowledgement arrived")

    def poll(self) -> None:
        """Pass on the deliveries that have arrived since the last call."""
        session = self._session
        if session is None:
            return
        for event in session.drain():
            if isinstance(event, Deliver) and event.channel in self._open:
                self._arrived(self._open[event.channel], event)
        self._close_settled()

    def _connect(self) -> None:
        if self._session is not None or self._receiver is None:
            return
        self._session = ClientSession(self._broker.vhost)
        self._receiver.connected(self._broker.server)
        self._open_lines()

    def _open_lines(self) -> None:
        session = self._session
        consumed = {line.line.queue for line in self._open.values() if not line.retired}
        for line in self._wanted:
            if session is not None and line.queue not in consumed and line.queue not in self._paused:
                self._last += 1
                self._open[self._last] = DirectLine(session, self._last, line, self._prefetch(line))

    def _prefetch(self, line: Line) -> int:
        return min(line.prefetch, self._narrow.get(line.queue, line.prefetch))

    def _close_settled(self) -> None:
        for number, line in list(self._open.items()):
            if line.retired and line.in_flight <= 0:
                line.close()
                del self._open[number]

    def _cut(self) -> None:
        for line in self._open.values():
            line.open = False
        self._open.clear()
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def _arrived(self, line: DirectLine, event: Deliver) -> None:
        if line.retired:
            # It was sent before the line was given up, and is requeued when the channel closes.
            return
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

    def _renew(self, delivery: Delivery, hold: float) -> None:
        """Fail: this broker has no consumer timeout, so a line never has to be opened again."""
        raise AssertionError(f"{delivery} was held for {hold} s on a line that has no limit")


def _line(delivery: Delivery) -> DirectLine:
    token: Any = delivery.token
    line: DirectLine = token[0]
    return line

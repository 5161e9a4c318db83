"""RPC calls: requests whose answers arrive in a queue of this process."""

import logging
import threading
import time
from dataclasses import replace
from typing import Any

from pika.exceptions import ChannelClosedByBroker
from pika.frame import Method

from django_rmq_retry.amqp.address import Access
from django_rmq_retry.amqp.connection import Connection
from django_rmq_retry.amqp.frames import Received, check_address, marshal_publish
from django_rmq_retry.amqp.io_thread import IoThread
from django_rmq_retry.amqp.link import Link
from django_rmq_retry.amqp.protocol import Channel
from django_rmq_retry.amqp.refusals import above
from django_rmq_retry.errors import (
    CallUnanswered,
    MessageReturned,
    MessageTooLarge,
    MessageUnsent,
    PublishError,
    RmqRetryError,
    UndecodableHeaders,
)
from django_rmq_retry.messages.message import Delivery, Message
from django_rmq_retry.messages.properties import DIRECT, decode_properties, encode_properties

log = logging.getLogger("django_rmq_retry")

REOPEN_SECONDS = 0.2
"""Seconds until a channel that the broker closed is opened again."""
CLOSE_SECONDS = 2.0


class Request:
    """One request and, once it has ended, its answer or error."""

    def __init__(self, message: Message, deadline: float) -> None:
        self.message = message
        self.deadline = deadline
        self.answer: Delivery | None = None
        self.error: RmqRetryError | None = None
        self.sent = False
        self.over = threading.Event()

    def end(self, *, answer: Delivery | None = None, error: RmqRetryError | None = None) -> None:
        self.answer, self.error = answer, error
        self.over.set()


class PikaCaller:
    """Sends requests and returns answers to the calling threads; one connection, shared by all threads of a process."""

    def __init__(self, io: IoThread, access: Access, *, exclusive: bool = False) -> None:
        self._io = io
        self._link = Link(io, access, purpose="call", opened=self._opened, lost=self._lost, refused=self._refused)
        self._exclusive = exclusive
        self._dialling = False
        self._channel: Channel | None = None
        self._answers_to = ""
        self._open: dict[str, Request] = {}
        """The requests that are not sent yet or wait for their answer, by correlation id."""

    def call(self, message: Message, *, timeout: float) -> Delivery:
        self._io.check_waiting(message)
        request = Request(message, time.monotonic() + timeout)
        name = message.properties.correlation_id or ""
        self._io.call(lambda: self._ask(name, request))
        if not request.over.wait(timeout):
            self._io.call(lambda: self._forget(name))
            raise CallUnanswered(message.routing_key, timeout=timeout, sent=request.sent)
        if request.error is not None:
            raise request.error
        assert request.answer is not None  # noqa: S101 - a request ends with an answer or an error
        return request.answer

    def close(self) -> None:
        """Close the connection; calls that wait for an answer fail."""
        self._link.close_and_wait(self._closing_down, seconds=CLOSE_SECONDS)

    def _closing_down(self) -> None:
        self._dialling = False
        self._end_sent("the connection was closed")

    def _forget(self, name: str) -> None:
        self._open.pop(name, None)

    def _ask(self, name: str, request: Request) -> None:
        self._open[name] = request
        if not self._dialling:
            self._dialling = True
            self._link.open()
        elif self._answers_to:
            self._send(request)

    def _send(self, request: Request) -> None:
        connection, channel, message = self._link.connection, self._channel, request.message
        if request.sent or request.deadline <= time.monotonic():
            return
        # A lost connection closes its channels one by one, and the test of a body ends with its own, before it reports
        # to us. The request is sent on the next channel.
        if connection is None or channel is None or not (connection.is_open and channel.is_open):
            return
        sizes, size = connection.sizes, len(message.body)
        if size > sizes.accepted and sizes.limit is None:
            # A body above the broker's limit would close the channel, and no other request would get its answer.
            sizes.test(size, lambda: self._send(request))
            return
        if sizes.limit is not None and size > sizes.limit:
            self._fail(request, MessageTooLarge, above(size, sizes.limit))
            return
        try:
            check_address(message)
            frames = marshal_publish(
                channel.channel_number,
                encode_properties(replace(message.properties, reply_to=self._answers_to)),
                message.body,
                exchange=message.exchange,
                routing_key=message.routing_key,
                mandatory=True,
                frame_max=connection.frame_max,
            )
        except Exception as error:  # noqa: BLE001 - one question must not end the thread of all others
            self._fail(request, MessageUnsent, str(error))
            return
        connection.send_raw(frames)
        request.sent = True

    def _opened(self, connection: Connection) -> None:
        connection.channel(on_open_callback=self._channel_opened)

    def _channel_opened(self, channel: Channel) -> None:
        self._channel = channel
        channel.add_on_close_callback(self._channel_closed)
        channel.add_on_return_callback(self._returned)
        if not self._exclusive:
            self._listen(DIRECT)
            return

        def declared(frame: Method[Any]) -> None:
            self._listen(frame.method.queue)

        channel.queue_declare("", exclusive=True, auto_delete=True, callback=declared)

    def _listen(self, queue: str) -> None:
        def listening(_frame: object) -> None:
            self._answers_to = queue
            for request in list(self._open.values()):
                self._send(request)

        assert self._channel is not None  # noqa: S101 - it has just been opened
        self._channel.basic_consume(queue, self._answered, auto_ack=True, callback=listening)

    def _answered(self, *received: *Received) -> None:
        *_, raw, body = received
        delivery = Delivery(queue=self._answers_to, body=body, raw=raw)
        try:
            name = delivery.correlation_id or ""
        except UndecodableHeaders as error:
            log.warning("An answer cannot be read: %s", error)
            return
        request = self._open.pop(name, None)
        if request is None:
            log.info("An answer came after its caller had gone", extra={"event": "answer_late"})
            return
        request.end(answer=delivery)

    def _returned(self, _channel: object, method: object, properties: object, _body: bytes) -> None:
        name = decode_properties(properties.raw).correlation_id or ""  # type: ignore[attr-defined]  # RawProperties
        request = self._open.get(name)
        if request is not None:
            self._fail(request, MessageReturned, method.reply_text)  # type: ignore[attr-defined]  # Basic.Return

    def _fail(self, request: Request, error: type[PublishError], reason: str) -> None:
        message = request.message
        self._forget(message.properties.correlation_id or "")
        request.end(error=error(message.exchange, message.routing_key, said=reason))

    def _channel_closed(self, _channel: object, reason: BaseException) -> None:
        """End all requests that were sent: one to a missing exchange closes the channel on which all answers arrive."""
        if not isinstance(reason, ChannelClosedByBroker):
            return
        log.warning("The channel for calls was closed: %s %s", reason.reply_code, reason.reply_text)
        self._end_sent(f"{reason.reply_code} {reason.reply_text}")
        self._io.later(REOPEN_SECONDS, self._reopen)

    def _reopen(self) -> None:
        connection = self._link.connection
        if connection is not None and connection.is_open and self._channel is None:
            connection.channel(on_open_callback=self._channel_opened)

    def _lost(self, reason: str, retry_in: float) -> None:
        text = "No connection for calls (%s), reconnecting in %.1f s"
        log.warning(text, reason, retry_in, extra={"event": "no_connection", "purpose": "call"})
        self._end_sent(reason)

    def _end_sent(self, reason: str) -> None:
        """End the requests that were sent, because no answer can arrive; unsent requests wait for the next channel."""
        self._answers_to, self._channel = "", None
        for name, request in list(self._open.items()):
            if request.sent:
                del self._open[name]
                request.end(error=CallUnanswered(request.message.routing_key, timeout=0, sent=True, reason=reason))

    def _refused(self, error: BaseException) -> None:
        self._dialling = False
        requests, self._open = self._open, {}
        for request in requests.values():
            request.end(error=error if isinstance(error, RmqRetryError) else RmqRetryError(str(error)))

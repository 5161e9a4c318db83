"""AMQP's class basic: deliveries, returned and fetched messages, confirms and consumers. pika handles all other frames.

pika decodes the properties of each message, which takes about ten times as long as the rest of a delivery. This
protocol stands between the transport and pika's connection, through pika's public interface `nbio_interface`.

`cut` parses a plain delivery in one step: method, content header and one body frame of the same channel in a row. All
others are handled frame by frame.
"""

import logging
import socket
import ssl
import struct
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias
from uuid import uuid4

from pika import frame, spec
from pika.adapters.select_connection import IOLoop
from pika.adapters.utils.nbio_interface import AbstractIOReference, AbstractStreamProtocol, AbstractStreamTransport
from pika.adapters.utils.selector_ioloop_adapter import SelectorIOServicesAdapter
from pika.exceptions import InvalidFrameError

from django_rmq_retry.amqp.frames import (
    ACK_FRAME,
    ACK_SIZE,
    BASIC,
    BASIC_ACK,
    BASIC_DELIVER,
    FRAME_BODY,
    FRAME_END,
    FRAME_HEADER,
    FRAME_METHOD,
    FRAME_OVERHEAD,
    Places,
    RawProperties,
    Receive,
    Tags,
    name_text,
    read_content_header,
)
from django_rmq_retry.amqp.transport import Opening, Transport

log = logging.getLogger("django_rmq_retry")

# consume-ok, cancel, cancel-ok, return, deliver, get-ok, get-empty, ack, nack
_HANDLED = frozenset(BASIC | number for number in (21, 30, 31, 50, 60, 71, 72, 80, 120))
_WITH_CONTENT = (spec.Basic.Deliver, spec.Basic.Return, spec.Basic.GetOk)
_frame_start = struct.Struct(">BHI").unpack_from
_method_id = struct.Struct(">I").unpack_from

# End position, channel, consumer tag, delivery tag, redelivered, exchange with routing key, properties, body.
Cut: TypeAlias = tuple[int, int, bytes, int, bool, bytes, bytes, bytes]

# The largest body in bytes cut in one step: above it, the body itself costs more time than its frames, and waiting for
# all of it would keep two copies.
LARGEST_CUT_BYTES = 65536

# The results without a delivery: the rest has not arrived yet, or it is not the plain case.
INCOMPLETE: Cut = (0, 0, b"", 0, False, b"", b"", b"")
OTHER: Cut = (-1, 0, b"", 0, False, b"", b"", b"")

# The last byte of a frame and the first byte of the next, shifted left of a channel number.
_END_THEN_HEADER = (FRAME_END << 24) | (FRAME_HEADER << 16)
_END_THEN_BODY = (FRAME_END << 24) | (FRAME_BODY << 16)

_method = struct.Struct(">BHIIB").unpack_from
_content = struct.Struct(">IIIQ").unpack_from
_body = struct.Struct(">II").unpack_from
_tag = struct.Struct(">QB").unpack_from

Reply: TypeAlias = Callable[[Any], object]


@dataclass(slots=True)
class _Content:
    """A message whose frames have not all arrived."""

    method: Any
    size: int = -1
    """The size of the body in bytes, from the content header; negative until that has arrived."""
    raw: bytes = b""
    body: bytearray = field(default_factory=bytearray)

    def add(self, kind: int, payload: bytes) -> None:
        if (kind == FRAME_HEADER) is (self.size >= 0):
            raise InvalidFrameError("A message has two content headers, or a body without one")
        if kind == FRAME_HEADER:
            self.size, self.raw = read_content_header(payload)
        else:
            self.body += payload
        if len(self.body) > self.size:
            raise InvalidFrameError("A body is longer than its content header says")

    @property
    def whole(self) -> bool:
        return len(self.body) == self.size


class Channel:
    """A pika channel whose consumers, confirms, returned and fetched messages are handled here.

    pika does not know these consumers. Otherwise its close() would cancel them first, and a cancel lets the next single
    active consumer overtake the unacked messages.
    """

    def __init__(self, services: "IoServices", inner: Any) -> None:
        self.channel_number: int = inner.channel_number
        self.consumers: dict[str, Receive] = {}
        """The callbacks for deliveries, by consumer tag."""
        self._services = services
        self._inner = inner
        self._cancelled: set[str] = set()
        self._content: _Content | None = None
        self._replies: dict[type[Any], deque[Reply]] = {}
        """The callbacks for the next replies, by method, in the order of the requests."""
        self._always: dict[type[Any], Reply] = {}
        self._on_return: Callable[..., object] | None = None
        self._on_get: Callable[..., object] | None = None
        services.channels[self.channel_number] = self
        inner.add_on_close_callback(self._closed)

    def __getattr__(self, name: str) -> Any:
        # Everything that is not of class basic.
        return getattr(self._inner, name)

    @property
    def is_open(self) -> bool:
        return bool(self._inner.is_open)

    @property
    def in_content(self) -> bool:
        """True while the frames of a message arrive."""
        return self._content is not None

    def close(self) -> None:
        """Close the channel without cancelling its consumers; deliveries in flight are ignored."""
        self.consumers.clear()
        self._inner.close()

    def add_on_close_callback(self, callback: Callable[[Any, BaseException], object]) -> None:
        def closed(_channel: object, reason: BaseException) -> None:
            try:
                callback(self, reason)
            except Exception as error:
                # An error would keep pika from notifying the other channels and the owner of a lost connection.
                log.exception("A function failed as a channel closed; its connection is closed")
                self._services.fail(error)

        self._inner.add_on_close_callback(closed)

    def add_on_return_callback(self, callback: Callable[..., object]) -> None:
        self._on_return = callback

    def add_on_cancel_callback(self, callback: Reply) -> None:
        self._always[spec.Basic.Cancel] = callback

    def add_callback(self, callback: Reply, replies: Sequence[type[Any]], *, one_shot: bool = True) -> None:
        """Call back with replies of class basic: with the next one, or with all that no other callback waits for."""
        for reply in replies:
            if one_shot:
                self._expect(reply, callback)
            else:
                self._always[reply] = callback

    def confirm_delivery(self, answered: Reply, callback: Reply) -> None:
        self._always[spec.Basic.Ack] = self._always[spec.Basic.Nack] = answered
        # pika's own callback is never used: acks and nacks are handled here.
        self._inner.confirm_delivery(_ignore, callback=callback)

    def basic_consume(
        self,
        queue: str,
        receive: Receive,
        *,
        auto_ack: bool = False,
        callback: Reply | None = None,
        arguments: dict[str, object] | None = None,
    ) -> str:
        tag = f"ctag{self.channel_number}.{uuid4().hex}"
        self.consumers[tag] = receive
        self._expect(spec.Basic.ConsumeOk, callback or _ignore)
        self._send(spec.Basic.Consume(queue=queue, consumer_tag=tag, no_ack=auto_ack, arguments=arguments))
        return tag

    def basic_cancel(self, tag: str, callback: Reply | None = None) -> None:
        """Cancel a consumer; its deliveries in flight are requeued."""
        self.consumers.pop(tag, None)
        self._cancelled.add(tag)
        self._expect(spec.Basic.CancelOk, callback or _ignore)
        self._send(spec.Basic.Cancel(consumer_tag=tag))

    def basic_get(self, queue: str, callback: Callable[..., object]) -> None:
        self._on_get = callback
        self._send(spec.Basic.Get(queue=queue))

    def on_method(self, raw: bytes) -> None:
        """Handle a method frame of class basic."""
        if self._content is not None:
            raise InvalidFrameError("A method arrived between the frames of a message")
        value: Any = frame.decode_frame(raw)[1]
        kind = type(value.method)
        if kind in _WITH_CONTENT:
            self._content = _Content(value.method)
            return
        if kind is spec.Basic.Cancel:
            self.consumers.pop(name_text(value.method.consumer_tag), None)
        replies = self._replies.get(kind)
        callback = replies.popleft() if replies else self._always.get(kind, _ignore)
        callback(value)

    def on_content(self, kind: int, payload: bytes) -> None:
        """Handle a content header or body frame."""
        content = self._content
        if content is None:
            raise InvalidFrameError("A content frame arrived without its method")
        content.add(kind, payload)
        if content.whole:
            self._content = None
            self._message(content.method, content.raw, bytes(content.body))

    def _message(self, method: Any, raw: bytes, body: bytes) -> None:
        kind = type(method)
        if kind is spec.Basic.Deliver:
            self._delivery(method, raw, body)
        elif kind is spec.Basic.Return:
            if self._on_return is not None:
                self._on_return(self, method, RawProperties(raw), body)
        elif self._on_get is not None:
            callback, self._on_get = self._on_get, None
            callback(self, method, RawProperties(raw), body)

    def _delivery(self, method: Any, raw: bytes, body: bytes) -> None:
        tag = name_text(method.consumer_tag)
        receive = self.consumers.get(tag)
        if receive is not None:
            names = name_text(method.exchange), name_text(method.routing_key)
            receive(tag, method.delivery_tag, method.redelivered, *names, raw, body)
        elif not self.is_open:
            # The broker requeues it when the channel closes.
            return
        elif tag in self._cancelled:
            self._inner.basic_reject(method.delivery_tag)
        else:
            log.error("Unexpected delivery: channel %d has no consumer %r.", self.channel_number, tag)

    def _expect(self, reply: type[Any], callback: Reply) -> None:
        self._replies.setdefault(reply, deque()).append(callback)

    def _send(self, method: Any) -> None:
        self._services.connection.send_raw(frame.Method(self.channel_number, method).marshal())

    def _closed(self, *_: object) -> None:
        self.consumers.clear()
        # The number may belong to a new channel already.
        if self._services.channels.get(self.channel_number) is self:
            del self._services.channels[self.channel_number]


def _ignore(_frame: object) -> None:
    """Ignore a reply that no callback waits for."""


class BasicProtocol(AbstractStreamProtocol):
    """Handles the frames of class basic, and passes all others to pika one at a time."""

    def __init__(self, inner: Any, services: "IoServices") -> None:
        self.inner = inner
        self.left = b""
        """The bytes received of a frame that is not complete."""
        self._services = services
        self._channels = services.channels
        self._at = 0
        """The position in the buffer up to which frames are handled; set before each callback, which may raise."""
        self._tags = Tags()
        self._places = Places()

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]  # made by create_streaming_connection
        self._services.transport = transport
        self.inner.connection_made(transport)

    def connection_lost(self, error: BaseException | None) -> None:
        self._services.transport = None
        self.inner.connection_lost(error)

    def eof_received(self) -> bool | None:
        keep_open: bool | None = self.inner.eof_received()
        return keep_open

    def data_received(self, data: bytes) -> None:
        """Handle all complete frames. An invalid frame, or an exception of a callback, ends the connection."""
        buffer, self.left, self._at = self.left + data if self.left else data, b"", 0
        start, end = -1, len(buffer)
        try:
            # A turn that handles nothing has reached the end, or a frame that is not complete.
            while start < self._at < end:
                start = self._at
                self._deliveries(buffer, end)
                if self._at == start:
                    self._acks(buffer, end)
                if self._at == start:
                    self._frame(buffer, end)
        finally:
            self.left = buffer[self._at :]

    def _deliveries(self, buffer: bytes, end: int) -> None:
        """Pass on the plain deliveries at the current position."""
        tags, places, channels, start, count = self._tags, self._places, self._channels, self._at, 0
        try:
            while True:
                stop, number, raw_tag, delivery_tag, redelivered, place, properties, body = cut(buffer, self._at, end)
                if stop <= 0:
                    return
                channel, tag = channels.get(number), tags[raw_tag]
                receive = None if channel is None else channel.consumers.get(tag)
                if receive is None:
                    return
                exchange, routing_key = places[place]
                self._at = stop
                count += 1
                receive(tag, delivery_tag, redelivered, exchange, routing_key, properties, body)
        finally:
            if count:
                self._services.count(self._at - start, frames=3 * count)

    def _acks(self, buffer: bytes, end: int) -> None:
        """Pass on the acks at the current position; pika would take ten times as long for each."""
        start, confirms = self._at, self._services.confirms
        try:
            while confirms and end - self._at >= ACK_FRAME.size:
                kind, number, size, method, tag, multiple, last = ACK_FRAME.unpack_from(buffer, self._at)
                confirm = confirms.get(number)
                if confirm is None or (kind, size, method, last) != (FRAME_METHOD, ACK_SIZE, BASIC_ACK, FRAME_END):
                    return
                self._at += ACK_FRAME.size
                confirm(tag, multiple & 1 == 1)
        finally:
            if self._at > start:
                self._services.count(self._at - start, frames=(self._at - start) // ACK_FRAME.size)

    def _frame(self, buffer: bytes, end: int) -> None:
        """Handle one frame, or pass it to pika."""
        at = self._at
        if buffer.startswith(b"AMQP", at):
            # The broker supports another version of the protocol only.
            self._at = end
            self.inner.data_received(buffer[at:end])
            return
        if end - at < FRAME_OVERHEAD:
            return
        kind, number, size = _frame_start(buffer, at)
        stop = at + FRAME_OVERHEAD + size
        if stop > end:
            return
        if buffer[stop - 1] != FRAME_END:
            raise InvalidFrameError("A frame has no end marker where its size says")
        self._at = stop
        channel = self._channels.get(number)
        if channel is None or not _is_basic(channel, kind, buffer, at):
            self.inner.data_received(buffer[at:stop])
            return
        self._services.count(stop - at, frames=1)
        if kind == FRAME_METHOD:
            channel.on_method(buffer[at:stop])
        else:
            channel.on_content(kind, buffer[at + 7 : stop - 1])


def _is_basic(channel: Channel, kind: int, buffer: bytes, at: int) -> bool:
    if kind == FRAME_METHOD:
        return _method_id(buffer, at + 7)[0] in _HANDLED
    return kind in (FRAME_HEADER, FRAME_BODY) and channel.in_content


def cut(buffer: bytes, at: int, end: int) -> Cut:  # noqa: PLR0911 a guard per frame; calls cost time here
    """Parse the delivery that begins at `at`; no state is kept, so an incomplete one is parsed again later."""
    if end - at < 12:  # noqa: PLR2004 the first five fields
        return OTHER
    kind, number, size, method, tag_size = _method(buffer, at)
    if kind != FRAME_METHOD or method != BASIC_DELIVER:
        return OTHER
    content = at + 7 + size
    if end < content + 20:
        return OTHER if _is_other(buffer, content, end, _END_THEN_HEADER + number) else INCOMPLETE
    marker, header_size, content_class, body_size = _content(buffer, content)
    if marker != _END_THEN_HEADER + number or content_class != BASIC or header_size < 12:  # noqa: PLR2004
        return OTHER
    body = content + 8 + header_size
    if not 0 < body_size <= LARGEST_CUT_BYTES:
        return OTHER
    if end < body + 8:
        return OTHER if _is_other(buffer, body, end, _END_THEN_BODY + number) else INCOMPLETE
    marker, part_size = _body(buffer, body)
    if marker != _END_THEN_BODY + number or part_size != body_size:
        return OTHER
    stop = body + 9 + body_size
    if stop > end:
        return INCOMPLETE
    after_tag = at + 12 + tag_size
    if buffer[stop - 1] != FRAME_END or after_tag + 9 > content:
        return OTHER
    delivery_tag, bits = _tag(buffer, after_tag)
    return (
        stop,
        number,
        buffer[at + 12 : after_tag],
        delivery_tag,
        bits & 1 == 1,
        buffer[after_tag + 9 : content],
        buffer[content + 20 : body],
        buffer[body + 8 : stop - 1],
    )


def _is_other(buffer: bytes, at: int, end: int, marker: int) -> bool:
    """True if the bytes between two frames, as far as they have arrived, differ from the expected ones."""
    return not marker.to_bytes(4).startswith(buffer[at : min(end, at + 4)])


class _Closable(Protocol):
    """What has a connection's socket at the moment."""

    def close(self) -> None: ...


class IoServices(SelectorIOServicesAdapter):
    """An event loop as one pika connection sees it: makes connections with this package's transport and protocol."""

    protocol = BasicProtocol

    def __init__(self, loop: IOLoop, connection: Any) -> None:
        super().__init__(loop)  # type: ignore[arg-type]  # pika's own connection passes it, too
        self.connection = connection
        self.channels: dict[int, Channel] = {}
        self.confirms: dict[int, Callable[[int, bool], None]] = {}
        """By channel number, the callback for the broker's acks (tag, multiple), read from the received bytes."""
        self.transport: Transport | None = None
        """The transport of the connection while it lasts."""
        self._socket: _Closable | None = None
        """What has the socket: itself until it is connected, then its opening, then its transport."""

    def abandon(self) -> None:
        """Close the socket, however far the connection has come: its event loop has ended, and runs nothing more."""
        if self._socket is not None:
            self._socket.close()

    def fail(self, error: Exception) -> None:
        """End the connection because of an error, without a word to the broker, which requeues what is unacked."""
        if self.transport is not None:
            self.transport.fail(error)

    def count(self, size: int, *, frames: int) -> None:
        """Count received bytes that pika does not see: its heartbeat checker closes a connection that receives none."""
        self.connection.bytes_received += size
        self.connection.frames_received += frames

    def getaddrinfo(self, host: Any, port: Any, on_done: Callable[[Any], None], *args: int, **named: int) -> Any:
        """Look the host up as pika does, in a new thread, or in this one if none can be started.

        None can at a limit of the system and, in Python 3.12.0 and 3.12.1, once the process has begun to exit.
        """
        try:
            return super().getaddrinfo(host, port, on_done, *args, **named)
        except RuntimeError:
            named["type"] = named.pop("socktype", 0)
            return self.call_later(0, lambda: on_done(_found(host, port, *args, **named)))

    def connect_socket(
        self, sock: socket.socket, resolved_addr: tuple[str, int], on_done: Callable[[BaseException | None], None]
    ) -> Any:
        self._socket = sock
        return super().connect_socket(sock, resolved_addr, on_done)

    def create_streaming_connection(
        self,
        protocol_factory: Callable[[], AbstractStreamProtocol],
        sock: socket.socket,
        on_done: Callable[[Any], None],
        ssl_context: ssl.SSLContext | None = None,
        server_hostname: str | None = None,
    ) -> AbstractIOReference:
        def opened(result: socket.socket | Exception) -> None:
            on_done(result if isinstance(result, Exception) else self._link(result, protocol_factory))

        opening = Opening(sock, self, tls=ssl_context, server_name=server_hostname, done=opened)
        self._socket = opening
        return opening

    def _link(
        self, sock: socket.socket, protocol_factory: Callable[[], AbstractStreamProtocol]
    ) -> tuple[AbstractStreamTransport, AbstractStreamProtocol] | Exception:
        """Return the transport and pika's own protocol, which pika expects; else the error."""
        try:
            protocol = self.protocol(protocol_factory(), self)
            self._socket = transport = Transport(sock, protocol, self)
            protocol.connection_made(transport)
        except Exception as error:  # noqa: BLE001 - pika reports it as the reason
            self.remove_reader(sock.fileno())
            self.remove_writer(sock.fileno())
            sock.close()
            return error
        return transport, protocol.inner


def _found(*where: Any, **options: Any) -> list[Any] | Exception:
    try:
        return socket.getaddrinfo(*where, **options)
    except (OSError, UnicodeError) as error:
        return error

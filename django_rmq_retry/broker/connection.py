"""A SelectConnection that reads deliveries fast, survives every header, and writes what is ready in one go."""
# ruff: noqa: SLF001 - this is the one file that may touch pika's private names; PRIVATE lists them

import struct
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pika
from pika import frame, spec
from pika.channel import Channel
from pika.exceptions import ChannelClosedByClient, ConnectionWrongStateError

from django_rmq_retry.broker.base import Server
from django_rmq_retry.broker.delivering import DeliverTo, Places, Tags, cut
from django_rmq_retry.broker.envelope import CLASS_BASIC, FRAME_END, FRAME_HEADER, FRAME_METHOD, read_header
from django_rmq_retry.broker.sizing import Sizes

# Every private name of pika that this package stands on, by the object that has it. A test goes through them.
PRIVATE = {
    "connection": (
        "_channels",
        "_frame_buffer",
        "_on_data_available",
        "_output_marshaled_frames",
        "_process_frame",
        "_proto_connection_made",
        "_read_frame",
        "_trim_frame_buffer",
    ),
    "channel": ("_cancelled", "_closing_reason", "_consumers", "_on_closeok", "_rpc", "_set_state"),
    "transport": ("_on_socket_writable", "_tx_buffers"),
}

ONE_WRITE = 65536

# Type, channel, payload size, class and method, delivery tag, multiple, end of frame: a whole basic.ack.
_ack = struct.Struct(">BHIIQBB")
_ACK, _ACK_SIZE = (CLASS_BASIC << 16) | 80, 13


class Connection(pika.SelectConnection):
    """Consumers that were given as `DeliverTo` get their deliveries straight from the received bytes."""

    if TYPE_CHECKING:
        _channels: dict[int, Any]
        _frame_buffer: bytes
        frames_received: int

        def _output_marshaled_frames(self, marshaled_frames: list[bytes]) -> None: ...
        def _process_frame(self, frame_value: frame.Frame) -> None: ...
        def _trim_frame_buffer(self, byte_count: int) -> None: ...

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._tags = Tags()
        self._places = Places()
        self.confirms: dict[int, Callable[[int, bool], None]] = {}
        """By channel: who is told of the broker's acks (tag, multiple), straight from the received bytes."""
        self.sizes = Sizes(self)
        super().__init__(*args, **kwargs)

    @property
    def server(self) -> Server:
        """The broker's product and version."""
        return Server.of(self.server_properties)

    @property
    def frame_max(self) -> int:
        """The largest frame both sides agreed on, for `marshal_publish`."""
        return int(self.params.frame_max)

    def send_raw(self, data: bytes) -> None:
        """Send frames that are marshalled already, in one piece."""
        if self.is_closed:
            raise ConnectionWrongStateError("The connection is closed; nothing can be sent on it.")
        if data:
            self._output_marshaled_frames([data])

    def close_channel_bare(self, channel: Channel) -> None:
        """Close a channel without cancelling its consumers first; what is unacked goes back in its old order.

        A cancel, as pika's own close() sends it, lets the next single active consumer pass the messages held here.
        """
        if not channel.is_open:
            return
        inside: Any = channel
        inside._closing_reason = ChannelClosedByClient(0, "Normal shutdown")
        # Deliveries still under way are to be ignored: the broker takes them back when the channel closes.
        inside._cancelled.update(inside._consumers)
        inside._set_state(inside.CLOSING)
        inside._rpc(spec.Channel.Close(0, "Normal shutdown", 0, 0), inside._on_closeok, [spec.Channel.CloseOk])

    def _on_data_available(self, data_in: bytes) -> None:
        self._frame_buffer += data_in
        while self._frame_buffer and not self._deliver():
            if self._confirm():
                continue
            consumed, value = self._read_frame()
            if not value:
                return
            self._trim_frame_buffer(consumed)
            self._process_frame(value)

    def _deliver(self) -> bool:
        """Hand over the deliveries the buffer starts with; True if nothing more can be done until more bytes come."""
        buffer = self._frame_buffer
        tags, places, channels = self._tags, self._places, self._channels
        at, end, delivered = 0, len(buffer), 0
        try:
            while True:
                stop, number, raw_tag, delivery_tag, redelivered, place, properties, body = cut(buffer, at, end)
                if stop <= 0:
                    return stop == 0 or at == end
                channel = channels.get(number)
                # While a consumer is being cancelled pika decides what becomes of its deliveries.
                if channel is None or channel._cancelled:
                    return False
                tag = tags[raw_tag]
                consumer = channel._consumers.get(tag)
                if type(consumer) is not DeliverTo:
                    return False
                exchange, routing_key = places[place]
                at = stop
                delivered += 1
                consumer.receive(tag, delivery_tag, redelivered, exchange, routing_key, properties, body)
        finally:
            if delivered:
                self._trim_frame_buffer(at)
                self.frames_received += 3 * delivered

    def _confirm(self) -> bool:
        """Hand over the acks the buffer starts with; pika would take ten times as long for each."""
        buffer, at = self._frame_buffer, 0
        try:
            while len(buffer) - at >= _ack.size:
                kind, number, size, method, tag, multiple, end = _ack.unpack_from(buffer, at)
                told = self.confirms.get(number)
                if told is None or (kind, size, method, end) != (FRAME_METHOD, _ACK_SIZE, _ACK, FRAME_END):
                    break
                at += _ack.size
                told(tag, multiple & 1 == 1)
        finally:
            if at:
                self._trim_frame_buffer(at)
                self.frames_received += at // _ack.size
        return at > 0

    def _read_frame(self) -> tuple[int, frame.Frame | None]:
        if self._frame_buffer[0] == FRAME_HEADER:
            return read_header(self._frame_buffer)
        read: tuple[int, frame.Frame | None] = super()._read_frame()  # type: ignore[misc]  # private, so not in the stubs
        return read

    def _proto_connection_made(self, transport: Any) -> None:
        _join_writes(transport)
        super()._proto_connection_made(transport)  # type: ignore[misc]  # private, so not in the stubs


def _join_writes(transport: Any) -> None:
    """Let the transport send all that waits with one system call, instead of one for each frame."""
    waiting, write = transport._tx_buffers, transport._on_socket_writable

    def write_joined() -> None:
        if len(waiting) > 1:
            pieces = list(_joined(waiting))
            waiting.clear()
            waiting.extend(pieces)
        write()

    transport._on_socket_writable = write_joined


def _joined(chunks: Iterable[bytes]) -> Iterator[bytes]:
    # Bounded, for what a full socket does not take is copied once more.
    group: list[bytes] = []
    size = 0
    for chunk in chunks:
        group.append(chunk)
        size += len(chunk)
        if size >= ONE_WRITE:
            yield b"".join(group)
            group, size = [], 0
    if group:
        yield b"".join(group)

"""The I/O thread and the pika connection that it drives.

Whoever configures the logger `pika`, or one below it, gets them all. Lines about other people's connections stay.
"""
# ruff: noqa: SLF001 - this is the one file that may touch pika's private names; PRIVATE lists them

import logging
import os
import socket
import ssl
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pika
from pika import frame, spec
from pika.adapters.select_connection import IOLoop
from pika.channel import Channel
from pika.credentials import PlainCredentials
from pika.exceptions import ChannelClosedByClient, ConnectionWrongStateError

from django_rmq_retry.amqp.address import UNPLACED, Access, Host, Tls
from django_rmq_retry.amqp.frames import (
    CLASS_BASIC,
    FRAME_END,
    FRAME_HEADER,
    FRAME_METHOD,
    DeliverTo,
    Places,
    Tags,
    cut,
    read_header,
)
from django_rmq_retry.amqp.refusals import limit_in
from django_rmq_retry.errors import ConfigurationError
from django_rmq_retry.topology.versions import Server

if TYPE_CHECKING:
    from pika.adapters.select_connection import _Timeout

    Timer = _Timeout


PRODUCT = "django-rmq-retry"
PUBLISHING = "publish"
TCP_TIMEOUT = 10.0


def parameters(access: Access, host: Host, *, purpose: str) -> pika.ConnectionParameters:
    """For one connection to one host; ``purpose`` is what an operator reads in the broker's list of connections."""
    now = access.current()
    if now.embedded:
        raise ConfigurationError(UNPLACED)
    if access.embedded:
        # Its port is known only now, and another after each start.
        host = now.hosts[0]
    who = f" {now.name}" if now.name else ""
    return pika.ConnectionParameters(
        host=host.name,
        port=host.port,
        virtual_host=now.vhost,
        credentials=PlainCredentials(now.user, now.password.reveal()),
        heartbeat=now.heartbeat,
        # What a blocked broker has of a connection that is given up it stores when its alarm is over: a publisher that
        # dialled again and again would double its messages each time. Its publishes have deadlines of their own.
        blocked_connection_timeout=None if purpose == PUBLISHING else now.blocked_timeout,
        # pika wants the whole bring-up (TCP, TLS, AMQP) to have at least the time of its first part.
        socket_timeout=min(TCP_TIMEOUT, now.connect_timeout),
        stack_timeout=now.connect_timeout,
        connection_attempts=1,
        ssl_options=None if now.tls is None else _ssl_options(now.tls, host),
        client_properties={
            "connection_name": f"{PRODUCT} {purpose}{who} {os.getpid()}@{socket.gethostname()}",
            "product": PRODUCT,
        },
    )


def _ssl_options(tls: Tls, host: Host) -> pika.SSLOptions:
    try:
        context = ssl.create_default_context(cafile=tls.ca_file)
    except OSError as error:
        raise _unreadable("ca_file", tls.ca_file, error) from error
    if tls.cert_file is not None:
        try:
            context.load_cert_chain(tls.cert_file, tls.key_file, password=_no_password)
        except OSError as error:
            raise _unreadable("cert_file or key_file", tls.cert_file, error) from error
    if not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return pika.SSLOptions(context, tls.server_name or host.name)


def _unreadable(part: str, path: str | None, error: OSError) -> ConfigurationError:
    return ConfigurationError(f"The TLS {part} {path!r} cannot be used: {error}.")


def _no_password() -> str:
    # Without this OpenSSL would ask for it on the terminal, and wait.
    raise ConfigurationError("The TLS key_file is encrypted. Give one that is not, readable by this process only.")


# A filter holds for the very logger that a record is made by, not for those below it; these are all that we set off.
LOGGERS = (
    "pika.adapters.base_connection",
    "pika.adapters.select_connection",
    "pika.adapters.utils.connection_workflow",
    "pika.adapters.utils.io_services_utils",
    "pika.adapters.utils.selector_ioloop_adapter",
    "pika.callback",
    "pika.channel",
    "pika.connection",
    "pika.diagnostic_utils",
    "pika.heartbeat",
)
_threads: list[int] = []


def hush() -> None:
    """From now on, for what this thread does."""
    _threads.append(threading.get_ident())
    for name in LOGGERS:
        logging.getLogger(name).addFilter(_wanted)


def speak() -> None:
    """The end of it: the next thread may get the same number."""
    _threads.remove(threading.get_ident())


def _wanted(record: logging.LogRecord) -> bool:
    return record.thread not in _threads or _configured(record.name)


def _configured(name: str) -> bool:
    while name:
        logger = logging.getLogger(name)
        # pika gives its own logger a handler that does nothing.
        if logger.level or any(not isinstance(one, logging.NullHandler) for one in logger.handlers):
            return True
        name = name.rpartition(".")[0]
    return False


log = logging.getLogger("django_rmq_retry")

Call = Callable[[], None]


class IoThread:
    """Owns an event loop. ``call`` and ``later`` may be used from any thread; everything else happens on this one."""

    def __init__(self, name: str) -> None:
        self.loop = IOLoop()
        self.pid = os.getpid()
        self._calls: deque[Call] = deque()
        self._woken = False
        self._heard, self._unheard = True, 0
        self._ending: list[Call] = []
        self._began = self._ended = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()
        self._began = True

    @property
    def alive(self) -> bool:
        # Asked at every publish; the thread's own is_alive() would cost more than all else there.
        return self._began and not self._ended and self.pid == os.getpid()

    @property
    def current(self) -> bool:
        return threading.current_thread() is self._thread

    def call(self, call: Call) -> None:
        """Run it on the I/O thread soon, after what was handed over before; many calls cost one wake-up."""
        self._calls.append(call)
        if not self._woken:
            self._woken = True
            self.loop.add_callback_threadsafe(self._drain)

    def unheard(self) -> int:
        """How often in a row this was asked and the loop did not answer. Not in seconds: a SIGSTOP would count."""
        if self._heard:
            self._heard, self._unheard = False, 0
            self.call(self._hear)
        else:
            self._unheard += 1
        return self._unheard

    def at_end(self, call: Call) -> None:
        """Run it when the loop has ended, for whatever reason; at once where it has."""
        self._ending.append(call)
        if self._ended:
            call()

    def later(self, seconds: float, call: Call) -> "Timer":
        """Run it on the I/O thread after so many seconds; only on that thread. The result is for ``cancel``."""
        return self.loop.call_later(seconds, call)

    def cancel(self, timer: "Timer") -> None:
        self.loop.remove_timeout(timer)

    def stop(self, *, timeout: float) -> bool:
        """End the loop; tell whether the thread ended in time."""
        self.call(self.loop.stop)
        if not self.current:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def _hear(self) -> None:
        self._heard = True

    def _drain(self) -> None:
        """Run all that was handed over; what a call hands over in turn is run as well, and needs no wake-up."""
        calls = self._calls
        while True:
            while calls:
                calls.popleft()()
            self._woken = False
            # Who handed over before that has woken nobody; who did after it costs one wake-up that finds nothing.
            if not calls:
                return
            self._woken = True

    def _run(self) -> None:
        hush()
        try:
            self.loop.start()
        except BaseException as error:
            log.critical("The I/O thread ended: %s: %s", type(error).__name__, error, exc_info=True)
        finally:
            self._ended = True
            for call in self._ending:
                call()
            self.loop.close()
            speak()


ALWAYS = 4096
"""Bytes that no broker refuses; a larger body is asked about before it is sent, once for each new largest."""
NOBODY = "rmq-retry.size"
"""The key of the question, which no queue has: the broker looks at the size and drops it."""


class Sizes:
    """What is known on one connection; the next one asks anew, for the broker may have been changed meanwhile."""

    def __init__(self, connection: "pika.SelectConnection") -> None:
        self._connection = connection
        self.taken = ALWAYS
        """A body up to this size can be sent without a question."""
        self.limit: int | None = None
        """The broker's, once it has refused a body."""

    def learn(self, limit: int) -> None:
        self.limit = self.taken = limit

    def ask(self, size: int, told: Callable[[], None]) -> None:
        """Call back when a body of this size may be sent, or the limit is known."""
        _Question(self, size, told).put(self._connection)


class _Question:
    """A body of zeros for nobody, then a round trip: the broker answers it, or closes the channel over the size."""

    def __init__(self, sizes: Sizes, size: int, told: Callable[[], None]) -> None:
        self._sizes = sizes
        self._size = size
        self._told: Callable[[], None] | None = told

    def put(self, connection: "pika.SelectConnection") -> None:
        connection.channel(on_open_callback=self._opened)

    def _opened(self, channel: "Channel") -> None:
        channel.add_on_close_callback(self._closed)
        channel.basic_publish("", NOBODY, bytes(self._size))
        channel.basic_qos(prefetch_count=1, callback=lambda _frame: self._taken(channel))

    def _taken(self, channel: "Channel") -> None:
        self._end(None)
        channel.close()

    def _closed(self, _channel: object, reason: BaseException) -> None:
        self._end(limit_in(getattr(reason, "reply_text", "")))

    def _end(self, limit: int | None) -> None:
        """Where the broker does not say, as to a user who may not write there, the body itself has to show it."""
        told, self._told = self._told, None
        if told is None:
            return
        if limit is not None:
            self._sizes.learn(limit)
        elif self._sizes.limit is None:
            self._sizes.taken = max(self._sizes.taken, self._size)
        told()


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
        self.user: str = self.params.credentials.username  # type: ignore[attr-defined]  # PlainCredentials

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
        while self._frame_buffer:
            if self.confirms and self._confirm():
                continue
            left = len(self._frame_buffer)
            if self._deliver():
                return
            if len(self._frame_buffer) < left:
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

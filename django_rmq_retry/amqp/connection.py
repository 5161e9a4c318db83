"""The I/O thread and the pika connection that it drives.

pika's log records about this package's connections are hidden unless the logger `pika`, or one below it, is configured.
Records about connections of other code are never hidden.
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
    """Return pika's parameters for a connection to one host; the broker's list of connections shows ``purpose``."""
    now = access.current()
    if now.embedded:
        raise ConfigurationError(UNPLACED)
    if access.embedded:
        # An embedded broker's port is known only now, and changes with each start.
        host = now.hosts[0]
    who = f" {now.name}" if now.name else ""
    return pika.ConnectionParameters(
        host=host.name,
        port=host.port,
        virtual_host=now.vhost,
        credentials=PlainCredentials(now.user, now.password.reveal()),
        heartbeat=now.heartbeat,
        # A blocked broker stores what it has received on an abandoned connection once its alarm is over. A publisher
        # that reconnected meanwhile would duplicate its messages each time. Each publish has its own deadline instead.
        blocked_connection_timeout=None if purpose == PUBLISHING else now.blocked_timeout,
        # pika requires the timeout of the whole bring-up (TCP, TLS, AMQP) to be at least that of its first part.
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
    # Without this callback OpenSSL would prompt for the password on the terminal, and wait.
    raise ConfigurationError("The TLS key_file is encrypted. Give one that is not, readable by this process only.")


# A filter applies only to the logger that makes a record, not to those below it; this package triggers all of these.
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
    """Hide pika's log records of the current thread, unless logging of pika is configured."""
    _threads.append(threading.get_ident())
    for name in LOGGERS:
        logging.getLogger(name).addFilter(_wanted)


def speak() -> None:
    """Stop hiding them when the thread ends: the next thread may get the same identifier."""
    _threads.remove(threading.get_ident())


def _wanted(record: logging.LogRecord) -> bool:
    return record.thread not in _threads or _configured(record.name)


def _configured(name: str) -> bool:
    while name:
        logger = logging.getLogger(name)
        # pika adds a NullHandler to its own logger, which is no configuration.
        if logger.level or any(not isinstance(one, logging.NullHandler) for one in logger.handlers):
            return True
        name = name.rpartition(".")[0]
    return False


log = logging.getLogger("django_rmq_retry")

Call = Callable[[], None]


class IoThread:
    """A thread with an event loop. ``call`` may be used from any thread, ``later`` and ``cancel`` only on this one."""

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
        # Read at every publish; the thread's own is_alive() would cost more than everything else there.
        return self._began and not self._ended and self.pid == os.getpid()

    @property
    def current(self) -> bool:
        return threading.current_thread() is self._thread

    def call(self, call: Call) -> None:
        """Run a function on the I/O thread soon, after those passed in before; many calls cost one wake-up."""
        self._calls.append(call)
        if not self._woken:
            self._woken = True
            self.loop.add_callback_threadsafe(self._drain)

    def unheard(self) -> int:
        """Check that the loop still runs, and return how many checks in a row it has left unanswered.

        The result is not in seconds, because the time of a SIGSTOP would count.
        """
        if self._heard:
            self._heard, self._unheard = False, 0
            self.call(self._hear)
        else:
            self._unheard += 1
        return self._unheard

    def at_end(self, call: Call) -> None:
        """Run a function when the loop has ended, for any reason; immediately if it has ended already."""
        self._ending.append(call)
        if self._ended:
            call()

    def later(self, seconds: float, call: Call) -> "Timer":
        """Run a function after this many seconds. Call it on the I/O thread only; pass the result to ``cancel``."""
        return self.loop.call_later(seconds, call)

    def cancel(self, timer: "Timer") -> None:
        self.loop.remove_timeout(timer)

    def stop(self, *, timeout: float) -> bool:
        """End the loop; return True if the thread ended in time."""
        self.call(self.loop.stop)
        if not self.current:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def _hear(self) -> None:
        self._heard = True

    def _drain(self) -> None:
        """Run all functions passed to ``call``, also those that they pass in turn, which need no wake-up."""
        calls = self._calls
        while True:
            while calls:
                calls.popleft()()
            self._woken = False
            # A function added before this assignment caused no wake-up, so check again; one added after it causes
            # a wake-up that may find nothing to do.
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
"""A body size in bytes that no broker refuses; each new largest body above it is tested before it is sent."""
NOBODY = "rmq-retry.size"
"""The test's routing key, which no queue has: the broker checks the size and drops the message."""


class Sizes:
    """The body sizes known to be accepted on one connection; the next one tests again: the limit may have changed."""

    def __init__(self, connection: "pika.SelectConnection") -> None:
        self._connection = connection
        self.taken = ALWAYS
        """A body up to this size can be sent without a test."""
        self.limit: int | None = None
        """The broker's limit, once it has refused a body."""

    def learn(self, limit: int) -> None:
        self.limit = self.taken = limit

    def ask(self, size: int, told: Callable[[], None]) -> None:
        """Call back once the broker is known to accept a body of this size, or its limit is known."""
        _Question(self, size, told).put(self._connection)


class _Question:
    """A test message of zeros for no queue, then a round trip: the broker answers, or closes the channel."""

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
        """Record the result of the test and call back.

        If the broker names no limit, for example because the user may not write there, the real body is the test.
        """
        told, self._told = self._told, None
        if told is None:
            return
        if limit is not None:
            self._sizes.learn(limit)
        elif self._sizes.limit is None:
            self._sizes.taken = max(self._sizes.taken, self._size)
        told()


# Every private name of pika that this package uses, by the object that has it. A test checks that each exists.
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

# A whole basic.ack: type, channel, payload size, class and method, delivery tag, multiple, end of frame.
_ack = struct.Struct(">BHIIQBB")
_ACK, _ACK_SIZE = (CLASS_BASIC << 16) | 80, 13


class Connection(pika.SelectConnection):
    """A pika connection that passes deliveries to `DeliverTo` consumers directly from the received bytes."""

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
        """By channel number, the callback for the broker's acks (tag, multiple), read from the received bytes."""
        self.sizes = Sizes(self)
        super().__init__(*args, **kwargs)
        self.user: str = self.params.credentials.username  # type: ignore[attr-defined]  # PlainCredentials

    @property
    def server(self) -> Server:
        """The broker's product and version."""
        return Server.of(self.server_properties)

    @property
    def frame_max(self) -> int:
        """The negotiated frame size in bytes, for `marshal_publish`."""
        return int(self.params.frame_max)

    def send_raw(self, data: bytes) -> None:
        """Send frames that are already marshalled, in one piece."""
        if self.is_closed:
            raise ConnectionWrongStateError("The connection is closed; nothing can be sent on it.")
        if data:
            self._output_marshaled_frames([data])

    def close_channel_bare(self, channel: Channel) -> None:
        """Close a channel without cancelling its consumers first; unacked messages are requeued in their old order.

        A cancel, which pika's own close() sends, lets the next single active consumer overtake the unacked messages.
        """
        if not channel.is_open:
            return
        inside: Any = channel
        inside._closing_reason = ChannelClosedByClient(0, "Normal shutdown")
        # Let pika ignore deliveries still in flight: the broker requeues them when the channel closes.
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
        """Pass on the deliveries at the start of the buffer; return True if parsing must wait for more bytes."""
        buffer = self._frame_buffer
        tags, places, channels = self._tags, self._places, self._channels
        at, end, delivered = 0, len(buffer), 0
        try:
            while True:
                stop, number, raw_tag, delivery_tag, redelivered, place, properties, body = cut(buffer, at, end)
                if stop <= 0:
                    return stop == 0 or at == end
                channel = channels.get(number)
                # While a consumer is being cancelled, pika decides what happens to its deliveries.
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
        """Pass on the acks at the start of the buffer; pika would take ten times as long for each."""
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
    """Make the transport send all waiting frames with one system call instead of one per frame."""
    waiting, write = transport._tx_buffers, transport._on_socket_writable

    def write_joined() -> None:
        if len(waiting) > 1:
            pieces = list(_joined(waiting))
            waiting.clear()
            waiting.extend(pieces)
        write()

    transport._on_socket_writable = write_joined


def _joined(chunks: Iterable[bytes]) -> Iterator[bytes]:
    # Bounded, because bytes that a full socket does not accept are copied again.
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

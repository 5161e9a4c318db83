"""The I/O thread and the pika connection that it drives.

pika's log records about this package's connections are hidden unless the logger `pika`, or one below it, is configured.
Records about connections of other code are never hidden.
"""

import logging
import os
import socket
import ssl
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias
from weakref import WeakSet

import pika
from pika.adapters.select_connection import IOLoop
from pika.channel import MAX_CHANNELS
from pika.credentials import PlainCredentials
from pika.exceptions import ConnectionWrongStateError, NoFreeChannels

from django_rmq_retry.amqp.address import UNPLACED, Access, Host, Tls
from django_rmq_retry.amqp.protocol import Channel, IoServices
from django_rmq_retry.amqp.refusals import limit_in
from django_rmq_retry.errors import ConfigurationError, MessageUnsent
from django_rmq_retry.messages.message import Message
from django_rmq_retry.topology.declarations import Server

log = logging.getLogger("django_rmq_retry")

Timer: TypeAlias = object
"""A running timer of an `IoThread`, for ``cancel``."""

PRODUCT = "django-rmq-retry"
PUBLISHING = "publish"
TCP_TIMEOUT = 10.0

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

Call = Callable[[], None]

ALWAYS_ACCEPTED = 4096
"""A body size in bytes that no broker refuses; each new largest body above it is tested before it is sent."""
ROOM = 8
"""The number of a connection's channels that are left to tests of body sizes."""
UNROUTABLE = "rmq-retry.size"
"""The test's routing key, which no queue has: the broker checks the size and drops the message."""


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


def hide_pika_logs() -> None:
    """Hide pika's log records of the current thread, unless logging of pika is configured."""
    _threads.append(threading.get_ident())
    for name in LOGGERS:
        logging.getLogger(name).addFilter(_wanted)


def show_pika_logs() -> None:
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


class IoThread:
    """A thread with an event loop. ``call`` may be used from any thread, ``later`` and ``cancel`` only on this one."""

    def __init__(self, name: str) -> None:
        self.loop = IOLoop()
        self.pid = os.getpid()
        self._calls: deque[Call] = deque()
        self._woken = False
        self._answered, self._unanswered = True, 0
        self._ending: list[Call] = []
        self.connections: WeakSet[Connection] = WeakSet()
        """The connections that run on this thread."""
        self._began = self._ended = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()
        self._began = True

    @property
    def alive(self) -> bool:
        # Read at every publish; the thread's own is_alive() would cost more than everything else there.
        return self._began and not self._ended and self.pid == os.getpid()

    def check_waiting(self, message: Message) -> None:
        """Raise MessageUnsent on this thread: it would wait for itself, and nothing of the process would be sent."""
        if self.current:
            said = (
                "it was published on the I/O thread, which sends it and would wait for itself. Publish it from another "
                "thread; a log handler that publishes needs a logging.handlers.QueueListener"
            )
            raise MessageUnsent(message.exchange, message.routing_key, said=said)

    @property
    def current(self) -> bool:
        return threading.current_thread() is self._thread

    def call(self, call: Call) -> None:
        """Run a function on the I/O thread soon, after those passed in before; many calls cost one wake-up."""
        self._calls.append(call)
        if not self._woken:
            self._woken = True
            try:
                self.loop.add_callback_threadsafe(self._drain)
            except BaseException:
                # Such as a lack of memory: the next call wakes the loop.
                self._woken = False
                raise

    def unanswered(self) -> int:
        """Check that the loop still runs, and return how many checks in a row it has left unanswered.

        The result is not in seconds, because the time of a SIGSTOP would count.
        """
        if self._answered:
            self._answered, self._unanswered = False, 0
            self.call(self._answer)
        else:
            self._unanswered += 1
        return self._unanswered

    def at_end(self, call: Call) -> None:
        """Run a function when the loop has ended, for any reason; immediately if it has ended already."""
        self._ending.append(call)
        if self._ended:
            call()

    def later(self, seconds: float, call: Call) -> Timer:
        """Run a function after this many seconds. Call it on the I/O thread only; pass the result to ``cancel``."""
        return self.loop.call_later(seconds, lambda: self._guarded(call))

    def cancel(self, timer: Timer) -> None:
        self.loop.remove_timeout(timer)  # type: ignore[arg-type]  # made by call_later

    def stop(self, *, timeout: float) -> bool:
        """End the loop; return True if the thread ended in time."""
        self.call(self.loop.stop)
        if not self.current:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def _answer(self) -> None:
        self._answered = True

    def _drain(self) -> None:
        """Run all functions passed to ``call``, also those that they pass in turn, which need no wake-up."""
        calls = self._calls
        while True:
            while calls:
                try:
                    calls.popleft()()
                except Exception as error:  # noqa: BLE001 - the other functions still run
                    self._failed(error)
            self._woken = False
            # A function added before this assignment caused no wake-up, so check again; one added after it causes
            # a wake-up that may find nothing to do.
            if not calls:
                return
            self._woken = True

    def _guarded(self, call: Call) -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001 - a timer's error must not end the loop
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        """End all connections: the function's work may be half done, and the broker redelivers."""
        log.error("A function failed on the I/O thread; its connections are closed and opened again", exc_info=error)
        for connection in list(self.connections):
            connection.services.fail(error)

    def _run(self) -> None:
        hide_pika_logs()
        try:
            self.loop.start()
        except BaseException as error:
            log.critical("The I/O thread ended: %s: %s", type(error).__name__, error, exc_info=True)
        finally:
            self._ended = True
            for call in self._ending:
                self._last(call)
            self.loop.close()
            show_pika_logs()

    def _last(self, call: Call) -> None:
        """Run a function of ``at_end``; the others still run, because threads wait for the results they report."""
        try:
            call()
        except Exception:
            log.exception(
                "A function failed at the end of the I/O thread; the others still run", extra={"event": "io_end"}
            )


class Sizes:
    """The body sizes known to be accepted on one connection; the next one tests again: the limit may have changed."""

    def __init__(self, connection: "Connection") -> None:
        self._connection = connection
        self.accepted = ALWAYS_ACCEPTED
        """A body up to this size can be sent without a test."""
        self.limit: int | None = None
        """The broker's limit, once it has refused a body."""

    def learn(self, limit: int) -> None:
        self.limit = self.accepted = limit

    def test(self, size: int, callback: Callable[[], None]) -> None:
        """Call back once the broker is known to accept a body of this size, or its limit is known."""
        _SizeTest(self, size, callback).start(self._connection)


class _SizeTest:
    """A test message of zeros for no queue, then a round trip: the broker answers, or closes the channel."""

    def __init__(self, sizes: Sizes, size: int, callback: Callable[[], None]) -> None:
        self._sizes = sizes
        self._size = size
        self._callback: Callable[[], None] | None = callback

    def start(self, connection: "Connection") -> None:
        try:
            connection.channel(on_open_callback=self._opened)
        except NoFreeChannels:
            self._end(None)

    def _opened(self, channel: Channel) -> None:
        channel.add_on_close_callback(self._closed)
        channel.basic_publish("", UNROUTABLE, bytes(self._size))
        channel.basic_qos(prefetch_count=1, callback=lambda _frame: self._accepted(channel))

    def _accepted(self, channel: Channel) -> None:
        self._end(None)
        channel.close()

    def _closed(self, _channel: object, reason: BaseException) -> None:
        self._end(limit_in(getattr(reason, "reply_text", "")))

    def _end(self, limit: int | None) -> None:
        """Record the result of the test and call back.

        If the broker names no limit, for example because the user may not write there, or no channel is free, the real
        body is the test.
        """
        callback, self._callback = self._callback, None
        if callback is None:
            return
        if limit is not None:
            self._sizes.learn(limit)
        elif self._sizes.limit is None:
            self._sizes.accepted = max(self._sizes.accepted, self._size)
        callback()


class Connection(pika.SelectConnection):
    """A pika connection with this package's transport and protocol, which pass on deliveries without pika."""

    def __init__(
        self,
        params: pika.connection.Parameters,
        *,
        custom_ioloop: IOLoop | None = None,
        services: type[IoServices] = IoServices,
        **callbacks: Any,
    ) -> None:
        self.services = services(custom_ioloop or IOLoop(), self)
        self.confirms = self.services.confirms
        self.sizes = Sizes(self)
        super().__init__(params, custom_ioloop=self.services, **callbacks)
        self.user: str = self.params.credentials.username  # type: ignore[attr-defined]  # PlainCredentials

    @property
    def server(self) -> Server:
        """The broker's product and version."""
        return Server.of(self.server_properties)

    @property
    def frame_max(self) -> int:
        """The negotiated frame size in bytes, for `marshal_publish`."""
        return int(self.params.frame_max)

    @property
    def crowded(self) -> bool:
        """True if the last channels should be left to tests of body sizes; fewer than half are left to them."""
        most = self.params.channel_max or MAX_CHANNELS
        return len(self.services.channels) >= most - min(ROOM, most // 2)

    def channel(self, *, on_open_callback: Callable[[Channel], object]) -> Channel:  # type: ignore[override]  # narrower
        """Open a channel."""
        inner = super().channel(on_open_callback=lambda _inner: on_open_callback(channel))
        channel = Channel(self.services, inner)
        return channel

    def send_raw(self, data: bytes) -> None:
        """Send frames that are already marshalled, in one piece."""
        if self.is_closed:
            raise ConnectionWrongStateError("The connection is closed; nothing can be sent on it.")
        transport = self.services.transport
        if data and transport is not None:
            transport.write(data)

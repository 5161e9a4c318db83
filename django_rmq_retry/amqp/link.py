"""A connection that reconnects: it tries the hosts in turn and waits longer after each failure."""

import random
import threading
import time
from collections.abc import Callable

from django_rmq_retry.amqp.address import Access, Host
from django_rmq_retry.amqp.connection import Connection, parameters
from django_rmq_retry.amqp.frames import FRAME_MAX
from django_rmq_retry.amqp.io_thread import IoThread
from django_rmq_retry.amqp.refusals import cause_of, denied, error_text, refusal_in
from django_rmq_retry.errors import BrokerRefused, BrokerUnfit, ConfigurationError

FIRST_RECONNECT_SECONDS, LONGEST_RECONNECT_SECONDS = 0.25, 15.0
MOST_VHOST_REFUSALS, VHOST_DELETED_SECONDS = 5, 30.0
"""Refusals in a row, and seconds since the first of them, after which a virtual host that existed before counts as
deleted. A user that is made again has no rights until they are granted, which may take some seconds.
"""
HEALTHY_SECONDS = 5.0
"""Seconds after which a connection counts as healthy, and its loss is followed by a short wait only."""


class Link:
    """Keeps one connection open until ``close``. Used on the I/O thread only, except for its construction."""

    def __init__(
        self,
        io: IoThread,
        access: Access,
        *,
        purpose: str,
        opened: Callable[[Connection], None],
        lost: Callable[[str, float], None],
        refused: Callable[[BaseException], None],
        healthy: float = HEALTHY_SECONDS,
    ) -> None:
        self.connection: Connection | None = None
        self._io = io
        self._access = access
        self._purpose = purpose
        self._opened_cb = opened
        self._lost = lost
        self._refused = refused
        self._healthy = healthy
        self._wait = FIRST_RECONNECT_SECONDS
        self._tries = 0
        self._since = 0.0
        self._ever = False
        self._missing = 0
        self._missing_since = 0.0
        self._wanted = False
        self._dialled: Connection | None = None
        self._closed_cb: Callable[[], None] | None = None

    def open(self) -> None:
        self._wanted = True
        self._dial()

    def close(self, closed: Callable[[], None]) -> None:
        """Close permanently; ``closed`` is called once the broker has confirmed, or immediately if nothing is open."""
        self._wanted = False
        connection = self.connection
        if connection is None and self._dialled is not None:
            # A broker that never answers must not keep this process, and pika's close() fails before it has answered.
            self._dialled.services.fail(ConnectionAbortedError("it is no longer needed"))
        if connection is None or connection.is_closing or connection.is_closed:
            closed()
            return
        self._closed_cb = closed
        connection.close()

    def close_and_wait(self, before: Callable[[], None], *, seconds: float) -> None:
        """Close permanently, from any thread, after ``before`` has run on the I/O thread; wait this long at most."""
        if not self._io.alive:
            return
        closed = threading.Event()

        def close() -> None:
            before()
            self.close(closed.set)

        self._io.call(close)
        if not self._io.current:
            closed.wait(seconds)

    def _dial(self) -> None:
        if not self._wanted:
            return
        # The embedded broker has no host yet; parameters() finds its address or raises the error.
        hosts = self._access.hosts or (Host("", 0),)
        host = hosts[self._tries % len(hosts)]
        self._tries += 1
        try:
            dial_parameters = parameters(self._access, host, purpose=self._purpose)
            self._dialled = Connection(
                dial_parameters,
                on_open_callback=self._opened,
                on_open_error_callback=self._not_opened,
                on_close_callback=self._closed,
                custom_ioloop=self._io.loop,
            )
            self._io.connections.add(self._dialled)
        except Exception as error:  # noqa: BLE001 - a certificate or a credentials provider may fail in any way
            self._dialled = None
            self._not_opened(None, error)

    def _opened(self, connection: Connection) -> None:
        if not self._wanted or self.connection is not None:
            # The link was closed, and perhaps opened again, while this connection was being opened.
            connection.close()
            return
        self.connection, self._dialled = connection, None
        if connection.frame_max < FRAME_MAX:
            # Headers that fill a frame of the default size must fit into a copy, too.
            error = BrokerUnfit(
                f"The broker at {self._access.shown} takes frames of {connection.frame_max} bytes, and a message whose "
                "headers need more could neither be retried nor parked. Set frame_max = "
                f"{FRAME_MAX}, RabbitMQ's default, in rabbitmq.conf."
            )
            self.close(lambda: self._refused(error))
            return
        self._since = time.monotonic()
        self._ever, self._missing = True, 0
        self._opened_cb(connection)

    def _not_opened(self, connection: Connection | None, error: BaseException | str) -> None:
        if not self._wanted or connection is not self._dialled:
            # It was given up while being opened; another may be opening by now.
            self._ended()
            return
        self._dialled = None
        cause = cause_of(error)
        # An embedded broker that ran before may be started again.
        if isinstance(cause, ConfigurationError) and not (self._ever and self._access.embedded):
            self._give_up(cause)
            return
        refusal = refusal_in(cause)
        gone = self._count_denial(cause)
        if refusal and (not self._ever or gone):
            self._give_up(BrokerRefused(self._access.shown, refusal))
            return
        self._again(refusal or error_text(cause))

    def _count_denial(self, cause: object) -> bool:
        """Count a refusal of the virtual host in a row, and return True once the virtual host counts as deleted."""
        self._missing = self._missing + 1 if denied(cause) else 0
        if self._missing == 1:
            self._missing_since = time.monotonic()
        return self._missing >= MOST_VHOST_REFUSALS and time.monotonic() - self._missing_since >= VHOST_DELETED_SECONDS

    def _give_up(self, error: BaseException) -> None:
        self._wanted = False
        self._refused(error)

    def _closed(self, connection: object, reason: BaseException) -> None:
        if connection is not self.connection:
            return
        self.connection = None
        if not self._wanted:
            self._ended()
            return
        if time.monotonic() - self._since >= self._healthy:
            self._wait = FIRST_RECONNECT_SECONDS
        self._again(error_text(reason))

    def _ended(self) -> None:
        closed, self._closed_cb = self._closed_cb, None
        if closed is not None:
            closed()

    def _again(self, reason: str) -> None:
        wait, chosen = self._wait, random.uniform(FIRST_RECONNECT_SECONDS, self._wait * 3)
        self._wait = min(LONGEST_RECONNECT_SECONDS, chosen)
        self._lost(reason, wait)
        self._io.later(wait, self._dial)

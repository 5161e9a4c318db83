"""A pika connection with this package's transport and protocol, and the parameters that it gets."""

import os
import socket
import ssl
from collections.abc import Callable
from typing import Any

import pika
from pika.adapters.select_connection import IOLoop
from pika.channel import MAX_CHANNELS
from pika.credentials import PlainCredentials
from pika.exceptions import ConnectionWrongStateError

from django_rmq_retry.amqp.address import UNPLACED, Access, Host, Tls
from django_rmq_retry.amqp.protocol import Channel, IoServices
from django_rmq_retry.amqp.sizes import Sizes
from django_rmq_retry.errors import ConfigurationError
from django_rmq_retry.topology.declarations import Server

PRODUCT = "django-rmq-retry"
PUBLISHING = "publish"
LONGEST_TCP_SECONDS = 10.0
SPARE_CHANNELS = 8
"""The number of a connection's channels that are left to tests of body sizes."""


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
        socket_timeout=min(LONGEST_TCP_SECONDS, now.connect_timeout),
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
        self.sizes = Sizes(self.channel)
        super().__init__(params, custom_ioloop=self.services, **callbacks)
        self.user: str = self.params.credentials.username  # type: ignore[attr-defined]  # PlainCredentials

    @property
    def server(self) -> Server:
        return Server.of(self.server_properties)

    @property
    def heartbeat(self) -> int:
        """The negotiated seconds after two of which without a sign the other side is taken for gone."""
        return int(self.params.heartbeat or 0)  # type: ignore[arg-type]  # a number once it is negotiated

    @property
    def frame_max(self) -> int:
        """The negotiated frame size in bytes, for `marshal_publish`."""
        return int(self.params.frame_max)

    @property
    def crowded(self) -> bool:
        """True if the last channels should be left to tests of body sizes; fewer than half are left to them."""
        most = self.params.channel_max or MAX_CHANNELS
        return len(self.services.channels) >= most - min(SPARE_CHANNELS, most // 2)

    @property
    def all_written(self) -> bool:
        """True if the socket has taken all that was said: what waits is written only while the loop runs."""
        transport = self.services.transport
        return transport is None or not transport.get_write_buffer_size()

    def channel(self, *, on_open_callback: Callable[[Channel], object]) -> Channel:  # type: ignore[override]  # narrower
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

"""From an Access to what pika needs for one connection. Made anew for each: credentials and certificates change."""

import os
import socket
import ssl

import pika
from pika.credentials import PlainCredentials

from django_rmq_retry.broker.address import UNPLACED, Access, Host, Tls
from django_rmq_retry.core.errors import ConfigurationError

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

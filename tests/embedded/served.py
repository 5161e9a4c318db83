"""The embedded broker on its socket, in a thread of the test's process."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from django_rmq_retry.embedded.engine.behaviour import behaviour
from django_rmq_retry.embedded.wire.broker import Broker
from django_rmq_retry.embedded.wire.serving import Server

MakeServer = Callable[..., Server]


@contextmanager
def served(version: str = "4.0", *, port: int = 0) -> Iterator[Server]:
    """Serve on a port of its own for a while."""
    server = Server(Broker(behaviour(version)), port=port)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join(10)

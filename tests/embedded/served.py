"""The embedded broker on its socket, in a thread of the test's process."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django_rmq_retry.embedded.engine.behaviour import behaviour
from django_rmq_retry.embedded.engine.routing import Router
from django_rmq_retry.embedded.wire.client import Broker
from django_rmq_retry.embedded.wire.server import BrokerServer
from tests.tooling.management import Management
from tests.tooling.vhosts import Vhost

MakeServer = Callable[..., BrokerServer]
NOBODY = Management(url="http://127.0.0.1:1")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedVhost(Vhost):
    """The virtual host of an embedded broker, which has no management API: what is in it is read from the engine."""

    router: Router

    def _list(self, what: str) -> list[dict[str, Any]]:
        made = {"queues": self._queues, "exchanges": self._exchanges, "bindings": self._bindings}
        return list(made[what]())

    def _queues(self) -> Iterator[dict[str, Any]]:
        for queue in tuple(self.router.queues.values()):
            spec = queue.spec
            kind = "quorum" if spec.quorum else "classic"
            yield {"name": spec.name, "type": kind, "durable": spec.durable, "arguments": dict(spec.arguments)}

    def _exchanges(self) -> Iterator[dict[str, Any]]:
        for one in tuple(self.router.exchanges.values()):
            yield {
                "name": one.name,
                "type": one.spec.type,
                "durable": one.spec.durable,
                "arguments": dict(one.spec.arguments),
            }

    def _bindings(self) -> Iterator[dict[str, Any]]:
        for exchange in tuple(self.router.exchanges.values()):
            for one in tuple(exchange.bindings):
                yield {"source": exchange.name, "destination": one.destination.name, "routing_key": one.key}


def vhost_of(server: BrokerServer) -> Vhost:
    """The only one that it has."""
    router = server.broker.vhost.router
    version = server.broker.behaviour.version
    return ServedVhost(name="/", url=server.url, version=version, management=NOBODY, router=router)


@contextmanager
def served(version: str = "4.0", *, port: int = 0, file: Path | None = None) -> Iterator[BrokerServer]:
    """Serve on its own port for a while."""
    broker = Broker(behaviour(version), file=file)
    server = BrokerServer(broker, port=port)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join(10)
        broker.close()

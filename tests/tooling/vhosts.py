"""One virtual host and its content."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import pika

from tests.tooling.management import Management


@dataclass(frozen=True, slots=True, kw_only=True)
class Vhost:
    """The virtual host of one test; the lists are rows of the management API."""

    name: str
    url: str
    version: str
    management: Management

    def queues(self) -> dict[str, dict[str, Any]]:
        """Queues by name: durable, arguments, type, … (counts lag behind by up to half a second)."""
        return {row["name"]: row for row in self._list("queues")}

    def exchanges(self) -> dict[str, dict[str, Any]]:
        """Exchanges by name, without the broker's own."""
        rows = self._list("exchanges")
        return {row["name"]: row for row in rows if row["name"] and not row["name"].startswith("amq.")}

    def bindings(self) -> set[tuple[str, str, str]]:
        """(exchange, queue or exchange, routing key), without those of the default exchange."""
        rows = self._list("bindings")
        return {(row["source"], row["destination"], row["routing_key"]) for row in rows if row["source"]}

    def connections(self) -> list[dict[str, Any]]:
        """The open connections."""
        path = f"vhosts/{quote(self.name, safe='')}/connections"
        return list(self.management.call("GET", path))

    def close_connections(self, of: str = "") -> int:
        """Close the connections as an operator would, or those with this text in their name; return their number.

        The API lists a connection for a moment longer than it lives.
        """
        names = [row["name"] for row in self.connections() if of in str(row.get("client_properties"))]
        for name in names:
            self.management.delete(f"connections/{quote(name, safe='')}")
        return len(names)

    def _list(self, what: str) -> list[dict[str, Any]]:
        return list(self.management.call("GET", f"{what}/{quote(self.name, safe='')}"))


def outlast(vhost: Vhost) -> None:
    """Hold a message until the broker's consumer timeout has taken it back, and with it those held for longer."""
    connection = pika.BlockingConnection(pika.URLParameters(vhost.url))
    channel = connection.channel()
    ended: list[object] = []
    channel.add_on_cancel_callback(ended.append)
    channel.queue_declare("bystander", durable=True, arguments={"x-queue-type": "quorum"})
    channel.basic_publish("", "bystander", b"")
    channel.basic_consume("bystander", lambda *_delivery: None)
    # RabbitMQ 4.3 cancels the consumer, older versions close its channel.
    while not ended and channel.is_open:
        connection.process_data_events(1)
    connection.close()


@contextmanager
def vhost_on(management: Management, *, name: str, url: str, version: str) -> Iterator[Vhost]:
    """Create a virtual host, and delete it afterwards."""
    management.create_vhost(name)
    try:
        yield Vhost(name=name, url=url, version=version, management=management)
    finally:
        management.delete_vhost(name)

"""Where messages to one handler go, also those that arrive after a delay."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from django_rmq_retry.errors import ConfigurationError, NotDelayable
from django_rmq_retry.messages.codecs import Codec
from django_rmq_retry.policies.carriers import Carrier, Route
from django_rmq_retry.publishing.options import PublishOptions
from django_rmq_retry.topology.declarations import Queue


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """The destination of messages to one handler: its queue, and the type, key and headers that select the handler."""

    handler: str
    queue: Queue
    codec: Codec
    type: str | None = None
    routing_key: str | None = None
    headers: Mapping[str, object] = field(default_factory=dict)
    via: Carrier
    route: Route

    def addressed(self, exchange: str, routing_key: str, options: PublishOptions) -> tuple[str, str, PublishOptions]:
        """Return exchange, routing key and options, completed with the values that select the handler."""
        if self.type is not None and options.type is None:
            options = replace(options, type=self.type)
        if self.headers:
            options = replace(options, headers={**self.headers, **(options.headers or {})})
        if not exchange and self.queue.named_by_broker:
            raise ConfigurationError(
                f"Handler {self.handler} has one queue for each process, with a name given by the broker. Publish "
                f"to its exchange: publish(…, exchange={self.queue.bindings[0].source.name!r}, routing_key=…)."
            )
        if exchange or (self.routing_key is None and not routing_key):
            return exchange, routing_key or self.queue.name, options
        key = routing_key or self.routing_key or ""
        if "*" in key or "#" in key or not self.queue.bindings:
            raise ConfigurationError(
                f"Handler {self.handler} takes messages with the routing key {self.routing_key!r}. "
                "Pass routing_key=…, and exchange=… if its queue has no binding."
            )
        return self.queue.bindings[0].source.name, key, options

    def delayed(
        self, delay: float, origin: tuple[str, str], headers: Mapping[str, object]
    ) -> tuple[str, str, int | None, Mapping[str, object]]:
        """Return exchange, routing key, expiration and headers for a message that arrives after `delay` seconds."""
        way = self.via.delayed(self.route, delay)
        if way is None:
            raise NotDelayable(self.handler, type(self.via).__name__)
        exchange, key, expiration, stamp = way
        # Stamp the original exchange and key like a retry, so that after the wait the same handler is selected.
        stamp = stamp._replace(exchange=origin[0], routing_key=origin[1], queue=self.queue.name)
        return exchange, key, expiration, {**headers, **stamp.headers()}

"""Where a message to a handler goes, now or after a while."""

from collections.abc import Mapping
from dataclasses import replace

from django_rmq_retry.core.errors import ConfigurationError, NotDelayable
from django_rmq_retry.core.subscription import Subscription
from django_rmq_retry.options import Options


def addressed(
    subscription: Subscription, exchange: str, routing_key: str, options: Options
) -> tuple[str, str, Options]:
    """Where a handler's messages go: to its queue alone, with what makes this handler take them."""
    match = subscription.match
    if match.type is not None and options.type is None:
        options = replace(options, type=match.type)
    if match.headers:
        options = replace(options, headers={**match.headers, **(options.headers or {})})
    if exchange or (match.routing_key is None and not routing_key):
        return exchange, routing_key or subscription.queue.name, options
    key = routing_key or match.routing_key or ""
    if "*" in key or "#" in key or not subscription.queue.bindings:
        raise ConfigurationError(
            f"Handler {subscription.name} takes messages with the routing key {match.routing_key!r}: "
            "say routing_key=… (and exchange=… where its queue has no binding)."
        )
    return subscription.queue.bindings[0].source.name, key, options


def delayed(
    subscription: Subscription, delay: float, origin: tuple[str, str], headers: Mapping[str, object]
) -> tuple[str, str, int | None, Mapping[str, object]]:
    """By which way a message gets there after so many seconds: exchange, key, expiration and headers."""
    way = subscription.policy.via.delayed(subscription.route, delay)
    if way is None:
        raise NotDelayable(subscription.name, type(subscription.policy.via).__name__)
    exchange, key, expiration, stamp = way
    # Written down as in a retry: when the wait is over, its handler is found by the key it would have come by.
    stamp = replace(stamp, exchange=origin[0], routing_key=origin[1], queue=subscription.queue.name)
    return exchange, key, expiration, {**headers, **stamp.headers()}

"""Deliveries and routes as the tests of the core need them."""

from collections.abc import Mapping
from typing import Any

from django_rmq_retry.handlers.subscription import Match, Subscription
from django_rmq_retry.messages.headers import Headers
from django_rmq_retry.messages.message import Delivery, Message
from django_rmq_retry.messages.properties import Properties, encode_properties
from django_rmq_retry.messages.stamp import Stamp
from django_rmq_retry.policies.carriers import Hop, Route
from django_rmq_retry.policies.policy import Policy
from django_rmq_retry.topology.queues import Queue

NOW = 1_700_000_000_000


def delivery(
    *,
    queue: str = "payments",
    exchange: str = "",
    routing_key: str | None = None,
    redelivered: bool = False,
    attempt: int = 1,
    body: bytes = b"{}",
    headers: Mapping[str, object] | Headers | None = None,
    raw: bytes | None = None,
    **properties: Any,
) -> Delivery:
    """One arrival; by the default exchange unless told otherwise."""
    table = headers if isinstance(headers, Headers) else Headers.of(headers or {})
    return Delivery(
        queue=queue,
        body=body,
        raw=encode_properties(Properties(headers=table, **properties)) if raw is None else raw,
        exchange=exchange,
        routing_key=queue if routing_key is None else routing_key,
        redelivered=redelivered,
        attempt=attempt,
    )


def arrived(copy: Message, *, queue: str, exchange: str = "", routing_key: str | None = None) -> Delivery:
    """What a confirmed copy looks like when the broker delivers it."""
    return delivery(
        queue=queue,
        exchange=exchange,
        routing_key=routing_key,
        body=copy.body,
        raw=encode_properties(copy.properties),
    )


def hop(delay: float = 30.0, **stamp: Any) -> Hop:
    return Hop(delay=delay, stamp=Stamp(**stamp))


def route(name: str = "payments", *, park: str = "payments.parked", **options: Any) -> Route:
    """A route; what is not a part of it belongs to its queue."""
    attempts = options.pop("attempts", None)
    waits = tuple((backoff, attempts) for backoff in options.pop("backoffs", ()))
    return Route(work=Queue(name, **options), park=park, attempts=attempts, waits=waits)


def subscription(
    policy: Policy,
    *,
    queue: Queue | str = "payments",
    name: str = "payments.handlers.charge",
    park: str | None = None,
    match: Match | None = None,
) -> Subscription:
    work = Queue(queue) if isinstance(queue, str) else queue
    return Subscription(
        name=name,
        run=lambda _: None,
        queue=work,
        policy=policy,
        park=park or f"{work.name}.parked",
        match=match or Match(),
    )

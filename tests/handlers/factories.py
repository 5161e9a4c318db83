"""Deliveries and routes for tests without a broker."""

from collections.abc import Mapping, Sequence
from typing import Any

from django_rmq_retry import Delivery, Exchange, Message, Queue
from django_rmq_retry.handlers import Match, Subscription, work_queues_of
from django_rmq_retry.handlers.layout import layout
from django_rmq_retry.handlers.settlement import Case, next_hop, settlement_of
from django_rmq_retry.handlers.verdicts import feasible
from django_rmq_retry.messages import Headers, Properties, Settlement, Stamp, encode_properties
from django_rmq_retry.policies import Hop, Policy, Route, Verdict
from django_rmq_retry.topology import Topology

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
    """Return a delivery, from the default exchange unless another one is given."""
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
    """Return the delivery of a confirmed copy."""
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


def settled(
    verdict: Verdict, arrival: Delivery, handler: Subscription, *, now: int = NOW, nonce: int = 0
) -> Settlement:
    """The settlement that carries out the verdict on a delivery to this handler."""
    case = Case(delivery=arrival, subscription=handler, parked_queue=handler.park, now=now, nonce=nonce)
    return settlement_of(feasible(verdict, arrival, handler), case)


def unattempted(verdict: Verdict, arrival: Delivery, *, park: str) -> Settlement:
    """The settlement of a delivery that no handler attempts."""
    return settlement_of(verdict, Case(delivery=arrival, subscription=None, parked_queue=park, now=NOW))


def sent_on(arrival: Delivery, handler: Subscription) -> Settlement | None:
    """The settlement of a delivery that has to wait longer; None if its handler may run."""
    return next_hop(arrival, handler)


def topology_of(*handlers: Subscription, extra: Sequence[Queue | Exchange] = ()) -> Topology:
    """The topology that these handlers need, with additions of the project."""
    return layout(work_queues_of(handlers), extra=extra)

"""Policies decide what happens when a handler fails, and how a retry waits. Pure functions and values."""

from django_rmq_retry.policies.backoff import Backoff
from django_rmq_retry.policies.breaker import Circuit
from django_rmq_retry.policies.carriers import Carrier, Hop, Route
from django_rmq_retry.policies.policy import Failure, Policy
from django_rmq_retry.policies.verdict import ACK, DUPLICATE, Kind, Verdict, discard, halt, park, retry

__all__ = [
    "ACK",
    "DUPLICATE",
    "Backoff",
    "Carrier",
    "Circuit",
    "Failure",
    "Hop",
    "Kind",
    "Policy",
    "Route",
    "Verdict",
    "discard",
    "halt",
    "park",
    "retry",
]

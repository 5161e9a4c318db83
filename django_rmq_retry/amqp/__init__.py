"""The connection to RabbitMQ: the values and protocols that pass between this package and the others."""

from django_rmq_retry.amqp.address import Access, Host, Secret, Tls
from django_rmq_retry.amqp.contracts import (
    CONFIRMED,
    Caller,
    Cause,
    Done,
    Line,
    PublishEnd,
    Publisher,
    PublishResult,
    Scope,
)
from django_rmq_retry.amqp.refusals import Refusal

__all__ = [
    "CONFIRMED",
    "Access",
    "Caller",
    "Cause",
    "Done",
    "Host",
    "Line",
    "PublishEnd",
    "PublishResult",
    "Publisher",
    "Refusal",
    "Scope",
    "Secret",
    "Tls",
]

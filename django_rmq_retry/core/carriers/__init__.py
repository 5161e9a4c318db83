"""Carriers: how the broker carries a retry from one attempt to the next. When to retry is the policy's to say."""

from django_rmq_retry.core.carriers.base import Additions, Carrier, Hop, InPlace, Route
from django_rmq_retry.core.carriers.ladder import Ladder
from django_rmq_retry.core.carriers.loops import DeadLetter, WaitQueue
from django_rmq_retry.core.carriers.native import Native
from django_rmq_retry.core.carriers.returning import AckFirst, Republish, Requeue

__all__ = [
    "AckFirst",
    "Additions",
    "Carrier",
    "DeadLetter",
    "Hop",
    "InPlace",
    "Ladder",
    "Native",
    "Republish",
    "Requeue",
    "Route",
    "WaitQueue",
]

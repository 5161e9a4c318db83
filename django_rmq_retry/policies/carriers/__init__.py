"""Carriers: the ways a retry waits between two attempts."""

from django_rmq_retry.policies.carriers.carrier import Additions, Carrier, Hop, Ladder, Route
from django_rmq_retry.policies.carriers.dead_letter import DeadLetter, WaitQueue
from django_rmq_retry.policies.carriers.in_place import AckFirst, InPlace, NackRequeue, Native, Republish

__all__ = [
    "AckFirst",
    "Additions",
    "Carrier",
    "DeadLetter",
    "Hop",
    "InPlace",
    "Ladder",
    "NackRequeue",
    "Native",
    "Republish",
    "Route",
    "WaitQueue",
]

"""Consume, retry and park RabbitMQ messages in Django."""

from django_rmq_retry import errors
from django_rmq_retry.core.backoff import Exponential, Fixed, Steps
from django_rmq_retry.core.breaking import Breaker
from django_rmq_retry.core.carriers import AckFirst, DeadLetter, Ladder, Native, Republish, Requeue, WaitQueue
from django_rmq_retry.core.codec import Json, Raw
from django_rmq_retry.core.message import Delivery, Message
from django_rmq_retry.core.overrule import Discard, Park, Retry
from django_rmq_retry.core.policy import OneShot, RetryThenPark, Schedule, StopTheLine
from django_rmq_retry.core.topology import Exchange, Queue
from django_rmq_retry.handler import Handler, handler
from django_rmq_retry.publishing import apublish, publish, publish_many

__version__ = "0.1.0"

__all__ = [
    "AckFirst",
    "Breaker",
    "DeadLetter",
    "Delivery",
    "Discard",
    "Exchange",
    "Exponential",
    "Fixed",
    "Handler",
    "Json",
    "Ladder",
    "Message",
    "Native",
    "OneShot",
    "Park",
    "Queue",
    "Raw",
    "Republish",
    "Requeue",
    "Retry",
    "RetryThenPark",
    "Schedule",
    "Steps",
    "StopTheLine",
    "WaitQueue",
    "__version__",
    "apublish",
    "errors",
    "handler",
    "publish",
    "publish_many",
]

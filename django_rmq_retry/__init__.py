"""Consume, retry and park RabbitMQ messages in Django."""

from django_rmq_retry import errors
from django_rmq_retry.handlers.batch import Batch
from django_rmq_retry.handlers.call import BatchFailed
from django_rmq_retry.handlers.handler import Handler, handler
from django_rmq_retry.messages.celery_tasks import CeleryCall, CeleryTask
from django_rmq_retry.messages.codecs import Json, Raw
from django_rmq_retry.messages.message import Delivery, Message
from django_rmq_retry.policies.backoff import Exponential, Fixed, Steps
from django_rmq_retry.policies.breaker import Breaker
from django_rmq_retry.policies.carriers import AckFirst, InPlace, Ladder, NackRequeue, Native, Republish
from django_rmq_retry.policies.dead_letter import DeadLetter, WaitQueue
from django_rmq_retry.policies.policy import OneShot, RetryThenPark, Schedule, StopTheLine
from django_rmq_retry.policies.verdict import Discard, Park, Retry
from django_rmq_retry.publishing.publish import apublish, publish, publish_many
from django_rmq_retry.topology.declarations import Broadcast, Exchange, Queue

__version__ = "0.1.0"

__all__ = [
    "AckFirst",
    "Batch",
    "BatchFailed",
    "Breaker",
    "Broadcast",
    "CeleryCall",
    "CeleryTask",
    "DeadLetter",
    "Delivery",
    "Discard",
    "Exchange",
    "Exponential",
    "Fixed",
    "Handler",
    "InPlace",
    "Json",
    "Ladder",
    "Message",
    "NackRequeue",
    "Native",
    "OneShot",
    "Park",
    "Queue",
    "Raw",
    "Republish",
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

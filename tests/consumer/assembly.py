"""The consumer of `rmq_consume`, built from the settings of the project in the test's own process."""

import time
from collections.abc import Iterable
from typing import Any

from django_rmq_retry.consumer import assembly
from django_rmq_retry.consumer.consumer import ConsumerLimits
from django_rmq_retry.consumer.events import Events
from django_rmq_retry.consumer.with_threads import ConsumerWithThreads
from django_rmq_retry.handlers import WorkQueue


def consumer_of(
    work_queues: Iterable[WorkQueue], *, threads: int = 1, prefetch: int = 1, **limits: Any
) -> ConsumerWithThreads:
    """A consumer of these work queues; its limits are those of the command if none are given."""
    events = Events(time.time)
    return assembly.consumer(
        list(work_queues), events, asynchronous=1, threads=threads, prefetch=prefetch, limits=ConsumerLimits(**limits)
    )

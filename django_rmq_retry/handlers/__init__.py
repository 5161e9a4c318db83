"""Handlers: the decorator, the registry, and the choice of the function that takes a message.

`handler` and `Handler` are imported from `django_rmq_retry`; the names here describe handlers and their work queues.
"""

from django_rmq_retry.handlers.subscription import Match, Subscription, WorkQueue, work_queues_of

__all__ = ["Match", "Subscription", "WorkQueue", "work_queues_of"]

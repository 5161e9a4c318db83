"""Handlers and their work queues. `handler` and `Handler` are imported from `django_rmq_retry`."""

from django_rmq_retry.handlers.subscription import Match, Subscription, WorkQueue, work_queues_of

__all__ = ["Match", "Subscription", "WorkQueue", "work_queues_of"]

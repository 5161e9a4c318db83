"""The admin's pages for operators."""

from django_rmq_retry.admin import audit, blocked, groups, messages, outbox, queues, runs, status

__all__ = ["audit", "blocked", "groups", "messages", "outbox", "queues", "runs", "status"]

"""The admin's pages for operators."""

from django_rmq_retry.admin import audit, blocked, consumers, groups, messages, outbox, queues, runs, status

__all__ = ["audit", "blocked", "consumers", "groups", "messages", "outbox", "queues", "runs", "status"]

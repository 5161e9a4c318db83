"""The admin's pages for operators."""

from django_rmq_retry.admin import approvals, audit, blocked, consumers, groups, messages, outbox, queues, runs, status

__all__ = ["approvals", "audit", "blocked", "consumers", "groups", "messages", "outbox", "queues", "runs", "status"]

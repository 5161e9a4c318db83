"""The pages for the people who look after parked messages; registered with whatever site the project has."""

from django_rmq_retry.admin import audit, groups, keys, messages, outgoing, queues, runs, status

__all__ = ["audit", "groups", "keys", "messages", "outgoing", "queues", "runs", "status"]

"""The database models: parked messages, attempts, requeue runs, outbox, inbox, queue controls and the audit log."""

from django_rmq_retry.models.alerts import AlertWatch
from django_rmq_retry.models.audit import Action, AuditHead, FormerName, LiveStatus, OperatorAction
from django_rmq_retry.models.boxes import InboxEntry, OutboxMessage
from django_rmq_retry.models.controls import (
    BlockedKey,
    BlockedMessage,
    ConsumerProcess,
    Declared,
    HandlerRate,
    QueueControl,
)
from django_rmq_retry.models.parked import (
    Attempt,
    BusinessKey,
    DiscardCategory,
    ErrorGroup,
    KeyList,
    ListedKey,
    MessageVersion,
    ParkedMessage,
    State,
)
from django_rmq_retry.models.runs import EarlyRetry, ItemReason, ItemState, RequeueItem, RequeueRun, RunState, RunWait

__all__ = [
    "Action",
    "AlertWatch",
    "Attempt",
    "AuditHead",
    "BlockedKey",
    "BlockedMessage",
    "BusinessKey",
    "ConsumerProcess",
    "Declared",
    "DiscardCategory",
    "EarlyRetry",
    "ErrorGroup",
    "FormerName",
    "HandlerRate",
    "InboxEntry",
    "ItemReason",
    "ItemState",
    "KeyList",
    "ListedKey",
    "LiveStatus",
    "MessageVersion",
    "OperatorAction",
    "OutboxMessage",
    "ParkedMessage",
    "QueueControl",
    "RequeueItem",
    "RequeueRun",
    "RunState",
    "RunWait",
    "State",
]

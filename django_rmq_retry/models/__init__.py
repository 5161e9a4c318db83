"""The models: parked messages, attempts, results, requeue runs, outbox, inbox, queues, approvals, audit log."""

from django_rmq_retry.models.alerts import AlertWatch
from django_rmq_retry.models.approvals import ApprovalRequest, GatedAct, MissedDiscard, RequestMember, RequestState
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
    AttemptName,
    BusinessKey,
    DiscardCategory,
    ErrorGroup,
    KeyList,
    ListedKey,
    MessageVersion,
    ParkedMessage,
    ParkedMinute,
    ParkedOrigin,
    State,
)
from django_rmq_retry.models.results import StoredResult
from django_rmq_retry.models.runs import EarlyRetry, ItemReason, ItemState, RequeueItem, RequeueRun, RunState, RunWait

__all__ = [
    "Action",
    "AlertWatch",
    "ApprovalRequest",
    "Attempt",
    "AttemptName",
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
    "GatedAct",
    "HandlerRate",
    "InboxEntry",
    "ItemReason",
    "ItemState",
    "KeyList",
    "ListedKey",
    "LiveStatus",
    "MessageVersion",
    "MissedDiscard",
    "OperatorAction",
    "OutboxMessage",
    "ParkedMessage",
    "ParkedMinute",
    "ParkedOrigin",
    "QueueControl",
    "RequestMember",
    "RequestState",
    "RequeueItem",
    "RequeueRun",
    "RunState",
    "RunWait",
    "State",
    "StoredResult",
]

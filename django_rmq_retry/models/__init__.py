"""The tables: what is parked and why, what was attempted, what operators did."""

from django_rmq_retry.models.actions import AuditHead, OperatorAction, Verb
from django_rmq_retry.models.attempts import Attempt
from django_rmq_retry.models.groups import ErrorGroup
from django_rmq_retry.models.messages import BusinessKey, MessageVersion, ParkedMessage, State
from django_rmq_retry.models.runs import Item, ItemState, RequeueRun, RunState
from django_rmq_retry.models.status import LiveStatus

__all__ = [
    "Attempt",
    "AuditHead",
    "BusinessKey",
    "ErrorGroup",
    "Item",
    "ItemState",
    "LiveStatus",
    "MessageVersion",
    "OperatorAction",
    "ParkedMessage",
    "RequeueRun",
    "RunState",
    "State",
    "Verb",
]

"""The tables: what is parked and why, what was attempted, what operators did."""

from django_rmq_retry.models.audit import AuditHead, LiveStatus, OperatorAction, Verb
from django_rmq_retry.models.blocked import BlockedKey, HeldMessage
from django_rmq_retry.models.controls import Meter, Switch
from django_rmq_retry.models.declared import Declared
from django_rmq_retry.models.inbox import InboxEntry
from django_rmq_retry.models.outbox import OutboxMessage
from django_rmq_retry.models.parked import (
    Attempt,
    BusinessKey,
    ErrorGroup,
    KeyList,
    ListedKey,
    MessageVersion,
    ParkedMessage,
    State,
)
from django_rmq_retry.models.runs import Item, ItemState, RequeueRun, RunState

__all__ = [
    "Attempt",
    "AuditHead",
    "BlockedKey",
    "BusinessKey",
    "Declared",
    "ErrorGroup",
    "HeldMessage",
    "InboxEntry",
    "Item",
    "ItemState",
    "KeyList",
    "ListedKey",
    "LiveStatus",
    "MessageVersion",
    "Meter",
    "OperatorAction",
    "OutboxMessage",
    "ParkedMessage",
    "RequeueRun",
    "RunState",
    "State",
    "Switch",
    "Verb",
]

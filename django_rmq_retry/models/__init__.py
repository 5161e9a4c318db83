"""The tables: what is parked and why, what was attempted, what operators did."""

from django_rmq_retry.models.actions import AuditHead, OperatorAction, Verb
from django_rmq_retry.models.attempts import Attempt
from django_rmq_retry.models.groups import ErrorGroup
from django_rmq_retry.models.inbox import InboxEntry
from django_rmq_retry.models.messages import BusinessKey, MessageVersion, ParkedMessage, State
from django_rmq_retry.models.ordering import BlockedKey, HeldMessage
from django_rmq_retry.models.outbox import OutboxMessage
from django_rmq_retry.models.runs import Item, ItemState, RequeueRun, RunState
from django_rmq_retry.models.status import LiveStatus
from django_rmq_retry.models.switches import Meter, Switch

__all__ = [
    "Attempt",
    "AuditHead",
    "BlockedKey",
    "BusinessKey",
    "ErrorGroup",
    "HeldMessage",
    "InboxEntry",
    "Item",
    "ItemState",
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

"""Acts that need a second person: who asks, who approves, and what shows that an act was done."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from django.contrib.auth.models import User

from django_rmq_retry.breakers.table import states
from django_rmq_retry.models import (
    Action,
    ApprovalRequest,
    MessageVersion,
    ParkedMessage,
)
from django_rmq_retry.parked import queue_pauses
from django_rmq_retry.parked.approvals import ask
from django_rmq_retry.parked.edit import propose, store
from django_rmq_retry.parked.edit_many import Act, PathChange, store_many
from django_rmq_retry.parked.four_eyes import SecondPersonNeeded
from django_rmq_retry.parked.operators import Actor
from tests.admin.stopped import trip
from tests.operators.made import QUEUE, record

MAY = (
    *("approve_approvalrequest", "view_parkedmessage", "view_payload", "requeue", "bulk_requeue", "edit_requeue"),
    *("bulk_edit", "discard", "pause_queue"),
)
LIMITS = {"DISCARD": 2, "EDIT": 1, "REQUEUE": 2, "CLOSE_BREAKER": True}
COMMA = PathChange(path="amount", act=Act.REPLACE, find=",", value=".", number=True)
Do = Callable[[Actor], object]


def needing_second_person(settings: Any) -> None:
    """Let the acts of LIMITS need a second person."""
    limits = {"OPERATORS": {"EDITABLE": {"*": True}}, "FOUR_EYES": LIMITS}
    settings.RMQ_RETRY = {**settings.RMQ_RETRY, **limits}


def actor_of(user: User) -> Actor:
    return Actor(name=user.username, user_id=user.pk, source="admin", ip="10.0.0.7")


def asked(do: Do, author: Actor) -> ApprovalRequest:
    """Do what needs a second person, as a page does: it asks."""
    with pytest.raises(SecondPersonNeeded) as needed:
        do(author)
    return ask(needed.value.wish, author)


class Scene(NamedTuple):
    """An act, and what shows that it was done."""

    do: Do
    done: Callable[[], object]
    action: Action


def payment(**fields: Any) -> ParkedMessage:
    return record(**{"body": b'{"amount": "8,50"}', "content_type": "application/json", **fields})


def editing() -> Scene:
    one = payment()

    def do(actor: Actor) -> object:
        return store(one.pk, actor, propose(one, text='{"amount": 8.50}'), version=1, reason="comma")

    return Scene(
        do, lambda: [bytes(one.body) for one in MessageVersion.objects.all()] == [b'{"amount": 8.50}'], Action.EDIT
    )


def editing_many() -> Scene:
    some = [payment(), payment()]

    def do(actor: Actor) -> object:
        return store_many(COMMA, actor, revisions={one.pk: one.revision for one in some}, reason="comma")

    return Scene(do, lambda: MessageVersion.objects.filter(number=2).count() == 2, Action.EDIT)


def closing() -> Scene:
    trip(QUEUE, wait=300)
    return Scene(
        lambda actor: queue_pauses.resume_queue(QUEUE, actor, reason="the bank is back"),
        lambda: not states([QUEUE])[QUEUE].circuit.opened,
        Action.RESUME,
    )

"""The gate in front of acts that need a second person, and such an act as it was asked for."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from django.utils.translation import gettext as _

from django_rmq_retry.conf import settings
from django_rmq_retry.models import ApprovalRequest, GatedAct
from django_rmq_retry.parked.operators import Actor, Refused
from django_rmq_retry.parked.selection import Selection

EDITS = (GatedAct.EDIT, GatedAct.EDIT_MANY)
"""The acts that store a change and send nothing."""
NO_MESSAGES = Selection(as_of=datetime.fromtimestamp(0, UTC), count=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What an operator asks for: enough to carry it out later, and exactly that."""

    act: GatedAct
    count: int = 1
    subject: str = ""
    reason: str = ""
    selection: Selection = NO_MESSAGES
    terms: Mapping[str, Any] = field(default_factory=dict)
    """The arguments of the act, as JSON values."""
    body: bytes = b""
    properties: bytes = b""
    """The edited message."""

    @property
    def text(self) -> str:
        """The selection and the terms as JSON in ASCII, which every database returns as it is."""
        stored = {"selection": self.selection.facts(most=None), "terms": dict(self.terms)}
        return json.dumps(stored, sort_keys=True, separators=(",", ":"))

    @classmethod
    def of(cls, request: ApprovalRequest) -> "Wish":
        """Return the wish of a request; its messages are those that were asked for, also if a filter chose them.

        Raise UnreadableWish if it cannot be read any more.
        """
        chosen, terms = _read(request)
        return cls(
            act=GatedAct(request.act),
            count=request.count,
            subject=request.subject,
            reason=request.reason,
            selection=chosen if chosen.named else replace(chosen, request=request.pk),
            terms=terms,
            body=bytes(request.body),
            properties=bytes(request.properties),
        )


class UnreadableWish(Refused):
    """Something other than this package has overwritten what a request asks for."""

    def __init__(self, request: ApprovalRequest) -> None:
        text = _("What %(request)s asks for cannot be read: its row in the database was changed. Reject it, ask again.")
        super().__init__(text % {"request": request})


def _read(request: ApprovalRequest) -> tuple[Selection, Mapping[str, Any]]:
    try:
        stored = json.loads(request.wish)
        return Selection.of_facts(stored["selection"]), dict(stored["terms"])
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise UnreadableWish(request) from error


def selection_of(request: ApprovalRequest) -> Selection:
    """Return the selection of a request as it was stored; if a filter chose its messages, they are its members.

    It is empty if it cannot be read any more, so that the other pages and the rejection work all the same.
    """
    try:
        return _read(request)[0]
    except UnreadableWish:
        return NO_MESSAGES


def seal_of(request: ApprovalRequest) -> str:
    """Return the SHA-256 of what is done if the request is approved, and of who asked for it."""
    what = (request.act, request.wish, request.count, request.subject, request.reason)
    who = (request.by, request.behalf, request.source)
    whole = hashlib.sha256(json.dumps([*map(str, what), *who]).encode())
    for content in (request.body, request.properties):
        whole.update(hashlib.sha256(bytes(content)).digest())
    return whole.hexdigest()


class SecondPersonNeeded(Refused):
    """The act needs a second person, so nothing was done; ``approvals.ask`` asks for the wish."""

    def __init__(self, wish: Wish) -> None:
        super().__init__(_("Nothing was done yet: a second person has to approve this."))
        self.wish = wish


def needs_second(act: GatedAct, count: int = 1) -> bool:
    """Return True if an act on so many messages needs a second person."""
    limits = settings().four_eyes
    if act == GatedAct.CLOSE_BREAKER:
        return limits.close_breaker
    by_act = {
        **dict.fromkeys((GatedAct.EDIT, GatedAct.EDIT_MANY), limits.edit),
        **dict.fromkeys((GatedAct.DISCARD, GatedAct.DISCARD_OUTBOX), limits.discard),
    }
    least = by_act.get(act, limits.requeue)
    return least is not None and count >= least


def require_second(actor: Actor, wish: Wish) -> None:
    """Let an act pass, or raise SecondPersonNeeded.

    Code of the project passes: it has no operator who could wait for an answer.
    """
    if actor.approval is None and actor.source != "code" and needs_second(wish.act, wish.count):
        raise SecondPersonNeeded(wish)

"""The acts that a second person approves. Each is one class: its permissions, what it would do now, and how it is done.

Pages and commands show the previews. From how many messages on an act needs a second person: ``four_eyes``.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from django.db.models import QuerySet
from django.utils.translation import gettext as _

from django_rmq_retry.models import ApprovalRequest, GatedAct, OutboxMessage, ParkedMessage
from django_rmq_retry.parked import edit, edit_many, queue_pauses, requeue
from django_rmq_retry.parked.actions import change_slice, discarding, slice_of
from django_rmq_retry.parked.database import locked_messages
from django_rmq_retry.parked.edit import Change, Proposal
from django_rmq_retry.parked.edit_many import EditResult, PathChange
from django_rmq_retry.parked.findings import RequeueFinding, RequeueReport, changed, discard_findings, report
from django_rmq_retry.parked.four_eyes import Wish
from django_rmq_retry.parked.operators import (
    NEEDED,
    Actor,
    Allowed,
    NotAllowed,
    NothingChosen,
    Outdated,
    refusal,
    requeue_refusal,
)
from django_rmq_retry.parked.outbox_actions import discard_outbox, failing
from django_rmq_retry.parked.overdue import discardable
from django_rmq_retry.parked.requeue_options import RequeueOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Approved:
    """An approved request, as its act is carried out."""

    request: ApprovalRequest
    wish: Wish
    actor: Actor
    """The author, with the approval."""
    allowed: Allowed
    """The rules of the project for both persons."""


class Gated(ABC):
    """One act that may need a second person."""

    verbs: ClassVar[tuple[str, ...]]
    """Its permissions; both persons need them."""
    checks_keys: ClassVar[bool] = False
    """True if the second person checks the doubtful keys of a list too."""
    leads_to_requeue: ClassVar[bool] = False
    """True if it leaves the messages parked, so that somebody has to requeue them."""

    def why_not(self, user: Any, count: int) -> str:
        """Return why an account must not do it with so many messages; single messages are checked when it is done."""
        del count
        return next((why for verb in self.verbs if (why := refusal(user, verb))), "")

    @abstractmethod
    def carry_out(self, approved: Approved) -> int | None:
        """Do it, and return the number of changed messages; None if slices follow."""

    def next_slice(self, approved: Approved) -> tuple[int, int] | None:
        """Do the next slice; return its last message and the number of changed ones, or None after the last slice."""
        return None


class EditAct(Gated):
    verbs = ("view", *NEEDED["edit"])
    leads_to_requeue = True

    def message(self, wish: Wish) -> ParkedMessage | None:
        return ParkedMessage.objects.filter(pk__in=wish.selection.revisions).select_related("group").first()

    def changes(self, wish: Wish) -> list[Change]:
        """Return what the edit changes, or would have changed: the edited message is gone when the request ends."""
        return [(path, before, after) for path, before, after in wish.terms.get("changes", ())]

    def preview(self, wish: Wish, message: ParkedMessage) -> Proposal | None:
        """Return the edit; None if the message has changed since it was asked for."""
        if message.revision not in wish.selection.revisions.values():
            return None
        return edit.proposed(message, body=wish.body, properties=wish.properties)

    def carry_out(self, approved: Approved) -> int:
        wish, [number] = approved.wish, approved.wish.selection.revisions
        message = locked_messages([number]).get(number)
        proposal = None if message is None else self.preview(wish, message)
        if message is None or proposal is None:
            raise Outdated(_("Nothing is done: the message has changed since this was asked for."))
        why = approved.allowed(message)
        if why:
            raise NotAllowed(why)
        terms = {"version": wish.terms["version"], "known": wish.terms.get("known", "")}
        edit.store(number, approved.actor, proposal, reason=wish.reason, **terms)
        return 1


class EditManyAct(Gated):
    verbs = ("view", *NEEDED["bulk_edit"])
    leads_to_requeue = True

    def change(self, wish: Wish) -> PathChange:
        return PathChange(**wish.terms["change"])

    def preview(self, wish: Wish, *, allowed: Allowed | None = None) -> Sequence[EditResult]:
        return edit_many.results_of(wish.selection, self.change(wish), allowed=allowed)

    def carry_out(self, approved: Approved) -> int:
        stored = edit_many.store_many(
            self.change(approved.wish),
            approved.actor,
            revisions=approved.wish.selection.revisions,
            reason=approved.wish.reason,
            known=approved.wish.terms.get("known", ""),
            allowed=approved.allowed,
        )
        return stored.edited


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscardPreview:
    findings: Sequence[RequeueFinding]
    """Why some messages are left out."""
    rows: QuerySet[ParkedMessage]
    """Those that are discarded."""
    discards: int


class DiscardAct(Gated):
    verbs = ("discard",)
    checks_keys = True

    def count_now(self, wish: Wish) -> int:
        return self._meant(wish, wish.selection.queryset()).count()

    def preview(self, wish: Wish, *, after: int = 0) -> DiscardPreview:
        """Return what it does with the messages that come after one of them."""
        rows = wish.selection.queryset().filter(pk__gt=after)
        meant, findings = self._meant(wish, rows), discard_findings(wish.selection, rows)
        return DiscardPreview(findings=findings, rows=meant, discards=meant.count())

    def _meant(self, wish: Wish, rows: QuerySet[ParkedMessage]) -> QuerySet[ParkedMessage]:
        return rows.filter(discardable()).exclude(changed(wish.selection))

    def carry_out(self, approved: Approved) -> None:
        """Let the slices follow, each in a transaction of its own: they may be many."""
        approved.wish.selection.check(approved.wish.selection.queryset().count())

    def next_slice(self, approved: Approved) -> tuple[int, int] | None:
        ids = slice_of(approved.wish.selection, approved.request.place)
        if not ids:
            return None
        done = change_slice(
            discarding(**approved.wish.terms), approved.wish.selection, approved.actor, ids, approved.allowed
        )
        return ids[-1], done.changed


class RequeueAct(Gated):
    verbs = ("requeue",)
    checks_keys = True

    def why_not(self, user: Any, count: int) -> str:
        return requeue_refusal(user, count)

    def count_now(self, wish: Wish) -> int:
        return self.preview(wish).sendable

    def preview(self, wish: Wish) -> RequeueReport:
        return report(wish.selection, RequeueOptions.of(wish.terms).terms)

    def carry_out(self, approved: Approved) -> int:
        sendable = self.preview(approved.wish).sendable
        if not sendable:
            raise NothingChosen(_("Nothing is left to requeue."))
        options = RequeueOptions.of(approved.wish.terms)
        run = requeue.start(approved.wish.selection, approved.actor, options, reason=approved.wish.reason)
        approved.request.run = run.pk
        return sendable


class DiscardOutboxAct(Gated):
    verbs = ("view_outbox", "discard_outbox")

    def count_now(self, wish: Wish) -> int:
        return self.preview(wish).count()

    def preview(self, wish: Wish) -> QuerySet[OutboxMessage]:
        """Return the rows that it deletes now: the others were sent meanwhile, or are about to be."""
        rows = failing(wish.terms["outbox"]).filter(pk__in=wish.terms["rows"])
        return rows.order_by("pk").defer("body", "properties")

    def carry_out(self, approved: Approved) -> int:
        terms = approved.wish.terms
        count = discard_outbox(approved.actor, terms["rows"], using=terms["outbox"], reason=approved.wish.reason)
        if not count:
            raise NothingChosen(_("Nothing is left to discard: it was sent or discarded meanwhile."))
        return count


class CloseBreakerAct(Gated):
    verbs = ("pause_queue",)

    def carry_out(self, approved: Approved) -> int:
        queue_pauses.resume_queue(
            approved.wish.terms["queue"], approved.actor, reason=approved.wish.reason, seen=approved.wish.terms["seen"]
        )
        return 0


EDIT, EDIT_MANY, DISCARD, DISCARD_OUTBOX, REQUEUE, CLOSE_BREAKER = (
    EditAct(),
    EditManyAct(),
    DiscardAct(),
    DiscardOutboxAct(),
    RequeueAct(),
    CloseBreakerAct(),
)
ACTS: Mapping[str, Gated] = {
    GatedAct.EDIT: EDIT,
    GatedAct.EDIT_MANY: EDIT_MANY,
    GatedAct.DISCARD: DISCARD,
    GatedAct.DISCARD_OUTBOX: DISCARD_OUTBOX,
    GatedAct.REQUEUE: REQUEUE,
    GatedAct.CLOSE_BREAKER: CLOSE_BREAKER,
}

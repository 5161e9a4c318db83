"""What a request for a second person asks for, what it would change, and what became of it, in words."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext as _
from django.utils.translation import ngettext, pgettext

from django_rmq_retry.admin import labels
from django_rmq_retry.admin.pages import refusal
from django_rmq_retry.conf import settings
from django_rmq_retry.markup import counted
from django_rmq_retry.models import ApprovalRequest, GatedAct, ParkedMessage, RequestState, RequeueRun, State
from django_rmq_retry.parked import approvals, gated_acts
from django_rmq_retry.parked.edit import changes_in_one_line, stored_changes
from django_rmq_retry.parked.four_eyes import Wish, selection_of
from django_rmq_retry.wording import number

EDITS = (GatedAct.EDIT, GatedAct.EDIT_MANY)
MOST_IN_WORDS = 10
"""The most requests of a page whose change is looked up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedFor:
    """An open request, as a page names it that has some of its messages."""

    known: ApprovalRequest
    count: int
    """How many of the page's messages it is about; 0 where the page does not count them."""
    what: str
    change: str

    @property
    def about(self) -> str:
        """Return how its messages were chosen, unless what it asks for says the same."""
        counts = self.known.act in (GatedAct.DISCARD, GatedAct.REQUEUE)
        return self.known.subject if counts and self.known.subject not in self.what else ""


def asked_for(request: HttpRequest, rows: QuerySet[ParkedMessage]) -> list[AskedFor]:
    """Return the open requests for acts on some of these messages."""
    return list(in_words(request, approvals.open_requests_for(rows) if settings().four_eyes else ()))


def in_words(request: HttpRequest, some: Iterable[tuple[ApprovalRequest, int]]) -> Iterator[AskedFor]:
    """Yield what is asked for by requests that are given with a number of messages."""
    for place, (known, count) in enumerate(some):
        what, change = act_and_change(request, known) if place < MOST_IN_WORDS else (act_text(known, known.count), "")
        yield AskedFor(known=known, count=count, what=what, change=change)


def act_text(known: ApprovalRequest, count: int) -> str:
    """Return what is done with so many messages, as the button of the act itself says it."""
    texts: dict[str, str] = {
        GatedAct.DISCARD: ngettext("Discard %(count)d message", "Discard %(count)d messages", count),
        GatedAct.REQUEUE: ngettext("Requeue %(count)d message", "Requeue %(count)d messages", count),
        GatedAct.EDIT_MANY: ngettext("Edit %(count)d message", "Edit %(count)d messages", count),
    }
    return counted(texts[known.act], count=count) if known.act in texts else known.get_act_display()


def act_and_change(request: HttpRequest, known: ApprovalRequest) -> tuple[str, str]:
    """Return what is done by a request, and in one line what an edit changes, as far as the user may see it."""
    what = act_text(known, known.count)
    if known.act == GatedAct.CLOSE_BREAKER:
        return f"{what}: {labels.one_short_line(known.subject)}", ""
    if known.act == GatedAct.EDIT_MANY:
        return what, "" if refusal(request, "view_payload") else gated_acts.EDIT_MANY.change(Wish.of(known)).sentence
    wish = Wish.of(known) if known.act == GatedAct.EDIT else None
    message = gated_acts.EDIT.message(wish) if wish else None
    if wish is None or message is None or refusal(request, "view", message=message):
        return what, ""
    what = _("Edit %(name)s") % {"name": labels.key(message)}
    if refusal(request, "view_payload", message=message):
        return what, ""
    if known.state == RequestState.DONE:
        return what, changes_in_one_line(stored_changes(message, wish.terms["version"] + 1))
    # An ended request has let go of the edited message.
    proposal = gated_acts.EDIT.preview(wish, message) if wish.properties else None
    return what, changes_in_one_line(proposal.changes) if proposal else ""


def standing(known: ApprovalRequest, state: str) -> str:
    """Return the state of a request; of an approved one with what became of its messages since."""
    became = _became(known) if known.state == RequestState.DONE else ""
    return _("Approved: %(became)s") % {"became": became} if became else state


def _became(known: ApprovalRequest) -> str:
    if known.run is not None:
        return _run(RequeueRun.objects.filter(pk=known.run).first())
    if known.act not in EDITS:
        return ""
    rows = ParkedMessage.objects.filter(pk__in=selection_of(known).revisions)
    fates = Counter(_fate(known, row) for row in rows.values("state", "requeued_at"))
    if sum(fates.values()) == 1:
        return next(iter(fates))
    return " · ".join(f"{number(count)} {fate}" for fate, count in fates.most_common())


def _fate(known: ApprovalRequest, row: Mapping[str, Any]) -> str:
    """Return what became of an edited message since its edit was approved."""
    ends: dict[str, str] = {
        State.PROCESSED: pgettext("what became of it", "processed"),
        State.DISCARDED: pgettext("what became of it", "discarded"),
        State.REQUEUED: pgettext("what became of it", "sent, its outcome is not known yet"),
        State.REQUEUEING: pgettext("what became of it", "being sent"),
    }
    if row["state"] in ends:
        return ends[row["state"]]
    sent = row["requeued_at"] and known.decided_at and row["requeued_at"] > known.decided_at
    if sent:
        return pgettext("what became of it", "sent, and failed again")
    return pgettext("what became of it", "stored, not sent yet")


def _run(run: RequeueRun | None) -> str:
    if run is None:
        return ""
    text = _("%(state)s, %(sent)s of %(total)s sent, %(processed)s processed, %(failed)s failed again")
    counts = {name: number(getattr(run, name)) for name in ("sent", "total", "processed", "failed")}
    return text % {"state": run.get_state_display(), **counts}

"""What a request for a second person asks for, what it would change, and what became of it, in words."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_rmq_retry.admin import labels
from django_rmq_retry.admin.pages import refusal
from django_rmq_retry.models import ApprovalRequest, GatedAct, ParkedMessage
from django_rmq_retry.parked import approvals, gated_acts
from django_rmq_retry.parked.database import records_alias
from django_rmq_retry.parked.edit import changes_in_one_line
from django_rmq_retry.parked.four_eyes import EDITS, UnreadableWish, Wish, selection_of
from django_rmq_retry.parked.selection import Selection, worth_saying
from django_rmq_retry.wording import counted

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
    chosen: str = ""
    """How its messages were chosen."""
    only: str = ""
    """The name of its only message, for who may see it."""

    @property
    def about(self) -> str:
        """Return how its messages were chosen, unless what it asks for says the same."""
        counts = self.known.act in (GatedAct.DISCARD, GatedAct.DISCARD_OUTBOX, GatedAct.REQUEUE)
        return (self.only or self.chosen) if counts and self.known.subject not in self.what else ""


def asked_for(request: HttpRequest, rows: QuerySet[ParkedMessage]) -> list[AskedFor]:
    """Return the open requests for acts on some of these messages."""
    return list(in_words(request, approvals.open_requests_for(rows)))


def in_words(request: HttpRequest, some: Iterable[tuple[ApprovalRequest, int]]) -> Iterator[AskedFor]:
    """Yield what is asked for by requests that are given with a number of messages."""
    requests = list(some)
    _read_wishes([known for known, _count in requests[:MOST_IN_WORDS]])
    for place, (known, count) in enumerate(requests):
        what, change = act_and_change(request, known) if place < MOST_IN_WORDS else (act_text(known, known.count), "")
        only, chosen = _only_and_chosen(request, known) if place < MOST_IN_WORDS else ("", known.subject)
        yield AskedFor(known=known, count=count, what=what, change=change, chosen=chosen, only=only)


def _read_wishes(some: list[ApprovalRequest]) -> None:
    """Read what these requests ask for by one query, unless it is read already."""
    unread = {one.pk: one for one in some if "wish" in one.get_deferred_fields()}
    wishes = ApprovalRequest.objects.using(records_alias()).filter(pk__in=unread).values_list("pk", "wish")
    for number, wish in wishes if unread else ():
        unread[number].wish = wish


def only_message(request: HttpRequest, selection: Selection) -> ParkedMessage | None:
    """Return the only message of a request; None if it is gone, or the user may not see it."""
    chosen = ParkedMessage.objects.filter(pk__in=selection.revisions).select_related("group")
    message = chosen.first() if len(selection.revisions) == 1 else None
    return None if message is None or refusal(request, "view", message=message) else message


def _only_and_chosen(request: HttpRequest, known: ApprovalRequest) -> tuple[str, str]:
    if known.act not in (GatedAct.DISCARD, GatedAct.REQUEUE):
        return "", known.subject
    selection = selection_of(known)
    message = only_message(request, selection) if known.count == 1 else None
    return "" if message is None else f"{labels.key(message)} · {message.queue}", chosen_text(known, selection)


def chosen_text(known: ApprovalRequest, selection: Selection) -> str:
    """Return how the messages of a request were chosen, in the reader's language."""
    # The subject names error groups, and messages chosen by hand, in any language.
    speaks = set(worth_saying(selection.filter)) - {"group"}
    return labels.selection_text(selection.facts(), known.subject) if speaks else known.subject


def act_text(known: ApprovalRequest, count: int) -> str:
    """Return what is done with so many messages, as the button of the act itself says it."""
    texts: dict[str, str] = {
        GatedAct.DISCARD: ngettext("Discard %(count)d message", "Discard %(count)d messages", count),
        GatedAct.DISCARD_OUTBOX: ngettext(
            "Discard %(count)d message of the outbox", "Discard %(count)d messages of the outbox", count
        ),
        GatedAct.REQUEUE: ngettext("Requeue %(count)d message", "Requeue %(count)d messages", count),
        GatedAct.EDIT_MANY: ngettext("Edit %(count)d message", "Edit %(count)d messages", count),
    }
    return counted(texts[known.act], count=count) if known.act in texts else known.get_act_display()


def act_and_change(request: HttpRequest, known: ApprovalRequest) -> tuple[str, str]:
    """Return what is done by a request, and in one line what an edit changes, as far as the user may see it."""
    what = act_text(known, known.count)
    if known.act == GatedAct.CLOSE_BREAKER:
        return f"{what}: {labels.one_short_line(known.subject)}", ""
    if known.act not in EDITS:
        return what, ""
    try:
        wish = Wish.of(known)
    except UnreadableWish:
        return what, ""
    if known.act == GatedAct.EDIT_MANY:
        return what, "" if refusal(request, "view_payload") else gated_acts.EDIT_MANY.change(wish).sentence
    return _edit_and_change(request, known, wish)


def _edit_and_change(request: HttpRequest, known: ApprovalRequest, wish: Wish) -> tuple[str, str]:
    what = act_text(known, known.count)
    message = gated_acts.EDIT.message(wish)
    if message is None or refusal(request, "view", message=message):
        return what, ""
    what = _("Edit %(name)s") % {"name": labels.key(message)}
    if refusal(request, "view_payload", message=message):
        return what, ""
    return what, changes_in_one_line(gated_acts.EDIT.changes(wish))

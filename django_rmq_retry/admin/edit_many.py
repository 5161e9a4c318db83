"""The page on which one change is applied to many messages: the change, its result for each, and the reason."""

from dataclasses import asdict
from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.core.signing import BadSignature, dumps, loads
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_rmq_retry.admin.choice import LeftOut, back_of, choosing, forbidden, named_alone, taken_keys
from django_rmq_retry.admin.pages import Pages, refusal, requires
from django_rmq_retry.messages.texts import short
from django_rmq_retry.models import ErrorGroup, ParkedMessage
from django_rmq_retry.parked.edit import editable_text, laid_out
from django_rmq_retry.parked.edit_many import (
    MOST_EDITED,
    Act,
    EditResult,
    PathChange,
    others_of,
    paths_of,
    results_of,
    store_many,
)
from django_rmq_retry.parked.four_eyes import SecondPersonNeeded
from django_rmq_retry.parked.operators import NEEDED, Actor, Refused
from django_rmq_retry.parked.selection import TOKEN_SECONDS, Selection
from django_rmq_retry.wording import counted

SALT = "django_rmq_retry.edit_many"
MOST_CAUSES_OF_EDIT = 3
MOST_EXAMPLE = 4000
"""The most characters of the example's body."""
ACTS = (
    (Act.REPLACE, gettext_lazy("replace a text in the value")),
    (Act.SET, gettext_lazy("set the value")),
    (Act.REMOVE, gettext_lazy("remove the value")),
)


@requires("view", *NEEDED["bulk_edit"])
@choosing(gettext_lazy("Edit messages"))
def view(pages: Pages, request: HttpRequest, selection: Selection, _left: LeftOut) -> HttpResponse:
    """Show the form, then the result for each message; store what was shown, and lead to its requeue."""
    form = request.POST
    change = PathChange(
        path=form.get("path", "").strip(),
        act=form.get("act", ""),
        find=form.get("find", ""),
        value=form.get("value", ""),
        number=bool(form.get("number")),
    )
    why_not, wrong, results = forbidden(request, selection, *NEEDED["bulk_edit"]), "", list[EditResult]()
    if request.method == "POST":
        if why_not:
            return pages.refused(request, why_not)
        try:
            if "store" in form:
                return _store(pages, request, change)
        except SecondPersonNeeded as needed:
            return pages.ask(request, needed)
        except Refused as refused:
            wrong = str(refused)
        try:
            results = results_of(selection, change, allowed=lambda message: _why_not(request, message))
        except Refused as refused:
            wrong = wrong or str(refused)
    meant = [one for one in results if not one.why]
    many = ngettext("Edit %(count)d message", "Edit %(count)d messages", len(meant))
    # After the preview the heading has the number of the button.
    count = len(meant) or selection.count
    title = counted(ngettext("Edit %(count)d message", "Edit %(count)d messages", count), count=count)
    alone = named_alone(request, selection, _("Edit %(name)s"), selection.count)
    revisions = {one.message.pk: one.message.revision for one in meant}
    return pages.page(
        request,
        "parkedmessage/edit_many.html",
        title=alone or title,
        status=422 if wrong else 200,
        token=selection.token(),
        back=back_of(pages, request, selection),
        acts=ACTS,
        causes=_causes(request, selection),
        edited_before=_edited_before(selection),
        **_example(request, selection, shown=not why_not),
        change=change,
        reason=form.get("reason", ""),
        meant=meant,
        left=[(one, bool(refusal(request, "view", message=one.message))) for one in results if one.why],
        shown=dumps([asdict(change), list(revisions.items())], salt=SALT, compress=True) if meant else "",
        button=alone or counted(many, count=len(meant)),
        taken=taken_keys(request, others_of(meant)),
        most=MOST_EDITED,
        forbidden=why_not,
        wrong={"all": wrong} if wrong else {},
    )


def _causes(request: HttpRequest, selection: Selection) -> list[ErrorGroup]:
    """Return the largest error groups of the messages, if the user may see groups."""
    if refusal(request, "view_group"):
        return []
    numbers = selection.queryset().order_by().values("group")
    return list(ErrorGroup.objects.filter(pk__in=numbers).order_by("-parked", "pk")[:MOST_CAUSES_OF_EDIT])


def _edited_before(selection: Selection) -> int:
    """Return how many of the messages are edited already; 0 if they are too many for an edit."""
    return selection.queryset().filter(version__gt=1).count() if selection.count <= MOST_EDITED else 0


def _example(request: HttpRequest, selection: Selection, *, shown: bool) -> dict[str, Any]:
    """Return the oldest message that the user may edit, one that is not edited yet if there is one, with its body."""
    rows = selection.queryset().select_related("group").order_by("parked_at", "pk")
    unedited = rows.filter(version=1)[:1] if shown else ()
    for row in unedited or (rows[:1] if shown else ()):
        if not _why_not(request, row):
            text = editable_text(row) or ""
            body = short(laid_out(text) or text, MOST_EXAMPLE)
            return {"example": row, "example_body": body, "paths": paths_of(row)}
    return {"example": None, "paths": []}


def _why_not(request: HttpRequest, message: ParkedMessage) -> str:
    return refusal(request, "view", *NEEDED["bulk_edit"], message=message)


def _store(pages: Pages, request: HttpRequest, change: PathChange) -> HttpResponse:
    reason = request.POST.get("reason", "").strip()
    try:
        shown, revisions = loads(request.POST.get("shown", ""), salt=SALT, max_age=TOKEN_SECONDS)
    except BadSignature:
        shown, revisions = None, []
    if shown != asdict(change):
        raise Refused(_("Nothing was done, because the change was not previewed as it is now. Check each result."))
    done = store_many(
        change,
        Actor.of_request(request),
        revisions=dict(revisions),
        reason=reason,
        known=request.POST.get("known", ""),
        allowed=lambda message: _why_not(request, message),
    )
    text = ngettext("%(count)d message was edited.", "%(count)d messages were edited.", done.edited)
    edited = {"edited_at": done.at.isoformat()}
    shown_at = f"{pages.address('parkedmessage_changelist')}?{urlencode({**edited, 'state': 'all'})}"
    said = format_html('{} <a href="{}">{}</a>', counted(text, count=done.edited), shown_at, _("Show the edited ones"))
    messages.success(request, said)
    left = len(revisions) - done.edited
    if left:
        text = ngettext(
            "%(count)d was left out, because it had changed meanwhile.",
            "%(count)d were left out, because they had changed meanwhile.",
            left,
        )
        messages.warning(request, counted(text, count=left))
    words = urlencode({"sel": Selection.of_filter(edited).token(), "reason": reason})
    return HttpResponseRedirect(f"{pages.address('requeuerun_preview')}?{words}")

"""Edit and requeue: the text as it is, then what changes and what speaks against sending it, then a reason.

What was typed is never lost.
"""

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _

from django_rmq_retry.admin import allowing, detail, looking, preview
from django_rmq_retry.admin.pages import Pages
from django_rmq_retry.core.errors import UndecodableHeaders
from django_rmq_retry.core.headers import EMPTY, Headers
from django_rmq_retry.core.properties import decode_properties
from django_rmq_retry.models import ParkedMessage
from django_rmq_retry.operating import heading
from django_rmq_retry.operating.actors import Actor
from django_rmq_retry.operating.checking import Report, report
from django_rmq_retry.operating.editing import Proposal, editable, propose, store, text_of
from django_rmq_retry.operating.refusals import Refused
from django_rmq_retry.operating.requeueing import start
from django_rmq_retry.operating.selecting import Selection
from django_rmq_retry.operating.sending import contents

FIELD = "header:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """What somebody typed."""

    text: str
    headers: dict[str, str | None]
    new_id: str
    version: int
    reason: str

    @classmethod
    def read(cls, request: HttpRequest, message: ParkedMessage) -> "Draft":
        said = request.POST
        known = _free(heading.rows(_headers(message)))
        # By their place: a name may hold what no form gives back unchanged.
        headers = {name: said.get(f"{FIELD}{place}") for place, name in enumerate(known)}
        version = said.get("version", "")
        # Browsers end each line of a text area their own way, and leave out the first that is empty.
        return cls(
            text=said.get("text", ""),
            headers={name: text for name, text in headers.items() if text is not None},
            new_id=said.get("new_id", "").strip(),
            version=int(version) if version.isdecimal() and len(version) < 9 else message.version,  # noqa: PLR2004
            reason=said.get("reason", "").strip(),
        )


def view(pages: Pages, request: HttpRequest, pk: int) -> HttpResponse:
    """The form; its review; and the stored version, which the preview then sends."""
    message = detail.found_or_404(str(pk))
    why = _forbidden(request, message)
    if why:
        return pages.refused(request, why)
    refusal = editable(message)
    if refusal:
        return pages.page(request, "gone.html", title=_("Edit %(name)s") % {"name": message}, status=409, why=refusal)
    if request.method != "POST":
        return _form(pages, request, message, text_of(message) or "")
    draft = Draft.read(request, message)
    proposal = propose(message, text=draft.text, headers=draft.headers, new_id=draft.new_id)
    if "back" in request.POST or proposal.problems:
        return _form(pages, request, message, draft.text, draft=draft, problems=proposal.problems)
    wrong = ""
    if "store" in request.POST or "send" in request.POST:
        try:
            store(pk, Actor.of_request(request), proposal, version=draft.version, reason=draft.reason)
            return _stored(pages, request, Selection.of_ids([pk]), draft.reason)
        except Refused as refused:
            wrong = str(refused)
    return _review(pages, request, message, draft, proposal=proposal, wrong=wrong)


def _stored(pages: Pages, request: HttpRequest, selection: Selection, reason: str) -> HttpResponse:
    """To the run that sends it, on the preview's usual terms; to the preview where that has something to ask."""
    usual = preview.Wish()
    if "send" in request.POST and _ready(report(selection)):
        terms: dict[str, Any] = {"rate": usual.rate, "max_depth": usual.max_depth, "stop_at": usual.stop_at}
        try:
            run = start(selection, Actor.of_request(request), reason=reason, **terms)
            return HttpResponseRedirect(pages.address("requeuerun_change", run.pk))
        except Refused as refused:
            messages.warning(request, str(refused))
    return HttpResponseRedirect(f"{pages.address('requeuerun_preview')}?{urlencode({'sel': selection.token()})}")


def _ready(found: Report) -> bool:
    """Whether nothing is left to decide before it is sent."""
    return bool(found.sendable) and not looking.look().away


def _forbidden(request: HttpRequest, message: ParkedMessage) -> str:
    """Whoever edits a text sees it, and whoever sends it may send it."""
    verbs = ("view", "edit", "view_payload", "requeue")
    return next((why for verb in verbs if (why := allowing.refusal(request, verb, message))), "")


def _form(pages: Pages, request: HttpRequest, message: ParkedMessage, text: str, **more: Any) -> HttpResponse:
    draft: Draft | None = more.get("draft")
    problems = more.get("problems", ())
    rows = heading.rows(_headers(message))
    free = _free(rows)
    fields = [(row, f"{FIELD}{free.index(row.name)}" if row.name in free else "", _typed(draft, row)) for row in rows]
    return pages.page(
        request,
        "parkedmessage/edit.html",
        title=_("Edit %(name)s") % {"name": message},
        status=422 if problems and "back" not in request.POST else 200,
        message=message,
        text=text,
        fields=fields,
        version=draft.version if draft else message.version,
        new_id=draft.new_id if draft else "",
        reason=draft.reason if draft else "",
        problems=() if "back" in request.POST else problems,
    )


def _review(
    pages: Pages, request: HttpRequest, message: ParkedMessage, draft: Draft, *, proposal: Proposal, wrong: str
) -> HttpResponse:
    found, seen = report(Selection.of_ids([message.pk])), looking.look()
    return pages.page(
        request,
        "parkedmessage/review.html",
        title=_("Review the changes of %(name)s") % {"name": message},
        status=422 if wrong else 200,
        message=message,
        draft=draft,
        carried=[(f"{FIELD}{place}", text) for place, text in enumerate(draft.headers.values())],
        proposal=proposal,
        findings=[(one, preview.said(one)) for one in found.findings],
        look=seen,
        levels=preview.levels(found, seen),
        ready=_ready(found),
        wrong={"all": wrong} if wrong else {},
    )


def _headers(message: ParkedMessage) -> Headers:
    try:
        return decode_properties(contents(message).raw).headers
    except UndecodableHeaders:
        return EMPTY


def _free(rows: list[heading.Row]) -> list[str]:
    """Which can be edited in a field of one line without being changed by it."""
    return [row.name for row in rows if not row.locked and row.text.isprintable()]


def _typed(draft: Draft | None, row: heading.Row) -> str:
    return (draft.headers.get(row.name) if draft else None) or row.text

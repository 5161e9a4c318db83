"""The pages on which a message is edited: the form, and the review of its changes."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from urllib.parse import urlencode

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _

from django_rmq_retry.admin import broker_look
from django_rmq_retry.admin.choice import taken_keys
from django_rmq_retry.admin.contents import TEXT_LIMIT
from django_rmq_retry.admin.message_page import beyond_forms, of_message
from django_rmq_retry.admin.pages import Pages, refusal
from django_rmq_retry.admin.requeue_form import RequeueForm, targets_of
from django_rmq_retry.admin.timeline import TraceLine, trace_of
from django_rmq_retry.attempts.history import attempts_of
from django_rmq_retry.errors import UndecodableHeaders
from django_rmq_retry.messages.properties import EMPTY, Headers, decode_properties
from django_rmq_retry.models import GatedAct, MessageVersion, ParkedMessage
from django_rmq_retry.parked import edit
from django_rmq_retry.parked.copies import contents
from django_rmq_retry.parked.edit import Proposal, editable, editable_text, laid_out, propose, store, typed_text
from django_rmq_retry.parked.edited_keys import others_with
from django_rmq_retry.parked.findings import RequeueReport, RequeueTerms, report
from django_rmq_retry.parked.four_eyes import SecondPersonNeeded, needs_second
from django_rmq_retry.parked.items import waits_in
from django_rmq_retry.parked.operators import Actor, Refused
from django_rmq_retry.parked.requeue import start
from django_rmq_retry.parked.selection import Selection

HEADER_FIELD = "header:"
FEWEST_LINES, MOST_LINES = 8, 40
"""The height of the field for the body."""
MOST_PATHS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class EditForm:
    text: str
    headers: dict[str, str | None]
    new_id: str
    version: int
    reason: str

    @classmethod
    def read(cls, request: HttpRequest, message: ParkedMessage) -> "EditForm":
        form = request.POST
        known = _free(edit.rows(_headers(message)))
        # Fields are found by their place: a header's name may hold characters that a form does not return unchanged.
        headers = {name: form.get(f"{HEADER_FIELD}{place}") for place, name in enumerate(known)}
        version = form.get("version", "")
        # Browsers have their own line ends in a text area, and drop a first line that is empty.
        return cls(
            text=form.get("text", ""),
            headers={name: text for name, text in headers.items() if text is not None},
            new_id=form.get("new_id", "").strip(),
            version=int(version) if version.isdecimal() and len(version) < 9 else message.version,  # noqa: PLR2004
            reason=form.get("reason", "").strip(),
        )


@of_message("view", "edit", "view_payload", "requeue")
def view(pages: Pages, request: HttpRequest, message: ParkedMessage) -> HttpResponse:
    """Show the form, then its review; store the version, which the preview then sends."""
    body = contents(message).body
    # A form sends two bytes for the end of a line.
    why_not = editable(message) or beyond_forms(message.pk, len(body) + body.count(b"\n"))
    if why_not:
        title = _("Edit %(name)s") % {"name": message}
        return pages.page(request, "refusal.html", title=title, status=409, why=why_not)
    if request.method != "POST":
        text = editable_text(message) or ""
        return _form_page(pages, request, message, laid_out(text) or text)
    form = EditForm.read(request, message)
    proposal = propose(message, text=typed_text(message, form.text), headers=form.headers, new_id=form.new_id)
    if "back" in request.POST or proposal.problems:
        return _form_page(pages, request, message, form.text, form=form, problems=proposal.problems)
    wrong = ""
    if "store" in request.POST or "send" in request.POST:
        actor = Actor.of_request(request)
        try:
            known = request.POST.get("known", "")
            store(message.pk, actor, proposal, version=form.version, reason=form.reason, known=known)
            return _send_or_preview(pages, request, Selection.of_ids([message.pk]), form.reason)
        except SecondPersonNeeded as needed:
            return pages.ask(request, needed)
        except Refused as refused:
            wrong = str(refused)
    return _review_page(pages, request, message, form, proposal=proposal, wrong=wrong)


def _send_or_preview(pages: Pages, request: HttpRequest, selection: Selection, reason: str) -> HttpResponse:
    """Redirect to a requeue run on the preview's default terms, or to the preview if a decision is left."""
    if "send" in request.POST and _ready(report(selection), broker_look.look()):
        try:
            run = start(selection, Actor.of_request(request), RequeueForm().options, reason=reason)
            return HttpResponseRedirect(pages.address("requeuerun_change", run.pk))
        except Refused as refused:
            messages.warning(request, str(refused))
    words = urlencode({"sel": selection.token(), "reason": reason})
    return HttpResponseRedirect(f"{pages.address('requeuerun_preview')}?{words}")


def _ready(findings: RequeueReport, look: broker_look.Look) -> bool:
    """Return True if no decision is left before the messages are sent."""
    return bool(findings.sendable) and not look.unreachable


def _form_page(
    pages: Pages,
    request: HttpRequest,
    message: ParkedMessage,
    text: str,
    *,
    form: EditForm | None = None,
    problems: Sequence[str] = (),
) -> HttpResponse:
    rows = edit.rows(_headers(message))
    free = _free(rows)
    typed = form.headers if form else {}
    fields = [
        (row, f"{HEADER_FIELD}{free.index(row.name)}", typed.get(row.name) or row.text)
        for row in rows
        if row.name in free
    ]
    problems = () if "back" in request.POST else problems
    return pages.page(
        request,
        "parkedmessage/edit.html",
        title=_("Edit %(name)s") % {"name": message},
        status=422 if problems else 200,
        message=message,
        latest=_latest_version(message),
        waits_in=waits_in(message.items.select_related("run").order_by("-pk")),
        line=_line_of_error(request, message),
        text=text,
        lines=min(max(text.count("\n") + 2, FEWEST_LINES), MOST_LINES),
        fields=fields,
        fixed=[row for row in rows if row.name not in free],
        version=form.version if form else message.version,
        new_id=form.new_id if form else "",
        reason=form.reason if form else "",
        problems=problems,
    )


def _latest_version(message: ParkedMessage) -> MessageVersion | None:
    """Return the version that an edit begins with; None for the original."""
    return message.versions.defer("body", "properties").order_by("-number").first() if message.version > 1 else None


def _review_page(
    pages: Pages, request: HttpRequest, message: ParkedMessage, form: EditForm, *, proposal: Proposal, wrong: str
) -> HttpResponse:
    asks = needs_second(GatedAct.EDIT)
    # A permanent error is what the edit removes.
    found = report(Selection.of_ids([message.pk]), RequeueTerms(confirmed_permanent=True))
    look = broker_look.look()
    # As many lines as a page shows.
    lengths = accumulate(len(line.text) + 2 for line in proposal.difference)
    lines = [line for line, length in zip(proposal.difference, lengths, strict=True) if length <= TEXT_LIMIT]
    return pages.page(
        request,
        "parkedmessage/review.html",
        title=_("Review the changes of %(name)s") % {"name": message},
        status=422 if wrong else 200,
        message=message,
        latest=_latest_version(message),
        draft=form,
        carried=[(f"{HEADER_FIELD}{place}", text) for place, text in enumerate(form.headers.values())],
        proposal=proposal,
        waits_in=waits_in(message.items.select_related("run").order_by("-pk")),
        taken=taken_keys(request, others_with({message.pk: proposal.keys})),
        differing=lines,
        paths=proposal.paths[:MOST_PATHS],
        more_paths=max(len(proposal.paths) - MOST_PATHS, 0),
        cut=len(lines) < len(proposal.difference),
        findings=[one for one in found.findings if one.name != "permanent"],
        look=look,
        levels=targets_of(found.queues, look),
        ready=_ready(found, look) and not (proposal.unread or asks),
        asks=asks,
        wrong={"all": wrong} if wrong else {},
    )


def _line_of_error(request: HttpRequest, message: ParkedMessage) -> TraceLine | None:
    """Return the project's own line that raised the last error, if it is known and the user may see tracebacks."""
    last = None if refusal(request, "view_traceback", message=message) else attempts_of(message).first()
    trace = None if last is None else trace_of(last)
    own = trace.causes[0].own if trace is not None else ()
    return own[-1] if own else None


def _headers(message: ParkedMessage) -> Headers:
    try:
        return decode_properties(contents(message).raw).headers
    except UndecodableHeaders:
        return EMPTY


def _free(rows: list[edit.HeaderRow]) -> list[str]:
    """Return the headers that a one-line field can edit without changing them."""
    return [row.name for row in rows if not row.locked and row.text.isprintable()]

"""The pages before a requeue: preview, and edit and requeue.

A page that is shown again keeps everything that was typed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _
from django.utils.translation import ngettext, ngettext_lazy

from django_rmq_retry.admin import broker_look, key_lists, labels, message_page, pages
from django_rmq_retry.admin.message_page import TEXT_LIMIT, beyond_forms
from django_rmq_retry.admin.pages import Pages
from django_rmq_retry.admin.queues import Standstill, standstills_of, troubles
from django_rmq_retry.amqp.declarer import Level
from django_rmq_retry.errors import UndecodableHeaders
from django_rmq_retry.handlers import registry
from django_rmq_retry.messages.properties import EMPTY, Headers, decode_properties
from django_rmq_retry.models import ItemReason, ParkedMessage
from django_rmq_retry.parked import edit, operators
from django_rmq_retry.parked.copies import contents
from django_rmq_retry.parked.edit import Line, Proposal, editable, propose, store, text_of
from django_rmq_retry.parked.findings import Finding, Report, Terms, report
from django_rmq_retry.parked.operators import Actor, Refused
from django_rmq_retry.parked.requeue import NO_TARGETS, REASON_FROM, STOP_AT, start
from django_rmq_retry.parked.selection import Selection

TYPED_FROM = 1000
"""Above this the number must be typed, so that an operator does not send a million messages by habit."""
SAID: Mapping[str, Any] = {
    "resolved": ngettext_lazy("%(count)d is no longer open", "%(count)d are no longer open", "count"),
    "changed": ngettext_lazy(
        "%(count)d was changed since it was chosen", "%(count)d were changed since they were chosen", "count"
    ),
    "on_hold": ngettext_lazy("%(count)d is on hold", "%(count)d are on hold", "count"),
    "no_queue": ngettext_lazy("%(count)d came from an unknown queue", "%(count)d came from an unknown queue", "count"),
    "refused": ngettext_lazy(
        "%(count)d is excluded because the project's rules do not allow you to requeue it",
        "%(count)d are excluded because the project's rules do not allow you to requeue them",
        "count",
    ),
    "succeeded": ngettext_lazy(
        "%(count)d was handled already: a copy of it succeeded",
        "%(count)d were handled already: a copy of each succeeded",
        "count",
    ),
    "unconfirmed": ngettext_lazy(
        "%(count)d may have been delivered: an earlier requeue was not confirmed",
        "%(count)d may have been delivered: an earlier requeue was not confirmed",
        "count",
    ),
    "permanent": ngettext_lazy(
        "%(count)d has a permanent error: a requeue alone will not help",
        "%(count)d have a permanent error: a requeue alone will not help",
        "count",
    ),
    "late": ngettext_lazy(
        "%(count)d is older than the age limit for requeues",
        "%(count)d are older than the age limit for requeues",
        "count",
    ),
    "unhandled": ngettext_lazy(
        "%(count)d is in a queue that no handler of this project reads",
        "%(count)d are in queues that no handler of this project reads",
        "count",
    ),
    "duplicates": ngettext_lazy(
        "%(count)d shares a business key with another one: sent oldest first, one at a time",
        "%(count)d share a business key with another one: sent oldest first, one at a time",
        "count",
    ),
    "edited": ngettext_lazy("%(count)d is sent as it was edited", "%(count)d are sent as they were edited", "count"),
}

FIELD = "header:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """The contents of the form."""

    rate: float = 20.0
    max_depth: int | None = 1000
    stop_at: float | None = STOP_AT
    reason: str = ""
    target: str = ""
    one_by_one: bool = False
    canary: bool = False
    include: frozenset[str] = field(default_factory=frozenset)
    fixed: bool = False
    typed: str = ""

    @classmethod
    def read(cls, request: HttpRequest) -> "Wish":
        """Read the submitted form; a number that is invalid is replaced by its default."""
        form = request.POST if request.method == "POST" else request.GET
        if request.method != "POST" and "rate" not in form:
            held = frozenset([str(ItemReason.ON_HOLD)] if request.GET.get("held") else [])
            return cls(canary=bool(request.GET.get("canary")), include=held)
        wish = cls(
            rate=number(form.get("rate"), 20.0),
            max_depth=int(number(form.get("max_depth"), 1000)) if form.get("wait") else None,
            stop_at=number(form.get("stop_at"), STOP_AT) if form.get("guard") else None,
            reason=form.get("reason", "").strip(),
            target=form.get("target", ""),
            one_by_one=form.get("order") == "key",
            canary=bool(form.get("canary")),
            include=frozenset(form.getlist("include")),
            fixed=bool(form.get("fixed")),
            typed=form.get("typed", "").strip(),
        )
        toggled = form.get("toggle")
        return replace(wish, include=wish.include ^ {toggled}) if toggled else wish

    @property
    def terms(self) -> Terms:
        return Terms(target=self.target, include=self.include, confirmed_permanent=self.fixed)


def preview_view(model_admin: Pages, request: HttpRequest) -> HttpResponse:
    """Show the messages to send and the objections; start the requeue run if that button was pressed."""
    why = pages.refusal(request, "requeue")
    if why:
        return model_admin.refused(request, why)
    wish = Wish.read(request)
    try:
        there = pages.frozen(request) or key_lists.changed(request)
        if there is not None:
            return there
        selection = pages.chosen(request)
        left = key_lists.left_out(request, selection)
        terms = replace(wish.terms, kept_back=pages.kept_back(request, "requeue", selection))
        findings = report(selection, terms)
    except Refused as refusal:
        return model_admin.page(request, "refusal.html", title=_("Requeue"), status=400, why=str(refusal))
    forbidden = pages.forbidden(request, "requeue", selection)
    starting = request.method == "POST" and "start" in request.POST
    if starting and forbidden:
        return model_admin.refused(request, forbidden)
    wrong = {"except": left.wrong} if left.wrong else _wrong(wish, findings) if starting else {}
    if starting and not wrong:
        try:
            return _start(model_admin, request, selection, wish)
        except Refused as refusal:
            wrong = {"all": str(refusal)}
    return _page(model_admin, request, selection, wish, left=left, findings=findings, wrong=wrong, forbidden=forbidden)


def number(text: str | None, otherwise: float) -> float:
    """Return the typed number if it is finite and not negative, else the default."""
    try:
        value = float((text or "").replace(",", "."))
    except ValueError:
        return otherwise
    return value if 0 <= value < float("inf") else otherwise


def _start(model_admin: Pages, request: HttpRequest, selection: Selection, wish: Wish) -> HttpResponse:
    run = start(
        selection,
        Actor.of_request(request),
        rate=wish.rate,
        max_depth=wish.max_depth,
        stop_at=wish.stop_at,
        reason=wish.reason,
        target=wish.target,
        one_by_one=wish.one_by_one,
        canary=wish.canary or request.POST["start"] == "canary",
        include=wish.include,
        confirmed_permanent=wish.fixed,
        planned=request.POST["start"] == "planned",
    )
    return HttpResponseRedirect(model_admin.address("requeuerun_change", run.pk))


def _wrong(wish: Wish, findings: Report) -> dict[str, str]:
    """Return the messages for fields that have to be filled in first."""
    wrong = {}
    if findings.total > REASON_FROM and not wish.reason:
        wrong["reason"] = _("Enter a reason: it is required for more than %(count)d messages.") % {"count": REASON_FROM}
    if findings.sendable > TYPED_FROM and wish.typed.replace(",", "").replace(" ", "") != str(findings.sendable):
        wrong["typed"] = _("Type %(count)d to confirm the number of messages.") % {"count": findings.sendable}
    if not findings.sendable:
        wrong["all"] = _("Nothing is left to requeue.")
    return wrong


def _page(
    model_admin: Pages,
    request: HttpRequest,
    selection: Selection,
    wish: Wish,
    *,
    findings: Report,
    wrong: Any,
    **more: Any,
) -> HttpResponse:
    seen = broker_look.look()
    title = ngettext("Requeue %(count)d message", "Requeue %(count)d messages", findings.total)
    many = ngettext("Requeue %(count)d message", "Requeue %(count)d messages", findings.sendable)
    asking = [finding for finding in findings.findings if finding.name == "permanent"]
    return model_admin.page(
        request,
        "requeuerun/preview.html",
        title=title % {"count": findings.total},
        status=422 if wrong else 200,
        selection=selection,
        chosen=labels.chosen(selection.facts()),
        token=selection.token(),
        again=pages.again(request, selection) if "all" in wrong else "",
        wish=wish,
        report=findings,
        findings=_listed(request, findings, wish),
        permanent=asking[0] if asking else None,
        button=many % {"count": findings.sendable},
        unasked=_unasked(request, selection),
        typed_from=TYPED_FROM if findings.sendable > TYPED_FROM else 0,
        reason_needed=findings.total > REASON_FROM,
        seconds=findings.sendable / wish.rate if wish.rate else None,
        targets=_targets(),
        sample=pages.sample(request, selection),
        look=seen,
        levels=levels(findings, seen),
        wrong=wrong,
        **more,
        disabled=bool(more["forbidden"]) or not findings.sendable or bool(seen.unreachable),
    )


def _listed(request: HttpRequest, findings: Report, wish: Wish) -> list[tuple[Finding, str, bool]]:
    """Return the findings except a permanent error, each with its text and whether its messages are included."""
    return [
        (pages.seen(request, one), finding_text(one), one.name in wish.include)
        for one in findings.findings
        if one.name != "permanent"
    ]


def finding_text(finding: Finding) -> str:
    """Return a finding in words and numbers."""
    return str(SAID[finding.name] % {"count": finding.count})


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A queue that messages would go to, with their number and the state of the queue."""

    queue: str
    count: int
    level: Level | None
    problems: list[str]
    still: Standstill | None

    @property
    def ready(self) -> bool:
        """True if the queue's messages are handled as soon as they arrive."""
        return bool(self.level and self.level.consumers and not self.still)


def levels(findings: Report, seen: broker_look.Look) -> list[Place]:
    """Return the queues that messages would go to, the one with the most messages first."""
    queues = findings.queues[:5]
    still = standstills_of(queue for queue, _count in queues) if queues else {}
    places = []
    for queue, count in queues:
        level = seen.level(queue)
        problems = troubles(level, still.get(queue)) if level else []
        places.append(Place(queue=queue, count=count, level=level, problems=problems, still=still.get(queue)))
    return places


def _unasked(request: HttpRequest, selection: Selection) -> str:
    """Return a note if there are too many messages to call the project's rules for all of them."""
    if selection.named or selection.count <= pages.MOST_ASKED or not operators.has_own_rules(request.user):
        return ""
    text = _(
        "The project's rules were checked for the %(count)d oldest messages. Others that they forbid are "
        "left out when the requeue run sends them."
    )
    return text % {"count": pages.MOST_ASKED}


def _targets() -> list[str]:
    queues = registry.topology().queues
    return [name for name, one in queues.items() if one.role not in NO_TARGETS]


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """The submitted edit of a message."""

    text: str
    headers: dict[str, str | None]
    new_id: str
    version: int
    reason: str

    @classmethod
    def read(cls, request: HttpRequest, message: ParkedMessage) -> "Draft":
        form = request.POST
        known = _free(edit.rows(_headers(message)))
        # Fields are found by their place: a header's name may hold characters that a form does not return unchanged.
        headers = {name: form.get(f"{FIELD}{place}") for place, name in enumerate(known)}
        version = form.get("version", "")
        # Browsers have their own line ends in a text area, and drop a first line that is empty.
        return cls(
            text=form.get("text", ""),
            headers={name: text for name, text in headers.items() if text is not None},
            new_id=form.get("new_id", "").strip(),
            version=int(version) if version.isdecimal() and len(version) < 9 else message.version,  # noqa: PLR2004
            reason=form.get("reason", "").strip(),
        )


def edit_view(model_admin: Pages, request: HttpRequest, pk: int) -> HttpResponse:
    """Show the form, then its review; store the version, which the preview then sends."""
    message = message_page.found_or_404(str(pk))
    why = _forbidden(request, message)
    if why:
        return model_admin.refused(request, why)
    refusal = editable(message) or beyond_forms(message.pk, _sent_by_form(message))
    if refusal:
        return model_admin.page(
            request, "refusal.html", title=_("Edit %(name)s") % {"name": message}, status=409, why=refusal
        )
    if request.method != "POST":
        return _form(model_admin, request, message, text_of(message) or "")
    draft = Draft.read(request, message)
    proposal = propose(message, text=draft.text, headers=draft.headers, new_id=draft.new_id)
    if "back" in request.POST or proposal.problems:
        return _form(model_admin, request, message, draft.text, draft=draft, problems=proposal.problems)
    wrong = ""
    if "store" in request.POST or "send" in request.POST:
        try:
            store(pk, Actor.of_request(request), proposal, version=draft.version, reason=draft.reason)
            return _stored(model_admin, request, Selection.of_ids([pk]), draft.reason)
        except Refused as refused:
            wrong = str(refused)
    return _review(model_admin, request, message, draft, proposal=proposal, wrong=wrong)


def _sent_by_form(message: ParkedMessage) -> int:
    """Return the bytes of the body, with two for the end of each line because a form sends two."""
    body = contents(message).body
    return len(body) + body.count(b"\n")


def _stored(model_admin: Pages, request: HttpRequest, selection: Selection, reason: str) -> HttpResponse:
    """Redirect to a requeue run on the preview's default terms, or to the preview if a decision is left."""
    usual = Wish()
    if "send" in request.POST and _ready(report(selection)):
        terms: dict[str, Any] = {"rate": usual.rate, "max_depth": usual.max_depth, "stop_at": usual.stop_at}
        try:
            run = start(selection, Actor.of_request(request), reason=reason, **terms)
            return HttpResponseRedirect(model_admin.address("requeuerun_change", run.pk))
        except Refused as refused:
            messages.warning(request, str(refused))
    return HttpResponseRedirect(f"{model_admin.address('requeuerun_preview')}?{urlencode({'sel': selection.token()})}")


def _ready(findings: Report) -> bool:
    """Return True if no decision is left before the messages are sent."""
    return bool(findings.sendable) and not broker_look.look().unreachable


def _forbidden(request: HttpRequest, message: ParkedMessage) -> str:
    """Return the reason that the user may not edit: that also needs the permissions to see the text and to requeue."""
    verbs = ("view", "edit", "view_payload", "requeue")
    return next((why for verb in verbs if (why := pages.refusal(request, verb, message))), "")


def _form(model_admin: Pages, request: HttpRequest, message: ParkedMessage, text: str, **more: Any) -> HttpResponse:
    draft: Draft | None = more.get("draft")
    problems = more.get("problems", ())
    rows = edit.rows(_headers(message))
    free = _free(rows)
    fields = [(row, f"{FIELD}{free.index(row.name)}" if row.name in free else "", _typed(draft, row)) for row in rows]
    return model_admin.page(
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
    model_admin: Pages, request: HttpRequest, message: ParkedMessage, draft: Draft, *, proposal: Proposal, wrong: str
) -> HttpResponse:
    findings, seen = report(Selection.of_ids([message.pk])), broker_look.look()
    return model_admin.page(
        request,
        "parkedmessage/review.html",
        title=_("Review the changes of %(name)s") % {"name": message},
        status=422 if wrong else 200,
        message=message,
        draft=draft,
        carried=[(f"{FIELD}{place}", text) for place, text in enumerate(draft.headers.values())],
        proposal=proposal,
        differing=(lines := _shown(proposal.difference)),
        cut=len(lines) < len(proposal.difference),
        findings=[(one, finding_text(one)) for one in findings.findings],
        look=seen,
        levels=levels(findings, seen),
        ready=_ready(findings),
        wrong={"all": wrong} if wrong else {},
    )


def _shown(lines: Sequence[Line]) -> list[Line]:
    """Return as many lines as a page shows."""
    lengths = accumulate(len(line.text) + 2 for line in lines)
    return [line for line, length in zip(lines, lengths, strict=True) if length <= TEXT_LIMIT]


def _headers(message: ParkedMessage) -> Headers:
    try:
        return decode_properties(contents(message).raw).headers
    except UndecodableHeaders:
        return EMPTY


def _free(rows: list[edit.Row]) -> list[str]:
    """Return the headers that a one-line field can edit without changing them."""
    return [row.name for row in rows if not row.locked and row.text.isprintable()]


def _typed(draft: Draft | None, row: edit.Row) -> str:
    return (draft.headers.get(row.name) if draft else None) or row.text

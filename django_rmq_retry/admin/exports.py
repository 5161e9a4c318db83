"""The export page."""

from collections.abc import Collection, Iterable, Iterator

from django.contrib.admin.options import IncorrectLookupParameters
from django.http import Http404, HttpRequest, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_rmq_retry.admin import key_lists, pages
from django_rmq_retry.admin.labels import LEFT_OUT
from django_rmq_retry.admin.pages import Pages
from django_rmq_retry.conf import settings
from django_rmq_retry.models import ParkedMessage, RequeueRun
from django_rmq_retry.parked import operators
from django_rmq_retry.parked.operators import Actor, NotAllowed, Refused
from django_rmq_retry.parked.selection import Selection
from django_rmq_retry.parked.transfer import Payload, audit_lines, export, run_lines

FORMS = {"csv": "text/csv; charset=utf-8", "jsonl": "application/x-ndjson; charset=utf-8"}
VERBS = ("view", "export")
"""The permissions needed for a message to be exported."""
MOST_LEFT_OUT = 1000
"""The most messages withheld by the project's rules that are left out by number."""


def messages(model_admin: Pages, request: HttpRequest) -> HttpResponseBase:
    """Export messages as a table, or as lines with their contents."""
    why = _why_not(request, VERBS)
    if why:
        return model_admin.refused(request, why)
    try:
        there = pages.frozen(request) or key_lists.changed(request)
        if there is not None:
            return there
        selection = pages.chosen(request)
        left = key_lists.left_out(request, selection)
        count = pages.counted(selection)
    except Refused as refusal:
        return model_admin.page(request, "refusal.html", title=_("Export"), status=400, why=str(refusal))
    forbidden = _forbidden(request, selection, count)
    no_whole = pages.refusal(request, "view_payload")
    wrong = left.wrong
    if request.method == "POST" and "leave_out" not in request.POST and not wrong:
        try:
            return model_admin.refused(request, forbidden) if forbidden else _messages_file(request, selection)
        except NotAllowed as refusal:
            return model_admin.refused(request, str(refusal))
        except Refused as refusal:
            wrong = str(refusal)
    label = ngettext("Export %(count)d message", "Export %(count)d messages", count)
    return model_admin.page(
        request,
        "parkedmessage/export.html",
        title=label % {"count": count},
        status=422 if wrong else 200,
        selection=selection,
        token=selection.token(),
        sample=pages.sample(request, selection),
        count=count,
        left=left,
        typed=request.POST or request.GET,
        forbidden=forbidden,
        no_whole=no_whole,
        wrong={"all": wrong} if wrong else {},
    )


def _forbidden(request: HttpRequest, selection: Selection, count: int) -> str:
    """Return the reason that nothing may be exported.

    For a filter's messages the project's rules are called for up to `MOST_ASKED`.
    """
    why = next((why for verb in VERBS if (why := pages.forbidden(request, verb, selection))), "")
    if why or selection.named or not operators.has_own_rules(request.user) or count > pages.MOST_ASKED:
        return why
    for row in selection.queryset().defer(*LEFT_OUT).order_by("pk").iterator(chunk_size=500):
        kept_back = _why_not(request, VERBS, row)
        if not kept_back:
            return ""
        why = why or kept_back
    return why


def _messages_file(request: HttpRequest, selection: Selection) -> HttpResponseBase:
    form, payload = request.POST.get("form", "csv"), request.POST.get("payload", Payload.NONE)
    if form not in FORMS or payload not in set(Payload):
        raise Refused(_("There is no such export format."))
    verbs = (*VERBS, "view_payload") if payload == Payload.WHOLE else VERBS
    why = _why_not(request, verbs)
    if why:
        raise NotAllowed(why)
    meant = _allowed(request, selection, verbs)
    reason, actor = request.POST.get("reason", "").strip(), Actor.of_request(request)
    return _file(export(meant, actor, form=form, payload=Payload(payload), reason=reason), "messages", form)


def run(model_admin: Pages, request: HttpRequest, pk: int) -> HttpResponseBase:
    """Export the outcome of each message of a requeue run."""
    why = pages.refusal(request, "view_run") or pages.refusal(request, "export")
    if why:
        return model_admin.refused(request, why)
    if not RequeueRun.objects.filter(pk=pk).exists():
        raise Http404(_("There is no such requeue run."))
    lines = run_lines(pk, Actor.of_request(request), allowed=lambda message: _why_not(request, VERBS, message))
    return _file(lines, f"run-{pk}", "csv")


def audit(model_admin: Pages, request: HttpRequest) -> HttpResponseBase:
    """Export the rows that the audit log's list shows on all its pages."""
    why = pages.refusal(request, "view_audit") or pages.refusal(request, "export")
    if why:
        return model_admin.refused(request, why)
    try:
        rows = model_admin.get_changelist_instance(request).queryset
        count = rows.count()
    except (IncorrectLookupParameters, OverflowError) as error:
        text = _("The filter cannot be used: %(error)s") % {"error": error}
        return model_admin.page(request, "not_allowed.html", title=_("This is not allowed"), status=400, why=text)
    if request.method == "POST":
        form = request.POST.get("form", "csv")
        if form not in FORMS:
            return model_admin.refused(request, _("There is no such export format."))
        return _file(audit_lines(rows.order_by(), Actor.of_request(request), form=form), "audit", form)
    label = ngettext("Export %(count)d action", "Export %(count)d actions", count)
    return model_admin.page(request, "operatoraction/export.html", title=label % {"count": count})


def _why_not(request: HttpRequest, verbs: Iterable[str], message: ParkedMessage | None = None) -> str:
    return next((why for verb in verbs if (why := pages.refusal(request, verb, message))), "")


def _allowed(request: HttpRequest, selection: Selection, verbs: Collection[str]) -> Selection:
    """Leave out the messages that the project's rules withhold from the user.

    For messages chosen one by one, raise NotAllowed if a rule withholds one of them.
    """
    if settings().operators.permit is None:
        return selection
    rows = selection.queryset().defer(*LEFT_OUT).order_by("pk")
    kept_back: list[int] = []
    asked, reason = 0, ""
    for row in rows.iterator(chunk_size=1000):
        why = _why_not(request, verbs, row)
        if why and selection.named:
            raise NotAllowed(pages.named(request, row, why))
        asked, reason = asked + 1, reason or why
        kept_back += [row.pk] if why else []
    if asked and len(kept_back) == asked:
        raise NotAllowed(reason)
    if len(kept_back) > MOST_LEFT_OUT:
        reason = _("The project's rules do not allow you to export %(count)d of these messages. Choose only others.")
        raise NotAllowed(reason % {"count": len(kept_back)})
    return Selection.of_filter({**selection.filter, "without": kept_back}) if kept_back else selection


def _file(lines: Iterator[str], name: str, form: str) -> StreamingHttpResponse:
    return StreamingHttpResponse(
        lines,
        content_type=FORMS[form],
        headers={
            "Content-Disposition": f'attachment; filename="{name}.{form}"',
            "X-Content-Type-Options": "nosniff",
            "Cache-Control": "no-store",
        },
    )

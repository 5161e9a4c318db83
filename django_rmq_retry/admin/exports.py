"""The export page."""

from collections.abc import Collection, Iterator
from typing import Any

from django.contrib.admin.options import IncorrectLookupParameters
from django.http import Http404, HttpRequest, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_rmq_retry.admin.choice import (
    MOST_CHECKED,
    LeftOut,
    asking,
    choosing,
    forbidden,
    named,
    named_alone,
    present_count,
)
from django_rmq_retry.admin.labels import LEFT_OUT
from django_rmq_retry.admin.pages import Pages, refusal, requires, saved_as
from django_rmq_retry.models import RequeueRun
from django_rmq_retry.parked import operators
from django_rmq_retry.parked.operators import Actor, NotAllowed, Refused
from django_rmq_retry.parked.selection import Selection
from django_rmq_retry.parked.transfer import Payload, audit_lines, early_lines, export, run_lines
from django_rmq_retry.wording import counted

FORMS = {"csv": "text/csv; charset=utf-8", "jsonl": "application/x-ndjson; charset=utf-8"}
VERBS = ("view", "export")
"""The permissions needed for a message to be exported."""
MOST_LEFT_OUT = 1000
"""The most messages withheld by the project's rules that are left out by number."""


@requires(*VERBS)
@choosing(gettext_lazy("Export"))
def messages(pages: Pages, request: HttpRequest, selection: Selection, left: LeftOut) -> HttpResponseBase:
    """Export messages as a table, or as lines with their contents."""
    count = present_count(selection)
    why_not, wrong = _forbidden(request, selection, count), left.wrong
    if request.method == "POST" and "leave_out" not in request.POST and not wrong:
        try:
            return pages.refused(request, why_not) if why_not else _messages_file(request, selection)
        except NotAllowed as refused:
            return pages.refused(request, str(refused))
        except Refused as refused:
            wrong = str(refused)
    label = ngettext("Export %(count)d message", "Export %(count)d messages", count)
    button = named_alone(request, selection, _("Export %(name)s"), count) or counted(label, count=count)
    context: dict[str, Any] = {
        "title": button,
        "button": button,
        "count": count,
        "no_whole": refusal(request, "view_payload"),
    }
    return asking(pages, request, "export", selection, wrong=wrong, left=left, forbidden=why_not, **context)


def _forbidden(request: HttpRequest, selection: Selection, count: int) -> str:
    """Return the reason that nothing may be exported.

    For a filter's messages the project's rules are called for up to `MOST_CHECKED`.
    """
    why = forbidden(request, selection, *VERBS)
    if why or selection.named or not operators.has_own_rules(request.user) or count > MOST_CHECKED:
        return why
    for row in selection.queryset().defer(*LEFT_OUT).order_by("pk").iterator(chunk_size=500):
        kept_back = refusal(request, *VERBS, message=row)
        if not kept_back:
            return ""
        why = why or kept_back
    return why


def _messages_file(request: HttpRequest, selection: Selection) -> HttpResponseBase:
    form, payload = request.POST.get("form", "csv"), request.POST.get("payload", Payload.NONE)
    if form not in FORMS or payload not in set(Payload):
        raise Refused(_("There is no such export format."))
    verbs = (*VERBS, "view_payload") if payload == Payload.WHOLE else VERBS
    why = refusal(request, *verbs)
    if why:
        raise NotAllowed(why)
    meant = _allowed(request, selection, verbs)
    reason, actor = request.POST.get("reason", "").strip(), Actor.of_request(request)
    return _file(export(meant, actor, form=form, payload=Payload(payload), reason=reason), "messages", form)


@requires("view_run", "export")
def run(_pages: Pages, request: HttpRequest, pk: int) -> HttpResponseBase:
    """Export the outcome of each message of a requeue run."""
    row, actor = RequeueRun.objects.filter(pk=pk).first(), Actor.of_request(request)
    if row is None:
        raise Http404(_("There is no such requeue run."))
    if row.retries_of:
        lines = early_lines(pk, actor, named=not operators.has_own_rules(request.user))
    else:
        lines = run_lines(pk, actor, allowed=lambda one: refusal(request, *VERBS, message=one))
    return _file(lines, f"run-{pk}", "csv")


@requires("view_audit", "export")
def audit(pages: Pages, request: HttpRequest) -> HttpResponseBase:
    """Export the rows that the audit log's list shows on all its pages."""
    try:
        rows = pages.get_changelist_instance(request).queryset
        count = rows.count()
    except (IncorrectLookupParameters, OverflowError) as error:
        return pages.refused(request, _("The filter cannot be used: %(error)s") % {"error": error}, status=400)
    if request.method == "POST":
        form = request.POST.get("form", "csv")
        if form not in FORMS:
            return pages.refused(request, _("There is no such export format."))
        return _file(audit_lines(rows.order_by(), Actor.of_request(request), form=form), "audit", form)
    label = ngettext("Export %(count)d action", "Export %(count)d actions", count)
    return pages.page(request, "operatoraction/export.html", title=counted(label, count=count))


def _allowed(request: HttpRequest, selection: Selection, verbs: Collection[str]) -> Selection:
    """Leave out the messages that the project's rules withhold from the user.

    For messages chosen one by one, raise NotAllowed if a rule withholds one of them.
    """
    if not operators.has_own_rules(request.user):
        return selection
    kept_back: list[int] = []
    count, reason = 0, ""
    for row in selection.queryset().defer(*LEFT_OUT).order_by("pk").iterator(chunk_size=1000):
        why = refusal(request, *verbs, message=row)
        if why and selection.named:
            raise NotAllowed(named(request, row, why))
        count, reason = count + 1, reason or why
        kept_back += [row.pk] if why else []
    if count and len(kept_back) == count:
        raise NotAllowed(reason)
    if len(kept_back) > MOST_LEFT_OUT:
        text = _("The project's rules do not allow you to export %(count)d of these messages. Choose only others.")
        raise NotAllowed(text % {"count": len(kept_back)})
    return Selection.of_filter({**selection.filter, "without": kept_back}) if kept_back else selection


def _file(lines: Iterator[str], name: str, form: str) -> StreamingHttpResponse:
    return StreamingHttpResponse(lines, content_type=FORMS[form], headers=saved_as(f"{name}.{form}"))

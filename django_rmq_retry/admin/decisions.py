"""The pages before discard, hold, restore and unhold."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_rmq_retry.admin import key_lists, labels, message_page, pages
from django_rmq_retry.admin.pages import Pages
from django_rmq_retry.conf import settings
from django_rmq_retry.models import DiscardCategory
from django_rmq_retry.parked.actions import Done, discard, hold, restore, unhold
from django_rmq_retry.parked.operators import Actor, Allowed, Refused
from django_rmq_retry.parked.selection import Selection

SPANS: tuple[tuple[str, Any], ...] = (
    ("30m", gettext_lazy("for 30 minutes")),
    ("2h", gettext_lazy("for 2 hours")),
    ("tomorrow", gettext_lazy("until tomorrow, 08:00")),
    ("at", gettext_lazy("until")),
)
MORNING = 8

LISTED = 10_000
"""The most messages among which business keys are counted."""


def discarding(model_admin: Pages, request: HttpRequest) -> HttpResponse:
    """Ask for a reason, then discard; the body is kept until its retention ends."""

    def change(selection: Selection, allowed: Allowed) -> str:
        category, text = request.POST.get("category", ""), request.POST.get("text", "")
        done = discard(selection, Actor.of_request(request), category=category, text=text, allowed=allowed)
        until = timezone.localdate() + timedelta(days=settings().operators.resolved_days)
        sentence = ngettext(
            "%(count)d message was discarded (reason: %(why)s). It can be restored until %(day)s.",
            "%(count)d messages were discarded (reason: %(why)s). They can be restored until %(day)s.",
            done.changed,
        )
        facts = {"count": done.changed, "why": labels.resolution(category), "day": f"{until:%Y-%m-%d}"}
        return sentence % facts + _rest(done)

    return _asked(model_admin, request, "discard", change)


def holding(model_admin: Pages, request: HttpRequest) -> HttpResponse:
    """Ask for the end of the hold, then put on hold; at that time the messages are parked again by themselves."""

    def change(selection: Selection, allowed: Allowed) -> str:
        until = _until(request.POST.get("span", ""), request.POST.get("at", ""))
        reason = request.POST.get("text", "")
        done = hold(selection, Actor.of_request(request), until=until, reason=reason, allowed=allowed)
        text = ngettext(
            "%(count)d message is on hold until %(when)s.",
            "%(count)d messages are on hold until %(when)s.",
            done.changed,
        )
        return text % {"count": done.changed, "when": f"{timezone.localtime(until):%Y-%m-%d %H:%M}"} + _rest(done)

    return _asked(model_admin, request, "hold", change)


def restoring(model_admin: Pages, request: HttpRequest, pk: int) -> HttpResponse:
    """Undo a discard."""
    return _one(model_admin, request, pk, "restore", restore, _("The message is parked again."))


def unhold_view(model_admin: Pages, request: HttpRequest, pk: int) -> HttpResponse:
    """End a hold now."""
    return _one(model_admin, request, pk, "unhold", unhold, _("The hold has ended and the message is parked again."))


def _asked(
    model_admin: Pages, request: HttpRequest, verb: str, change: Callable[[Selection, Allowed], str]
) -> HttpResponse:
    why = pages.refusal(request, verb)
    if why:
        return model_admin.refused(request, why)
    title = _("Discard messages") if verb == "discard" else _("Hold messages")
    try:
        there = pages.frozen(request) or key_lists.changed(request)
        if there is not None:
            return there
        selection = pages.chosen(request)
        left = key_lists.left_out(request, selection)
        count = pages.counted(selection)
    except Refused as refusal:
        return model_admin.page(request, "refusal.html", title=title, status=400, why=str(refusal))
    forbidden = pages.forbidden(request, verb, selection)
    wrong = left.wrong
    if request.method == "POST" and "leave_out" not in request.POST and not wrong:
        if forbidden:
            return model_admin.refused(request, forbidden)
        try:
            messages.success(request, change(selection, lambda message: pages.refusal(request, verb, message)))
            return HttpResponseRedirect(_back(model_admin, selection))
        except Refused as refusal:
            wrong = str(refusal)
    context = {"left": left, "wrong": {"all": wrong} if wrong else {}, "forbidden": forbidden}
    return _page(model_admin, request, selection, verb=verb, count=count, **context)


def _page(
    model_admin: Pages, request: HttpRequest, selection: Selection, *, verb: str, count: int, **context: Any
) -> HttpResponse:
    if verb == "discard":
        label = ngettext("Discard %(count)d message", "Discard %(count)d messages", count)
    else:
        label = ngettext("Hold %(count)d message", "Hold %(count)d messages", count)
    rows = selection.queryset().order_by()
    return model_admin.page(
        request,
        f"parkedmessage/{verb}.html",
        title=label % {"count": count},
        status=422 if context["wrong"] else 200,
        selection=selection,
        token=selection.token(),
        count=count,
        keys=rows.exclude(business_key="").values("business_key").distinct().count() if count <= LISTED else None,
        sample=pages.sample(request, selection),
        categories=DiscardCategory.choices,
        spans=SPANS,
        typed=request.POST or request.GET,
        until=timezone.localdate() + timedelta(days=settings().operators.resolved_days),
        **context,
    )


def _one(
    model_admin: Pages, request: HttpRequest, pk: int, verb: str, change: Callable[..., Done], *success: str
) -> HttpResponse:
    message = message_page.found_or_404(str(pk))
    why = pages.refusal(request, "view", message) or pages.refusal(request, verb, message)
    if why:
        return model_admin.refused(request, why)
    try:
        done = change(Selection.of_ids([pk]), Actor.of_request(request))
        if done.changed:
            messages.success(request, success[0])
        else:
            messages.warning(request, _("Nothing was changed: the message has changed since this page was loaded."))
    except Refused as refusal:
        messages.warning(request, str(refusal))
    return HttpResponseRedirect(model_admin.address("parkedmessage_change", pk))


def _until(span: str, at: str) -> datetime:
    now = timezone.now()
    if span == "tomorrow":
        morning = timezone.localtime(now).replace(hour=MORNING, minute=0, second=0, microsecond=0)
        return morning + timedelta(days=1)
    if span == "at":
        try:
            until = parse_datetime(at)
        except ValueError:
            until = None
        if until is None:
            raise Refused(_("Enter the end of the hold, such as 2026-11-22T08:00."))
        return until if timezone.is_aware(until) else timezone.make_aware(until)
    spans = {"30m": timedelta(minutes=30), "2h": timedelta(hours=2)}
    if span not in spans:
        raise Refused(_("Choose the end of the hold."))
    return now + spans[span]


def _rest(done: Done) -> str:
    left = done.left + done.refused
    text = ngettext(
        "%(count)d was not changed: it had changed meanwhile, or a rule of the project forbids the change.",
        "%(count)d were not changed: they had changed meanwhile, or a rule of the project forbids the change.",
        left,
    )
    return " " + text % {"count": left} if left else ""


def _back(model_admin: Pages, selection: Selection) -> str:
    """Return the address of the message if the selection is one message, else of the list."""
    if len(selection.revisions) == 1:
        return model_admin.address("parkedmessage_change", next(iter(selection.revisions)))
    if isinstance(selection.filter.get("group"), int):
        return model_admin.address("errorgroup_change", selection.filter["group"])
    return model_admin.address("parkedmessage_changelist")

"""The pages before discard, hold, restore and unhold."""

from collections.abc import Callable
from datetime import date, datetime, timedelta
from typing import Any

from django.contrib import messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_rmq_retry import database_clock
from django_rmq_retry.admin.choice import LeftOut, asking, choosing, forbidden, named_alone, present_count
from django_rmq_retry.admin.message_page import of_message
from django_rmq_retry.admin.pages import Pages, refusal, requires
from django_rmq_retry.conf import settings
from django_rmq_retry.handlers import registry
from django_rmq_retry.markup import counted
from django_rmq_retry.models import DiscardCategory, ParkedMessage, State
from django_rmq_retry.models.parked import resolution_text
from django_rmq_retry.parked.actions import Done, discard, hold, restore, unhold
from django_rmq_retry.parked.database import records_alias
from django_rmq_retry.parked.four_eyes import SecondPersonNeeded
from django_rmq_retry.parked.operators import Actor, Allowed, NothingChosen, Refused
from django_rmq_retry.parked.outcome_texts import decided_meanwhile, outcome_of
from django_rmq_retry.parked.released import released_by
from django_rmq_retry.parked.selection import Selection

SPANS: tuple[tuple[str, Any], ...] = (
    ("30m", gettext_lazy("for 30 minutes")),
    ("2h", gettext_lazy("for 2 hours")),
    ("tomorrow", gettext_lazy("until tomorrow, 08:00")),
    ("at", gettext_lazy("until")),
)
MORNING = 8
"""The hour at which a hold until tomorrow ends."""
PERHAPS_DONE = (DiscardCategory.ELSEWHERE, DiscardCategory.DUPLICATE)
"""Reasons for a discard by which another message, or another way, has done what the message requests."""
MOST_WITH_KEYS_COUNTED = 10_000
"""The most messages among which business keys are counted."""


@requires("discard")
@choosing(gettext_lazy("Discard messages"))
def discarding(pages: Pages, request: HttpRequest, selection: Selection, left: LeftOut) -> HttpResponse:
    """Ask for a reason, then discard; the body is kept until its retention ends."""

    def change(allowed: Allowed) -> str:
        category, text = request.POST.get("category", ""), request.POST.get("text", "")
        done = _some(discard(selection, Actor.of_request(request), category=category, text=text, allowed=allowed))
        sentence = ngettext(
            "%(count)d message was discarded (reason: %(why)s). It can be restored until %(day)s.",
            "%(count)d messages were discarded (reason: %(why)s). They can be restored until %(day)s.",
            done.changed,
        )
        facts = {"why": resolution_text(category), "day": f"{kept_until():%Y-%m-%d}"}
        return counted(sentence, count=done.changed, **facts) + _rest(done)

    count = present_count(selection)
    label = counted(ngettext("Discard %(count)d message", "Discard %(count)d messages", count), count=count)
    context: dict[str, Any] = {
        "title": _("Discard %(name)s"),
        "button": label,
        "count": count,
        "categories": DiscardCategory.choices,
        **discard_effect(selection.queryset(), count),
    }
    return _decide(pages, request, selection, "discard", change, left=left, **context)


def kept_until() -> date:
    """Return the day until which what is discarded now can be restored."""
    return timezone.localdate() + timedelta(days=settings().operators.resolved_days)


def discard_effect(rows: QuerySet[ParkedMessage], count: int) -> dict[str, Any]:
    """Return what a page says of a discard of so many messages, to the operator and to the second person alike."""
    keys = None
    if count <= MOST_WITH_KEYS_COUNTED:
        keys = rows.order_by().exclude(business_key="").values("business_key").distinct().count()
    return {"count": count, "keys": keys, "until": kept_until(), "released": released_by(rows)}


@requires("hold")
@choosing(gettext_lazy("Hold messages"))
def holding(pages: Pages, request: HttpRequest, selection: Selection, left: LeftOut) -> HttpResponse:
    """Ask for the end of the hold, then put on hold; at that time the messages are parked again by themselves."""

    def change(allowed: Allowed) -> str:
        until = _until(request.POST.get("span", ""), request.POST.get("at", ""))
        reason = request.POST.get("text", "")
        done = _some(hold(selection, Actor.of_request(request), until=until, reason=reason, allowed=allowed))
        text = ngettext(
            "%(count)d message is on hold until %(when)s.",
            "%(count)d messages are on hold until %(when)s.",
            done.changed,
        )
        when = f"{timezone.localtime(until):%Y-%m-%d %H:%M}"
        return counted(text, count=done.changed, when=when) + _rest(done)

    count = present_count(selection)
    label = counted(ngettext("Hold %(count)d message", "Hold %(count)d messages", count), count=count)
    context: dict[str, Any] = {"title": _("Hold %(name)s"), "button": label, "count": count, "spans": SPANS}
    return _decide(pages, request, selection, "hold", change, left=left, **context)


def _decide(
    pages: Pages,
    request: HttpRequest,
    selection: Selection,
    verb: str,
    change: Callable[[Allowed], str],
    *,
    left: LeftOut,
    title: str,
    **context: Any,
) -> HttpResponse:
    """Change the messages if the button was pressed, else ask; ``title`` is for one message, with its name."""
    pressed = request.method == "POST" and "leave_out" not in request.POST
    why_not = forbidden(request, selection, verb)
    wrong = left.wrong or (left.unchecked if pressed and not why_not else "")
    if pressed and not wrong:
        if why_not:
            return pages.refused(request, why_not)
        try:
            messages.success(request, change(lambda message: refusal(request, verb, message=message)))
            return HttpResponseRedirect(_back(pages, request, selection))
        except SecondPersonNeeded as needed:
            return pages.ask(request, needed)
        except Refused as refused:
            wrong = str(refused)
            if isinstance(refused, NothingChosen):
                wrong = f"{wrong} {decided_meanwhile(selection)}".strip()
    named = named_alone(request, selection, title, context["count"])
    context["button"] = named or context["button"]
    return asking(
        pages, request, verb, selection, wrong=wrong, left=left, forbidden=why_not, title=context["button"], **context
    )


@of_message("view", "restore")
def restoring(pages: Pages, request: HttpRequest, message: ParkedMessage) -> HttpResponse:
    """Show why the message was discarded and ask for a reason, then park it again."""
    if request.method == "POST":
        return _one(pages, request, message, restore, _("The message is parked again."))
    title = _("Restore %(name)s") % {"name": message}
    perhaps_done = message.resolution.partition(":")[0] in PERHAPS_DONE
    return _ask_for_one(pages, request, message, title, State.DISCARDED, perhaps_done=perhaps_done)


@of_message("view", "unhold")
def ending_hold(pages: Pages, request: HttpRequest, message: ParkedMessage) -> HttpResponse:
    """Show why the message is on hold and ask for a reason, then end the hold."""
    if request.method == "POST":
        return _one(pages, request, message, unhold, _("The hold has ended and the message is parked again."))
    title = _("Take %(name)s off hold") % {"name": message}
    return _ask_for_one(pages, request, message, title, State.ON_HOLD, perhaps_done=False)


def _ask_for_one(
    pages: Pages, request: HttpRequest, message: ParkedMessage, title: str, state: State, *, perhaps_done: bool
) -> HttpResponse:
    if message.state != state:
        why = f"{_changed_since()} {outcome_of(message)}".strip()
        return pages.page(request, "refusal.html", title=title, status=409, why=why)
    return pages.page(
        request,
        "parkedmessage/restore.html",
        title=title,
        message=message,
        become=outcome_of(message),
        lost_place=state == State.DISCARDED and _is_ordered(message),
        perhaps_done=perhaps_done,
    )


def _is_ordered(message: ParkedMessage) -> bool:
    """Return True if the message's handler keeps an order, so that the discard has unblocked its ordering key."""
    return any(one.order_by for one in registry.subscriptions() if one.name == message.handler)


def _changed_since() -> str:
    return _("Nothing was changed: the message has changed since this page was loaded.")


def _one(
    pages: Pages, request: HttpRequest, message: ParkedMessage, change: Callable[..., Done], success: str
) -> HttpResponse:
    reason = request.POST.get("reason", "").strip()
    try:
        if change(Selection.of_ids([message.pk]), Actor.of_request(request), reason=reason).changed:
            messages.success(request, success)
        else:
            message.refresh_from_db()
            messages.warning(request, f"{_changed_since()} {outcome_of(message)}".strip())
    except Refused as refused:
        messages.warning(request, str(refused))
    return HttpResponseRedirect(pages.address("parkedmessage_change", message.pk))


def _until(span: str, at: str) -> datetime:
    now = database_clock.now(records_alias())
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


def _some(done: Done) -> Done:
    if not done.changed:
        raise NothingChosen(_("Nothing was changed.") + _rest(done))
    return done


def _rest(done: Done) -> str:
    left = done.left + done.refused
    text = ngettext(
        "%(count)d was not changed: it had changed meanwhile, or a rule of the project forbids the change.",
        "%(count)d were not changed: they had changed meanwhile, or a rule of the project forbids the change.",
        left,
    )
    return " " + counted(text, count=left) if left else ""


def _back(pages: Pages, request: HttpRequest, selection: Selection) -> str:
    """Return the address of the error groups if the operator goes on there, of the only message, or of the list."""
    if request.GET.get("then") == "groups":
        return pages.address("errorgroup_changelist")
    if len(selection.revisions) == 1:
        return pages.address("parkedmessage_change", next(iter(selection.revisions)))
    if selection.group is not None:
        return pages.address("errorgroup_change", selection.group)
    return pages.address("parkedmessage_changelist")

"""The pages before discard, hold, restore and unhold."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any

from django.contrib import messages
from django.db.models import Count, Max, Min, Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_rmq_retry import database_clock
from django_rmq_retry.admin import places
from django_rmq_retry.admin.broker_look import waiting_seen
from django_rmq_retry.admin.cards import names_of
from django_rmq_retry.admin.choice import LeftOut, asking, back_of, choosing, forbidden, present_count, sample
from django_rmq_retry.admin.message_page import of_message
from django_rmq_retry.admin.pages import Pages, refusal, requires
from django_rmq_retry.conf import settings
from django_rmq_retry.handlers import registry
from django_rmq_retry.markup import NOTHING
from django_rmq_retry.models import Action, DiscardCategory, ErrorGroup, ParkedMessage, State
from django_rmq_retry.models.parked import DONE_OTHERWISE, NOBODY_DID_IT, OPEN, resolution_text
from django_rmq_retry.parked import operators
from django_rmq_retry.parked.actions import RESTORE_LACKS_REASON, Done, discard, hold, restore, unhold
from django_rmq_retry.parked.audit import newest_acts
from django_rmq_retry.parked.database import records_alias
from django_rmq_retry.parked.found import Found
from django_rmq_retry.parked.four_eyes import SecondPersonNeeded
from django_rmq_retry.parked.operators import Actor, Allowed, NothingChosen, Refused
from django_rmq_retry.parked.outcome_texts import decided_meanwhile, decisions_on, outcome_of
from django_rmq_retry.parked.overdue import discardable, lost_sentence
from django_rmq_retry.parked.released import released_by
from django_rmq_retry.parked.selection import Selection
from django_rmq_retry.parked.twins import MOST_COMPARED
from django_rmq_retry.wording import counted, minute

SPANS: tuple[tuple[str, Any], ...] = (
    ("30m", gettext_lazy("for 30 minutes")),
    ("2h", gettext_lazy("for 2 hours")),
    ("morning", gettext_lazy("until 08:00")),
    ("at", gettext_lazy("until")),
)
MORNING = 8
"""The hour of the next morning at which a hold may end."""
MOST_WITH_KEYS_COUNTED = 10_000
"""The most messages among which business keys are counted."""
MOST_HOLDS = 5
"""The most lines about holds, or about discards, on one page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fitting:
    """Those of the chosen messages that are in a state in which the action changes them."""

    fits: Q
    rows: QuerySet[ParkedMessage]
    count: int
    others: int
    """The number of the others: what was requeued or processed meanwhile, or was so when it was ticked."""
    decided: Sequence[tuple[int, str, str]]
    """Some of these: number, name, and what became of it."""

    @classmethod
    def of(cls, request: HttpRequest, selection: Selection, fits: Q) -> "_Fitting":
        total, rows = present_count(selection), selection.queryset().filter(fits)
        count = rows.count()
        others = selection.queryset().exclude(fits).defer("body", "properties").order_by("pk")
        seen = (
            [row for row in others[:MOST_HOLDS] if not refusal(request, "view", message=row)] if total > count else []
        )
        decided = decisions_on([(row.pk, str(row)) for row in seen])
        return cls(fits=fits, rows=rows, count=count, others=total - count, decided=decided)


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

    fit = _Fitting.of(request, selection, discardable())
    text = ngettext("Discard %(count)d message", "Discard %(count)d messages", fit.count)
    context: dict[str, Any] = {
        "title": _("Discard %(name)s"),
        "button": text,
        "categories": DiscardCategory.choices,
        "queued": waiting_seen() if left.listed and not refusal(request, "view_status") else 0,
        "beside": _beside(pages, request, selection, fit) if left.listed is None else (),
        **discard_effect(request, fit.rows, fit.count),
    }
    return _decide(pages, request, selection, "discard", change, fit=fit, left=left, **context)


def _beside(pages: Pages, request: HttpRequest, selection: Selection, fit: _Fitting) -> list[tuple[Found, str]]:
    """Return what else has the keys of these messages, if they are few and the user may see each."""
    if fit.count > MOST_COMPARED or forbidden(request, selection, "view"):
        return []
    return places.beside(pages, request, fit.rows.only("business_key", "message_id", "identity"))


def kept_until() -> date:
    """Return the day until which what is discarded now can be restored."""
    return timezone.localdate() + timedelta(days=settings().operators.resolved_days)


def discard_effect(request: HttpRequest, rows: QuerySet[ParkedMessage], count: int) -> dict[str, Any]:
    """Return what a page says of a discard of so many messages, to the operator and to the second person alike."""
    keys = None
    if count <= MOST_WITH_KEYS_COUNTED:
        keys = rows.order_by().exclude(business_key="").values("business_key").distinct().count()
    known = {"causes": causes_of(rows, count), "holds": holds_of(request, rows), "released": released_by(rows)}
    return {"count": count, "keys": keys, "until": kept_until(), "lost": lost_sentence(rows), **known}


def _causes(rows: QuerySet[ParkedMessage]) -> list[tuple[ErrorGroup, str, int, datetime, datetime]]:
    """Return the error groups of messages, the largest first: its name, its number of them, the first and the last.

    The oldest messages alone do not tell what is discarded: the latest cause may have none among them.
    """
    spans = {"oldest": Min("parked_at"), "newest": Max("parked_at")}
    facts: Any = rows.order_by().values("group").annotate(count=Count("pk"), **spans)
    found = sorted(facts.values_list("group", "count", "oldest", "newest"), key=lambda one: -one[1])
    groups = ErrorGroup.objects.in_bulk([group for group, *_facts in found])
    names = names_of(groups.values())
    return [(groups[group], names[group], *rest) for group, *rest in found if group in groups]


def holds_of(request: HttpRequest, rows: QuerySet[ParkedMessage]) -> list[str]:
    """Return how many of the messages are on hold, for each end and reason, and by whom; three queries at most."""
    held = rows.filter(state=State.ON_HOLD).order_by()
    counted_holds = held.values_list("held_until", "hold_reason").annotate(count=Count("pk"), one=Max("pk"))
    known = list(counted_holds.order_by("-count")[: MOST_HOLDS + 1])
    only = held.defer("body", "properties").first() if [count for *_hold, count, _one in known] == [1] else None
    if only is not None and not refusal(request, "view", message=only):
        return [outcome_of(only)]
    tells = not (refusal(request, "view") or operators.has_own_rules(request.user))
    acts = newest_acts([one for *_hold, one in known], {Action.HOLD}) if tells and known else {}
    lines = []
    for until, why, count, one in known[:MOST_HOLDS]:
        text = ngettext("%(count)d is on hold until %(when)s", "%(count)d are on hold until %(when)s", count)
        said = counted(text, count=count, when=minute(until) if until else NOTHING)
        # Messages with the same end to the microsecond, and the same reason, were put on hold by one act.
        act = next(iter(acts.get(one, ())), None)
        said = _("%(hold)s, by %(name)s") % {"hold": said, "name": act.who} if act else said
        lines.append(f"{said}: {why}" if why and tells else said)
    return [*lines, *(["…"] if len(known) > MOST_HOLDS else [])]


def causes_of(rows: QuerySet[ParkedMessage], count: int) -> list[tuple[ErrorGroup, str, int, datetime, datetime]]:
    """Return the error groups of several messages, if they are few enough to be counted."""
    return _causes(rows) if 1 < count <= MOST_WITH_KEYS_COUNTED else []


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

    fit = _Fitting.of(request, selection, Q(state__in=OPEN))
    context: dict[str, Any] = {
        "title": _("Hold %(name)s"),
        "button": ngettext("Hold %(count)d message", "Hold %(count)d messages", fit.count),
        "spans": [(value, label, "" if value == "at" else _until(value, "")) for value, label in SPANS],
        "zone": f"{timezone.localtime():%Z}",
        "holds": holds_of(request, fit.rows),
        "waiting": released_by(fit.rows).messages,
        "causes": causes_of(fit.rows, fit.count),
    }
    return _decide(pages, request, selection, "hold", change, fit=fit, left=left, **context)


@requires("unhold")
@choosing(gettext_lazy("Take messages off hold"))
def ending_holds(pages: Pages, request: HttpRequest, selection: Selection, left: LeftOut) -> HttpResponse:
    """Show the ends and reasons of the holds and ask for a reason, then end them all."""
    fit = _Fitting.of(request, selection, Q(state=State.ON_HOLD))
    context: dict[str, Any] = {
        "title": _("Take %(name)s off hold"),
        "button": ngettext("Take %(count)d message off hold", "Take %(count)d messages off hold", fit.count),
        "holds": holds_of(request, fit.rows),
        "waiting": released_by(fit.rows).messages,
        "causes": causes_of(fit.rows, fit.count),
    }
    return _park_again(pages, request, selection, "unhold", unhold, fit=fit, left=left, **context)


@requires("restore")
@choosing(gettext_lazy("Restore messages"))
def restoring_many(pages: Pages, request: HttpRequest, selection: Selection, left: LeftOut) -> HttpResponse:
    """Show why the messages were discarded and ask for a reason, then park them all again."""
    fit = _Fitting.of(request, selection, Q(state=State.DISCARDED))
    reasons = list(fit.rows.order_by().values_list("resolution").annotate(count=Count("pk"), last=Max("resolved_at")))
    context: dict[str, Any] = {
        "title": _("Restore %(name)s"),
        "button": ngettext("Restore %(count)d message", "Restore %(count)d messages", fit.count),
        "discards": _discards(reasons),
        "perhaps_done": sum(n for reason, n, _last in reasons if reason.startswith(DONE_OTHERWISE)),
        "stays_out": sum(n for reason, n, _last in reasons if not reason.startswith(NOBODY_DID_IT)),
        "lost_place": fit.rows.filter(handler__in=_ordered_handlers()).exists(),
    }
    return _park_again(pages, request, selection, "restore", restore, fit=fit, left=left, **context)


def _park_again(
    pages: Pages, request: HttpRequest, selection: Selection, verb: str, act: Callable[..., Done], **context: Any
) -> HttpResponse:
    """Ask for a reason, then park the messages again: those on hold, or those that were discarded."""

    def change(allowed: Allowed) -> str:
        reason = request.POST.get("text", "").strip()
        done = _some(act(selection, Actor.of_request(request), reason=reason, allowed=allowed))
        text = ngettext("%(count)d message is parked again.", "%(count)d messages are parked again.", done.changed)
        return counted(text, count=done.changed) + _rest(done)

    return _decide(pages, request, selection, verb, change, template="parked_again", **context)


def _discards(reasons: Sequence[tuple[str, int, datetime | None]]) -> list[str]:
    """Return how many messages were discarded for each reason, and when the last one was; the largest number first."""
    lines = []
    for reason, count, last in sorted(reasons, key=lambda one: -one[1])[:MOST_HOLDS]:
        text = ngettext(
            "%(count)d was discarded %(when)s (%(reason)s)",
            "%(count)d were discarded, the last one %(when)s (%(reason)s)",
            count,
        )
        when = minute(last) if last else NOTHING
        lines.append(counted(text, count=count, when=when, reason=resolution_text(reason)))
    return [*lines, *(["…"] if len(reasons) > MOST_HOLDS else [])]


def _ordered_handlers() -> list[str]:
    """Return the handlers that keep an order: a discard of one of their messages has unblocked its ordering key."""
    return [one.name for one in registry.subscriptions() if one.order_by]


def _decide(
    pages: Pages,
    request: HttpRequest,
    selection: Selection,
    verb: str,
    change: Callable[[Allowed], str],
    *,
    fit: _Fitting,
    left: LeftOut,
    title: str,
    button: str,
    template: str = "",
    **context: Any,
) -> HttpResponse:
    """Change the messages if the button was pressed, else ask; ``title`` is for one message, ``button`` for several."""
    pressed = request.method == "POST" and "leave_out" not in request.POST
    why_not = forbidden(request, selection, verb)
    wrong = left.wrong or (left.unchecked if pressed and not why_not else "")
    if pressed and not wrong:
        if why_not:
            return pages.refused(request, why_not)
        try:
            messages.success(request, change(lambda message: refusal(request, verb, message=message)))
            return HttpResponseRedirect(back_of(pages, request, selection))
        except SecondPersonNeeded as needed:
            return pages.ask(request, needed)
        except Refused as refused:
            wrong = str(refused)
            if isinstance(refused, NothingChosen):
                wrong = f"{wrong} {decided_meanwhile(selection)}".strip()
    others = ~fit.fits
    alone = sample(request, selection, left_out=others) if fit.count == 1 else []
    label = title % {"name": alone[0]} if alone else counted(button, count=fit.count)
    return asking(
        pages,
        request,
        template or verb,
        selection,
        wrong=wrong,
        left=left,
        forbidden=why_not,
        title=label,
        button=label,
        fit=fit,
        left_out=others,
        **{**context, "count": fit.count},
    )


@of_message("view", "restore")
def restoring(pages: Pages, request: HttpRequest, message: ParkedMessage) -> HttpResponse:
    """Show why the message was discarded and ask for a reason, then park it again."""
    perhaps_done = message.resolution.startswith(DONE_OTHERWISE)
    pressed, lacking = request.method == "POST", perhaps_done and not request.POST.get("reason", "").strip()
    if pressed and not lacking:
        return _one(pages, request, message, restore, _("The message is parked again."))
    title = _("Restore %(name)s") % {"name": message}
    wrong = str(RESTORE_LACKS_REASON) if pressed else ""
    return _ask_for_one(pages, request, message, title, State.DISCARDED, perhaps_done=perhaps_done, wrong=wrong)


@of_message("view", "unhold")
def ending_hold(pages: Pages, request: HttpRequest, message: ParkedMessage) -> HttpResponse:
    """Show why the message is on hold and ask for a reason, then end the hold."""
    if request.method == "POST":
        return _one(pages, request, message, unhold, _("The hold has ended and the message is parked again."))
    title = _("Take %(name)s off hold") % {"name": message}
    return _ask_for_one(pages, request, message, title, State.ON_HOLD)


def _ask_for_one(
    pages: Pages,
    request: HttpRequest,
    message: ParkedMessage,
    title: str,
    state: State,
    *,
    perhaps_done: bool = False,
    wrong: str = "",
) -> HttpResponse:
    if message.state != state:
        why = f"{_changed_since()} {outcome_of(message)}".strip()
        return pages.page(request, "refusal.html", title=title, status=409, why=why)
    return pages.page(
        request,
        "parkedmessage/restore.html",
        status=422 if wrong else 200,
        wrong={"all": wrong} if wrong else {},
        title=title,
        message=message,
        become=outcome_of(message),
        waiting=released_by(ParkedMessage.objects.filter(pk=message.pk)).messages,
        lost_place=state == State.DISCARDED and message.handler in _ordered_handlers(),
        perhaps_done=perhaps_done,
        stays_out=state == State.DISCARDED and not message.resolution.startswith(NOBODY_DID_IT),
    )


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
    if span == "morning":
        # At 3 am it is the coming morning, not that of the next day.
        morning = timezone.localtime(now).replace(hour=MORNING, minute=0, second=0, microsecond=0)
        return morning if morning > now else morning + timedelta(days=1)
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

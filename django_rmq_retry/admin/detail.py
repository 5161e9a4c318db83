"""The page of one message: what happened in one sentence, its history, its body, what may be done about it."""

from typing import Any
from urllib.parse import urlencode

from django.db.models import Count, OuterRef, Subquery
from django.http import Http404, HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_rmq_retry.admin import activity, allowing, labels
from django_rmq_retry.admin.acts import Act
from django_rmq_retry.admin.bodies import look, whole_of
from django_rmq_retry.admin.cards import plain_words
from django_rmq_retry.admin.heading import heading
from django_rmq_retry.admin.pages import Pages
from django_rmq_retry.admin.timeline import timeline
from django_rmq_retry.core.deaths import rejections
from django_rmq_retry.core.errors import UndecodableHeaders
from django_rmq_retry.core.properties import decode_properties
from django_rmq_retry.models import Item, OperatorAction, ParkedMessage, State
from django_rmq_retry.operating.filtering import number_in
from django_rmq_retry.ordering.releasing import blocked_by
from django_rmq_retry.records.history import attempts_of

ATTEMPTS = 20
ACTS = 20
MOST_TOLD = 2**31 - 1
"""x-death can be forged; no column holds more."""


def view(pages: Pages, request: HttpRequest, object_id: str, *, shown: tuple[str, ...] = ()) -> HttpResponse:
    """The page; with `shown`, the places of hidden values that this one answer tells."""
    message = _found(object_id)
    why = allowing.refusal(request, "view", message)
    if why:
        return pages.refused(request, why)
    return pages.page(
        request,
        "parkedmessage/message.html",
        title=f"{message.type} {message}".strip(),
        message=message,
        plain=plain_words(message.group),
        summary=_summary(message),
        unrecorded=_unrecorded(message),
        parked_by=labels.PARKED_BY.get(message.by, message.by),
        resolution=labels.resolution(message.resolution),
        acts=acts_of(pages, request, message),
        **_history(request, message),
        **_contents(request, message, shown),
    )


def found_or_404(object_id: str) -> ParkedMessage:
    """The record, whole."""
    number = number_in(object_id)
    found = None if number is None else ParkedMessage.objects.select_related("group").filter(pk=number)
    message = None if found is None else found.first()
    if message is None:
        raise Http404(_("There is no such message. Resolved messages are deleted after a while; the audit log stays."))
    return message


def acts_of(pages: Pages, request: HttpRequest, message: ParkedMessage) -> list[Act]:
    """What may be done about it in its state, and why not where one may not."""
    selected = "?" + urlencode({"message": message.pk})
    preview = pages.address("requeuerun_preview") + selected
    closed = "" if message.open else _("It is not open any more: nothing is left to decide.")

    def act(label: str, verb: str, address: str, **more: Any) -> Act:
        return Act(label=label, address=address, why=closed or allowing.refusal(request, verb, message), **more)

    acts = [
        act(_("Requeue…"), "requeue", preview, kind="main"),
        act(_("Edit and requeue…"), "edit", pages.address("parkedmessage_edit", message.pk)),
        act(_("Discard…"), "discard", pages.address("parkedmessage_discard") + selected),
        act(_("Hold…"), "hold", pages.address("parkedmessage_hold") + selected),
    ]
    if message.state == State.ON_HOLD:
        acts[-1] = act(_("Release"), "release", pages.address("parkedmessage_release", message.pk), post=True)
    export = pages.address("parkedmessage_export") + selected
    exporting = Act(label=_("Export…"), address=export, why=allowing.refusal(request, "export", message))
    if message.state == State.DISCARDED:
        why = allowing.refusal(request, "restore", message)
        address = pages.address("parkedmessage_restore", message.pk)
        return [Act(label=_("Restore"), address=address, why=why, post=True, kind="main"), exporting]
    return [*acts, exporting] if message.open else [exporting]


def _found(object_id: str) -> ParkedMessage:
    message = found_or_404(object_id)
    same = ParkedMessage.objects.filter(state=OuterRef("state"))
    newer = same.filter(parked_at__gt=OuterRef("parked_at")).order_by("parked_at", "pk").values("pk")[:1]
    older = same.filter(parked_at__lt=OuterRef("parked_at")).order_by("-parked_at", "-pk").values("pk")[:1]
    known = attempts_of(message).filter(cycle=message.cycle, number__lte=_told(message)).exclude(verdict="ack")
    counted = known.order_by().values("cycle").annotate(n=Count("number", distinct=True)).values("n")
    behind = blocked_by(message).values("held")[:1]
    asked = (Subquery(newer), Subquery(older), Subquery(counted), Subquery(behind))
    beside = ParkedMessage.objects.filter(pk=message.pk).values_list(*asked).first()
    found = beside or (None, None, None, None)
    message.newer, message.older, message.known, message.behind = found  # type: ignore[attr-defined]  # for here
    return message


def _told(message: ParkedMessage) -> int:
    """How many attempts of this cycle the message itself bears: by our own count, or by the broker's."""
    try:
        headers = decode_properties(bytes(message.properties)).headers
    except UndecodableHeaders:
        return message.attempts
    return max(message.attempts, min(rejections(headers, message.queue), MOST_TOLD))


def _unrecorded(message: Any) -> str:
    """A warning where the history lacks attempts that the message tells of; what it tells is of its last arrival."""
    told, known = _told(message), message.known or 0
    if told <= known or (message.requeued_at is not None and message.requeued_at > message.parked_at):
        return ""
    said = ngettext(
        "The message tells of %(told)d attempts, the history has %(known)d. %(count)d attempt was not recorded: "
        "its consumer crashed, or was an older version or another program.",
        "The message tells of %(told)d attempts, the history has %(known)d. %(count)d attempts were not recorded: "
        "their consumer crashed, or was an older version or another program.",
        told - known,
    )
    return said % {"told": told, "known": known, "count": told - known}


def _history(request: HttpRequest, message: ParkedMessage) -> dict[str, Any]:
    attempts = attempts_of(message)[: ATTEMPTS + 1]
    shown = list(attempts)
    acts = list(OperatorAction.objects.filter(message=message.pk).order_by("-number")[:ACTS])
    items = Item.objects.filter(message=message.pk).select_related("run").order_by("-pk")[:ACTS]
    no_traces = allowing.refusal(request, "view_traceback", message)
    if no_traces:
        for attempt in shown:
            attempt.chain, attempt.logs = [], ""
    others = bool(allowing.refusal(request, "view_all_audit"))
    no_activity = allowing.refusal(request, "view_audit")
    told = [act for act in acts if not no_activity and (not others or act.actor_id == request.user.pk)]
    return {
        "events": timeline(message, shown[:ATTEMPTS], acts, items),
        "more_attempts": len(shown) > ATTEMPTS,
        "no_traces": no_traces,
        "activity": activity.told(told),
        "no_activity": no_activity,
    }


def _contents(request: HttpRequest, message: ParkedMessage, shown: tuple[str, ...]) -> dict[str, Any]:
    body, properties = bytes(message.body), bytes(message.properties)
    version = None
    if message.version > 1 and request.GET.get("version") != "1":
        version = message.versions.filter(number=message.version).first()
    if version is not None:
        body, properties = bytes(version.body), bytes(version.properties)
    whole = whole_of(request, message)
    return {
        "body": look(body, message.content_type, whole=whole, shown=shown),
        "heading": heading(properties, whole=whole, shown=shown),
        "whole": whole,
        "version": version,
        "why_not_reveal": allowing.refusal(request, "reveal", message),
        "revealed": shown,
    }


def _summary(message: ParkedMessage) -> str:
    """What happened, in a sentence."""
    said = _("It never reached a handler, then it was parked: %(reason)s.")
    if message.attempts:
        said = ngettext(
            "It failed %(count)d time, then it was parked: %(reason)s.",
            "It failed %(count)d times, then it was parked: %(reason)s.",
            message.attempts,
        )
    return said % {"count": message.attempts, "reason": labels.reason(message.reason)}

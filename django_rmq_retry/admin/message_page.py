"""The page of one parked message, and the page that remains when retention has deleted it."""

import hashlib
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import date, timedelta
from functools import wraps
from typing import Any
from urllib.parse import urlencode

from django.db import router, transaction
from django.db.models import F, OuterRef, QuerySet, Subquery, Sum
from django.db.models.functions import Coalesce, Greatest
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotFound
from django.http.response import HttpResponseBase
from django.utils import timezone
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_rmq_retry.admin import labels, places
from django_rmq_retry.admin.cards import plain_words
from django_rmq_retry.admin.contents import HEADER_PLACE, Heading, body_of, heading_of
from django_rmq_retry.admin.pages import Button, Pages, refusal, saved_as
from django_rmq_retry.admin.queues import StoppedBadge, StoppedQueues
from django_rmq_retry.admin.requests import asked_for
from django_rmq_retry.admin.timeline import (
    MOST_ACTIONS_SHOWN,
    activity,
    deaths_in_words,
    timeline,
    with_reasons,
)
from django_rmq_retry.attempts.history import (
    attempts_of,
    count_attempts,
    failures_counted,
    failures_from_first,
    first_failure,
    lost_attempts,
)
from django_rmq_retry.conf import settings
from django_rmq_retry.errors import UndecodableHeaders
from django_rmq_retry.handlers import registry
from django_rmq_retry.handlers.verdicts import returns_told
from django_rmq_retry.health.begun import begun_of, lost_with
from django_rmq_retry.markup import MIXED, badge, visible
from django_rmq_retry.messages.masking import hides, masked
from django_rmq_retry.messages.properties import decode_properties
from django_rmq_retry.messages.reasons import MAY_HAVE_RUN, UNBEGUN
from django_rmq_retry.models import (
    Action,
    DiscardCategory,
    EarlyRetry,
    FormerName,
    OperatorAction,
    ParkedMessage,
    ParkedOrigin,
    RequeueItem,
    RequeueRun,
    State,
)
from django_rmq_retry.models.parked import reason_text
from django_rmq_retry.ordering.keys import blocked_by
from django_rmq_retry.parked import approvals, missed_discards
from django_rmq_retry.parked.audit import acts_on, keys_left_out, leaving_out, log_action
from django_rmq_retry.parked.checked import check_of
from django_rmq_retry.parked.copies import contents
from django_rmq_retry.parked.edit import changes_in_one_line, editable, kind_not_editable, stored_changes
from django_rmq_retry.parked.findings import still_permanent
from django_rmq_retry.parked.items import queue_of, waits_in
from django_rmq_retry.parked.links import message_links
from django_rmq_retry.parked.may_have_run import doubt_about, what_may_remain
from django_rmq_retry.parked.operators import Actor
from django_rmq_retry.parked.outcome_texts import (
    DECIDED_BY,
    Handled,
    copies_of,
    discarded_before,
    erased,
    how_often,
    others_of_key,
    outcome,
)
from django_rmq_retry.parked.overdue import discardable
from django_rmq_retry.parked.selection import group_numbers, number_in

MOST_EDITABLE_BYTES = 3 * 1024 * 1024
"""A form sends up to three bytes for each byte of a body, and more for the end of a line."""
MOST_ATTEMPTS_SHOWN = 20
COPY_DOES_IT = (State.PROCESSED, State.REQUEUED, State.REQUEUEING)
"""The states of a copy of a message because of which a requeue leaves the message out."""
MOST_OWN_KEYS_SHOWN = 50


def of_message(*verbs: str) -> Callable[[Callable[..., HttpResponseBase]], Callable[..., HttpResponseBase]]:
    """Pass the message of the address to a view, with all its columns.

    Answer 403 if the user may not do this with the message, 404 if there was none, and 410 with the remaining facts if
    retention has deleted it.
    """

    def decorate(view: Callable[..., HttpResponseBase]) -> Callable[..., HttpResponseBase]:
        @wraps(view)
        def answered(pages: Pages, request: HttpRequest, pk: int | str) -> HttpResponseBase:
            number = number_in(str(pk))
            message = _with_group().filter(pk=number or 0).first()
            if message is None and number and _was_there(number):
                why = refusal(request, "view")
                return pages.refused(request, why) if why else _deleted_page(pages, request, number)
            if message is None:
                text = _(
                    "There is no such message. Resolved messages are deleted when their retention ends; "
                    "the audit log is kept."
                )
                raise Http404(text)
            why = refusal(request, *verbs, message=message)
            return pages.refused(request, why) if why else view(pages, request, message)

        return answered

    return decorate


def _was_there(number: int) -> bool:
    """Return True if a message had this id: ids ascend, so there is a higher one or an action on it."""
    newer = ParkedMessage.objects.filter(pk__gt=number).order_by("pk").values_list("pk", flat=True)
    acted = OperatorAction.objects.filter(acts_on([number])).order_by("-number").values_list("pk", flat=True)
    return newer.first() is not None or acted.first() is not None


def _deleted_page(pages: Pages, request: HttpRequest, number: int) -> HttpResponse:
    known = activity(request, acts_on([number]))
    names = FormerName.objects.filter(message=number).order_by("pk").values_list("value", flat=True)
    subjects = (action.subject for action, _why in known["activity"] if action.message)
    return pages.page(
        request,
        "parkedmessage/deleted.html",
        title=_("Message #%(number)d no longer exists") % {"number": number},
        status=410,
        name=next(filter(None, subjects), "") or (known["activity"] and names.first()),
        log="" if known["no_activity"] else f"{pages.address('operatoraction_changelist')}?message={number}",
        **known,
    )


@of_message("view")
def view(pages: Pages, request: HttpRequest, message: ParkedMessage) -> HttpResponse:
    return _page(pages, request, message)


@of_message("view", "reveal")
def reveal(pages: Pages, request: HttpRequest, message: ParkedMessage) -> HttpResponse:
    """Write the reveal to the audit log, then show the page once with the hidden value revealed."""
    if message.erased_at:
        return pages.refused(request, erased(message))
    place = request.POST.get("place", "")
    if place not in _hidden_places(message):
        return HttpResponseNotFound()
    _log(request, message, Action.REVEAL, {"place": place})
    return _page(pages, request, message, shown=(place,))


@of_message("view", "view_payload")
def download(pages: Pages, request: HttpRequest, message: ParkedMessage) -> HttpResponse:
    """Return the exact bytes of the body, or of an older version, as a file to save and not to display."""
    if message.erased_at:
        return pages.refused(request, erased(message))
    number = 1 if request.POST.get("version") == "1" else message.version
    body = bytes(message.body) if number == 1 else contents(message).body
    _log(
        request,
        message,
        Action.DOWNLOAD,
        {"version": number, "sha256": hashlib.sha256(body).hexdigest(), "bytes": len(body)},
    )
    headers = saved_as(f"message-{message.pk}-v{number}.bin")
    return HttpResponse(body, content_type="application/octet-stream", headers=headers)


def _hidden_places(message: ParkedMessage) -> set[str]:
    """Return the fields that are hidden from users who may not see the whole message."""
    paths = settings().operators.mask
    now = contents(message)
    bodies = (now.body, bytes(message.body))
    places = {place for body in bodies for place in masked(body, message.content_type, paths)[1]}
    for raw in (now.raw, bytes(message.properties)):
        try:
            names = list(decode_properties(raw).headers)
        except UndecodableHeaders:
            continue
        places |= {HEADER_PLACE + name for name in names if hides([name], paths)}
    return places


def _log(request: HttpRequest, message: ParkedMessage, action: Action, facts: dict[str, object]) -> None:
    actor = Actor.of_request(request)
    with transaction.atomic(using=router.db_for_write(OperatorAction)):
        log_action(actor, action, message=message.pk, group=message.group_id, subject=str(message), facts=facts)


def _with_group() -> "QuerySet[ParkedMessage]":
    """Return messages with how many of their group are parked, and how many on hold, as the group's page counts."""
    origins = ParkedOrigin.objects.filter(group=OuterRef("group")).order_by().values("group")
    parked = Coalesce(Subquery(origins.annotate(n=Sum("count")).values("n")), 0)
    rows = ParkedMessage.objects.select_related("group").annotate(parked_of_group=parked)
    return rows.annotate(held_of_group=Greatest(F("group__parked") - F("parked_of_group"), 0))


def _page(pages: Pages, request: HttpRequest, message: ParkedMessage, *, shown: tuple[str, ...] = ()) -> HttpResponse:
    """Show the page; ``shown`` names the hidden fields that this one response reveals."""
    neighbours = _neighbours(message)
    keys = list(message.keys.order_by("pk").values_list("value", flat=True)[:MOST_OWN_KEYS_SHOWN])
    history, acts = _history(request, message, {*keys, message.message_id} - {""})
    handled = history.pop("handled")
    lost = lost_attempts(message, neighbours.pop("known"))
    attempted = history.pop("attempted")
    counts = count_attempts(message, lost, history.pop("all_attempts"))
    labels.with_failed_in([message])
    waiting, copies = waits_in(history["items"]), copies_of(message)
    return pages.page(
        request,
        "parkedmessage/message.html",
        title=f"{message.type} {message}".strip(),
        message=message,
        business_keys=keys,
        links=labels.links(message_links(message, keys)),
        plain=plain_words(message.group) if message.open else "",
        summary=_summary(message, counts.failed),
        by_cycle=counts.by_cycle,
        become=outcome(
            message,
            next((item.run for item in history["items"] if item.sent_at), None),
            next((act for act in acts if act.action == DECIDED_BY.get(message.state)), None),
            handled,
        ),
        stopped=_stopped(message, history["items"]),
        handled_badge=_handled_badge(message, handled),
        deaths=returns_told(message.detail),
        twice_in=handled.run,
        check=check_of(message, acts),
        unrecorded=lost,
        untried=bool(counts.failed) and not attempted,
        parked_by=labels.PARKED_BY.get(message.by, message.by),
        buttons=_buttons(pages, request, message, waiting, copies={one.state for one, _ in copies}),
        first_failed=first_failure(message, neighbours.pop("first"), neighbours.pop("lasted")),
        arrived=message.copies - max(message.parked_cycle, 1) + 1,
        moved=labels.failed_in(message),
        waits_in=waiting,
        readers="" if message.handler else ", ".join(_readers(message)),
        edited_since=(edited := _edited_since(message, acts)),
        edited_change=_change_of(request, message) if edited else "",
        restorable_until=_restorable_until(message),
        restored=_restored(message, acts),
        discarded_before=discarded_before(message, next((act for act in acts if act.action == Action.DISCARD), None)),
        missed_discard=_missed_discard(message, neighbours.pop("missed")),
        beside=places.beside(pages, request, [message]),
        others=[*copies, *others_of_key(message)],
        asked_for=asked_for(request, ParkedMessage.objects.filter(pk=message.pk)) if message.open else (),
        opens_requests=not refusal(request, "view_request"),
        **neighbours,
        **history,
        **_contents(request, message, shown),
    )


def _missed_discard(message: ParkedMessage, request: int | None) -> tuple[str, int] | None:
    """Return a warning if an open message should have been discarded by a request, with the request's number."""
    missed = missed_discards.of_messages([message.pk]).get(message.pk) if request and message.open else None
    return None if missed is None else (missed_discards.sentence(missed), missed.pk)


def _handled_badge(message: ParkedMessage, handled: Handled) -> SafeString | str:
    """Return a warning beside the state of a message whose handler did its work more than once, or perhaps did it."""
    text = how_often(handled.count, handled.perhaps) or doubt_about(message)
    return badge(MIXED, text) if text else ""


def _edited_since(message: ParkedMessage, acts: list[OperatorAction]) -> OperatorAction | None:
    """Return the edit of an open message that was not sent since."""
    edit = next((act for act in acts if act.action == Action.EDIT), None)
    if edit is None or not message.open or message.version == 1:
        return None
    return edit if message.requeued_at is None or edit.at > message.requeued_at else None


def _change_of(request: HttpRequest, message: ParkedMessage) -> str:
    """Return what the last edit of a message changed, in one line, for who may see the body."""
    hidden = refusal(request, "view_payload", message=message)
    return "" if hidden else changes_in_one_line(stored_changes(message, message.version))


def _restorable_until(message: ParkedMessage) -> date | None:
    """Return the day until which a discarded message can be restored; None for any other."""
    if message.state != State.DISCARDED or message.resolved_at is None:
        return None
    return timezone.localdate(message.resolved_at) + timedelta(days=settings().operators.resolved_days)


def _restored(message: ParkedMessage, acts: list[OperatorAction]) -> tuple[OperatorAction, str, str] | None:
    """Return the restore of an open message, its reason, and that of the discard before it.

    Once it was sent, only a discard tells something by which what it requests may have been done.
    """
    restore = next((act for act in acts if act.action == Action.RESTORE), None)
    sent = restore is not None and message.requeued_at is not None and restore.at < message.requeued_at
    if restore is None or not message.open or (sent and not message.restored):
        return None
    discard = next((act for act in acts if act.action == Action.DISCARD and act.number < restore.number), None)
    return restore, restore.reason, labels.action_reason(discard) if discard else ""


def beyond_forms(number: int, size: int) -> str:
    """Return the reason that a body of this size cannot be edited on a page; empty if it can."""
    if size <= MOST_EDITABLE_BYTES:
        return ""
    text = _("Its body is too large to be edited in a browser. Edit it with: %(command)s")
    return text % {"command": f"manage.py rmq_parked edit {number} --editor"}


def _readers(message: ParkedMessage) -> list[str]:
    """Return the handlers of its queue: one of a worker that died is not recorded."""
    queues = registry.work_queues()
    return [taker.name for one in queues if one.queue.name == message.queue for taker in one.subscriptions]


def _buttons(
    pages: Pages,
    request: HttpRequest,
    message: ParkedMessage,
    waits: Sequence[RequeueRun],
    *,
    copies: Collection[str],
) -> list[Button]:
    """Return the actions on the message in its state; one that is not allowed carries the reason.

    ``waits`` are the runs that have still to send it: the next step is to look at the last of them. ``copies`` are
    the states of its copies: if one was handled, or will be, no requeue sends it, and none is the next step.
    """
    if message.erased_at:
        return []

    def why_not(verb: str) -> str:
        return refusal(request, verb, message=message)

    def page_of(name: str, **words: str) -> str:
        return f"{pages.address(name)}?{urlencode({'message': message.pk, **words})}"

    export = Button(label=_("Export…"), address=page_of("parkedmessage_export"), why=why_not("export"))
    if message.state == State.DISCARDED:
        address = pages.address("parkedmessage_restore", message.pk)
        return [Button(label=_("Restore…"), address=address, why=why_not("restore")), export]
    if message.state == State.REQUEUED and ParkedMessage.objects.filter(discardable(), pk=message.pk).exists():
        address = page_of("parkedmessage_discard")
        return [Button(label=_("Discard…"), address=address, why=why_not("discard")), export]
    if not message.open:
        return [export]
    edit = pages.address("parkedmessage_edit", message.pk)
    held = message.state == State.ON_HOLD
    hold = Button(label=_("Hold…"), address=page_of("parkedmessage_hold"), why=why_not("hold"))
    if held:
        address = pages.address("parkedmessage_unhold", message.pk)
        hold = Button(label=_("Take off hold…"), address=address, why=why_not("unhold"), kind="main")
    why_not_edit = why_not("edit") or kind_not_editable(message) or beyond_forms(message.pk, message.size)
    decided = message.restored or message.discarded_at or message.unconfirmed
    doubtful = bool(what_may_remain(message)) or decided or any(one in COPY_DOES_IT for one in copies)
    duplicate = State.PROCESSED in copies and not (held or waits)
    # A requeue would send nothing while the cause is there.
    permanent = still_permanent(message)
    first = permanent and not why_not_edit and not editable(message)
    requeue = Button(
        label=_("Requeue…"),
        address=page_of("requeuerun_preview"),
        why=why_not("requeue"),
        # What was handled, or may have been, is requeued by no main action.
        kind="" if permanent or held or waits or doubtful or message.succeeded_at else "main",
    )
    edits = first and not held and not waits and not duplicate
    changing = Button(label=_("Edit and requeue…"), address=edit, why=why_not_edit, kind="main" if edits else "")
    sending = (changing, requeue) if first else (requeue, changing)
    address = page_of("parkedmessage_discard", **({"category": DiscardCategory.DUPLICATE.value} if duplicate else {}))
    leads = "main" if duplicate else ""
    discard = Button(label=_("Discard…"), address=address, why=why_not("discard"), kind=leads)
    running = pages.button_of_run(request, waits[0]) if waits else []
    return [hold, *sending, discard, export] if held else [*running, *sending, discard, hold, export]


def _neighbours(message: ParkedMessage) -> dict[str, Any]:
    """Return the ids of the next and previous message, and the recorded and waiting messages, by one query."""
    same = ParkedMessage.objects.filter(state=OuterRef("state"))
    newer = same.filter(parked_at__gt=OuterRef("parked_at")).order_by("parked_at", "pk").values("pk")[:1]
    older = same.filter(parked_at__lt=OuterRef("parked_at")).order_by("-parked_at", "-pk").values("pk")[:1]
    behind = blocked_by(message).values("waiting")[:1]
    failures = failures_from_first(message)
    asked = {
        "newer": newer,
        "older": older,
        "known": failures_counted(message),
        "behind": behind,
        "first": failures.values("started_at")[:1],
        "lasted": failures.values("seconds")[:1],
        "missed": missed_discards.unsettled([message.pk]).values("request")[:1],
    }
    columns = {name: Subquery(query) for name, query in asked.items()}
    row = ParkedMessage.objects.filter(pk=message.pk).values(**columns).first()
    return dict.fromkeys(asked) if row is None else dict(row)


def _stopped(message: ParkedMessage, items: Iterable[RequeueItem]) -> list[tuple[str, StoppedBadge]]:
    """Return the queue in which a requeued message waits, if an operator or a breaker has stopped it."""
    queue = queue_of(message, items)
    return list(StoppedQueues.among([queue]).badges.items()) if queue else []


def _history(
    request: HttpRequest, message: ParkedMessage, names: Collection[str]
) -> tuple[dict[str, Any], list[OperatorAction]]:
    """Return the timeline and the activity for the page, and the newest actions, whoever may see them.

    The activity also has those that left it out by one of its names.
    """
    attempts = list(attempts_of(message)[: MOST_ATTEMPTS_SHOWN + 1])
    places = RequeueItem.objects.filter(message=message.pk).select_related("run").order_by("-pk")
    items = list(places[:MOST_ACTIONS_SHOWN])
    identities = {message.identity, *(attempt.identity for attempt in attempts)}
    early = EarlyRetry.objects.filter(identity__in=identities).select_related("run").order_by("-pk")
    retries = list(early[:MOST_ACTIONS_SHOWN]) if attempts else []
    about = acts_on([message.pk], runs={item.run_id for item in items} | {retry.run_id for retry in retries})
    actions = list(OperatorAction.objects.filter(about).order_by("-number")[:MOST_ACTIONS_SHOWN])
    asked: list[Any] = [action.details.get("request") for action in actions if action.action == Action.ASK]
    requests = list(approvals.requests().filter(pk__in=asked)) if asked else []
    no_traces = refusal(request, "view_traceback", message=message)
    if no_traces:
        for attempt in attempts:
            attempt.chain, attempt.logs = [], ""
    only_own = bool(refusal(request, "view_all_audit"))
    no_activity = refusal(request, "view_audit")
    begun = begun_of(message, attempts)
    without = _without(message, names, {action.number for action in actions})
    told = sorted([*actions, *without], key=lambda action: action.number, reverse=True)[:MOST_ACTIONS_SHOWN]
    seen = [action for action in told if not no_activity and (not only_own or action.actor_id == request.user.pk)]
    shown = {
        "items": items,
        "handled": Handled.of(attempts, items, begun=len(begun)),
        "events": timeline(
            message,
            attempts[:MOST_ATTEMPTS_SHOWN],
            actions,
            items,
            retries,
            requests=requests,
            begun=begun,
            died=lost_with(message),
            without=without,
        ),
        "attempted": bool(attempts),
        "more_attempts": len(attempts) > MOST_ATTEMPTS_SHOWN,
        "all_attempts": attempts if len(attempts) <= MOST_ATTEMPTS_SHOWN else None,
        "no_traces": no_traces,
        "activity": with_reasons(seen),
        "only_own": only_own,
        "no_activity": no_activity,
    }
    return shown, actions


def _without(message: ParkedMessage, names: Collection[str], acted: Collection[int]) -> list[OperatorAction]:
    """Return the newest actions that left the message out by one of its names, each with that name.

    One of another group or queue, or that came after it was resolved, had not chosen it: the key names others, too.
    """
    acts = OperatorAction.objects.filter(leaving_out(names), at__gte=message.recorded_at).exclude(number__in=acted)
    last = message.resolved_at
    known: Any = acts.filter(at__lte=last) if last is not None and not message.open else acts
    found = [act for act in known.order_by("-number")[:MOST_ACTIONS_SHOWN] if _was_meant(message, act)]
    keys = keys_left_out(found, names)
    for act in found:
        act.left_out = keys.get(act.number, "")
    return found


def _was_meant(message: ParkedMessage, act: OperatorAction) -> bool:
    """Return True if the group and the queue of an action's filter, if it has them, are those of the message."""
    words = act.inside("selection", "filter")
    groups, queue = words.get("group"), words.get("queue")
    with suppress(ValueError, TypeError):
        if groups is not None and message.group_id not in group_numbers(groups):
            return False
    return queue is None or message.queue in (queue if isinstance(queue, list) else [queue])


def _contents(request: HttpRequest, message: ParkedMessage, shown: tuple[str, ...]) -> dict[str, Any]:
    body, properties = bytes(message.body), bytes(message.properties)
    version = None
    if message.version > 1 and request.GET.get("version") != "1":
        version = message.versions.filter(number=message.version).first()
    if version is not None:
        body, properties = bytes(version.body), bytes(version.properties)
    whole = not refusal(request, "view_payload", message=message)
    return {
        "body": body_of(body, message.content_type, whole=whole, shown=shown),
        "heading": _untold(heading_of(properties, whole=whole, shown=shown), message),
        "whole": whole,
        "version": version,
        "size": len(body),
        "sha256": hashlib.sha256(body).hexdigest() if version else message.sha256,
        "why_not_reveal": refusal(request, "reveal", message=message),
        "revealed": shown,
    }


def _untold(heading: Heading, message: ParkedMessage) -> Heading:
    """Leave out the properties that the title and the details tell already."""
    published = message.published_at
    told = {
        "message_id": message.message_id,
        "correlation_id": message.correlation_id,
        "type": message.type,
        "content_type": message.content_type,
        "content_encoding": message.content_encoding,
        "timestamp": str(int(published.timestamp())) if published else "",
    }
    rows = [(name, value) for name, value in heading.properties if value != visible(told.get(name) or "")]
    return replace(heading, properties=tuple(rows))


def _summary(message: ParkedMessage, failed: int) -> str:
    """Return a sentence on the failed attempts and the reason for parking."""
    text = _("It was parked without a failed attempt: %(reason)s.")
    if message.reason in MAY_HAVE_RUN:
        text = _("It was parked because no attempt came to an end: %(reason)s.")
    if message.reason in UNBEGUN:
        text = _("It was parked before it reached a handler: %(reason)s.")
    if failed and message.parked_cycle > 1:
        text = ngettext(
            "It failed %(count)d time after a requeue, then it was parked again: %(reason)s.",
            "It failed %(count)d times after a requeue, then it was parked again: %(reason)s.",
            failed,
        )
    elif failed:
        text = ngettext(
            "It failed %(count)d time, then it was parked: %(reason)s.",
            "It failed %(count)d times, then it was parked: %(reason)s.",
            failed,
        )
    if remains := what_may_remain(message):
        text = " ".join(filter(None, (text, deaths_in_words(message), remains)))
    return text % {"count": failed, "reason": reason_text(message.reason)}

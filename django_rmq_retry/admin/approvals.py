"""The admin of acts that wait for a second person: the list, and the page on which one is approved or rejected."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from itertools import accumulate
from typing import Any
from urllib.parse import urlencode

from django.contrib import admin, messages
from django.db import Error, router
from django.db.models.functions import Coalesce
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_POST

from django_rmq_retry import database_clock
from django_rmq_retry.admin import broker_look
from django_rmq_retry.admin.choice import LeftOut, left_out, sample, taken_keys, with_seen_examples
from django_rmq_retry.admin.contents import TEXT_LIMIT
from django_rmq_retry.admin.decisions import discard_effect
from django_rmq_retry.admin.pages import MOST_RECORDS_LINKED, Button, Pages, migrated, refusal, requires
from django_rmq_retry.admin.queues import StoppedQueues
from django_rmq_retry.admin.requests import act_and_change, act_text, chosen_text, in_words, only_message
from django_rmq_retry.admin.requeue_form import number_mistyped, number_to_type, still_failing, targets_of
from django_rmq_retry.conf import settings
from django_rmq_retry.messages.properties import decode_properties
from django_rmq_retry.models import ApprovalRequest, ErrorGroup, GatedAct, OutboxMessage, ParkedMessage, RequestState
from django_rmq_retry.models.parked import OPEN
from django_rmq_retry.parked import approvals, gated_acts, missed_discards, queue_pauses
from django_rmq_retry.parked.copies import contents
from django_rmq_retry.parked.database import records_alias
from django_rmq_retry.parked.edit_many import others_of
from django_rmq_retry.parked.edited_keys import others_with
from django_rmq_retry.parked.findings import changed
from django_rmq_retry.parked.four_eyes import EDITS, UnreadableWish, Wish
from django_rmq_retry.parked.gated_acts import ACTS
from django_rmq_retry.parked.operators import Actor, NotAllowed, Refused
from django_rmq_retry.parked.outcome_texts import became_of, edited_by, outcome_of, standing
from django_rmq_retry.parked.overdue import discardable
from django_rmq_retry.parked.requeue_options import RequeueOptions
from django_rmq_retry.parked.selection import MOST_IDS, Selection, group_numbers, number_in
from django_rmq_retry.parked.under_way import under_way
from django_rmq_retry.wording import minute, number

MOST_DECIDED = 50
"""The most decided requests that the list shows; the audit log has all of them."""
COUNTING = (gated_acts.DiscardAct, gated_acts.DiscardOutboxAct, gated_acts.RequeueAct)
"""The acts of which some messages may be left out since they were asked for."""
NAMING = (GatedAct.DISCARD, GatedAct.EDIT_MANY, GatedAct.DISCARD_OUTBOX)
"""The acts of which the page of a decided request says what they left out; a requeue run has a page of its own."""
MOST_PREVIEWED = 10
"""The most open requests of which the list counts what they would change now."""
MOST_PREVIEWED_MESSAGES = 10_000
MOST_PATHS = 100
_PREVIEW = "requeuerun_preview"
NOTHING_LEFT_OUT = LeftOut()
INDEXES = ("index", "app_list")
CHANGED = gettext_lazy("Nothing is done: the message has changed since this was asked for.")

Context = dict[str, Any]


@admin.register(ApprovalRequest)
class ApprovalRequestAdmin(Pages):
    sees = "view_request"

    def get_model_perms(self, request: HttpRequest) -> dict[str, bool]:
        """Hide the list where no act needs a second person, and nothing waits for one since that was decided."""
        match = request.resolver_match
        # Other pages have it in their sidebar, and a query for it on each of them would only find nothing.
        on_index = match is not None and match.url_name in INDEXES
        used = settings().four_eyes or (on_index and _any_open())
        return super().get_model_perms(request) if used else {}

    def own_urls(self) -> list[URLPattern]:
        return [
            self.own_url("<int:pk>/approve/", "approve", require_POST(self.approve_view)),
            self.own_url("<int:pk>/reject/", "reject", require_POST(self.reject_view)),
        ]

    def list_page(self, request: HttpRequest, **more: Any) -> HttpResponse:
        now = database_clock.now(records_alias())
        ended = approvals.requests().exclude(pk__in=approvals.open_requests().values("pk"))
        known = list(ended.order_by(Coalesce("decided_at", "expires_at").desc(), "-pk")[:MOST_DECIDED])
        return self.page(
            request,
            "approvalrequest/list.html",
            title=_("Approval requests"),
            waiting=[
                (one, _count_now(one.known) if place < MOST_PREVIEWED else one.known.count)
                for place, one in enumerate(in_words(request, ((one, 0) for one in approvals.open_requests())))
            ],
            decided=[
                (one, _state(one.known, now, looked_up=place < MOST_PREVIEWED))
                for place, one in enumerate(in_words(request, ((one, 0) for one in known)))
            ],
            used=bool(settings().four_eyes),
        )

    def row_page(self, request: HttpRequest, object_id: str) -> HttpResponse:
        number = number_in(object_id)
        return self._shown(request, _found(-1 if number is None else number))

    @migrated
    @requires("view_request", "approve")
    def approve_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        known = _found(pk)
        if "look" in request.POST:
            return self._shown(request, known)
        left = _left_out(request, known)
        wrong = left.unchecked or number_mistyped(_number_to_type(known), request.POST.get("typed", ""))
        if wrong:
            return self._shown(request, known, wrong=wrong)
        try:
            done = approvals.approve(
                pk,
                Actor.of_request(request),
                remark=request.POST.get("remark", ""),
                seen=request.POST.get("seen", ""),
            )
        except NotAllowed as refused:
            return self.refused(request, str(refused))
        except Refused as refused:
            return self._shown(request, _found(pk), wrong=str(refused))
        messages.success(request, _("%(request)s is approved.") % {"request": done})
        return self._back(request, done)

    @migrated
    @requires("view_request")
    def reject_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        known = _found(pk)
        why = "" if _is_mine(request, known) else refusal(request, "approve")
        if why:
            return self.refused(request, why)
        try:
            known = approvals.reject(pk, Actor.of_request(request), reason=request.POST.get("remark", ""))
            done = _("%(request)s is rejected. Nothing was done.")
            if known.withdrawn:
                done = _("%(request)s is withdrawn. Nothing was done.")
            messages.success(request, done % {"request": known})
        except Refused as refused:
            return self._shown(request, _found(pk), wrong=str(refused))
        return HttpResponseRedirect(self.address("approvalrequest_change", pk))

    def _back(self, request: HttpRequest, known: ApprovalRequest) -> HttpResponse:
        """Lead to what the act has made, the requeue run or the request, or from an edit to its requeue."""
        if known.run is not None:
            return HttpResponseRedirect(self.address("requeuerun_change", known.run))
        sending = self._requeue_of_edited(request, known)
        if sending:
            messages.info(request, _("The change is stored, and nothing is sent yet."))
        return HttpResponseRedirect(sending or self.address("approvalrequest_change", known.pk))

    def _requeue_of_edited(self, request: HttpRequest, known: ApprovalRequest) -> str:
        """Return the address at which the messages of an approved edit are requeued; empty if none is left to send."""
        if not ACTS[known.act].leads_to_requeue or known.state != RequestState.DONE or refusal(request, "requeue"):
            return ""
        unsent = ParkedMessage.objects.filter(pk__in=edited_by(known), state__in=OPEN).exclude(
            requeued_at__gt=known.decided_at
        )
        chosen = list(unsent.values_list("pk", flat=True))
        words = {"sel": Selection.of_ids(chosen).token(), "reason": known.reason} if 0 < len(chosen) <= MOST_IDS else {}
        return f"{self.address(_PREVIEW)}?{urlencode(words)}" if words else ""

    def _next_steps(self, request: HttpRequest, known: ApprovalRequest, wish: Wish) -> list[Button]:
        """Return where an ended request leads: to the run, to what is left to do, to the audit log."""
        steps = []
        if known.run is not None:
            label = _("Requeue run %(number)s") % {"number": known.run}
            page = self.address("requeuerun_change", known.run)
            steps.append(Button(label=label, address=page, kind="main"))
            if known.changed != known.count:
                steps.append(Button(label=_("Left out"), address=f"{page}#rmq-skipped"))
        sending = self._requeue_of_edited(request, known)
        if sending:
            steps.append(Button(label=_("Requeue what was edited…"), address=sending, kind="main"))
        again = self._again(request, known, wish)
        if again:
            steps.append(Button(label=_("Ask for it again…"), address=again))
        others = refusal(request, "view_all_audit") and known.by_user_id != request.user.pk
        if known.acted and not others and not refusal(request, "view_audit"):
            log = self.address("operatoraction_change", known.acted)
            steps.append(Button(label=_("Act in the audit log"), address=log))
        return steps

    def _again(self, request: HttpRequest, known: ApprovalRequest, wish: Wish) -> str:
        """Return the form of an act that was not approved, for the messages chosen then; empty if there is none."""
        pages = {GatedAct.DISCARD: ("discard", "parkedmessage_discard"), GatedAct.REQUEUE: ("requeue", _PREVIEW)}
        verb, page = pages.get(GatedAct(known.act), ("", ""))
        chosen = wish.selection
        if not verb or known.state == RequestState.DONE or refusal(request, verb) or not _choosable(chosen):
            return ""
        words = {"group": chosen.group} if chosen.group else {"sel": Selection.of_ids(chosen.revisions).token()}
        return f"{self.address(page)}?{urlencode(words)}"

    def _shown(self, request: HttpRequest, known: ApprovalRequest, *, wrong: str = "") -> HttpResponse:
        now, unreadable = database_clock.now(records_alias()), ""
        try:
            wish = Wish.of(known)
        except UnreadableWish as error:
            wish, unreadable = Wish(act=GatedAct(known.act)), str(error)
        waits, mine = known.waits(now), _is_mine(request, known)
        stuck = known.state == RequestState.APPROVED
        why_not = approvals.why_not(known, Actor.of_request(request)) if waits or stuck else ""
        shown = _SHOWN[known.act](request, known, wish) if (waits or stuck) and not unreadable else {}
        some = shown.get("messages_now", known.count) if waits or stuck else known.count
        pointless = waits and bool(shown.get("over") or not shown.get("messages_now", 1))
        if pointless and not why_not:
            why_not = _("Nothing of it is left to do. Reject it.")
        if pointless and mine:
            why_not = _("Nothing of it is left to do. Withdraw it.")
        what, change = act_and_change(request, known)
        act = what if some == known.count else act_text(known, some)
        title = _("%(request)s: %(act)s")
        ended, missed = not waits and not stuck, _missed(request, known)
        return self.page(
            request,
            "approvalrequest/request.html",
            title=title % {"request": known, "act": act},
            status=422 if wrong else 200,
            known=known,
            some=some,
            destroys=known.act in (GatedAct.DISCARD, GatedAct.DISCARD_OUTBOX),
            state="" if ended else known.state_at(now),
            ending="" if waits else _ending(known),
            next_steps=self._next_steps(request, known, wish) if ended else (),
            records=self.linked_records(_records(wish)) if ended else "",
            missed=missed,
            unnamed=_left_unnamed(known, len(missed)),
            what=what,
            change=change,
            waits=waits,
            stuck=stuck,
            pointless=pointless,
            mine=mine,
            chosen=_chosen(known, wish),
            group=_group(request, wish),
            reason=known.reason_in_words,
            seen=approvals.mark(known) if waits or stuck else "",
            why_not=unreadable or why_not,
            why_not_reject="" if mine else refusal(request, "approve"),
            wrong={"all": wrong} if wrong else {},
            typed=request.POST,
            asks=True,
            button=_("Approve: %(act)s") % {"act": act},
            only=only_message(request, wish.selection),
            number_to_type=0 if mine or not waits else number_to_type(shown.get("messages_now", 0)),
            **{"left": NOTHING_LEFT_OUT, **shown},
        )


def _missed(request: HttpRequest, known: ApprovalRequest) -> list[tuple[ParkedMessage, str]]:
    """Return the first messages that an approved discard left out, as far as the user may see them."""
    begun = known.state in (RequestState.APPROVED, RequestState.DONE)
    if not begun or known.act not in NAMING or known.changed == known.count:
        return []
    return [
        (message, f"{why} {outcome_of(message)}".strip())
        for message, why in missed_discards.left_out_of(known)
        if not refusal(request, "view", message=message)
    ]


def _left_unnamed(known: ApprovalRequest, named: int) -> int:
    """Return how many messages a request left out besides those that its page names."""
    tells = known.state == RequestState.DONE and known.act in NAMING
    return max(known.count - known.changed - named, 0) if tells else 0


def _ending(known: ApprovalRequest) -> str:
    """Return who decided on a request that no longer waits, when and why, and what was done."""
    said = {
        "name": known.decided_by,
        "when": minute(known.ended_at),
        "why": known.remark.rstrip("."),
        "became": became_of(known),
        "done": number(known.changed),
        "count": number(known.count),
    }
    if known.state == RequestState.DONE and known.messages and not known.changed:
        return _("Approved by %(name)s, %(when)s, but nothing was left to do: %(became)s.") % said
    if known.withdrawn:
        return _("Withdrawn by %(name)s, %(when)s: %(why)s. Nothing was done.") % said
    texts = {
        RequestState.DONE: _("Approved by %(name)s, %(when)s: %(became)s."),
        RequestState.APPROVED: _("Approved by %(name)s, %(when)s. So far %(done)s of %(count)s are done."),
        RequestState.WAITING: _("Expired at %(when)s: nobody had decided on it. Nothing was done."),
        RequestState.OVER: _("The breaker closed by itself, %(when)s, before anybody had decided. Nothing was done."),
        RequestState.REJECTED: _("Rejected by %(name)s, %(when)s: %(why)s. Nothing was done."),
    }
    return texts[RequestState(known.state)] % said


def _choosable(chosen: Selection) -> bool:
    """Return True if the messages of a request can be chosen again: by their numbers, or as those of a group."""
    return 0 < len(chosen.revisions) <= MOST_IDS or (chosen.group is not None and set(chosen.filter) == {"group"})


def _records(wish: Wish) -> list[int]:
    """Return the numbers of a request's messages; none if it has one, whose name is shown, or many."""
    numbers = sorted(wish.selection.revisions)
    return numbers if 1 < len(numbers) <= MOST_RECORDS_LINKED else []


def _any_open() -> bool:
    """True if a request waits; without the database of the records an index of Django is shown all the same."""
    with suppress(Error):
        return approvals.open_requests().exists()
    return False


def _found(number: int) -> ApprovalRequest:
    known = ApprovalRequest.objects.using(records_alias()).filter(pk=number).first()
    if known is None:
        raise Http404(_("There is no request %(number)s.") % {"number": number})
    return known


def _is_mine(request: HttpRequest, known: ApprovalRequest) -> bool:
    return known.by_user_id is not None and known.by_user_id == request.user.pk


def _group(request: HttpRequest, wish: Wish) -> int | None:
    """Return the only error group that a request names, to link to it; None if it names none or several."""
    groups = group_numbers(wish.selection.filter.get("group", []))
    named = ErrorGroup.objects.filter(pk__in=groups[:1]) if len(groups) == 1 else ErrorGroup.objects.none()
    return None if refusal(request, "view_group") or not named.exists() else groups[0]


def _chosen(known: ApprovalRequest, wish: Wish) -> str:
    """Return how the messages were chosen. Who must not see the message of an edit reads its number, not its key."""
    if known.act == GatedAct.EDIT:
        return "".join(f"#{number}" for number in wish.selection.revisions)
    return chosen_text(known, wish.selection)


def _state(known: ApprovalRequest, now: datetime, *, looked_up: bool) -> str:
    """Return the state of an ended request; what became of messages that live on only of the newest requests."""
    asks_database = known.run is not None or known.act in EDITS
    return standing(known, known.state_at(now)) if looked_up or not asks_database else known.state_at(now)


def _count_now(known: ApprovalRequest) -> int:
    """Return with how many of its messages it would be done now: some may have been resolved since."""
    act = ACTS[known.act]
    if not isinstance(act, COUNTING) or known.count > MOST_PREVIEWED_MESSAGES:
        return known.count
    try:
        return act.count_now(Wish.of(known))
    except Refused:
        # The list of keys is gone; its page says so.
        return known.count


def _number_to_type(known: ApprovalRequest) -> int:
    """Return the number of messages to type before so many are sent or discarded; 0 if it need not be typed."""
    if not number_to_type(known.count) or not known.waits(database_clock.now(records_alias())):
        return 0
    try:
        wish = Wish.of(known)
        act = ACTS[known.act]
        return number_to_type(act.count_now(wish)) if isinstance(act, COUNTING) else 0
    except Refused:
        # The list of keys is gone; the act refuses it.
        return 0


def _left_out(request: HttpRequest, known: ApprovalRequest) -> LeftOut:
    """Return the keys of the request, of which the second person has to check the doubtful ones too."""
    if not ACTS[known.act].checks_keys:
        return NOTHING_LEFT_OUT
    try:
        return left_out(request, Wish.of(known).selection)
    except Refused:
        # The list of keys is gone; the act refuses it.
        return NOTHING_LEFT_OUT


def _discard(request: HttpRequest, known: ApprovalRequest, wish: Wish) -> Context:
    found = gated_acts.DISCARD.preview(wish, after=known.place)
    return {
        "part_of_act": "discard",
        "messages_now": found.discards,
        **discard_effect(request, found.rows, found.discards),
        "findings": [with_seen_examples(request, one) for one in found.findings],
        "under_way": under_way(wish.selection.queryset()),
        "left": _left_out(request, known),
        "sample": sample(request, wish.selection, left_out=changed(wish.selection) | ~discardable()),
    }


def _discard_outbox(request: HttpRequest, known: ApprovalRequest, wish: Wish) -> Context:
    rows = gated_acts.DISCARD_OUTBOX.preview(wish)
    linked = wish.terms["outbox"] == router.db_for_read(OutboxMessage) and not refusal(request, "view_outbox")
    count = rows.count()
    return {
        "part_of_act": "outbox",
        "messages_now": count,
        "gone": known.count - count,
        "rows": [] if refusal(request, "view_outbox") else list(rows[:MOST_PATHS]),
        "linked": linked,
    }


def _requeue(request: HttpRequest, known: ApprovalRequest, wish: Wish) -> Context:
    found, look = gated_acts.REQUEUE.preview(wish), broker_look.look()
    return {
        "part_of_act": "requeue",
        "messages_now": found.sendable,
        "report": found,
        "findings": [with_seen_examples(request, one) for one in found.findings],
        "terms": wish.terms,
        "unguarded": RequeueOptions.of(wish.terms).guard is None,
        "under_way": under_way(wish.selection.queryset()),
        "look": look,
        "levels": targets_of(found.queues, look),
        "left": _left_out(request, known),
        **still_failing(wish.selection, found),
        "others": found.sendable - 1,
        "sample": sample(request, wish.selection, left_out=found.refused),
    }


def _edit(request: HttpRequest, _known: ApprovalRequest, wish: Wish) -> Context:
    message = gated_acts.EDIT.message(wish)
    if message is None:
        return {"hidden": CHANGED, "over": CHANGED}
    hidden = refusal(request, *gated_acts.EDIT.verbs, message=message)
    if hidden:
        return {"hidden": hidden}
    proposal = gated_acts.EDIT.preview(wish, message)
    if proposal is None:
        return {"hidden": CHANGED, "over": CHANGED, "message": message}
    known_id = decode_properties(contents(message).raw).message_id
    new_id = decode_properties(wish.properties).message_id
    lengths = accumulate(len(line.text) + 2 for line in proposal.difference)
    lines = [line for line, length in zip(proposal.difference, lengths, strict=True) if length <= TEXT_LIMIT]
    return {
        "part_of_act": "edit",
        "message": message,
        "proposal": proposal,
        "taken": taken_keys(request, others_with({message.pk: proposal.keys})),
        "new_id": new_id if new_id != known_id else "",
        "differing": lines,
        "paths": proposal.paths[:MOST_PATHS],
        "more_paths": max(len(proposal.paths) - MOST_PATHS, 0),
        "cut": len(lines) < len(proposal.difference),
    }


def _edit_many(request: HttpRequest, _known: ApprovalRequest, wish: Wish) -> Context:
    act = gated_acts.EDIT_MANY
    hidden = refusal(request, *act.verbs)
    if hidden:
        return {"hidden": hidden}
    try:
        results = act.preview(wish, allowed=lambda message: refusal(request, *act.verbs, message=message))
    except Refused as refused:
        return {"hidden": str(refused)}
    meant = [one for one in results if not one.why]
    return {
        "part_of_act": "edit_many",
        "meant": meant,
        "taken": taken_keys(request, others_of(meant)),
        "left_edits": [(one, bool(refusal(request, "view", message=one.message))) for one in results if one.why],
    }


def _close_breaker(_request: HttpRequest, _known: ApprovalRequest, wish: Wish) -> Context:
    queue = wish.terms["queue"]
    stopped = StoppedQueues.among([queue]).badges.get(queue)
    over = queue_pauses.why_no_longer(queue, wish.terms["seen"])
    return {"part_of_act": "breaker", "queue": queue, "stopped": stopped, "over": over}


_SHOWN: Mapping[str, Callable[[HttpRequest, ApprovalRequest, Wish], Context]] = {
    GatedAct.DISCARD: _discard,
    GatedAct.DISCARD_OUTBOX: _discard_outbox,
    GatedAct.REQUEUE: _requeue,
    GatedAct.EDIT: _edit,
    GatedAct.EDIT_MANY: _edit_many,
    GatedAct.CLOSE_BREAKER: _close_breaker,
}
"""What is done if a request is approved, as its page shows it."""

"""Acts that need a second person: asked for, approved, rejected, and carried out.

Everything that is checked before an act is checked again when it is approved, for both persons. The act itself is that
of one person, who also has an approval.

Locks are taken in one order: the request, then what the act locks.
"""

import logging
import time
from datetime import timedelta
from typing import Any

from django.db.models import Exists, OuterRef, Q, QuerySet
from django.utils.translation import gettext as _

from django_rmq_retry import database_clock
from django_rmq_retry.conf import settings
from django_rmq_retry.messages.texts import COLUMN_BYTES, short, short_reason
from django_rmq_retry.models import (
    Action,
    ApprovalRequest,
    GatedAct,
    OperatorAction,
    ParkedMessage,
    RequestState,
    RequeueRun,
)
from django_rmq_retry.models.approvals import ApprovalRows
from django_rmq_retry.parked import members
from django_rmq_retry.parked.audit import log_action
from django_rmq_retry.parked.database import records_alias, transaction_of
from django_rmq_retry.parked.four_eyes import Wish, seal_of, selection_of
from django_rmq_retry.parked.gated_acts import ACTS, Approved
from django_rmq_retry.parked.key_lists import mark_kept
from django_rmq_retry.parked.operators import (
    Actor,
    Allowed,
    Approval,
    NotAllowed,
    NothingChosen,
    Outdated,
    Refused,
    refusal,
    user_of,
)
from django_rmq_retry.parked.selection import group_numbers
from django_rmq_retry.statements import locking

log = logging.getLogger("django_rmq_retry")

GOING_ON_SECONDS = 1.0
"""Seconds for which a consumer goes on with a discard whose process was killed, before it does other work."""
MOST_LOGGED = 10_000
"""The most messages of a filter that the audit log names with a request: the act itself names all that it changes."""
MOST_MEMBERS_READ = 500
LEFT_BEHIND = timedelta(seconds=30)
"""The time after which an approved act that is not finished has lost its process."""


def requests() -> ApprovalRows:
    return ApprovalRequest.objects.using(records_alias()).defer("body", "properties", "wish")


def open_requests() -> ApprovalRows:
    """Return the requests that can still be approved, the oldest first."""
    return requests().open(database_clock.now(records_alias()))


def open_requests_for(rows: QuerySet[ParkedMessage]) -> list[tuple[ApprovalRequest, int]]:
    """Return the open requests for acts on some of these messages, the oldest first, each with their number."""
    return [(one, count) for one, count in counted_in_open_requests(rows) if count]


def counted_in_open_requests(rows: QuerySet[ParkedMessage]) -> list[tuple[ApprovalRequest, int]]:
    """Return all open requests, the oldest first, each with the number of these messages that it is about."""
    known = {one: set(selection_of(one).revisions) for one in _open_with_wishes()}
    by_filter = members.counted_in(rows, [one.pk for one in known])
    by_hand: set[int] = set().union(*known.values())
    there = set(rows.filter(pk__in=by_hand).values_list("pk", flat=True)) if by_hand else set()
    return [(one, by_filter.get(one.pk, 0) + len(named & there)) for one, named in known.items()]


def groups_of_requests() -> dict[int, list[ApprovalRequest]]:
    """Return the error groups of the messages of open requests, each with the requests, the oldest first.

    If a request names no group, only its first messages are read: it may have a million.
    """
    found: dict[int, list[ApprovalRequest]] = {}
    for one in _open_with_wishes():
        chosen = selection_of(one)
        groups = set(group_numbers(chosen.filter.get("group", [])))
        if not groups:
            first = members.of(one.pk).order_by("place").values_list("message", flat=True)[:MOST_MEMBERS_READ]
            rows = ParkedMessage.objects.using(records_alias()).filter(pk__in=[*chosen.revisions, *first])
            groups = set(rows.order_by().values_list("group", flat=True).distinct())
        for group in groups:
            found.setdefault(group, []).append(one)
    return found


def _open_with_wishes() -> ApprovalRows:
    return open_requests().defer(None).defer("body", "properties")


@transaction_of(ApprovalRequest)
def ask(wish: Wish, actor: Actor) -> ApprovalRequest:
    """Ask for the approval of an act; return the request that waits already if it is the same one.

    The messages that match a filter now are stored as the members of the request.
    """
    if settings().four_eyes.require_account and actor.user_id is None:
        raise NotAllowed(_("Nothing was done: here a command that asks needs --user with your account."))
    using, now = records_alias(), database_clock.now(records_alias())
    request = ApprovalRequest(
        act=wish.act,
        count=wish.count,
        subject=short(wish.subject, COLUMN_BYTES),
        reason=short_reason(wish.reason),
        wish=wish.text,
        body=wish.body,
        properties=wish.properties,
        by_user_id=actor.user_id,
        by_key="" if actor.user_id is None else str(actor.user_id),
        by=actor.name,
        behalf=actor.behalf,
        ip=actor.ip,
        source=actor.source,
        asked_at=now,
        expires_at=now + timedelta(seconds=settings().four_eyes.expire_after),
    )
    request.seal = seal_of(request)
    same = locking(open_requests().filter(seal=request.seal)).first()
    if same is not None:
        return same
    request.save(using=using, force_insert=True)
    chosen: dict[str, Any] = {"selection": wish.selection.facts()} if wish.selection.count else {}
    if not wish.selection.named:
        wish.selection.check(members.freeze(request.pk, wish.selection))
        chosen["members"] = members.digest(request.pk)
    elif wish.selection.count:
        wish.selection.check(wish.selection.queryset().count())
    mark_kept(wish.selection.filter)
    sealed = {"seal": request.seal, "expires": request.expires_at.isoformat()}
    asked = _log(request, actor, Action.ASK, named=_named(request), reason=request.reason, **sealed, **chosen)
    request.asked = asked.number
    request.save(using=using, update_fields=["asked"])
    return request


def empty_ended() -> None:
    """Delete what requests hold that nobody can approve any more: contents of edits, and members."""
    waits = Q(state=RequestState.WAITING, expires_at__gt=database_clock.now(records_alias()))
    ended = requests().exclude(waits).exclude(state=RequestState.APPROVED)
    ended.filter(act=GatedAct.EDIT).exclude(body=b"").update(body=b"", properties=b"")
    listing = RequeueRun.objects.using(records_alias()).filter(listing_limit__isnull=False)
    for one in ended.exclude(run__in=listing.values("pk")).filter(Exists(members.of(OuterRef("pk")))):
        members.of(one.pk).delete()


def _named(request: ApprovalRequest) -> list[int]:
    """Return the messages of a request, by which the audit log finds it; none if a filter matched very many."""
    chosen = list(selection_of(request).revisions)
    return chosen or list(members.of(request.pk).values_list("message", flat=True)[: MOST_LOGGED + 1])


def _log(
    request: ApprovalRequest, actor: Actor, action: Action, *, named: list[int], reason: str, **facts: object
) -> OperatorAction:
    selection, chooses = selection_of(request), request.act in (GatedAct.DISCARD, GatedAct.REQUEUE)
    return log_action(
        actor,
        action,
        reason=reason,
        messages=named if len(named) <= MOST_LOGGED else (),
        group=selection.group,
        run=request.run,
        subject=selection.subject if chooses and selection.revisions else request.subject,
        count=request.count,
        facts={"request": request.pk, "act": str(request.act), **facts},
    )


def approve(number: int, actor: Actor, *, remark: str = "", seen: str | None = None) -> ApprovalRequest:
    """Approve a request and carry the act out; ``actor`` is the second person, who has an account.

    ``seen`` is the ``mark`` of the request that was shown to them; another one is refused.
    If the process is killed, the act is done or not done. Only a discard of many messages may be done in part: a
    consumer, or a second call, goes on with it.
    """
    if _decide(number, actor, remark, seen).state == RequestState.APPROVED:
        while _next_slice(number):
            pass
    return ApprovalRequest.objects.using(records_alias()).get(pk=number)


@transaction_of(ApprovalRequest)
def _decide(number: int, actor: Actor, remark: str, seen: str | None) -> ApprovalRequest:
    request = _locked(number)
    if request.state != RequestState.APPROVED:
        _check_waits(request)
    _check_seal(request)
    why = why_not(request, actor)
    if why:
        raise NotAllowed(why)
    if seen is not None and seen != mark(request):
        raise Outdated(_("Nothing was done: this is not the request that was shown. Look at it again."))
    if request.state == RequestState.APPROVED:
        return request
    now = database_clock.now(records_alias())
    request.state, request.decided_at, request.remark = RequestState.APPROVED, now, short_reason(remark)
    request.decided_by_user_id, request.decided_by = actor.user_id, actor.name
    named = _named(request)
    changed = ACTS[request.act].carry_out(_approved(request))
    if changed is not None:
        _finish(request, changed=changed)
        request.acted = _last_act(request)
    # After the act, because acts lock messages before the audit log.
    _log(request, actor, Action.APPROVE, named=named, reason=remark, asked_by=request.by)
    request.save(using=records_alias())
    return request


@transaction_of(ApprovalRequest)
def reject(number: int, actor: Actor, *, reason: str) -> ApprovalRequest:
    """Reject a request; who asked for it may withdraw it so."""
    if not reason.strip():
        raise Refused(_("Enter a reason: whoever asked for it must learn why."))
    request = _locked(number)
    _check_waits(request)
    request.state, request.decided_at = RequestState.REJECTED, database_clock.now(records_alias())
    request.decided_by_user_id, request.decided_by = actor.user_id, actor.name
    request.remark = short_reason(reason.strip())
    _log(request, actor, Action.REJECT, named=_named(request), reason=reason, asked_by=request.by)
    _empty(request)
    request.save(using=records_alias())
    return request


def _locked(number: int) -> ApprovalRequest:
    request = locking(ApprovalRequest.objects.using(records_alias()).filter(pk=number)).first()
    if request is None:
        raise NothingChosen(_("There is no request %(number)s.") % {"number": number})
    return request


def _check_waits(request: ApprovalRequest) -> None:
    if request.waits(database_clock.now(records_alias())):
        return
    if request.state == RequestState.WAITING:
        raise Outdated(_("Nothing was done: %(request)s has expired. Ask for it again.") % {"request": request})
    if request.state == RequestState.OVER:
        text = _("Nothing was done: the breaker closed by itself, so %(request)s is over.")
        raise Outdated(text % {"request": request})
    text = _("Nothing was done: %(request)s was approved by %(name)s already.")
    if request.state == RequestState.REJECTED:
        text = _("Nothing was done: %(request)s was rejected by %(name)s.")
    raise Outdated(text % {"request": request, "name": request.decided_by})


def mark(request: ApprovalRequest) -> str:
    """Return the seal of the row of the audit log that says what was asked for; empty if there is none."""
    asked = _asked(request)
    return asked.seal if asked is not None else ""


def _asked(request: ApprovalRequest) -> OperatorAction | None:
    return OperatorAction.objects.using(records_alias()).filter(number=request.asked, action=Action.ASK).first()


def _check_seal(request: ApprovalRequest) -> None:
    """Refuse a request whose row, or members, are not what the audit log says was asked for."""
    asked = _asked(request)
    facts = asked.details if asked is not None else {}
    known = (facts.get("request"), facts.get("seal"), facts.get("expires"), facts.get("members", ""))
    now = (request.pk, seal_of(request), request.expires_at.isoformat(), members.digest(request.pk))
    # An account may be deleted, but not become another one.
    same = asked is not None and asked.actor_key == request.by_key
    same = same and (request.by_user_id is None or str(request.by_user_id) == request.by_key)
    if not same or known != now:
        text = _("Nothing was done: by the audit log, %(request)s is not what was asked for.")
        raise Outdated(text % {"request": request})


def why_not(request: ApprovalRequest, actor: Actor) -> str:
    """Return why this person must not approve it, or why its author must not do it any more; empty if both may."""
    why = _why_not_another(request, actor)
    if why:
        return why
    second, author = user_of(actor.user_id), user_of(request.by_user_id)
    if second is None:
        return _("Only a person with an account can approve a request.")
    why = refusal(second, "approve") or _why_not_do(request, second)
    if why or not request.by_key:
        return why
    if author is None:
        return _("The account of %(name)s, who asked for this, no longer exists.") % {"name": request.by}
    why = _why_not_do(request, author)
    text = _("%(name)s, who asked for this, must not do it any more: %(why)s")
    return text % {"name": request.by, "why": why} if why else ""


def _why_not_another(request: ApprovalRequest, actor: Actor) -> str:
    """Return why another person has to approve it: this one asked for it, or may have; empty if neither."""
    if request.by_user_id is not None and request.by_user_id == actor.user_id:
        return _("You asked for this yourself. Another person has to approve it.")
    if not request.by_key and settings().four_eyes.require_account:
        return _("It was asked for in a shell without an account. Ask for it again with --user.")
    if not request.by_key and _names(request.by, request.behalf) & _names(actor.name, actor.behalf):
        return _(
            "This was asked for under the same name. Another person has to approve it, on the page of the request."
        )
    return ""


def _names(name: str, behalf: str) -> set[str]:
    """Return the names under which a person is known: of the account, and of the operating system's account."""
    return {one.casefold() for one in (name, behalf.rpartition("@")[0]) if one}


def _why_not_do(request: ApprovalRequest, user: Any) -> str:
    return ACTS[request.act].why_not(user, request.count)


def _allowed(request: ApprovalRequest) -> Allowed:
    """Return the rules of the project for both persons, each with the permissions of this moment."""
    users = [user_of(request.decided_by_user_id)]
    users += [user_of(request.by_user_id)] if request.by_key else []

    def why_not_message(message: Any) -> str:
        verbs = ACTS[request.act].verbs
        return next((why for user in users for verb in verbs if (why := refusal(user, verb, message))), "")

    return why_not_message


def _approved(request: ApprovalRequest) -> Approved:
    approval = Approval(request=request.pk, by=request.decided_by, user_id=request.decided_by_user_id)
    author = Actor(
        name=request.by,
        user_id=request.by_user_id,
        behalf=request.behalf,
        ip=request.ip,
        source=request.source,
        approval=approval,
    )
    return Approved(request=request, wish=Wish.of(request), actor=author, allowed=_allowed(request))


def _finish(request: ApprovalRequest, *, changed: int) -> None:
    request.state, request.changed = RequestState.DONE, changed
    _empty(request)


def _empty(request: ApprovalRequest) -> None:
    """Let go of what an ended request holds; a run that its driver has yet to list still needs the members."""
    request.body = request.properties = b""
    if not _listed_later(request.run):
        members.of(request.pk).delete()


def _listed_later(run_id: int | None) -> bool:
    return (
        run_id is not None
        and RequeueRun.objects.using(records_alias()).filter(pk=run_id, listing_limit__isnull=False).exists()
    )


@transaction_of(ApprovalRequest)
def _next_slice(number: int) -> bool:
    """Do the next slice of an approved request, and note how far it came; False after the last one."""
    request = _locked(number)
    if request.state != RequestState.APPROVED:
        return False
    done = ACTS[request.act].next_slice(_approved(request))
    if done is not None:
        request.place, changed = done
        request.changed += changed
        request.acted = request.acted or (_last_act(request) if changed else 0)
    else:
        _finish(request, changed=request.changed)
    request.save(using=records_alias(), update_fields=["place", "changed", "acted", "state"])
    return done is not None


def _last_act(request: ApprovalRequest) -> int:
    """Return the number of the action that this transaction logged last, which keeps others from logging; 0 if none."""
    last = OperatorAction.objects.using(records_alias()).order_by("-number").first()
    return last.number if last is not None and last.details.get("request") == request.pk else 0


def finish_left_discards() -> None:
    """Go on with approved discards whose process was killed, for a moment.

    Also if acts need no second person any more: this one was approved while they did.
    """
    late = database_clock.now(records_alias()) - LEFT_BEHIND
    left = requests().filter(state=RequestState.APPROVED, decided_at__lt=late).order_by("pk")
    until = time.monotonic() + GOING_ON_SECONDS
    for number in left.values_list("pk", flat=True):
        while time.monotonic() < until and _next_slice(number):
            pass

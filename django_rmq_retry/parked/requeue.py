"""Starts, pauses, resumes and stops requeue runs."""

import time
from collections.abc import Collection, Iterable
from typing import Any

from django.db import transaction
from django.db.models import Count, F
from django.utils.translation import gettext as _

from django_rmq_retry import database_clock
from django_rmq_retry.handlers import registry
from django_rmq_retry.messages.texts import short
from django_rmq_retry.models import (
    Action,
    GatedAct,
    ItemState,
    ParkedMessage,
    RequeueRun,
    RunState,
    RunWait,
)
from django_rmq_retry.models.runs import ACTIVE
from django_rmq_retry.parked.audit import log_action
from django_rmq_retry.parked.claims import end_expired_claims
from django_rmq_retry.parked.database import database, locked_run, transaction_of
from django_rmq_retry.parked.drive import drive
from django_rmq_retry.parked.findings import INCLUDABLE, Terms
from django_rmq_retry.parked.four_eyes import Wish, gate
from django_rmq_retry.parked.items import freeze, lists_at_once, postpone, skip_unsent
from django_rmq_retry.parked.key_lists import mark_kept
from django_rmq_retry.parked.operators import Actor, NothingChosen, Outdated, Refused, lacks_reason
from django_rmq_retry.parked.pace import restart_rate
from django_rmq_retry.parked.selection import EXCEPT, Selection
from django_rmq_retry.publishing import outbox
from django_rmq_retry.recurring import thread_name
from django_rmq_retry.topology.declarations import Role

FASTEST_RATE = 10_000.0
STOP_AT = 20.0
"""Percent of failed outcomes above which the guard pauses a requeue run, unless the operator chooses another limit."""
GUARD_OFF = 100.0
"""No share of outcomes is above this limit, so it switches the guard off."""
STOP_SECONDS = 0.5
"""Seconds for which ``stop`` skips unsent items itself; the run's driver skips the rest."""
CANARY_ENDED = (RunWait.CANARY_FAILED, RunWait.CANARY_SILENT, RunWait.NOT_CONFIRMED)
"""A run paused for one of these resumes without its canary, because the operator has inspected that message."""
RETESTABLE = (*CANARY_ENDED, RunWait.GUARD)
"""A run paused for one of these has failed: before the rest is sent, another canary can show that the cause is gone."""
MOST_CAUSES = 5
"""The most error groups that the record of a run names."""
TYPED_FROM = 1000
"""Above this the number must be typed, so that an operator does not send a million messages by habit."""
UNSENT = (ItemState.PENDING, ItemState.CLAIMED, ItemState.SKIPPED)
"""States of messages that were not sent, or of which a driver will still note when."""
NO_TARGETS = (Role.PARKED, Role.WAITING, Role.QUARANTINE)
"""Roles of queues from which no handler receives new messages: only this app sends to them, by its own rules."""


def _noted(reason: str) -> dict[str, str]:
    """Return the operator's note, which replaces the code for which the run waited."""
    return {"wait": "", "note": short(reason, 255)}


def pause(run: int, actor: Actor, *, reason: str = "") -> RequeueRun:
    """Pause a run until an operator resumes it; messages that are being sent are completed."""
    running = (RunState.PLANNED, RunState.RUNNING)
    return _change_run(
        run, actor, Action.PAUSE, running, reason=reason, changes={"state": RunState.PAUSED, **_noted(reason)}
    )


def resume(run: int, actor: Actor, *, canary: bool = False, reason: str = "") -> RequeueRun:
    """Resume a run; with ``canary`` it sends one more message, and the rest after that one was processed.

    The operator has seen the failures for which a guard paused it, so the guard counts later outcomes only; it can
    pause the run again.
    """
    changes: dict[str, Any] = {"state": RunState.RUNNING, **_noted(""), **restart_rate()}
    known = RequeueRun.objects.using(database()).filter(pk=run).first()
    if known is not None and canary:
        changes |= {"canary": True, "canary_since": database_clock.now(database())}
    elif known is not None and known.awaits_canary and known.wait in RETESTABLE:
        changes |= {"canary": False, "canary_since": None}
    if known is not None and known.guard_exceeded:
        changes |= {"spared_failed": F("failed"), "spared_processed": F("processed")}
    return _change_run(run, actor, Action.RESUME, (RunState.PAUSED,), reason=reason, changes=changes)


def change_rate(run: int, actor: Actor, *, rate: float, reason: str = "") -> RequeueRun:
    """Send a run's messages faster or slower: ``rate`` a second, from the next slice on."""
    return _change_run(
        run, actor, Action.SLOW, ACTIVE, reason=reason, changes={"rate": checked_rate(rate), **restart_rate()}
    )


def stop(run: int, actor: Actor, *, reason: str = "") -> RequeueRun:
    """Stop a run permanently. Unsent messages stay parked; outcomes of sent ones are still recorded."""
    changes = {"state": RunState.STOPPED, **_noted(reason)}
    stopped = _change_run(run, actor, Action.STOP, ACTIVE, reason=reason, changes=changes)
    until = time.monotonic() + STOP_SECONDS
    while skip_unsent(run) and time.monotonic() < until:
        pass
    stopped.refresh_from_db(using=database())
    return stopped


def checked_rate(rate: float) -> float:
    if not 0 < rate <= FASTEST_RATE:
        text = _("The rate must be a number above 0 and at most %(most)s messages per second.")
        raise Refused(text % {"most": f"{FASTEST_RATE:g}"})
    return float(rate)


@transaction_of(ParkedMessage)
def _change_run(
    run: int, actor: Actor, action: Action, states: tuple[RunState, ...], *, reason: str, changes: dict[str, Any]
) -> RequeueRun:
    known = locked_run(run)
    if known is None:
        raise NothingChosen(_("There is no requeue run %(run)s.") % {"run": run})
    if known.state not in states:
        text = _("Nothing was changed. Requeue run %(run)s has another state now: %(state)s.")
        raise Outdated(text % {"run": run, "state": known.get_state_display()})
    before = {name: getattr(known, name) for name in changes if name in ("rate", "state", "canary")}
    if changes.get("canary_since"):
        # A driver that was killed could not note the time. What it had sent is no later than now.
        lost = known.items.using(database()).filter(sent_at=None).exclude(state__in=UNSENT)
        lost.update(sent_at=changes["canary_since"])
    RequeueRun.objects.using(database()).filter(pk=run).update(**changes)
    if action == Action.STOP and known.listing:
        known.end_listing()
        known.save(using=database(), update_fields=["listing_limit", "total"])
    after = {name: changes[name] for name in before}
    counted = known.unsent
    log_action(actor, action, reason=reason, run=run, count=counted, facts={"before": before, "after": after})
    known.refresh_from_db(using=database())
    return known


def start(
    selection: Selection,
    actor: Actor,
    *,
    rate: float = 20.0,
    max_depth: int | None = None,
    stop_at: float | None = STOP_AT,
    reason: str = "",
    target: str = "",
    one_by_one: bool = False,
    canary: bool = False,
    include: Collection[str] = (),
    confirmed_permanent: bool = False,
    planned: bool = False,
) -> RequeueRun:
    """Freeze a selection as a run that any driver can send; nothing is sent yet. Its driver lists a large selection.

    ``include`` names findings whose messages are sent nevertheless. Messages that share a business key are sent one
    after another, each after the outcome of the one before, unless "duplicates" is included. The guard pauses the run
    when more than ``stop_at`` percent of the outcomes failed again; None or 100 switches it off.
    """
    terms = Terms(target=checked_target(target), include=include, confirmed_permanent=confirmed_permanent)
    _check(selection, reason, include)
    description = selection.description
    wish = Wish(
        act=GatedAct.REQUEUE,
        count=selection.count,
        subject=description,
        reason=reason,
        selection=selection,
        terms={
            "rate": checked_rate(rate),
            "max_depth": max_depth,
            "stop_at": stop_at,
            "target": target,
            "one_by_one": one_by_one,
            "canary": canary,
            "include": sorted(include),
            "confirmed_permanent": confirmed_permanent,
            "planned": planned,
        },
    )
    gate(actor, wish)
    end_expired_claims()
    run = RequeueRun(
        created_at=database_clock.now(database()),
        by_user_id=actor.user_id,
        by=actor.name,
        approved_by_user_id=actor.approval.user_id if actor.approval else None,
        approved_by=actor.approval.by if actor.approval else "",
        source=actor.source,
        reason=short(reason, 255),
        selection=selection.facts(),
        description=short(description, 255),
        target=target,
        rate=checked_rate(rate),
        max_depth=max_depth,
        stop_at=None if stop_at is None or stop_at >= GUARD_OFF else stop_at,
        one_by_one=one_by_one or "duplicates" not in include,
        canary=canary,
        **({"state": RunState.PLANNED} if planned else {"started_at": database_clock.now(database())}),
    )
    return _started(run, selection, terms, actor)


@transaction_of(ParkedMessage)
def _started(run: RequeueRun, selection: Selection, terms: Terms, actor: Actor) -> RequeueRun:
    using = database()
    run.pk = None
    run.include, run.permanent_confirmed = sorted(terms.include), terms.confirmed_permanent
    run.causes = _causes(selection)
    if EXCEPT in selection.filter:
        run.excluded = max(selection.undiminished().count() - selection.queryset().count(), 0)
    run.save(using=using, force_insert=True)
    (freeze if lists_at_once(selection) else postpone)(run, selection, terms)
    selection.check(run.total)
    mark_kept(selection.filter)
    facts: dict[str, Any] = {"selection": selection.facts(), "rate": run.rate}
    if lists_at_once(selection):
        facts["left_out"] = run.skipped
    options = {"target": run.target, "max_depth": run.max_depth, "stop_at": run.stop_at, "canary": run.canary}
    facts |= {name: value for name, value in options.items() if value}
    if terms.include or terms.confirmed_permanent:
        facts["include"] = sorted(terms.include) + ["permanent"] * terms.confirmed_permanent
    items = run.items.select_related("message").only("message__business_key", "message__message_id")
    one = items.first() if run.total == 1 else None
    log_action(
        actor,
        Action.REQUEUE,
        reason=run.reason,
        run=run.pk,
        count=run.total,
        message=one.message_id if one is not None else None,
        subject=str(one.message) if one is not None else run.description,
        group=selection.group,
        facts=facts,
    )
    return run


def _causes(selection: Selection) -> list[tuple[int, int]]:
    rows = selection.queryset().order_by().values_list("group").annotate(count=Count("pk")).order_by("-count", "group")
    return list(rows[:MOST_CAUSES])


def requeue(
    messages: Iterable[ParkedMessage | int], *, by: str | Actor, reason: str = "", wait: float = 10.0, **options: Any
) -> RequeueRun:
    """Requeue some records from code and send them now: ``requeue([record], by="nightly job", reason="bank is back")``.

    It returns when the messages are sent, or after ``wait`` seconds; a consumer then sends the rest. Options are those
    of ``start``; messages on hold, for example, are sent only with ``include=["on_hold"]``, and its guard pauses the
    run, which then waits for an operator. Inside a transaction, the messages are sent after its commit.
    """
    actor = by if isinstance(by, Actor) else Actor.of_code(by)
    ids = [one.pk if isinstance(one, ParkedMessage) else int(one) for one in messages]
    run = start(Selection.of_ids(ids), actor, reason=reason, **{"rate": 100.0, **options})

    def send() -> RequeueRun:
        return drive(run.pk, thread_name("code"), for_seconds=wait, outcomes=False)

    if outbox.current.open_transaction() is None:
        return send()
    transaction.on_commit(send, using=database(), robust=True)
    return run


def checked_target(target: str) -> str:
    """Return a queue that the project declares for messages to handle; refuse any other."""
    if not target:
        return ""
    declared = registry.topology().lasting.queues
    if target not in declared or declared[target].role in NO_TARGETS:
        fit = [name for name, one in declared.items() if one.role not in NO_TARGETS]
        text = _("%(queue)r is not a declared queue. Declared queues: %(known)s.")
        raise Refused(text % {"queue": target, "known": ", ".join(fit) or "-"})
    return target


def _check(selection: Selection, reason: str, include: Collection[str]) -> None:
    unknown = sorted(set(include) - set(INCLUDABLE))
    if unknown:
        text = _("%(name)s cannot be included. Valid names: %(known)s.")
        raise Refused(text % {"name": ", ".join(unknown), "known": ", ".join(INCLUDABLE)})
    if not selection.count:
        raise NothingChosen(_("No message is chosen."))
    if lacks_reason(selection.count, reason):
        raise Refused(lacks_reason(selection.count, reason))

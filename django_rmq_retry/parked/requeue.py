"""Starts, pauses, resumes and stops requeue runs."""

import time
from collections.abc import Iterable
from typing import Any

from django.db import transaction
from django.db.models import Count, F
from django.utils.translation import gettext as _

from django_rmq_retry import database_clock
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
from django_rmq_retry.parked.findings import Terms
from django_rmq_retry.parked.four_eyes import Wish, require_second
from django_rmq_retry.parked.items import freeze, lists_at_once, postpone, skip_unsent
from django_rmq_retry.parked.key_lists import mark_kept
from django_rmq_retry.parked.operators import Actor, NothingChosen, Outdated, Refused, lacks_reason
from django_rmq_retry.parked.pace import restart_rate
from django_rmq_retry.parked.requeue_options import DEFAULT_OPTIONS, RequeueOptions, checked_rate
from django_rmq_retry.parked.selection import EXCEPT, Selection
from django_rmq_retry.publishing import outbox
from django_rmq_retry.recurring import thread_name

STOP_SECONDS = 0.5
"""Seconds for which ``stop`` skips unsent items itself; the run's driver skips the rest."""
CANARY_ENDED = (RunWait.CANARY_FAILED, RunWait.CANARY_SILENT, RunWait.NOT_CONFIRMED)
"""A run paused for one of these resumes without its canary, because the operator has inspected that message."""
RETESTABLE = (*CANARY_ENDED, RunWait.GUARD)
"""A run paused for one of these has failed: before the rest is sent, another canary can show that the cause is gone."""
MOST_CAUSES = 100
"""The most error groups that the record of a run names."""
TYPED_FROM = 1000
"""Above this the number must be typed, so that an operator does not send a million messages by habit."""
UNSENT = (ItemState.PENDING, ItemState.CLAIMED, ItemState.SKIPPED)
"""States of messages that were not sent, or of which a driver will still note when."""


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
        run, actor, Action.CHANGE_RATE, ACTIVE, reason=reason, changes={"rate": checked_rate(rate), **restart_rate()}
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
    selection: Selection, actor: Actor, options: RequeueOptions = DEFAULT_OPTIONS, *, reason: str = ""
) -> RequeueRun:
    """Freeze a selection as a run that any driver can send; nothing is sent yet. Its driver lists a large selection."""
    options.check()
    if not selection.count:
        raise NothingChosen(_("No message is chosen."))
    if lacks_reason(selection.count, reason):
        raise Refused(lacks_reason(selection.count, reason))
    description = selection.description
    wish = Wish(
        act=GatedAct.REQUEUE,
        count=selection.count,
        subject=description,
        reason=reason,
        selection=selection,
        terms=options.facts(),
    )
    require_second(actor, wish)
    end_expired_claims()
    now = database_clock.now(database())
    run = RequeueRun(
        created_at=now,
        by_user_id=actor.user_id,
        by=actor.name,
        approved_by_user_id=actor.approval.user_id if actor.approval else None,
        approved_by=actor.approval.by if actor.approval else "",
        source=actor.source,
        reason=short(reason, 255),
        selection=selection.facts(),
        description=short(description, 255),
        target=options.target,
        rate=float(options.rate),
        max_depth=options.max_depth,
        stop_at=options.guard,
        one_by_one=options.one_by_one or "duplicates" not in options.include,
        canary=options.canary,
        include=sorted(options.include),
        permanent_confirmed=options.confirmed_permanent,
        **({"state": RunState.PLANNED} if options.planned else {"started_at": now}),
    )
    return _started(run, selection, options.terms, actor)


@transaction_of(ParkedMessage)
def _started(run: RequeueRun, selection: Selection, terms: Terms, actor: Actor) -> RequeueRun:
    using = database()
    run.pk = None
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
    of ``RequeueOptions``: messages on hold, for example, are sent only with ``include=["on_hold"]``. The guard pauses
    the run, which then waits for an operator. Inside a transaction, the messages are sent after its commit.
    """
    actor = by if isinstance(by, Actor) else Actor.of_code(by)
    ids = [one.pk if isinstance(one, ParkedMessage) else int(one) for one in messages]
    run = start(Selection.of_ids(ids), actor, RequeueOptions(**{"rate": 100.0, **options}), reason=reason)

    def send() -> RequeueRun:
        return drive(run.pk, thread_name("code"), for_seconds=wait, outcomes=False)

    if outbox.current.open_transaction() is None:
        return send()
    transaction.on_commit(send, using=database(), robust=True)
    return run

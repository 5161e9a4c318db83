"""Pauses, resumes and stops requeue runs, and changes their rate."""

import time
from typing import Any

from django.db.models import F
from django.utils.translation import gettext as _

from django_rmq_retry import database_clock
from django_rmq_retry.messages.texts import short_reason
from django_rmq_retry.models import Action, ErrorGroup, ItemState, ParkedMessage, RequeueRun, RunState, RunWait
from django_rmq_retry.models.runs import ACTIVE, HELD, UNDATED
from django_rmq_retry.parked.audit import log_action
from django_rmq_retry.parked.database import locked_run, records_alias, transaction_of
from django_rmq_retry.parked.groups import SETTLES
from django_rmq_retry.parked.items import skip_unsent
from django_rmq_retry.parked.operators import Actor, NothingChosen, Outdated, Refused
from django_rmq_retry.parked.pace import restart_rate
from django_rmq_retry.parked.requeue_options import checked_rate

STOP_SECONDS = 0.5
"""Seconds for which ``stop_run`` skips unsent items itself; the run's driver skips the rest."""
CANARY_ENDED = (RunWait.CANARY_FAILED, RunWait.CANARY_SILENT, RunWait.NOT_CONFIRMED)
"""A run paused for one of these resumes without its canary, because the operator has inspected that message."""
RETESTABLE = (*CANARY_ENDED, RunWait.GUARD)
"""A run paused for one of these has failed: before the rest is sent, another canary can show that the cause is gone."""

SILENT = (*HELD, RunWait.CANARY_SILENT, RunWait.OUTCOMES_SILENT)
"""A run resumed from one of these no longer waits for its first outcomes, because the operator goes on without them."""


def has_failed(run: RequeueRun) -> bool:
    """Return True if a run has paused because messages failed, and none has shown since that the cause is gone."""
    return run.state == RunState.PAUSED and run.wait in RETESTABLE and run.tested_late is None


def retestable(run: RequeueRun) -> bool:
    """Return True if it has failed, and a message can show whether the cause is gone before the others are sent."""
    return run.unsent > 1 and has_failed(run)


def resume_lacks_reason(run: RequeueRun, reason: str) -> str:
    """Return why a run that is resumed without a test needs a reason; empty if it has one, or needs none."""
    return "" if reason.strip() or not has_failed(run) else _("Enter a reason: it is kept in the audit log.")


def shown_to_work(run: RequeueRun) -> bool:
    """Return True if messages of each of its causes were handled some time after it had sent its last one."""
    since, causes = run.sent_at, [group for group, _count in run.causes]
    groups = ErrorGroup.objects.using(records_alias()).filter(pk__in=causes)
    handled = since and groups.filter(last_handled__gt=since + SETTLES).count()
    return bool(handled) and handled == groups.count()


def resuming(run: RequeueRun) -> str:
    """Return the options of ``rmq_parked requeue-run`` that resume a paused run, with a test if it has failed."""
    if retestable(run):
        return "--resume --canary"
    return "--resume --reason TEXT" if has_failed(run) else "--resume"


def _noted(reason: str) -> dict[str, str]:
    """Return the operator's note, which replaces the code for which the run waited."""
    return {"wait": "", "note": short_reason(reason)}


def pause_run(run_id: int, actor: Actor, *, reason: str = "") -> RequeueRun:
    """Pause a run until an operator resumes it; messages that are being sent are completed."""
    running = (RunState.PLANNED, RunState.RUNNING)
    return _change_run(
        run_id, actor, Action.PAUSE, running, reason=reason, changes={"state": RunState.PAUSED, **_noted(reason)}
    )


def resume_run(run_id: int, actor: Actor, *, canary: bool = False, reason: str = "") -> RequeueRun:
    """Resume a run; with ``canary`` it sends one more message, and the rest after that one was processed.

    One that has failed needs a reason to go on without that. One that waits for its first outcomes sends the rest
    without them.

    The operator has seen the failures for which its guard or its test message paused it, so the guard counts later
    outcomes only; it can pause the run again.
    """
    # Nothing was to be heard of it while it was paused.
    heard = {"beat_at": database_clock.now(records_alias())}
    changes: dict[str, Any] = {"state": RunState.RUNNING, **_noted(""), **restart_rate(), **heard}
    known = RequeueRun.objects.using(records_alias()).filter(pk=run_id).first()
    if known is not None and not canary and (why := resume_lacks_reason(known, reason)):
        raise Refused(why)
    if known is not None and canary:
        changes["canary_since"] = database_clock.now(records_alias())
    elif known is not None and known.awaits_canary and known.wait in RETESTABLE:
        changes |= {"canary": False, "canary_since": None}
    if known is not None and (known.guard_exceeded or known.wait in RETESTABLE):
        changes |= {"spared_failed": F("failed"), "spared_processed": F("processed")}
    if known is not None and known.guard_exceeded:
        changes["unheld"] = False
    elif known is not None and known.wait in SILENT:
        changes["unheld"] = True
    held = known is not None and known.wait in HELD
    states = (RunState.PAUSED, RunState.RUNNING) if held else (RunState.PAUSED,)
    return _change_run(run_id, actor, Action.RESUME, states, reason=reason, changes=changes)


def change_rate(run_id: int, actor: Actor, *, rate: float, reason: str = "") -> RequeueRun:
    """Send a run's messages faster or slower: ``rate`` a second, from the next slice on."""
    return _change_run(
        run_id, actor, Action.CHANGE_RATE, ACTIVE, reason=reason, changes={"rate": checked_rate(rate), **restart_rate()}
    )


def stop_run(run_id: int, actor: Actor, *, reason: str = "") -> RequeueRun:
    """Stop a run permanently. Unsent messages stay parked; outcomes of sent ones are still recorded."""
    changes = {"state": RunState.STOPPED, **_noted(reason)}
    stopped = _change_run(run_id, actor, Action.STOP, ACTIVE, reason=reason, changes=changes)
    until = time.monotonic() + STOP_SECONDS
    while skip_unsent(run_id) and time.monotonic() < until:
        pass
    stopped.refresh_from_db(using=records_alias())
    return stopped


@transaction_of(ParkedMessage)
def _change_run(
    run_id: int, actor: Actor, action: Action, states: tuple[RunState, ...], *, reason: str, changes: dict[str, Any]
) -> RequeueRun:
    known = locked_run(run_id)
    if known is None:
        raise NothingChosen(_("There is no requeue run %(run)s.") % {"run": run_id})
    if known.state not in states:
        text = _("Nothing was changed. Requeue run %(run)s has another state now: %(state)s.")
        raise Outdated(text % {"run": run_id, "state": known.get_state_display()})
    before = {name: getattr(known, name) for name in changes if name in ("rate", "state", "canary")}
    if "wait" in changes:
        changes |= known.waits(changes["wait"], database_clock.now(records_alias()))
    if changes.get("canary_since"):
        # A driver that was killed could not note the time. What it had sent is no later than now.
        lost = known.items.using(records_alias()).filter(sent_at=None).exclude(state__in=UNDATED)
        lost.update(sent_at=changes["canary_since"])
    RequeueRun.objects.using(records_alias()).filter(pk=run_id).update(**changes)
    if action == Action.STOP and known.listing:
        known.end_listing()
        known.save(using=records_alias(), update_fields=["listing_limit"])
    after = {name: changes[name] for name in before}
    # What a driver sends right now is not counted as sent yet, but it is not held back either.
    rows = known.parts.using(records_alias()).exclude(state=ItemState.PENDING).count()
    # A retry that became due before its turn is left out without a row.
    counted = max(known.total - rows - (known.skipped if known.retries_of else 0), 0)
    log_action(actor, action, reason=reason, run=run_id, count=counted, facts={"before": before, "after": after})
    known.refresh_from_db(using=records_alias())
    return known

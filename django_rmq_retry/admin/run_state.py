"""What a requeue run's state says: its badge and outcome, and whether it waits for the broker."""

from datetime import timedelta

from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_rmq_retry import database_clock
from django_rmq_retry.admin.broker_look import Look
from django_rmq_retry.health.processes import lost_since_now
from django_rmq_retry.markup import MIXED, badge, counted
from django_rmq_retry.models import ItemState, RequeueRun, RunState, RunWait
from django_rmq_retry.parked.database import records_alias

SENT_LATELY = timedelta(seconds=10)
"""A run of which a message was sent within this time is sent by a process with a connection of its own."""


def waits_for_broker(run: RequeueRun, seen: Look) -> bool:
    """True if nobody sends the run, because the broker is away for this process and, as far as is known, for all.

    Consumers say whether they have lost it. A lease says nothing: a driver that has just lost its connection has one
    too. Of others only what was sent since this process lost its own shows that they have a connection.
    """
    if not seen.unreachable or run.wait == RunWait.BROKER_AWAY:
        return bool(seen.unreachable)
    if lost_since_now():
        return True
    # Slow runs send less often.
    since = database_clock.reckoned(records_alias()) - max(SENT_LATELY, timedelta(seconds=2 / run.rate))
    since = max(since, seen.since) if seen.since else since
    sent = run.parts.filter(state__in=(ItemState.SENT, ItemState.PROCESSED, ItemState.FAILED), sent_at__gte=since)
    return not sent.exists()


def run_badge(run: RequeueRun, *, unreachable: bool = False) -> SafeString:
    """Return the badge for the state or outcome of a requeue run."""
    return badge(*run_outcome(run, unreachable=unreachable))


def run_outcome(run: RequeueRun, *, unreachable: bool = False) -> tuple[str, str]:
    """Return the badge's name and text: a finished requeue run shows its outcomes, a sending one needs a broker."""
    if run.state == RunState.RUNNING:
        return _sending(run, unreachable=unreachable)
    if run.state != RunState.FINISHED:
        guarded = run.state == RunState.PAUSED and run.wait == RunWait.GUARD
        return run.state, _("Paused by its guard") if guarded else run.get_state_display()
    if run.failed:
        text = ngettext("%(count)d failed again", "%(count)d failed again", run.failed)
        return MIXED if run.processed else ItemState.FAILED, counted(text, count=run.failed)
    silent = run.sent - run.processed
    if run.unconfirmed:
        text = ngettext("%(count)d not confirmed", "%(count)d not confirmed", run.unconfirmed)
        return ItemState.UNCONFIRMED, counted(text, count=run.unconfirmed)
    if run.sent and silent > 0:
        text = ngettext("%(count)d without an outcome", "%(count)d without an outcome", silent)
        return RunState.WAITING, counted(text, count=silent)
    done = (MIXED if run.handled_twice else run.state, run.get_state_display())
    return done if run.sent else (ItemState.SKIPPED, _("Nothing was sent"))


def _sending(run: RequeueRun, *, unreachable: bool) -> tuple[str, str]:
    if not unreachable and run.is_silent(database_clock.reckoned(records_alias())):
        return RunState.PAUSED, _("Standing still")
    if unreachable or run.wait == RunWait.BROKER_AWAY:
        return RunState.PLANNED, _("Waiting for the broker")
    return run.state, run.get_state_display()

"""What a person does to a run under way: pause it, go on, change its rate, stop it."""

import time
from typing import Any

from django.db import transaction
from django.utils.translation import gettext as _

from django_rmq_retry.core.verdict import short
from django_rmq_retry.models import RequeueRun, RunState, Verb
from django_rmq_retry.models.runs import ACTIVE
from django_rmq_retry.operating import words
from django_rmq_retry.operating.actors import Actor
from django_rmq_retry.operating.auditing import note
from django_rmq_retry.operating.ending import release
from django_rmq_retry.operating.guarding import tripped
from django_rmq_retry.operating.locking import database, locked_run, steadily
from django_rmq_retry.operating.materialising import listed, listing
from django_rmq_retry.operating.refusals import NothingChosen, Outdated, Refused

FASTEST = 10_000.0
PATIENCE = 0.5
"""Seconds for which whoever stops a run lets go of its messages; whoever drives runs goes on with the rest."""


def pause(run: int, actor: Actor, *, reason: str = "") -> RequeueRun:
    """Send nothing more until somebody resumes it; what is being sent ends as it would."""
    running = (RunState.PLANNED, RunState.RUNNING)
    return _steer(
        run, actor, Verb.PAUSE, running, reason=reason, changes={"state": RunState.PAUSED, "why": short(reason, 255)}
    )


def resume(run: int, actor: Actor, *, reason: str = "") -> RequeueRun:
    """Go on. Whoever resumes after a guard has seen what it saw: the guard that stopped it is off from then on."""
    changes: dict[str, Any] = {"state": RunState.RUNNING, "why": ""}
    known = RequeueRun.objects.using(database()).filter(pk=run).first()
    if known is not None and known.canary and known.why in (
        words.CANARY_FAILED, words.CANARY_SILENT, words.NOT_CONFIRMED
    ):  # fmt: skip
        changes["canary"] = False
    if known is not None and tripped(known):
        changes["stop_at"] = None
    return _steer(run, actor, Verb.RESUME, (RunState.PAUSED,), reason=reason, changes=changes)


def slow(run: int, actor: Actor, *, rate: float, reason: str = "") -> RequeueRun:
    """So many per second from the next slice on; more than before is possible too."""
    return _steer(run, actor, Verb.SLOW, ACTIVE, reason=reason, changes={"rate": checked_rate(rate)})


def stop(run: int, actor: Actor, *, reason: str = "") -> RequeueRun:
    """Send nothing more, for good. What was not sent stays parked; outcomes of what was are still noted."""
    changes = {"state": RunState.STOPPED, "why": short(reason, 255)}
    stopped = _steer(run, actor, Verb.STOP, ACTIVE, reason=reason, changes=changes)
    until = time.monotonic() + PATIENCE
    while release(run) and time.monotonic() < until:
        pass
    stopped.refresh_from_db(using=database())
    return stopped


def checked_rate(rate: float) -> float:
    if not 0 < rate <= FASTEST:
        said = _("The rate is a number above 0, at most %(most)s messages per second.")
        raise Refused(said % {"most": f"{FASTEST:g}"})
    return float(rate)


def _steer(
    run: int, actor: Actor, verb: Verb, states: tuple[RunState, ...], *, reason: str, changes: dict[str, Any]
) -> RequeueRun:
    def act() -> RequeueRun:
        with transaction.atomic(using=database()):
            known = locked_run(run)
            if known is None:
                raise NothingChosen(_("There is no run %(run)s.") % {"run": run})
            if known.state not in states:
                said = _("Nothing was changed. Run %(run)s is at another point by now: %(state)s.")
                raise Outdated(said % {"run": run, "state": known.get_state_display()})
            before = {name: getattr(known, name) for name in changes if name in ("rate", "state", "canary", "stop_at")}
            RequeueRun.objects.using(database()).filter(pk=run).update(**changes)
            if verb == Verb.STOP and listing(known):
                counted = known.total
                listed(known)
                known.save(using=database(), update_fields=["selection", "total"])
                known.total = counted
            after = {name: changes[name] for name in before}
            note(actor, verb, reason=reason, run=run, count=known.total, facts={"before": before, "after": after})
        known.refresh_from_db(using=database())
        return known

    return steadily(act)

"""Holding: a message is out of the way until a time, and comes back by itself."""

from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import F
from django.utils import timezone
from django.utils.translation import gettext as _

from django_rmq_retry.core.verdict import short
from django_rmq_retry.models import ParkedMessage, State, Verb
from django_rmq_retry.models.messages import OPEN
from django_rmq_retry.operating.actors import Actor
from django_rmq_retry.operating.locking import database
from django_rmq_retry.operating.refusals import Refused
from django_rmq_retry.operating.selecting import Selection
from django_rmq_retry.operating.slicing import Act, Allowed, Done, perform

LONGEST = timedelta(days=366)


def hold(
    selection: Selection, actor: Actor, *, until: datetime, reason: str = "", allowed: Allowed | None = None
) -> Done:
    """Put what is open of a selection on hold until a time."""
    now = timezone.now()
    if timezone.is_naive(until) or not now < until <= now + LONGEST:
        raise Refused(_("A hold ends in the future, within a year."))
    changes = {"held_until": until, "hold_reason": short(reason, 255)}
    facts = {"until": until.isoformat()}
    act = Act(verb=Verb.HOLD, states=OPEN, state=State.ON_HOLD, changes=changes, reason=reason, facts=facts)
    return perform(act, selection, actor, allowed=allowed)


def release(selection: Selection, actor: Actor, *, reason: str = "", allowed: Allowed | None = None) -> Done:
    """End holds before their time."""
    changes = {"held_until": None, "hold_reason": ""}
    act = Act(verb=Verb.RELEASE, states=(State.ON_HOLD,), state=State.PARKED, changes=changes, reason=reason, facts={})
    return perform(act, selection, actor, allowed=allowed)


def release_due() -> int:
    """End the holds whose time has come. Their groups count them as before, so no other row is touched."""
    using = database()
    due = ParkedMessage.objects.using(using).filter(state=State.ON_HOLD, held_until__lte=timezone.now())
    if not due.exists():
        return 0
    with transaction.atomic(using=using):
        return due.update(state=State.PARKED, held_until=None, hold_reason="", revision=F("revision") + 1)

"""Discarding: a person decides that a message is not to be handled. It can be restored until its retention ends."""

from django.db import models
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_rmq_retry.core.verdict import short
from django_rmq_retry.models import State, Verb
from django_rmq_retry.models.messages import OPEN
from django_rmq_retry.operating.actors import Actor
from django_rmq_retry.operating.refusals import Refused
from django_rmq_retry.operating.selecting import Selection
from django_rmq_retry.operating.slicing import Act, Allowed, Done, perform


class Why(models.TextChoices):
    """Why a message is discarded."""

    DUPLICATE = "duplicate", gettext_lazy("Duplicate")
    CANCELLED = "cancelled", gettext_lazy("Cancelled by the customer")
    ELSEWHERE = "handled elsewhere", gettext_lazy("Handled elsewhere")
    BAD_DATA = "bad data", gettext_lazy("Bad data")
    TEST = "test", gettext_lazy("Test")
    OTHER = "other", gettext_lazy("Other")


def discard(selection: Selection, actor: Actor, *, why: str, text: str = "", allowed: Allowed | None = None) -> Done:
    """Discard what is open of a selection; "other" needs a text."""
    if why not in Why.values:
        said = _("%(why)r is no reason to discard; known are %(known)s.")
        raise Refused(said % {"why": why, "known": ", ".join(Why.values)})
    if why == Why.OTHER and not text.strip():
        raise Refused(_("Say in words why, where the reason is “other”."))
    reason = short(f"{why}: {text.strip()}" if text.strip() else why, 255)
    changes = {"resolved_at": timezone.now(), "resolution": reason, "held_until": None, "hold_reason": ""}
    act = Act(
        verb=Verb.DISCARD, states=OPEN, state=State.DISCARDED, changes=changes, reason=reason, facts={"why": str(why)}
    )
    return perform(act, selection, actor, allowed=allowed)


def restore(selection: Selection, actor: Actor, *, reason: str = "", allowed: Allowed | None = None) -> Done:
    """Take discards back: the messages are parked again."""
    act = Act(
        verb=Verb.RESTORE,
        states=(State.DISCARDED,),
        state=State.PARKED,
        changes={"resolved_at": None, "resolution": ""},
        reason=reason,
        facts={},
    )
    return perform(act, selection, actor, allowed=allowed)

"""The operators' actions on parked messages: discard, restore, hold and unhold."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from django.db import models, transaction
from django.db.models import F
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_rmq_retry import server
from django_rmq_retry.messages.tracebacks import short
from django_rmq_retry.models import Action, ParkedMessage, State
from django_rmq_retry.models.parked import OPEN, RESOLVED
from django_rmq_retry.ordering.keys import resolved
from django_rmq_retry.parked.audit import note
from django_rmq_retry.parked.database import database, locked_messages, steadily
from django_rmq_retry.parked.groups import moved
from django_rmq_retry.parked.key_lists import keep
from django_rmq_retry.parked.operators import Actor, Refused
from django_rmq_retry.parked.selection import Selection

SLICE = 1000

Allowed = Callable[[ParkedMessage], str]
"""Returns an empty string, or the reason why this message must not be changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """Counts of one action: messages changed, left out because they had changed before it, and refused."""

    changed: int = 0
    left: int = 0
    refused: int = 0
    """Messages that the project's own rules excluded from the action."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """The change to apply to each chosen message that is in one of ``states``, with its entry for the audit log."""

    action: Action
    states: Sequence[str]
    state: str
    changes: Mapping[str, Any]
    reason: str
    facts: Mapping[str, object]


def perform(act: Act, selection: Selection, actor: Actor, *, allowed: Allowed | None = None) -> Done:
    """Apply an action to a selection; each slice in which a message changes adds a row to the audit log."""
    selection.check(selection.queryset().count())
    done = Done()
    for ids in _slices(selection):
        part = steadily(lambda ids=ids: _slice(act, selection, actor, ids, allowed))  # type: ignore[misc]  # mypy does not infer its default
        done = replace(
            done,
            changed=done.changed + part.changed,
            left=done.left + part.left,
            refused=done.refused + part.refused,
        )
    return done


def _slices(selection: Selection) -> Iterator[list[int]]:
    after = 0
    rows = selection.queryset().order_by("pk").values_list("pk", flat=True)
    while ids := list(rows.filter(pk__gt=after)[:SLICE]):
        yield ids
        after = ids[-1]


def _slice(act: Act, selection: Selection, actor: Actor, ids: Sequence[int], allowed: Allowed | None) -> Done:
    using = database()
    with transaction.atomic(using=using):
        rows = locked_messages(ids, whole=False)
        fresh = [row for row in rows.values() if row.state in act.states and _unchanged(row, selection)]
        meant = [row for row in fresh if allowed is None or not allowed(row)]
        changed = ParkedMessage.objects.using(using).filter(pk__in=[row.pk for row in meant])
        changed.update(state=act.state, revision=F("revision") + 1, **act.changes)
        groups = Counter((row.group_id, row.state) for row in meant)
        for (group, state), count in sorted(groups.items()):
            moved(group, state, act.state, count)
        if meant:
            _note(act, selection, actor, meant)
        if meant and act.state in RESOLVED:
            # Unblock the messages that wait behind these. If that fails, a consumer unblocks them a little later.
            ended = [row.pk for row in meant]
            transaction.on_commit(lambda: resolved(ended), using=using, robust=True)
    return Done(changed=len(meant), left=len(ids) - len(fresh), refused=len(fresh) - len(meant))


def _unchanged(row: ParkedMessage, selection: Selection) -> bool:
    return row.revision == selection.revisions.get(row.pk, row.revision)


def _note(act: Act, selection: Selection, actor: Actor, rows: Sequence[ParkedMessage]) -> None:
    alone = rows[0] if len(rows) == 1 else None
    groups = {row.group_id for row in rows}
    facts = {**act.facts, "selection": selection.facts()}
    if keep(selection.filter) or selection.named:
        # Name the changed messages: others of the selection may differ by now, or be excluded by the project's rules.
        facts["messages"] = sorted(row.pk for row in rows)
    note(
        actor,
        act.action,
        reason=act.reason,
        message=alone.pk if alone else None,
        group=groups.pop() if len(groups) == 1 else None,
        subject=str(alone) if alone else selection.description,
        count=len(rows),
        facts=facts,
    )


class Category(models.TextChoices):
    """The reason for a discard, as one of a few categories."""

    DUPLICATE = "duplicate", gettext_lazy("Duplicate")
    CANCELLED = "cancelled", gettext_lazy("Cancelled by the customer")
    ELSEWHERE = "handled elsewhere", gettext_lazy("Handled elsewhere")
    BAD_DATA = "bad data", gettext_lazy("Bad data")
    TEST = "test", gettext_lazy("Test")
    OTHER = "other", gettext_lazy("Other")


def discard(
    selection: Selection, actor: Actor, *, category: str, text: str = "", allowed: Allowed | None = None
) -> Done:
    """Discard the open messages of a selection; the category "other" needs a text."""
    if category not in Category.values:
        said = _("%(category)r is no category of discard. Known are %(known)s.")
        raise Refused(said % {"category": category, "known": ", ".join(Category.values)})
    if category == Category.OTHER and not text.strip():
        raise Refused(_("Say in words why, where the reason is “other”."))
    reason = short(f"{category}: {text.strip()}" if text.strip() else category, 255)
    changes = {"resolved_at": server.now(database()), "resolution": reason, "held_until": None, "hold_reason": ""}
    facts = {"category": str(category)}
    act = Act(action=Action.DISCARD, states=OPEN, state=State.DISCARDED, changes=changes, reason=reason, facts=facts)
    return perform(act, selection, actor, allowed=allowed)


def restore(selection: Selection, actor: Actor, *, reason: str = "", allowed: Allowed | None = None) -> Done:
    """Undo discards: park the discarded messages of a selection again."""
    act = Act(
        action=Action.RESTORE,
        states=(State.DISCARDED,),
        state=State.PARKED,
        changes={"resolved_at": None, "resolution": ""},
        reason=reason,
        facts={},
    )
    return perform(act, selection, actor, allowed=allowed)


LONGEST = timedelta(days=366)


def hold(
    selection: Selection, actor: Actor, *, until: datetime, reason: str = "", allowed: Allowed | None = None
) -> Done:
    """Put the open messages of a selection on hold until a time."""
    now = server.now(database())
    if timezone.is_naive(until) or not now < until <= now + LONGEST:
        raise Refused(_("A hold ends in the future, within a year."))
    changes = {"held_until": until, "hold_reason": short(reason, 255)}
    facts = {"until": until.isoformat()}
    act = Act(action=Action.HOLD, states=OPEN, state=State.ON_HOLD, changes=changes, reason=reason, facts=facts)
    return perform(act, selection, actor, allowed=allowed)


def unhold(selection: Selection, actor: Actor, *, reason: str = "", allowed: Allowed | None = None) -> Done:
    """Take messages off hold before their hold ends."""
    changes = {"held_until": None, "hold_reason": ""}
    act = Act(
        action=Action.UNHOLD, states=(State.ON_HOLD,), state=State.PARKED, changes=changes, reason=reason, facts={}
    )
    return perform(act, selection, actor, allowed=allowed)


def unhold_due() -> int:
    """End the expired holds; return their number. Groups count messages on hold as parked, so no group row changes."""
    using = database()
    due = ParkedMessage.objects.using(using).filter(state=State.ON_HOLD, held_until__lte=server.now(database()))
    if not due.exists():
        return 0
    with transaction.atomic(using=using):
        return due.update(state=State.PARKED, held_until=None, hold_reason="", revision=F("revision") + 1)

"""The operators' actions on parked messages: discard, restore, hold and unhold."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import Case, Value, When
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_rmq_retry import database_clock
from django_rmq_retry.messages.texts import short_reason
from django_rmq_retry.models import Action, DiscardCategory, GatedAct, ParkedMessage, State
from django_rmq_retry.models.parked import DONE_OTHERWISE, NOBODY_DID_IT, OPEN, RESOLVED, discarded_for
from django_rmq_retry.ordering.keys import resolved
from django_rmq_retry.parked import missed_discards
from django_rmq_retry.parked.audit import log_action
from django_rmq_retry.parked.database import NOT_HELD, locked_messages, move, records_alias, transaction_of
from django_rmq_retry.parked.four_eyes import Wish, require_second
from django_rmq_retry.parked.key_lists import mark_kept
from django_rmq_retry.parked.operators import Actor, Allowed, Refused
from django_rmq_retry.parked.overdue import lost_among
from django_rmq_retry.parked.selection import Selection

MESSAGES_AT_ONCE = 1000
LONGEST_HOLD = timedelta(days=366)
RESTORE_LACKS_REASON = gettext_lazy(
    "Enter a reason: by that of the discard, what is requested was done in another way, and could be done twice."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """Counts of one action: messages changed, left out because they had changed before it, and refused."""

    changed: int = 0
    left: int = 0
    refused: int = 0
    """Messages that the project's own rules excluded from the action."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The change to apply to each chosen message that is in one of ``states``, with its entry for the audit log.

    A discard changes requeued messages without an outcome, too.
    """

    action: Action
    states: Sequence[str]
    state: str
    changes: Mapping[str, Any]
    reason: str
    facts: Mapping[str, object] = field(default_factory=dict)


def perform(change: Change, selection: Selection, actor: Actor, *, allowed: Allowed | None = None) -> Done:
    """Apply an action to a selection; each slice in which a message changes adds a row to the audit log."""
    selection.check(selection.queryset().count())
    done, after = Counter[str](), 0
    while ids := slice_of(selection, after):
        done.update(asdict(change_slice(change, selection, actor, ids, allowed)))
        after = ids[-1]
    return Done(**done)


def slice_of(selection: Selection, after: int) -> list[int]:
    """Return the next messages of a selection behind one of them, in the order of their numbers."""
    if selection.request:
        # Read from their own index, which is fast whatever the database knows about the size of the tables.
        members = selection.members.filter(message__gt=after).order_by("message")
        return list(members.values_list("message", flat=True)[:MESSAGES_AT_ONCE])
    rows = selection.queryset().order_by("pk").values_list("pk", flat=True)
    return list(rows.filter(pk__gt=after)[:MESSAGES_AT_ONCE])


@transaction_of(ParkedMessage)
def change_slice(
    change: Change, selection: Selection, actor: Actor, ids: Sequence[int], allowed: Allowed | None
) -> Done:
    rows = locked_messages(ids, whole=False)
    known = selection.revisions_of(ids)
    lost = lost_among(rows.values()) if change.action == Action.DISCARD else set()
    fresh = [
        row
        for row in rows.values()
        if (row.state in change.states or row.pk in lost)
        and not row.erased_at
        and row.revision == known.get(row.pk, row.revision)
    ]
    meant = [row for row in fresh if allowed is None or not allowed(row)]
    move([row for row in meant if row.pk not in lost], change.state, **change.changes)
    if lost:
        # Their copies may still come: once restored, only an operator may send them again.
        move([row for row in meant if row.pk in lost], change.state, **change.changes, unconfirmed=True)
    if meant:
        _note(change, selection, actor, meant)
    if change.action == Action.DISCARD:
        missed_discards.settle([row.pk for row in meant])
        if actor.approval is not None:
            done = {row.pk for row in meant}
            left = [row for row in rows.values() if row.pk not in done]
            refused = {row.pk for row in fresh} - done
            missed_discards.note(actor.approval.request, left, refused=refused)
    if meant and change.state in RESOLVED:
        # Unblock the messages that wait behind these. If that fails, a consumer unblocks them a little later.
        ended = [row.pk for row in meant]
        transaction.on_commit(lambda: resolved(ended), using=records_alias(), robust=True)
    return Done(changed=len(meant), left=len(ids) - len(fresh), refused=len(fresh) - len(meant))


def _note(change: Change, selection: Selection, actor: Actor, rows: Sequence[ParkedMessage]) -> None:
    mark_kept(selection.filter)
    log_action(
        actor,
        change.action,
        reason=change.reason,
        messages=[row.pk for row in rows],
        groups=Counter(row.group_id for row in rows),
        subject=str(rows[0]) if len(rows) == 1 else selection.subject,
        count=len(rows),
        facts={**change.facts, "selection": selection.facts()},
    )


def discard(
    selection: Selection, actor: Actor, *, category: str, text: str = "", allowed: Allowed | None = None
) -> Done:
    """Discard the open messages of a selection, and the overdue ones; the category "other" needs a text."""
    change = discarding(category, text)
    terms = {"category": category, "text": text}
    wish = Wish(
        act=GatedAct.DISCARD,
        count=selection.count,
        subject=selection.description,
        reason=change.reason,
        selection=selection,
        terms=terms,
    )
    require_second(actor, wish)
    return perform(change, selection, actor, allowed=allowed)


def discarding(category: str, text: str = "") -> Change:
    """Return the change of a discard for this reason; refuse a reason that says nothing."""
    if category not in DiscardCategory.values:
        sentence = _("%(category)r is not a discard category. Valid categories: %(known)s.")
        raise Refused(sentence % {"category": category, "known": ", ".join(DiscardCategory.values)})
    if category == DiscardCategory.OTHER and not text.strip():
        raise Refused(_("Enter an explanation: it is required for the reason “other”."))
    reason = short_reason(f"{category}: {text.strip()}" if text.strip() else category)
    now = database_clock.now(records_alias())
    return Change(
        action=Action.DISCARD,
        states=OPEN,
        state=State.DISCARDED,
        changes={"resolved_at": now, "discarded_at": now, "resolution": reason, "restored": False, **NOT_HELD},
        reason=reason,
        facts={"category": str(category)},
    )


def restore(selection: Selection, actor: Actor, *, reason: str = "", allowed: Allowed | None = None) -> Done:
    """Undo discards: park the discarded messages of a selection again. The reason of its discard stays with each.

    It needs a reason if by that of a discard the message was handled in another way.
    """
    done_otherwise = selection.queryset().filter(discarded_for(DONE_OTHERWISE), state=State.DISCARDED)
    if not reason.strip() and done_otherwise.exists():
        raise Refused(RESTORE_LACKS_REASON)
    restored = Case(When(discarded_for(NOBODY_DID_IT), then=Value(value=False)), default=Value(value=True))
    change = Change(
        action=Action.RESTORE,
        states=(State.DISCARDED,),
        state=State.PARKED,
        changes={"resolved_at": None, "discarded_at": None, "restored": restored},
        reason=reason,
    )
    return perform(change, selection, actor, allowed=allowed)


def hold(
    selection: Selection, actor: Actor, *, until: datetime, reason: str = "", allowed: Allowed | None = None
) -> Done:
    now = database_clock.now(records_alias())
    if timezone.is_naive(until) or not now < until <= now + LONGEST_HOLD:
        raise Refused(_("A hold must end in the future, within a year."))
    changes = {"held_until": until, "hold_reason": short_reason(reason)}
    facts = {"until": until.isoformat()}
    change = Change(action=Action.HOLD, states=OPEN, state=State.ON_HOLD, changes=changes, reason=reason, facts=facts)
    return perform(change, selection, actor, allowed=allowed)


def unhold(selection: Selection, actor: Actor, *, reason: str = "", allowed: Allowed | None = None) -> Done:
    change = Change(action=Action.UNHOLD, states=(State.ON_HOLD,), state=State.PARKED, changes=NOT_HELD, reason=reason)
    return perform(change, selection, actor, allowed=allowed)


def unhold_due() -> int:
    """End the expired holds; return their number."""
    now = database_clock.now(records_alias())
    due = ParkedMessage.objects.using(records_alias()).filter(state=State.ON_HOLD, held_until__lte=now)
    total = 0
    while ids := list(due.order_by().values_list("pk", flat=True)[:MESSAGES_AT_ONCE]):
        total += _end_holds(ids, now)
    return total


@transaction_of(ParkedMessage)
def _end_holds(ids: Sequence[int], now: datetime) -> int:
    rows = locked_messages(ids, whole=False).values()
    due = [row for row in rows if row.state == State.ON_HOLD and row.held_until and row.held_until <= now]
    move(due, State.PARKED, **NOT_HELD)
    return len(due)

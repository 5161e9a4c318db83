"""The messages that left the filter of a selection after they were chosen: sent, discarded or put on hold meanwhile.

What was chosen is what the operator was promised: a run, and a request, name these too, and leave them out.
"""

from collections.abc import Collection
from datetime import datetime

from django.db.models import Q, QuerySet

from django_rmq_retry.models import Action, OperatorAction, ParkedMessage, State
from django_rmq_retry.parked.audit import named_by
from django_rmq_retry.parked.database import records_alias
from django_rmq_retry.parked.selection import Selection, narrowed

LOOKED_BACK = 1000
"""The latest actions among which holds are looked for: there is no index by time."""
MOST_PARTS = 100
"""The most ranges of ids in one condition."""


def gone_from(selection: Selection, now: int) -> int:
    """Return how many messages have left a filter, of which so many match now; named ones never leave."""
    return 0 if selection.named or selection.request else max(selection.count - now, 0)


def left_meanwhile(selection: Selection, now: int) -> QuerySet[ParkedMessage]:
    """Return the messages that have left a filter, as far as their rows and the audit log tell.

    None of them if more seem to have left than did: one that was on hold already when the others were chosen, and was
    discarded since, looks the same. One that was deleted, or was parked again without having been sent, is not known.
    """
    gone, states = gone_from(selection, now), _states(selection)
    rows = ParkedMessage.objects.using(records_alias()).order_by()
    if not gone or not states:
        return rows.none()
    since = selection.as_of
    words = {name: value for name, value in selection.filter.items() if name != "state"}
    left = Q(requeued_at__gte=since) | Q(discarded_at__gte=since) | _held_since(since)
    left |= Q(state=State.PROCESSED, requeued_at=None, resolved_at__gte=since)
    rows = narrowed(rows, words).filter(
        ~Q(state__in=states) | Q(parked_at__gt=since) | Q(reopened_at__gt=since), left, pk__lte=selection.max_id
    )
    return rows if rows.count() <= gone else rows.none()


def _states(selection: Selection) -> Collection[str]:
    states = selection.filter.get("state", [])
    return {states} if isinstance(states, str) else {*states}


def _held_since(since: datetime) -> Q:
    """Match the messages on hold that were put on hold since; none if those acts name too many parts."""
    acts = OperatorAction.objects.using(records_alias()).order_by("-number")
    newest = acts.values_list("number", flat=True).first() or 0
    holds = acts.filter(number__gt=newest - LOOKED_BACK, action=Action.HOLD, at__gte=since)
    named = [one for act in holds for one in named_by(act)]
    held = Q(pk__in=())
    for first, last in named if len(named) <= MOST_PARTS else ():
        held |= Q(pk__range=(first, last))
    return Q(state=State.ON_HOLD) & held

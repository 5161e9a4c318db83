"""The retries that a requeue run has sent early and that failed again: why, and what became of them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db.models import Count, Min, OuterRef, Q, QuerySet, Subquery
from django.http import HttpRequest

from django_rmq_retry.admin.run_lists import why_hidden
from django_rmq_retry.admin.run_outcomes import MOST_ERRORS, MOST_ITEMS, MOST_LOOKED_UP
from django_rmq_retry.models import Attempt, EarlyRetry, ItemState, ParkedMessage, RequeueRun, State
from django_rmq_retry.parked.early_outcomes import SUCCESSES


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedAlike:
    """The retries of a run that failed again with one error, and the first of them."""

    error: str
    number: int
    items: Sequence[EarlyRetry]

    @property
    def more(self) -> bool:
        return self.number > len(self.items)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedRetries:
    """The retries of a run that failed again: by their errors, the largest first, and what became of them."""

    errors: Sequence[FailedAlike] = ()
    waits: int = 0
    """Those that wait for their next attempt."""
    due: datetime | None = None
    """When the first of these is due."""
    processed: int = 0
    """Those that have no record and were handled since."""
    now: Mapping[State, int] = field(default_factory=dict)
    """The states of those that were parked since."""

    doubtful: int = 0
    """Those that are parked, and that a consumer may have handled which did not acknowledge them."""

    @property
    def parked(self) -> int:
        """Those that are parked, without those that may have been handled."""
        return self.now.get(State.PARKED, 0) - self.doubtful


def failed(request: HttpRequest, run: RequeueRun) -> FailedRetries:
    """Return what is known of the retries that failed again; what became of very many is not looked up."""
    if not run.failed or not run.retries_of:
        return FailedRetries()
    rows = EarlyRetry.objects.filter(run=run, state=ItemState.FAILED)
    errors = rows.order_by().values_list("error").annotate(count=Count("pk")).order_by("-count", "error")[:MOST_ERRORS]
    first = [] if why_hidden(request) else list(rows.order_by("pk")[:MOST_ITEMS])
    alike = [
        FailedAlike(error=error, number=count, items=[one for one in first if one.error == error])
        for error, count in errors
    ]
    return FailedRetries(errors=alike, **(_now(rows) if run.failed <= MOST_LOOKED_UP else {}))


def _now(rows: QuerySet[EarlyRetry]) -> dict[str, Any]:
    """Return where these retries are now, in one query."""
    record = ParkedMessage.objects.filter(identity=OuterRef("identity")).values("state")[:1]
    last = Attempt.objects.filter(identity=OuterRef("identity")).order_by("-started_at", "-pk")
    known = rows.order_by().annotate(
        record=Subquery(record),
        verdict=Subquery(last.values("verdict")[:1]),
        next_at=Subquery(last.values("next_at")[:1]),
    )
    doubts = Count("pk", filter=Q(redelivered=True))
    counted = known.values_list("record", "verdict").annotate(count=Count("pk"), due=Min("next_at"), doubts=doubts)
    waits, processed, doubtful, due, now = 0, 0, 0, list[datetime](), Counter[State]()
    for state, verdict, count, first, doubted in counted:
        if first is not None:
            waits += count
            due.append(first)
        elif state:
            now[State(state)] += count
            doubtful += doubted if state == State.PARKED else 0
        elif verdict in SUCCESSES:
            processed += count
    return {
        "waits": waits,
        "due": min(due, default=None),
        "processed": processed,
        "doubtful": doubtful,
        "now": {state: now[state] for state in State if now[state]},
    }

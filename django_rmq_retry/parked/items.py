"""The items of a requeue run: what is left of them, counted, and closed at its end.

A stopped run skips its unsent items, part by part, each in a transaction of its own, because a driver may be killed
anywhere.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from django.db.models import Count, Exists, F, Max, OuterRef, Q, QuerySet, Subquery
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_rmq_retry import database_clock
from django_rmq_retry.models import (
    Action,
    ErrorGroup,
    ItemReason,
    ItemState,
    OperatorAction,
    ParkedMessage,
    RequeueItem,
    RequeueRun,
    RunState,
    RunWait,
    State,
)
from django_rmq_retry.models.runs import ACTIVE, RUN_COUNTERS, STILL_TO_SEND
from django_rmq_retry.parked.database import locked_run, records_alias, transaction_of
from django_rmq_retry.parked.held_up import held_up
from django_rmq_retry.parked.lease import run_of_driver
from django_rmq_retry.parked.overdue import OUTCOME_LIMIT
from django_rmq_retry.statements import with_one_of
from django_rmq_retry.wording import number

MOST_UNSENT_COUNTED = 1000
MOST_STOPPED = 20
"""The latest stopped runs among which those of a group are looked for."""
MOST_STOPPED_ON_OPEN_PAGES = 5
"""The same for pages that ask again every few seconds."""
SKIPPED_AT_ONCE = 2000
"""Items that a stopped run skips in one transaction."""
Left = Mapping[int, int | None]
"""Messages that a stopped run has not sent, each with its error group."""


def pending(run_id: int) -> QuerySet[RequeueItem]:
    return RequeueItem.objects.using(records_alias()).filter(run=run_id, state=ItemState.PENDING).order_by("place")


def waits_in(items: Iterable[RequeueItem]) -> list[RequeueRun]:
    """Return the runs that have still to send a message; its items are given, with their runs."""
    return [item.run for item in items if item.state in STILL_TO_SEND and item.run.active]


def queue_of(message: ParkedMessage, items: Iterable[RequeueItem]) -> str:
    """Return the queue to which a requeued message was sent; empty for any other. Its latest item comes first."""
    if message.state != State.REQUEUED:
        return ""
    run = next((item.run for item in items if item.sent_at), None)
    return (run.target if run else "") or message.queue


def groups_of_runs(groups: Iterable[int]) -> dict[int, RequeueRun]:
    """Return those of these error groups whose messages an active run has to send, each with the latest of these runs.

    One query for each run: it looks for one message of each group, the oldest first, because a run may have a million.
    """
    asked, runs = set(groups), dict[int, RequeueRun]()
    for run in RequeueRun.objects.using(records_alias()).filter(state__in=ACTIVE).order_by("pk"):
        mine = asked.intersection(group for group, _count in run.causes)
        # Not all items of a run that is being listed are written yet.
        runs |= dict.fromkeys(mine if run.listing or not mine else _with_unsent(run, mine), run)
    return runs


def _with_unsent(run: RequeueRun, groups: Iterable[int]) -> list[int]:
    waits = Exists(RequeueItem.objects.filter(run=run, message=OuterRef("pk"), state=ItemState.PENDING))
    waiting = ParkedMessage.objects.filter(waits, group=OuterRef("pk"), state__in=(State.PARKED, State.ON_HOLD))
    found = ErrorGroup.objects.using(records_alias()).filter(pk__in=groups)
    # A column and no condition: a database that joins reads all messages of the groups.
    first = found.annotate(first=Subquery(waiting.order_by("parked_at").values("pk")[:1]))
    return [group.pk for group in first if group.first is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftBehind:
    """The messages that a stopped run has not sent, and the stop, as the operator explained it."""

    run: RequeueRun
    count: int
    by: str = ""
    """Empty if the audit log no longer has the stop."""
    reason: str = ""
    also: int = 0
    """Those of them that a later stopped run has not sent either, which is named before it."""
    by_group: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    """Both numbers by error group."""

    @property
    def sentence(self) -> str:
        """Return how many of the messages on the same page it has not sent."""
        text = ngettext(
            "Requeue run %(number)s was stopped%(by)s, %(counter)s of these not sent.",
            "Requeue run %(number)s was stopped%(by)s, %(counter)s of these not sent.",
            self.count,
        )
        return self._told(text)

    @property
    def sentence_of_all(self) -> str:
        """Return the same where other messages were named before it."""
        text = ngettext(
            "Requeue run %(number)s was stopped%(by)s, and %(counter)s of its parked messages was not sent.",
            "Requeue run %(number)s was stopped%(by)s, and %(counter)s of its parked messages were not sent.",
            self.count,
        )
        return self._told(text)

    def _told(self, text: str) -> str:
        """Return a text with who stopped it, and why, as far as it is known."""
        if self.count > MOST_UNSENT_COUNTED:
            text = _("Requeue run %(number)s was stopped%(by)s, and many were not sent.")
        by = " " + _("by %(name)s") % {"name": self.by} if self.by else ""
        why = f" ({self.reason.removesuffix('.')})" if self.reason else ""
        also = ngettext(
            "%(counter)s of them is among those of a later one.",
            "%(counter)s of them are among those of a later one.",
            self.also,
        )
        told = text % {"number": self.run.pk, "by": f"{by}{why}", "counter": number(self.count)}
        return f"{told} {also % {'counter': number(self.also)}}" if self.also else told

    def of_group(self, group: int) -> "LeftBehind":
        count, also = self.by_group[group]
        return replace(self, count=count, also=also)


def unsent_of_stopped(run: RequeueRun) -> int:
    """Return how many messages a stopped run has not sent that are still parked; above a limit, one more than it."""
    found = _left_of(run, ParkedMessage.objects.using(records_alias()).filter(state=State.PARKED))
    return MOST_UNSENT_COUNTED + 1 if found is None else len(found)


def _left_of(run: RequeueRun, parked: QuerySet[ParkedMessage]) -> Left | None:
    """Return which of these parked messages a stopped run has not sent, with their error groups; None if very many.

    Those that another run is to send, or has sent since, do not count. Up to the limit they are read by their numbers:
    a join of both tables reads each pair of rows if the database has no statistics yet, as it has not a few minutes
    after thousands were parked.
    """
    if run.state != RunState.STOPPED or run.retries_of or not run.skipped:
        return {}
    numbers = _unsent(run)
    if len(numbers) > MOST_UNSENT_COUNTED:
        # Some of the first ones may have been resolved since, which says nothing of those behind them.
        return {} if _rest_is_taken(run, parked, numbers) or not parked.exists() else None
    found = with_one_of(parked.order_by(), "pk", _untaken(run, numbers))
    return {pk: group for some in found for pk, group in some.values_list("pk", "group")}


def _untaken(run: RequeueRun, numbers: Collection[int]) -> list[int]:
    """Return those of these messages of a stopped run that no active run is to send, and no later one has sent."""
    sent, to_send = Q(run__gt=run.pk, sent_at__isnull=False), Q(state__in=STILL_TO_SEND, run__state__in=ACTIVE)
    items = RequeueItem.objects.using(records_alias()).filter(sent | to_send)
    taken = {
        one for some in with_one_of(items, "message_id", numbers) for one in some.values_list("message_id", flat=True)
    }
    return [one for one in numbers if one not in taken]


def _rest_is_taken(run: RequeueRun, parked: QuerySet[ParkedMessage], numbers: Collection[int]) -> bool:
    """Return True if other runs send, or have sent, some of these messages, and all that are still parked."""
    left = _untaken(run, numbers)
    return len(left) < len(numbers) and not any(some.exists() for some in with_one_of(parked, "pk", left))


def _unsent(run: RequeueRun) -> list[int]:
    """Return the first messages that a stopped run has not sent: up to the limit, and one more."""
    items = RequeueItem.objects.using(records_alias())
    unsent = items.filter(run=run, state=ItemState.SKIPPED, skip_code=ItemReason.STOPPED)
    return list(unsent.order_by("place").values_list("message_id", flat=True)[: MOST_UNSENT_COUNTED + 1])


def left_behind(rows: QuerySet[ParkedMessage], groups: Collection[int]) -> list[LeftBehind]:
    """Return what lately stopped runs have not sent of these parked messages, which are in these error groups.

    A run that was stopped ends on no page that somebody looks at later, and its messages look like any others: who
    sends them without the reason of the stop may pay twice. What a later run sends is no longer left behind.
    """
    stopped = _lately_stopped(MOST_STOPPED)
    mine = [run for run in stopped if any(cause in groups for cause, _count in run.causes)]
    parked = rows.filter(state=State.PARKED)
    return _explained({run: _left_of(run, parked) for run in mine})


def left_behind_lately(groups: Collection[int] | None = None) -> list[LeftBehind]:
    """Return the same of all that is parked in these error groups, or in any, by group and with few queries.

    Of a run that has not sent many a group has them all the same if a message of it is as old as the run: which of
    these messages are the run's is not looked for.
    """
    stopped = [run for run in _lately_stopped(MOST_STOPPED_ON_OPEN_PAGES) if run.skipped and not run.retries_of]
    causes = {cause for run in stopped for cause, _count in run.causes}
    asked = causes if groups is None else causes.intersection(groups)
    if not asked:
        return []
    found = ErrorGroup.objects.using(records_alias()).filter(pk__in=asked, parked__gt=0)
    oldest = ParkedMessage.objects.filter(group=OuterRef("pk"), state=State.PARKED).order_by("parked_at", "pk")
    since = dict(found.annotate(oldest=Subquery(oldest.values("parked_at")[:1])).values_list("pk", "oldest"))
    mine = {
        run: {cause for cause, _count in run.causes if (began := since.get(cause)) and began <= run.created_at}
        for run in stopped
    }
    parked = ParkedMessage.objects.using(records_alias()).filter(state=State.PARKED)
    left = {run: _left_of(run, parked.filter(group__in=groups)) for run, groups in mine.items() if groups}
    return _explained(left, mine)


def _lately_stopped(most: int) -> QuerySet[RequeueRun]:
    return RequeueRun.objects.using(records_alias()).filter(state=RunState.STOPPED).order_by("-pk")[:most]


def _explained(
    left: Mapping[RequeueRun, Left | None], groups: Mapping[RequeueRun, Collection[int]] = MappingProxyType({})
) -> list[LeftBehind]:
    """Return what these runs have not sent, the newest run first, with who stopped it, and why; one query.

    Of very many each of the ``groups`` of the run has them all.
    """
    left = {run: found for run, found in left.items() if found is None or found}
    if not left:
        return []
    stops = OperatorAction.objects.using(records_alias()).filter(action=Action.STOP, run__in=[run.pk for run in left])
    by_run = {stop.run: stop for stop in stops.order_by("pk")}
    told, seen, many = list[LeftBehind](), set[int](), MOST_UNSENT_COUNTED + 1
    for run, found in left.items():
        by, reason = (stop.actor_name, stop.reason) if (stop := by_run.get(run.pk)) else ("", "")
        facts: dict[str, Any] = {"run": run, "by": by, "reason": reason or run.note}
        if found is None:
            told.append(LeftBehind(**facts, count=many, by_group=dict.fromkeys(groups.get(run, ()), (many, 0))))
            continue
        every, also = Counter(found.values()), Counter(group for pk, group in found.items() if pk in seen)
        by_group = {group: (count, also[group]) for group, count in every.items() if group}
        told.append(LeftBehind(**facts, count=len(found), also=also.total(), by_group=by_group))
        seen.update(found)
    return told


def unsent_when_stopped(runs: Iterable[RequeueRun]) -> dict[int, int]:
    """Return how many messages each stopped run had still to send; they count as skipped, though nothing kept them."""
    stopped = [run for run in runs if run.state == RunState.STOPPED and run.skipped]
    early = {run.pk: run.skipped for run in stopped if run.retries_of}
    if len(early) == len(stopped):
        return early
    unsent = RequeueItem.objects.filter(run__in=stopped, state=ItemState.SKIPPED, skip_code=ItemReason.STOPPED)
    return early | dict(unsent.order_by().values_list("run").annotate(count=Count("pk")))


def counted_elsewhere(run: RequeueRun, *, active: Iterable[RequeueRun], most: int) -> int:
    """Return how many of the next unsent messages an earlier active run has too, or were sent or changed meanwhile."""
    # A column and no join: a database that joins reads all messages between the first and the last of the run.
    now = Subquery(ParkedMessage.objects.filter(pk=OuterRef("message")).values("revision"))
    rows, elsewhere = pending(run.pk).annotate(now=now), ~Q(now=F("revision"))
    # Mostly there is no earlier one, and then no message is looked up in it.
    if earlier := [one.pk for one in active if one.pk < run.pk]:
        both = RequeueItem.objects.filter(run__in=earlier, message=OuterRef("message"), state__in=STILL_TO_SEND)
        rows, elsewhere = rows.annotate(both=Exists(both)), Q(both=True) | elsewhere
    return int(rows[:most].aggregate(count=Count("pk", filter=elsewhere))["count"])


def changed_in(run: RequeueRun) -> int:
    """Return how many unsent messages of a run were changed since it chose them: it leaves these out."""
    return counted_elsewhere(run, active=(), most=run.unsent)


def parked_to_send(runs: Collection[RequeueRun]) -> int | None:
    """Return how many messages that are parked now these active runs are to send; None if not each can be looked at.

    One query. A run notes what it has sent after it has sent it, and what was discarded meanwhile when it comes to it.
    """
    if any(run.listing for run in runs):
        return None
    parked = ParkedMessage.objects.filter(pk=OuterRef("message"), state=State.PARKED)
    items = RequeueItem.objects.using(records_alias()).filter(run__in=runs, state=ItemState.PENDING).order_by()
    next_ones = items.annotate(now=Subquery(parked.values("revision")))[: MOST_UNSENT_COUNTED + 1]
    found = next_ones.aggregate(looked=Count("pk"), count=Count("message", distinct=True, filter=Q(now=F("revision"))))
    return None if found["looked"] > MOST_UNSENT_COUNTED else int(found["count"])


@transaction_of(ParkedMessage)
def advance(run_id: int, driver: str) -> str:
    """Update the state of a run without items to send: waiting, finished, or running if items came back. Return it.

    The state is empty if this driver has nothing more to do.
    """
    using, now = records_alias(), database_clock.now(records_alias())
    known = run_of_driver(run_id, driver, RunState.RUNNING, RunState.WAITING)
    if known is None:
        return ""
    items, before = known.parts.using(using), known.state
    if items.filter(state=ItemState.PENDING).exists():
        known.state = RunState.RUNNING
    elif items.filter(state=ItemState.CLAIMED).exists():
        known.state = RunState.WAITING
    else:
        waiting = items.filter(state=ItemState.SENT).aggregate(count=Count("pk"), last=Max("sent_at"))
        if waiting["count"] and held_up([known]):
            known.held_at = now
        since = max(filter(None, (waiting["last"], known.held_at)), default=None)
        overdue = since is not None and since < now - OUTCOME_LIMIT
        over = not waiting["count"] or overdue
        known.state = RunState.FINISHED if over else RunState.WAITING
        known.wait = RunWait.NO_OUTCOME if overdue else ""
    if known.state == RunState.FINISHED:
        known.finished_at, known.leased_until = now, None
    if known.state != before:
        count(known)
    columns = ("state", "wait", "held_at", "finished_at", "leased_until")
    known.save(using=using, update_fields=[*RUN_COUNTERS, *columns])
    return known.state


@transaction_of(ParkedMessage)
def skip_unsent(run_id: int) -> bool:
    """Skip the next unsent items of a stopped run; return True if there may be more of them."""
    using, now = records_alias(), database_clock.now(records_alias())
    known = locked_run(run_id)
    if known is None or known.state != RunState.STOPPED or known.finished_at is not None:
        return False
    unsent = pending(run_id)
    mark = unsent.values_list("place", flat=True)[SKIPPED_AT_ONCE - 1 : SKIPPED_AT_ONCE].first()
    part = unsent if mark is None else unsent.filter(place__lte=mark)
    known.skipped += part.update(state=ItemState.SKIPPED, skip_code=ItemReason.STOPPED, ended_at=now)
    if mark is None:
        known.finished_at = now
        count(known)
    known.save(using=using, update_fields=[*RUN_COUNTERS, "finished_at"])
    return mark is not None


@transaction_of(ParkedMessage)
def recount(run_id: int) -> None:
    known = locked_run(run_id)
    if known is not None:
        count(known)
        known.save(using=records_alias(), update_fields=RUN_COUNTERS)


def count(run: RequeueRun) -> None:
    """Count the rows of a run. What it was asked to send and has no row for by its end is left out."""
    counts = Counter(dict(run.parts.using(records_alias()).order_by().values_list("state").annotate(count=Count("pk"))))
    for state in (ItemState.PROCESSED, ItemState.FAILED, ItemState.UNCONFIRMED):
        setattr(run, state.value, counts[state])
    run.sent = counts[ItemState.SENT] + run.processed + run.failed
    # Retries that match a filter may come while the run sends.
    run.total = max(run.total, counts.total())
    rest = run.total - counts.total()
    # Of those that a run of retries may still send it is known how many became due: no row tells of them.
    gone = rest if run.complete else min(run.skipped, rest) if run.retries_of else 0
    run.skipped = counts[ItemState.SKIPPED] + gone

"""What became of the messages of a requeue run: which failed again and where they are now, and which it left out."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from django.db.models import Count, Exists, F, OuterRef, Q, QuerySet, Subquery
from django.db.models.expressions import Combinable
from django.http import HttpRequest
from django.utils.translation import gettext as _

from django_rmq_retry.admin.pages import refusal
from django_rmq_retry.models import (
    ItemReason,
    ItemState,
    ParkedMessage,
    RequeueItem,
    RequeueRun,
    RunState,
    State,
)
from django_rmq_retry.models.parked import UNRESOLVED, reason_text
from django_rmq_retry.parked.claims import sent_by_others
from django_rmq_retry.parked.findings import DECIDED
from django_rmq_retry.parked.operators import has_own_rules
from django_rmq_retry.parked.outcome_texts import MOST_DECISIONS, decisions_on, keeps_back, kept_back_by

MOST_ITEMS = 50
MOST_ERRORS = 10
MOST_QUEUES = 3
MOST_LOOKED_UP = 5000
SHOWN = ("business_key", "message_id", "content", "error", "error_text", "reason", "detail")
"""The columns of a message that the page of a run needs; the project's rules may read any."""
FAILED_BY = {"of": "error", "why": "reason", "now": "state", "queue": "queue"}
"""The columns of a message that tell of a failed item why it failed, where it is, and where it had been."""
UNSURE = {ItemState.UNCONFIRMED: "unconfirmed_of_run", ItemState.SENT: "waiting_of_run"}
"""The filter that lists the messages of each of these states."""
NOT_PROCESSED = (ItemState.SENT, ItemState.UNCONFIRMED, ItemState.FAILED)
"""States of what a run has sent, or perhaps, and of which it does not know that it was processed."""
MOST_OTHERS = 5
"""The most other messages that are named because of which some were left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Since:
    """What became of some messages of a run since: how many are in which state, and which later runs sent some."""

    chosen: str
    """The part of an address that lists them."""
    now: Mapping[State, int] = field(default_factory=dict)
    runs: Sequence[RequeueRun] = ()

    @property
    def parked(self) -> int:
        """Those that nobody has requeued, discarded or put on hold since."""
        return self.now.get(State.PARKED, 0)


@dataclass(frozen=True, slots=True)
class Alike:
    """Messages of a run that failed with one error, or were left out for one reason: their number and the first."""

    code: str
    text: str
    number: int
    items: Sequence[RequeueItem]
    """The first of them, but for those below."""
    decisions: Sequence[tuple[int, str, str]] = ()
    """What was decided on a few of them: the number, the name and the sentence."""
    other: ParkedMessage | None = None
    """The message because of which they were left out."""
    since: Since | None = None
    runs: Sequence[RequeueRun] = ()
    """The other runs that were about to send them, or had sent them."""
    queues: Sequence[tuple[str, int]] = ()
    """Of failures the queues in which their messages had been, each with how many; the most first."""

    @property
    def more(self) -> bool:
        """True if some of them are not named."""
        return self.number > len(self.items) + len(self.decisions)


def resolved(runs: Iterable[RequeueRun]) -> set[int]:
    """Return the finished runs of which messages failed again, or have no outcome, and none of these is unresolved.

    What became of very many is not looked up, nor of retries, which the broker has.
    """
    ended = [run for run in runs if run.state == RunState.FINISHED and not run.retries_of]
    left = [run.pk for run in ended if 0 < run.sent + run.unconfirmed - run.processed <= MOST_LOOKED_UP]
    if not left:
        return set()
    without = RequeueItem.objects.filter(run=OuterRef("pk"), state__in=NOT_PROCESSED, message__state__in=UNRESOLVED)
    return set(RequeueRun.objects.filter(~Exists(without), pk__in=left).values_list("pk", flat=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """The messages of a run that failed again: by their errors, the largest first, and what became of them."""

    since: Since
    errors: list[Alike] = field(default_factory=list)
    doubtful: int = 0
    """Those that are parked, and that a consumer may have handled which did not acknowledge them."""

    @property
    def parked(self) -> int:
        """Those that are parked, without those that may have been handled."""
        return self.since.parked - self.doubtful


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsure:
    """Messages of a run of which nobody knows whether they were handled: the first, and what became of all."""

    since: Since
    number: int = 0
    items: Sequence[RequeueItem] = ()

    @property
    def more(self) -> bool:
        """True if some of them are not named."""
        return self.number > len(self.items)


NONE_UNSURE = Unsure(since=Since(chosen=""))


def failures(request: HttpRequest, run: RequeueRun) -> Failures:
    """Return the parked messages that failed again; none of a run of retries, whose messages the broker has."""
    if not run.failed or run.retries_of:
        return Failures(since=Since(chosen=""))
    failed = RequeueItem.objects.filter(run=run, state=ItemState.FAILED)
    columns = {name: _of_message(column, run.failed) for name, column in FAILED_BY.items()}
    doubts = Count("pk", filter=Q(redelivered=True, handled=0))
    kinds = failed.order_by().annotate(**columns).values_list(*columns).annotate(count=Count("pk"), doubts=doubts)
    errors, now, doubtful = defaultdict[tuple[str, str], Counter[str]](Counter), Counter[State](), 0
    for error, reason, state, queue, count, doubted in kinds:
        # What has no error, as a message whose worker died, was parked for a reason.
        errors[error, "" if error else reason][queue] += count
        now[State(state)] += count
        doubtful += doubted if state == State.PARKED else 0
    first = _first(request, failed)
    largest = sorted(errors.items(), key=lambda one: -one[1].total())[:MOST_ERRORS]
    shown = [
        Alike(
            error,
            error or reason_text(reason),
            counts.total(),
            [one for one in first if _failed_by(one, error, reason)],
            queues=sorted(counts.items(), key=lambda one: (-one[1], one[0]))[:MOST_QUEUES],
        )
        for (error, reason), counts in largest
    ]
    since = _since(f"failed_of_run={run.pk}", now, _later_runs(run, failed, run.failed))
    return Failures(errors=shown, since=since, doubtful=doubtful)


def _failed_by(item: RequeueItem, error: str, reason: str) -> bool:
    return bool(item.message.error == error and (error or item.message.reason == reason))


def _of_message(column: str, count: int) -> Combinable:
    """Return a column of an item's message, for a query of so many items; of few without a join.

    PostgreSQL may join by reading all messages from the oldest to the last of the run.
    """
    if count > MOST_LOOKED_UP:
        return F(f"message__{column}")
    return Subquery(ParkedMessage.objects.filter(pk=OuterRef("message")).values(column))


def _since(chosen: str, now: Counter[State], runs: Sequence[RequeueRun]) -> Since:
    return Since(chosen=chosen, now={state: now[state] for state in State if now[state]}, runs=runs)


def _later_runs(run: RequeueRun, items: QuerySet[RequeueItem], count: int) -> list[RequeueRun]:
    """Return the later runs that sent some of these messages of a run, if they are few enough to look for each."""
    if count > MOST_LOOKED_UP:
        return []
    # Not joined by the messages: of these PostgreSQL would read all from the oldest to the last of the run.
    sent = RequeueItem.objects.filter(run__gt=run.pk, sent_at__isnull=False, message__in=items.values("message"))
    return list(RequeueRun.objects.filter(pk__in=sent.order_by().values("run")).order_by("pk")[:MOST_OTHERS])


def unsure(request: HttpRequest, run: RequeueRun, state: ItemState) -> Unsure:
    """Return the messages of which nobody knows whether they were handled: not confirmed, or without an outcome."""
    items, count = RequeueItem.objects.filter(run=run, state=state), run.tally[state]
    if not count or run.retries_of:
        return NONE_UNSURE
    states = items.order_by().annotate(now=_of_message("state", count)).values_list("now").annotate(count=Count("pk"))
    now = Counter({State(state): number for state, number in states})
    since = _since(f"{UNSURE[state]}={run.pk}", now, _later_runs(run, items, count))
    return Unsure(since=since, number=count, items=_first(request, items))


def left_out(request: HttpRequest, run: RequeueRun) -> list[Alike]:
    """Return each reason for which messages were left out, with their number and the first of them."""
    skipped = RequeueItem.objects.filter(run=run, state=ItemState.SKIPPED)
    kinds = skipped.order_by().annotate(now=_of_message("state", run.skipped)).values_list("skip_code", "now")
    counts, now = Counter[str](), defaultdict[str, Counter[State]](Counter)
    for code, state, count in kinds.annotate(count=Count("pk")):
        counts[code] += count
        now[code][State(state)] += count
    found = [(code, count, _first(request, skipped.filter(skip_code=code))) for code, count in counts.most_common()]
    examples = [one for code, _count, items in found if code in DECIDED for one in items[:MOST_DECISIONS]]
    decisions = decisions_on([(one.message_id, str(one.message)) for one in examples], most=len(examples))
    named = [part for some in found for part in _parts(request, run, some, decisions)]
    stopped = ItemReason.STOPPED
    if now[stopped]:
        runs = _later_runs(run, skipped.filter(skip_code=stopped), counts[stopped])
        since = _since(f"left_out_of_run={run.pk}:{stopped}", now[stopped], runs)
        named = [replace(part, since=since) if part.code == stopped else part for part in named]
    unlisted = 0 if run.retries_of else run.skipped - sum(count for _code, count, _items in found)
    return [*named, Alike("", _unlisted(run), unlisted, ())] if unlisted > 0 else named


def _unlisted(run: RequeueRun) -> str:
    """Return why messages that were chosen are no items of the run."""
    if run.state == RunState.STOPPED:
        return _("The requeue run had not listed them yet when it was stopped.")
    return _("They were no longer among the chosen messages when the requeue run listed them.")


def _parts(
    request: HttpRequest,
    run: RequeueRun,
    skipped: tuple[str, int, list[RequeueItem]],
    decisions: Sequence[tuple[int, str, str]],
) -> Iterator[Alike]:
    """Yield those left out for one reason: by the message because of which they were, if it was another one."""
    code, count, items = skipped
    by_other: dict[int, list[RequeueItem]] = {}
    others = kept_back_by(run, code, [one.message for one in items])
    for one in items:
        other = others.get(one.message_id)
        if other is not None and not refusal(request, "view", message=other):
            by_other.setdefault(other.pk, []).append(one)
    shown = dict(islice(by_other.items(), MOST_OTHERS))
    known = {other.pk: other for other in others.values()}
    for pk, some in shown.items():
        yield Alike(code, keeps_back(run, code, known[pk]), len(some), some, other=known[pk])
    named = {one.pk for some in shown.values() for one in some}
    if count > len(named):
        rest = [one for one in items if one.pk not in named]
        mine = {one.message_id for one in rest}
        decided = [one for one in decisions if one[0] in mine]
        told = {pk for pk, _name, _sentence in decided}
        rest = [one for one in rest if one.message_id not in told]
        text, runs = str(dict(ItemReason.choices).get(code, code)), _other_runs(run, code, items)
        yield Alike(code, text, count - len(named), rest, decided, runs=runs)


def _first(request: HttpRequest, items: QuerySet[RequeueItem]) -> list[RequeueItem]:
    """Return the first items, without those whose message the user may not see."""
    if has_own_rules(request.user):
        known = items.select_related("message", "message__group").defer("message__body", "message__properties")
    else:
        known = items.select_related("message").only("message", *(f"message__{column}" for column in SHOWN))
    rows = known.order_by("place")[:MOST_ITEMS]
    return [one for one in rows if not refusal(request, "view", message=one.message)]


def _other_runs(run: RequeueRun, code: str, items: Sequence[RequeueItem]) -> list[RequeueRun]:
    """Return the runs because of which these messages were left out: they had sent them, or were about to."""
    numbers = [one.message_id for one in items]
    if code == ItemReason.SENT_BEFORE:
        others = {*sent_by_others(run, numbers).values()}
    elif code == ItemReason.UNDER_WAY:
        ended = max((one.ended_at for one in items if one.ended_at), default=run.created_at)
        rows = RequeueItem.objects.filter(message__in=numbers, run__created_at__lte=ended).exclude(run=run.pk)
        # What a run had sent, or left out, before this one began was not the reason.
        rows = rows.filter(Q(ended_at=None) | Q(ended_at__gte=run.created_at))
        others = {*rows.exclude(sent_at__lt=run.created_at).values_list("run", flat=True)}
    else:
        return []
    return list(RequeueRun.objects.filter(pk__in=others).order_by("pk")[:MOST_OTHERS])

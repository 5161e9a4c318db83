"""Findings on a selection: reasons not to requeue its messages."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.db import connections
from django.db.models import Case, Count, Exists, F, IntegerField, Max, Min, OuterRef, Q, QuerySet, Sum, Value, When
from django.utils.translation import ngettext_lazy

from django_rmq_retry import database_clock
from django_rmq_retry.conf import settings
from django_rmq_retry.handlers import registry
from django_rmq_retry.messages.reasons import Reason
from django_rmq_retry.models import (
    BusinessKey,
    ItemReason,
    ItemState,
    MessageVersion,
    ParkedMessage,
    RequeueItem,
    RunState,
)
from django_rmq_retry.models.parked import OPEN, State
from django_rmq_retry.parked import missed_discards
from django_rmq_retry.parked.database import records_alias
from django_rmq_retry.parked.left_meanwhile import left_meanwhile
from django_rmq_retry.parked.released import Released, blockers_of_listed, released_by
from django_rmq_retry.parked.selection import LISTED, Selection
from django_rmq_retry.parked.siblings import PERHAPS_DONE, kept_back
from django_rmq_retry.statements import KEYS_AT_ONCE, one_of, with_one_of

SHOWN_EXAMPLES = 5
LATEST_MESSAGES = 200
MOST_QUEUES = 20
MOST_EDITED_SINCE = 10_000
MOST_SORTED = 10_000
"""The most messages of a selection whose business keys are sorted; those of more are compared with ``shared_keys``."""
MOST_SHARED = 5000
MOST_DISCARDED = 5000
"""The most discarded messages whose business keys are listed; if there are more, each open message looks its key up."""
MOST_COPIES = 5000
"""The most messages with siblings that are listed; if there are more, each of them looks its siblings up."""
PERMANENT_REASONS = (Reason.PERMANENT, Reason.UNDECODABLE_BODY, Reason.INVALID, Reason.UNDECODABLE_HEADERS)
"""Reasons for parking that a requeue alone does not remove."""


FINDING_TEXTS: Mapping[str, Any] = {
    "gone": ngettext_lazy(
        "%(count)d of the chosen messages no longer matches the filter",
        "%(count)d of the chosen messages no longer match the filter",
        "count",
    ),
    "resolved": ngettext_lazy("%(count)d is no longer open", "%(count)d are no longer open", "count"),
    "changed": ngettext_lazy(
        "%(count)d was changed since it was chosen", "%(count)d were changed since they were chosen", "count"
    ),
    "under_way": ngettext_lazy(
        "%(count)d is sent by another requeue run", "%(count)d are sent by another requeue run", "count"
    ),
    "no_queue": ngettext_lazy("%(count)d came from an unknown queue", "%(count)d came from an unknown queue", "count"),
    "refused": ngettext_lazy(
        "%(count)d is excluded because the project's rules do not allow you to requeue it",
        "%(count)d are excluded because the project's rules do not allow you to requeue them",
        "count",
    ),
    "on_hold": ngettext_lazy("%(count)d is on hold", "%(count)d are on hold", "count"),
    "succeeded": ngettext_lazy(
        "%(count)d was handled already: a copy of it succeeded",
        "%(count)d were handled already: a copy of each succeeded",
        "count",
    ),
    "discarded": ngettext_lazy(
        "%(count)d was discarded by an operator, and arrived again",
        "%(count)d were discarded by an operator, and arrived again",
        "count",
    ),
    "key_discarded": ngettext_lazy(
        "%(count)d has the business key of another message, which an operator discarded",
        "%(count)d have the business keys of other messages, which an operator discarded",
        "count",
    ),
    "discard_missed": ngettext_lazy(
        "%(count)d should have been discarded: that was approved, but not done",
        "%(count)d should have been discarded: that was approved, but not done",
        "count",
    ),
    "blocks_listed": ngettext_lazy(
        "%(count)d is in front of a message that is to be left out, which would be handled after it",
        "%(count)d are in front of messages that are to be left out, which would be handled after them",
        "count",
    ),
    "copies": ngettext_lazy(
        "%(count)d is a copy of another message that was sent or discarded, is on hold, or goes first",
        "%(count)d are copies of other messages that were sent or discarded, are on hold, or go first",
        "count",
    ),
    "unconfirmed": ngettext_lazy(
        "%(count)d may have been delivered: an earlier requeue was not confirmed",
        "%(count)d may have been delivered: an earlier requeue was not confirmed",
        "count",
    ),
    "permanent": ngettext_lazy(
        "%(count)d has a permanent error: a requeue alone will not help",
        "%(count)d have a permanent error: a requeue alone will not help",
        "count",
    ),
    "late": ngettext_lazy(
        "%(count)d is older than the age limit for requeues",
        "%(count)d are older than the age limit for requeues",
        "count",
    ),
    "unhandled": ngettext_lazy(
        "%(count)d is in a queue that no handler of this project reads",
        "%(count)d are in queues that no handler of this project reads",
        "count",
    ),
    "duplicates": ngettext_lazy(
        "%(count)d shares a business key with another one: sent oldest first, one at a time",
        "%(count)d share a business key with another one: sent oldest first, one at a time",
        "count",
    ),
    "key_processed": ngettext_lazy(
        "%(count)d has the business key of another message, which was processed after a requeue",
        "%(count)d have the business keys of other messages, which were processed after a requeue",
        "count",
    ),
    "edited": ngettext_lazy("%(count)d is sent as it was edited", "%(count)d are sent as they were edited", "count"),
}
"""All findings, the gravest first. Those that are an ``ItemReason`` leave messages out, the others are remarks."""
INCLUDABLE = (
    *("under_way", "on_hold", "succeeded", "discarded", "key_discarded", "discard_missed"),
    *("blocks_listed", "copies", "unconfirmed", "permanent", "late", "unhandled", "duplicates"),
)
"""The findings that the operator can override."""
DECIDED = ("gone", "resolved", "changed", "on_hold")
"""The findings on messages about which somebody has decided: a preview says who."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequeueTerms:
    """The operator's decisions about a requeue, besides the choice of messages."""

    target: str = ""
    include: Collection[str] = ()
    """Names of findings whose messages are sent nevertheless."""
    confirmed_permanent: bool = False
    """True if the operator confirms that the cause is fixed: messages with a permanent error are sent too."""
    kept_back: Collection[int] = ()
    """Records that the project's own rules do not let this operator requeue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequeueFinding:
    """One reason not to requeue some of the messages, or a remark on them."""

    name: str
    count: int
    left_out: bool
    examples: tuple[tuple[int, str], ...]
    """A few of the messages: the record's number, and its business key or ID."""
    decisions: Sequence[tuple[int, str, str]] = ()
    """What was decided on a few of them: the number, the name and the sentence."""

    @property
    def includable(self) -> bool:
        return self.name in INCLUDABLE

    @property
    def sentence(self) -> str:
        """The finding with its number of messages, in the reader's language."""
        return str(FINDING_TEXTS[self.name] % {"count": self.count})

    @property
    def explanation(self) -> str:
        """The reason's text, in the reader's language; empty for a remark."""
        return str(ItemReason(self.name).label) if self.name in ItemReason.values else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequeueReport:
    """The effect that a requeue of a selection would have now."""

    total: int
    sendable: int
    findings: tuple[RequeueFinding, ...]
    oldest: datetime | None
    newest: datetime | None
    queues: tuple[tuple[str, int], ...]
    """Target queues with their numbers of messages, largest first."""
    refused: Q = field(default_factory=Q)
    """The condition of the messages that are left out; empty if none is."""
    groups: tuple[tuple[int, int], ...] = ()
    """If messages of several error groups are named or listed, each with its number of messages, largest first."""
    released: Released = Released()
    """The messages that are handled after those that are sent, because they wait behind them."""

    @property
    def left_out(self) -> int:
        return self.total - self.sendable

    @property
    def under_way(self) -> int:
        """The messages that are left out because another run sends them."""
        return sum(one.count for one in self.findings if one.name == "under_way" and one.left_out)


GROUPED = frozenset({"group", "failed_of_run", "unsent_of_run", LISTED})
"""Filter words that may choose messages of several error groups, and few enough to count them by group."""


OF_QUEUE = frozenset({"no_queue", "unhandled"})
"""The findings that all messages of a queue have, or none."""


def report(selection: Selection, terms: RequeueTerms | None = None) -> RequeueReport:
    terms = terms or RequeueTerms()
    rows = selection.queryset().order_by()
    known = conditions(selection, terms)
    objections = _objections(known, terms)
    shown = {name: one for name, one in known.items() if name not in _impossible(selection)}
    shown["edited"] = Q(version__gt=1)
    refused = _refused(objections)
    several = selection.group is None and (selection.named or GROUPED.intersection(selection.filter))
    left_out = [code.value for code, _condition in objections]
    totals = _totals(rows, shown, left_out, by=("queue", "group") if several else ("queue",))
    sendable = totals.sums["sendable"]
    if sendable == totals.sums["total"]:
        refused = Q()
    sent = rows.exclude(refused) if refused else rows
    keys, shared = duplicates(sent, sendable)
    findings = [
        _explained(
            _finding(name, totals.sums[name], rows.filter(_told_of(name, condition, objections)), left_out), selection
        )
        for name, condition in shown.items()
        if totals.sums[name]
    ]
    if gone := max(selection.count - totals.sums["total"], 0):
        findings.insert(0, _finding("gone", gone, left_meanwhile(selection, totals.sums["total"]), ["gone"]))
    if keys:
        # Search the table of business keys, which has an index: the message's own column has none.
        named = BusinessKey.objects.using(rows.db).filter(value__in=keys).values("message")
        alike = sent.filter(pk__in=named, business_key__in=keys)
        findings.append(_finding("duplicates", shared, alike, left_out))
    if 0 < sendable <= MOST_SORTED:
        processed = sent.exclude(business_key="").filter(_of_key_of(Q(state=State.PROCESSED)))
        count = processed.count()
        findings += [_finding("key_processed", count, processed, left_out)] if count else []
    released = released_by(sent) if sendable else Released()
    return RequeueReport(
        total=totals.sums["total"],
        sendable=sendable,
        findings=tuple(findings),
        oldest=totals.oldest,
        newest=totals.newest,
        queues=((terms.target, sendable),) if terms.target else totals.queues,
        refused=refused,
        groups=totals.groups,
        released=released,
    )


def _impossible(selection: Selection) -> Collection[str]:
    """Return the findings that no message of a selection can have, because its filter takes other states only."""
    chosen = selection.filter.get("state", State.values)
    states = {chosen} if isinstance(chosen, str) else {*chosen}
    if selection.named or selection.request:
        return ()
    return {*(["resolved"] if states <= {*OPEN} else []), *([] if State.ON_HOLD in states else ["on_hold"])}


class _Totals(NamedTuple):
    """The totals of a selection, its queues with their sendable messages, and its error groups with all of theirs."""

    sums: Mapping[str, int]
    oldest: datetime | None
    newest: datetime | None
    queues: tuple[tuple[str, int], ...]
    groups: tuple[tuple[int, int], ...]


def _totals(
    rows: QuerySet[ParkedMessage], shown: Mapping[str, Q], left_out: Sequence[str], by: Sequence[str]
) -> _Totals:
    """Count all rows in one query by queue, or by queue and group, and by the findings that they have.

    A message that is left out is counted once, by the gravest of its reasons, like the item of a run: the first of
    ``left_out`` that it has.

    There are few of these parts, and all totals are sums of them, so each condition is evaluated once for a row, and
    those of a queue once for a part.
    """
    bits = {name: 1 << place for place, name in enumerate(shown) if name not in OF_QUEUE}
    held: Any = sum(
        (Case(When(shown[name], then=Value(bit)), default=Value(0)) for name, bit in bits.items()), start=Value(0)
    )
    spans = {"count": Count("*"), "oldest": Min("parked_at"), "newest": Max("parked_at")}
    parts: list[Any] = list(rows.annotate(held=held).values(*by, "held").annotate(**spans))
    handled = {*_handled_queues()}
    sums, queues, groups = Counter(dict.fromkeys(("total", "sendable", *shown), 0)), Counter[str](), Counter[int]()
    for part in parts:
        found = {name for name, bit in bits.items() if part["held"] & bit}
        if part["queue"] not in handled:
            found |= {"unhandled" if part["queue"] else "no_queue"} & shown.keys()
        sendable = part["count"] if found.isdisjoint(left_out) else 0
        told = dict.fromkeys(_told(found, left_out), part["count"])
        sums.update({**told, "total": part["count"], "sendable": sendable})
        queues[part["queue"]] += sendable
        groups[part.get("group", 0)] += part["count"]
    return _Totals(
        sums=sums,
        oldest=min((part["oldest"] for part in parts), default=None),
        newest=max((part["newest"] for part in parts), default=None),
        queues=tuple((queue, count) for queue, count in queues.most_common(MOST_QUEUES) if count),
        groups=tuple(groups.most_common()) if "group" in by else (),
    )


def _told(found: Collection[str], left_out: Sequence[str]) -> set[str]:
    """Return the findings that count a message: the gravest reason to leave it out, or else its remarks.

    What the operator has included counts beside a reason that they can include, too: its button takes that back.
    """
    why = next((name for name in left_out if name in found), None)
    if why is None:
        return {*found}
    included = {*found}.intersection(INCLUDABLE).difference(left_out) if why in INCLUDABLE else set[str]()
    return {why} | included


def _told_of(name: str, condition: Q, objections: Sequence[tuple[ItemReason, Q]]) -> Q:
    """Return the condition of the messages that a finding counts."""
    codes = [code.value for code, _condition in objections]
    if name in codes:
        others = objections[: codes.index(name)]
    elif name in INCLUDABLE:
        others = [one for one in objections if one[0].value not in INCLUDABLE]
    else:
        others = objections
    return condition & ~_refused(others) if others else condition


def conditions(selection: Selection, terms: RequeueTerms) -> Mapping[str, Q]:
    """Return the condition of each finding, in the order in which findings are displayed."""
    now = database_clock.now(records_alias())
    findings = {
        "resolved": ~Q(state__in=OPEN),
        "changed": changed(selection),
        "under_way": Q(pk__in=_under_way()),
        # A hold whose time is over does not count: a consumer ends it only a little later.
        "on_hold": Q(state=State.ON_HOLD) & ~Q(held_until__lte=now),
        "succeeded": Q(succeeded_at__isnull=False),
        # A message that is discarded now has the time of its discard, too, and did not arrive again.
        "discarded": Q(discarded_at__isnull=False, state__in=OPEN),
        "key_discarded": _of_discarded_key(),
        "discard_missed": missed_discards.waiting(),
        "copies": _copies(selection, now),
        "unconfirmed": Q(unconfirmed=True),
        "permanent": Q(reason__in=PERMANENT_REASONS) & ~_edited_since(),
    }
    if blockers := blockers_of_listed(selection):
        findings["blocks_listed"] = one_of("pk", list(blockers), using=records_alias())
    max_age = settings().operators.requeue_max_age
    if max_age is not None:
        findings["late"] = older_than(now - timedelta(seconds=max_age))
    if terms.kept_back:
        findings["refused"] = Q(pk__in=list(terms.kept_back))
    if not terms.target:
        findings["no_queue"] = Q(queue="")
        findings["unhandled"] = ~Q(queue="") & ~Q(queue__in=_handled_queues())
    return findings


def _handled_queues() -> list[str]:
    return [work_queue.queue.name for work_queue in registry.work_queues()]


def sends_any(group: int, terms: RequeueTerms | None = None) -> bool:
    """Return True if a requeue of this error group would send one of its latest parked messages; others are not read.

    This needs one query, whatever the size of the group.
    """
    parked = {"group": group, "state": [State.PARKED.value]}
    selection = Selection(filter=parked, as_of=database_clock.now(records_alias()), count=0)
    refused = _refused(reasons(selection, terms or RequeueTerms()))
    rows = ParkedMessage.objects.using(records_alias()).filter(group=group, state=State.PARKED)
    left_out = Case(When(refused, then=Value(1)), default=Value(0), output_field=IntegerField())
    latest = rows.order_by("-parked_at", "-pk").annotate(left_out=left_out).values_list("left_out", flat=True)
    return not all(latest[:LATEST_MESSAGES])


def first_sendable(selection: Selection, terms: RequeueTerms) -> int | None:
    """Return the oldest message that a requeue of the selection would send; None if it would send none."""
    refused = _refused(reasons(selection, terms))
    rows = selection.queryset().exclude(refused).order_by("parked_at", "pk")
    return rows.values_list("pk", flat=True).first()


def reasons(selection: Selection, terms: RequeueTerms) -> list[tuple[ItemReason, Q]]:
    """Return the reasons to leave messages out under these terms, each with its condition; the gravest first."""
    return _objections(conditions(selection, terms), terms)


def _objections(known: Mapping[str, Q], terms: RequeueTerms) -> list[tuple[ItemReason, Q]]:
    sent = {*terms.include, *(["permanent"] if terms.confirmed_permanent else [])} & {*INCLUDABLE}
    left_out = [name for name in FINDING_TEXTS if name in known and name in ItemReason.values and name not in sent]
    return [(ItemReason(name), known[name]) for name in left_out]


def _refused(objections: Sequence[tuple[ItemReason, Q]]) -> Q:
    """Return the condition of the messages to which there is an objection; it is empty if there is none."""
    refused = Q()
    for _code, condition in objections:
        refused |= condition
    return refused


def older_than(moment: datetime) -> Q:
    """Match by the time of publishing; if that is unknown, by the first failure; if that is unknown too, by parking."""
    by_failure = Q(published_at=None, failed_at__lt=moment)
    return Q(published_at__lt=moment) | by_failure | Q(published_at=None, failed_at=None, parked_at__lt=moment)


def duplicates(rows: QuerySet[ParkedMessage], count: int) -> tuple[list[str], int]:
    """Return some business keys that several of these messages share, and the number of messages that share any key.

    All of the rows are open; ``count`` is how many there are.
    """
    if count < 2:  # noqa: PLR2004 - two can share a key
        return [], 0
    named = rows.exclude(business_key="").order_by()
    keys = shared_keys() if count > MOST_SORTED else None
    if keys is None:
        shared = _shared(named)
        messages = shared.aggregate(messages=Sum("n"))["messages"] or 0
        return list(shared.values_list("business_key", flat=True)[:SHOWN_EXAMPLES] if messages else ()), messages
    # Each query evaluates the whole filter, so there is only one if a statement may have that many parameters.
    most = connections[rows.db].features.max_query_params
    at_once = KEYS_AT_ONCE if most and most < 2 * MOST_SHARED else MOST_SHARED
    counts: dict[str, int] = {}
    for some in with_one_of(named, "business_key", keys, most=at_once):
        counts.update(_shared(some).values_list("business_key", "n"))
    return sorted(counts)[:SHOWN_EXAMPLES], sum(counts.values())


def shared_keys() -> list[str] | None:
    """Return the business keys of several open messages, read from an index; None if they are too many."""
    named = ParkedMessage.objects.using(records_alias()).filter(business_key__gt="", state__in=OPEN).order_by()
    # Count("pk") would need a column that the index does not have.
    shared = named.values("business_key").annotate(n=Count("*")).filter(n__gt=1)
    keys = list(shared.values_list("business_key", flat=True)[: MOST_SHARED + 1])
    return None if len(keys) > MOST_SHARED else keys


def _shared(rows: QuerySet[ParkedMessage]) -> Any:
    return rows.values("business_key").annotate(n=Count("pk")).filter(n__gt=1).order_by("business_key")


def discard_findings(selection: Selection, rows: QuerySet[ParkedMessage]) -> list[RequeueFinding]:
    """Return why a discard of some messages of a request leaves some of them out."""
    gone, still_open = max(selection.count - selection.queryset().count(), 0), Q(state__in=OPEN)
    left_out = {"resolved": ~still_open, "changed": still_open & changed(selection)}
    found = [(name, rows.filter(condition)) for name, condition in left_out.items()]
    counted = [("gone", gone, rows.none()), *((name, some.count(), some) for name, some in found)]
    return [_finding(name, count, some, left_out=[name]) for name, count, some in counted if count]


def changed(selection: Selection) -> Q:
    """Match the messages of a selection that have changed since it was chosen; of a filter, only those edited since."""
    if selection.request:
        unchanged = selection.members.filter(message=OuterRef("pk"), revision=OuterRef("revision"))
        return Q(~Exists(unchanged))
    if not selection.named:
        # Few messages are edited, so list them: a check of each message of the selection takes far longer.
        edited = MessageVersion.objects.filter(at__gt=selection.as_of).values_list("message", flat=True)
        return Q(pk__in=list(edited[:MOST_EDITED_SINCE]))
    now = dict(selection.queryset().values_list("pk", "revision"))
    return Q(pk__in=[pk for pk, revision in selection.revisions.items() if now.get(pk) != revision])


def _under_way() -> "QuerySet[RequeueItem, Any]":
    """Return the messages that a run sends next: a paused one sends nothing, and a message changed since is left out.

    No column of the outer query is compared: a database reads these items once, and not for each message.
    """
    items = RequeueItem.objects.using(records_alias()).filter(state=ItemState.PENDING)
    sending = items.filter(run__state__in=(RunState.PLANNED, RunState.RUNNING), revision=F("message__revision"))
    return sending.order_by().values_list("message", flat=True)


def _of_discarded_key() -> Q:
    """Match open messages that have the business key of a discarded one: that one may have been done by hand.

    One that was discarded as a duplicate, or for its data, was discarded in favour of the other. Few discarded messages
    share their key with an open one, so those keys are listed.
    """
    discarded = ParkedMessage.objects.using(records_alias()).filter(PERHAPS_DONE, business_key__gt="")
    is_open = Exists(ParkedMessage.objects.filter(business_key=OuterRef("business_key"), state__in=OPEN))
    found = list(discarded.order_by().values_list("business_key", is_open)[: MOST_DISCARDED + 1])
    if len(found) > MOST_DISCARDED:
        return Q(state__in=OPEN) & ~Q(business_key="") & _of_key_of(PERHAPS_DONE)
    return Q(state__in=OPEN, business_key__in=sorted({key for key, shared in found if shared}))


def _copies(selection: Selection, now: datetime) -> Q:
    """Match the messages of a selection that are copies of another one, so that one is enough.

    Mostly few messages have siblings, so they are listed: a query that looks each of them up in the selection takes far
    longer.
    """
    using = records_alias()
    known = selection.queryset().filter(has_siblings=True, state__in=OPEN).order_by().values_list("pk", "content")
    some = list(known[: MOST_COPIES + 1])
    if len(some) > MOST_COPIES:
        every = Q(pk__in=selection.queryset().order_by().values("pk"))
        return kept_back(every, Q(pk__in=_under_way()), now)
    if not some:
        return Q(pk__in=())
    chosen = one_of("pk", [pk for pk, _content in some], using=using)
    alike = one_of("message__content", {content for _pk, content in some}, using=using)
    under_way = one_of("pk", list(_under_way().filter(alike, message__has_siblings=True)), using=using)
    copies = ParkedMessage.objects.using(using).filter(chosen, kept_back(chosen, under_way, now)).order_by()
    # The mark first, so only few rows are looked up in the list.
    return Q(has_siblings=True) & one_of("pk", list(copies.values_list("pk", flat=True)), using=using)


def _of_key_of(others: Q) -> Q:
    """Match messages whose business key, which is not empty, one of the others has: one look into an index."""
    return Q(Exists(ParkedMessage.objects.filter(others, business_key=OuterRef("business_key"))))


def _edited_since() -> Q:
    """Match messages that were edited after they were last sent: the edit may have removed a permanent cause."""
    later = MessageVersion.objects.filter(message=OuterRef("pk"), at__gt=OuterRef("requeued_at"))
    return Q(version__gt=1) & (Q(requeued_at=None) | Q(Exists(later)))


def still_permanent(message: ParkedMessage) -> bool:
    """Return True if a requeue would leave the message out, because it fails the same way until it is edited."""
    rows = ParkedMessage.objects.filter(pk=message.pk, reason__in=PERMANENT_REASONS).exclude(_edited_since())
    return message.reason in PERMANENT_REASONS and rows.exists()


def _finding(name: str, count: int, rows: QuerySet[ParkedMessage], left_out: Collection[str]) -> RequeueFinding:
    # This is the order of the indexes of groups, queues and types, so a few rows are enough to find examples.
    some = rows.order_by("-parked_at", "-pk").values_list("pk", "business_key", "message_id")[:SHOWN_EXAMPLES]
    return RequeueFinding(
        name=name,
        count=count,
        left_out=name in left_out,
        examples=tuple((pk, key or named or f"#{pk}") for pk, key, named in some),
    )


def _explained(finding: RequeueFinding, selection: Selection) -> RequeueFinding:
    """Return the finding with why its examples have it, if that is another thing for each."""
    if finding.name == "discard_missed":
        return replace(finding, decisions=missed_discards.sentences(finding.examples))
    if finding.name != "blocks_listed":
        return finding
    known = blockers_of_listed(selection)
    decisions = [(pk, name, known[pk].sentence) for pk, name in finding.examples if pk in known]
    return replace(finding, decisions=decisions)

"""Findings on a selection: reasons not to requeue its messages."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

from django.db import connections
from django.db.models import BooleanField, Case, Count, Exists, F, Max, Min, OuterRef, Q, QuerySet, Value, When
from django.utils.translation import gettext as _
from django.utils.translation import ngettext_lazy

from django_rmq_retry import database_clock
from django_rmq_retry.conf import settings
from django_rmq_retry.handlers import registry
from django_rmq_retry.messages.reasons import Reason
from django_rmq_retry.models import (
    ItemReason,
    ItemState,
    MessageVersion,
    ParkedMessage,
    RequeueItem,
    RunState,
)
from django_rmq_retry.models.parked import OPEN, SAID, State
from django_rmq_retry.parked import awaited, missed_discards
from django_rmq_retry.parked.database import records_alias
from django_rmq_retry.parked.key_text import text_of_keys
from django_rmq_retry.parked.left_meanwhile import left_meanwhile
from django_rmq_retry.parked.may_have_run import may_have_run
from django_rmq_retry.parked.other_copies import fates
from django_rmq_retry.parked.other_handlers import strangers, untaken, who_takes, why_unread, why_untaken
from django_rmq_retry.parked.overdue import discardable
from django_rmq_retry.parked.released import Released, blockers_of_listed, released_by
from django_rmq_retry.parked.same_keys import MOST_SORTED, SameKeys, same_keys, twins_among, with_keys
from django_rmq_retry.parked.selection import LISTED, Selection
from django_rmq_retry.parked.siblings import PERHAPS_DONE, RESTORED, SENT, kept_back
from django_rmq_retry.statements import one_of

SHOWN_EXAMPLES = 5
LATEST_MESSAGES = 200
MOST_QUEUES = 20
MOST_EDITED_SINCE = 10_000
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
        "%(count)d was handled already: it, or a copy of it, succeeded",
        "%(count)d were handled already: each, or a copy of it, succeeded",
        "count",
    ),
    "discarded": ngettext_lazy(
        "%(count)d was discarded by an operator, and arrived again",
        "%(count)d were discarded by an operator, and arrived again",
        "count",
    ),
    "restored": ngettext_lazy(
        "%(count)d was discarded by an operator, and restored: somebody may have done what it requests",
        "%(count)d were discarded by an operator, and restored: somebody may have done what they request",
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
    "discard_asked": ngettext_lazy(
        "a discard of %(count)d waits for a second person",
        "a discard of %(count)d waits for a second person",
        "count",
    ),
    "edit_asked": ngettext_lazy(
        "an edit of %(count)d waits for a second person",
        "an edit of %(count)d waits for a second person",
        "count",
    ),
    "blocks_listed": ngettext_lazy(
        "%(count)d is in front of a message that is to be left out, which would be handled after it",
        "%(count)d are in front of messages that are to be left out, which would be handled after them",
        "count",
    ),
    "copies": ngettext_lazy(
        "%(count)d is a copy of another message",
        "%(count)d are copies of other messages",
        "count",
    ),
    "unconfirmed": ngettext_lazy(
        "%(count)d may have been delivered: an earlier requeue was not confirmed",
        "%(count)d may have been delivered: an earlier requeue was not confirmed",
        "count",
    ),
    "worker_stopped": ngettext_lazy(
        "%(count)d may have been handled: a worker stopped or lost its connection before it could say so",
        "%(count)d may have been handled: their workers stopped or lost their connection before they could say so",
        "count",
    ),
    "other_handler": ngettext_lazy(
        "%(count)d would go to a handler that it was not made for",
        "%(count)d would go to a handler that they were not made for",
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
    "untaken": ngettext_lazy(
        "%(count)d has a type that no handler of its queue takes: it would be parked again",
        "%(count)d have types that no handler of their queues takes: they would be parked again",
        "count",
    ),
    "twins": ngettext_lazy(
        "%(count)d shares business key and type with another one, but not the content: perhaps one request, sent twice",
        "%(count)d share business key and type with another one, but not the content: perhaps one request, sent twice",
        "count",
    ),
    "duplicates": ngettext_lazy(
        "%(count)d shares a business key with another one: sent oldest first, one at a time",
        "%(count)d share a business key with another one: sent oldest first, one at a time",
        "count",
    ),
    "key_processed": ngettext_lazy(
        "%(count)d has the business key of another message, which was handled or is on its way",
        "%(count)d have the business keys of other messages, which were handled or are on their way",
        "count",
    ),
    "given_up": ngettext_lazy(
        "%(count)d was parked by its handler on purpose, which may do so again",
        "%(count)d were parked by their handler on purpose, which may do so again",
        "count",
    ),
    "edited": ngettext_lazy("%(count)d is sent as it was edited", "%(count)d are sent as they were edited", "count"),
}
"""All findings, the gravest first. Those that are an ``ItemReason`` leave messages out, the others are remarks."""
INCLUDABLE = (
    *("under_way", "on_hold", "succeeded", "discarded", "restored", "key_discarded", "discard_missed"),
    *("discard_asked", "edit_asked", "blocks_listed", "copies", "unconfirmed", "worker_stopped", "other_handler"),
    *("permanent", "late", "unhandled", "untaken", "duplicates"),
)
"""The findings that the operator can override."""
RISKY = (
    *("succeeded", "discarded", "restored", "key_discarded", "discard_missed", "discard_asked"),
    *("copies", "unconfirmed", "worker_stopped", "other_handler"),
)
"""The findings whose messages, if they are included, may do harm that nobody can undo, such as a second payment."""
DECIDED = ("gone", "resolved", "changed", "on_hold", "restored")
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
    detail: str = ""
    """What applies to all of them, in a sentence."""
    handled: bool = False
    """True if what some of them request was done already."""
    warns: bool = False
    """True for a remark on messages of which some may be better left out, which no check can know."""
    later: Sequence[str] = ()
    """The ids of those that one button leaves out, so that of each request one is sent."""

    @property
    def includable(self) -> bool:
        return self.name in INCLUDABLE

    @property
    def overruled(self) -> bool:
        """True if its messages would be left out, had the operator not included them."""
        return self.includable and self.name in ItemReason.values and not self.left_out

    @property
    def later_text(self) -> str:
        """The same as text."""
        return text_of_keys(self.later)

    @property
    def risk(self) -> str:
        """What sending these messages may do, if they are sent although it may do harm; else empty."""
        if self.left_out or self.name not in RISKY:
            return ""
        if self.name == "other_handler":
            return _("sent there all the same")
        return _("sending them does it again") if self.handled else _("sending them may do it twice")

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
    def only_reason(self) -> str:
        """The name of the finding for which all messages are left out; empty if there are several, or some are sent."""
        why = [one for one in self.findings if one.left_out]
        return why[0].name if len(why) == 1 and why[0].count == self.total > self.sendable == 0 else ""

    @property
    def risky(self) -> bool:
        """True if messages are sent that may do harm."""
        return any(one.risk for one in self.findings)

    @property
    def under_way(self) -> int:
        """The messages that are left out because another run sends them."""
        return sum(one.count for one in self.findings if one.name == "under_way" and one.left_out)


def lacks_reason_for_risk(found: RequeueReport, reason: str) -> str:
    """Return why a person who sends messages that may do harm needs a reason; empty if none is lacking."""
    if reason.strip() or not found.risky:
        return ""
    return _("Enter a reason: messages are included that a check had left out.")


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
    shown |= {"given_up": Q(reason=Reason.REQUESTED) & ~_edited_since(), "edited": Q(version__gt=1)}
    refused = _refused(objections)
    several = selection.group is None and (selection.named or GROUPED.intersection(selection.filter))
    left_out = [code.value for code, _condition in objections]
    totals = _totals(rows, shown, left_out, by=("queue", "group") if several else ("queue",))
    sendable = totals.sums["sendable"]
    if sendable == totals.sums["total"]:
        refused = Q()
    sent = rows.exclude(refused) if refused else rows
    shared = same_keys(sent, sendable)
    counted = {name: condition for name, condition in shown.items() if totals.sums[name]}
    if totals.sums["total"] > 1:
        counted = {name: _told_of(name, condition, objections) for name, condition in counted.items()}
    told = {name: rows.filter(condition) for name, condition in counted.items()}
    if gone := max(selection.count - totals.sums["total"], 0):
        told = {"gone": left_meanwhile(selection, totals.sums["total"]), **told}
    counts, examples = {**totals.sums, "gone": gone}, _examples(told)
    findings = [
        _explained(_finding(name, counts[name], examples[name], [*left_out, "gone"]), selection, terms, having)
        for name, having in told.items()
    ]
    findings += _of_same_keys(shared, sent)
    if 0 < sendable <= MOST_SORTED:
        done = sent.exclude(business_key="").filter(_of_key_of(SENT & ~Q(pk=OuterRef("pk"))))
        count = done.count()
        some = _examples({"key_processed": done})["key_processed"] if count else ()
        findings += [replace(_finding("key_processed", count, some, left_out), warns=True)] if count else []
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


def _of_same_keys(shared: SameKeys, sent: QuerySet[ParkedMessage]) -> list[RequeueFinding]:
    """Return the remarks on messages that share a key; those that may be one request are named, each with its time."""
    if not shared.keys:
        return []
    if shared.twins:
        twins = twins_among(sent, list(shared.twins))
        named = tuple(one[:2] for one in twins.examples)
        found = _finding("twins", shared.twin_count, named, ())
        remark = _finding("duplicates", shared.count, named, ())
        return [replace(found, warns=True, decisions=twins.examples, later=twins.later), remark]
    examples = _examples({"duplicates": with_keys(sent, shared.keys)})["duplicates"]
    return [replace(_finding("duplicates", shared.count, examples, ()), warns=shared.twins is None)]


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
    handled, alone = {*_handled_queues()}, sum(part["count"] for part in parts) == 1
    sums, queues, groups = Counter(dict.fromkeys(("total", "sendable", *shown), 0)), Counter[str](), Counter[int]()
    for part in parts:
        found = {name for name, bit in bits.items() if part["held"] & bit}
        if part["queue"] not in handled:
            found |= {"unhandled" if part["queue"] else "no_queue"} & shown.keys()
        sendable = part["count"] if found.isdisjoint(left_out) else 0
        told = dict.fromkeys(_told(found, left_out, alone=alone), part["count"])
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


def _told(found: Collection[str], left_out: Sequence[str], *, alone: bool) -> set[str]:
    """Return the findings that count a message: the gravest reason to leave it out, or else its remarks.

    What the operator has included counts beside a reason that they can include, too: its button takes that back. If
    the message is alone, all of its reasons are told, because each of them has to be included.
    """
    why = next((name for name in left_out if name in found), None)
    if why is None:
        return {*found}
    if alone and why in INCLUDABLE:
        return {*found}.intersection({*left_out, *INCLUDABLE})
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


def conditions(selection: Selection, terms: RequeueTerms, *, copies: Q | None = None) -> Mapping[str, Q]:
    """Return the condition of each finding, in the order in which findings are displayed.

    That of ``copies`` takes several queries, unless it is given.
    """
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
        "restored": RESTORED,
        "key_discarded": _of_discarded_key(),
        "discard_missed": missed_discards.waiting(),
        **awaited.conditions(),
        "copies": _copies(selection, now) if copies is None else copies,
        "unconfirmed": Q(unconfirmed=True),
        "worker_stopped": may_have_run(terms.target),
        "permanent": Q(reason__in=PERMANENT_REASONS) & ~_edited_since(),
    }
    if blockers := blockers_of_listed(selection):
        findings["blocks_listed"] = one_of("pk", list(blockers), using=records_alias())
    max_age = settings().operators.requeue_max_age
    if max_age is not None:
        findings["late"] = older_than(now - timedelta(seconds=max_age))
    if terms.kept_back:
        findings["refused"] = Q(pk__in=list(terms.kept_back))
    if nobodys := untaken(terms.target):
        findings["untaken"] = nobodys
    if terms.target:
        findings["other_handler"] = strangers(terms.target)
    else:
        findings["no_queue"] = Q(queue="")
        findings["unhandled"] = ~Q(queue="") & ~Q(queue__in=_handled_queues())
    return findings


def _handled_queues() -> list[str]:
    return [work_queue.queue.name for work_queue in registry.work_queues()]


def sends_any(group: int, terms: RequeueTerms | None = None) -> bool:
    """Return True if a requeue of this error group would send one of its latest parked messages; others are not read.

    This needs few queries, whatever the size of the group. Only a message with siblings can be a copy, so these are
    compared only if no other message would be sent.
    """
    terms, now = terms or RequeueTerms(), database_clock.now(records_alias())
    parked = {"group": group, "state": [State.PARKED.value]}
    known = conditions(Selection(filter=parked, as_of=now, count=0), terms, copies=Q(pk__in=()))
    rows = ParkedMessage.objects.using(records_alias()).filter(group=group, state=State.PARKED)
    left_out = When(_refused(_objections(known, terms)), then=Value(None))
    sibling = Case(left_out, default=F("has_siblings"), output_field=BooleanField())
    newest = rows.order_by("-parked_at", "-pk").annotate(sibling=sibling).values_list("pk", "sibling")
    sent = {pk: sibling for pk, sibling in newest[:LATEST_MESSAGES] if sibling is not None}
    if not sent or "copies" in terms.include or not all(sent.values()):
        return bool(sent)
    return rows.filter(pk__in=sent).exclude(_copies(Selection.of_filter(parked), now)).exists()


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


def discard_findings(selection: Selection, rows: QuerySet[ParkedMessage]) -> list[RequeueFinding]:
    """Return why a discard of some messages of a request leaves some of them out."""
    gone, still_open = max(selection.count - selection.queryset().count(), 0), discardable()
    left_out = {"resolved": ~still_open, "changed": still_open & changed(selection)}
    found = [(name, rows.filter(condition)) for name, condition in left_out.items()]
    counted = [("gone", gone, rows.none()), *((name, some.count(), some) for name, some in found)]
    examples = _examples({name: some for name, count, some in counted if count})
    return [_finding(name, count, examples[name], left_out=[name]) for name, count, _some in counted if count]


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


Examples = tuple[tuple[int, str], ...]


def _examples(told: Mapping[str, QuerySet[ParkedMessage]]) -> dict[str, Examples]:
    """Return a few messages of each finding, those parked last: by one query, where a database can unite them."""
    columns = ("finding", "parked_at", "pk", "business_key", "message_id")
    # This is the order of the indexes of groups, queues and types, so a few rows are enough to find examples.
    some: list[Any] = [
        rows.order_by("-parked_at", "-pk").annotate(finding=Value(name)).values_list(*columns)[:SHOWN_EXAMPLES]
        for name, rows in told.items()
    ]
    if len(some) > 1 and connections[some[0].db].features.supports_slicing_ordering_in_compound:
        some = [some[0].union(*some[1:], all=True)]
    found: dict[str, list[tuple[Any, ...]]] = {name: [] for name in told}
    for name, *row in chain.from_iterable(some):
        found[name].append(tuple(row))
    return {
        name: tuple((pk, key or named or f"#{pk}") for _at, pk, key, named in sorted(of_name, reverse=True))
        for name, of_name in found.items()
    }


def _words_of_handlers(examples: Examples) -> list[tuple[int, str, str]]:
    """Return a few messages, each with what its handler said as it parked it."""
    said = ParkedMessage.objects.filter(pk__in=[pk for pk, _name in examples]).annotate(words=SAID)
    words = dict(said.values_list("pk", "words"))
    return [(pk, name, f"“{words[pk]}”") for pk, name in examples if words.get(pk)]


def _finding(name: str, count: int, examples: Examples, left_out: Collection[str]) -> RequeueFinding:
    return RequeueFinding(name=name, count=count, left_out=name in left_out, examples=examples)


def _explained(
    finding: RequeueFinding, selection: Selection, terms: RequeueTerms, rows: QuerySet[ParkedMessage]
) -> RequeueFinding:
    """Return the finding with why its messages have it, or why each of its examples does."""
    details: dict[str, Callable[[], str]] = {
        "other_handler": lambda: who_takes(terms.target, rows),
        "no_queue": lambda: _("Name the queue that it goes to."),
        "unhandled": lambda: why_unread(rows),
        "untaken": lambda: why_untaken(terms.target, rows),
        **{name: partial(awaited.who_asked, name) for name in awaited.FINDINGS},
    }
    if finding.name in details:
        return replace(finding, detail=details[finding.name]())
    if finding.name == "copies":
        sent = one_of("pk", list(_under_way()), using=records_alias())
        told, handled = fates(rows, finding.count, sent, database_clock.now(records_alias()))
        return replace(finding, detail=told, handled=handled)
    if finding.name == "succeeded":
        return replace(finding, handled=True)
    named: dict[str, Callable[[], Sequence[tuple[int, str, str]]]] = {
        "given_up": lambda: _words_of_handlers(finding.examples),
        "discard_missed": lambda: missed_discards.sentences(finding.examples),
        "blocks_listed": lambda: _blocked(finding.examples, selection),
    }
    return replace(finding, decisions=named[finding.name]()) if finding.name in named else finding


def _blocked(examples: Examples, selection: Selection) -> list[tuple[int, str, str]]:
    """Return a few messages, each with what waits behind it and is to be left out."""
    known = blockers_of_listed(selection)
    return [(pk, name, known[pk].sentence) for pk, name in examples if pk in known]

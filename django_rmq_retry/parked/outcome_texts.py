"""What became of a parked message or a request, and who decided it: one sentence for pages, commands and refusals."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Case, Exists, OuterRef, Q, Subquery, Value, When
from django.utils.translation import gettext as _
from django.utils.translation import ngettext, pgettext

from django_rmq_retry.attempts.history import attempts_of, handlings
from django_rmq_retry.models import (
    Action,
    ApprovalRequest,
    Attempt,
    ItemReason,
    ItemState,
    OperatorAction,
    ParkedMessage,
    RequestState,
    RequeueItem,
    RequeueRun,
    State,
)
from django_rmq_retry.models.parked import resolution_text
from django_rmq_retry.parked.audit import acts_on
from django_rmq_retry.parked.four_eyes import EDITS, selection_of
from django_rmq_retry.parked.selection import Selection, group_numbers
from django_rmq_retry.parked.siblings import EITHER, PERHAPS_DONE, SENT
from django_rmq_retry.policies.verdict import ACK
from django_rmq_retry.wording import minute, number, second

DECIDED_BY: Mapping[str, Action] = {State.DISCARDED: Action.DISCARD, State.ON_HOLD: Action.HOLD}
"""The action that put a message into a state."""
MOST_HANDLINGS = 5
"""The most times that the sentence on a message names that was handled more than once."""
MOST_COPIES_SHOWN = 5
MOST_DECISIONS = 3
"""The most decisions that a preview names."""
CHANGING = (Action.EDIT, Action.RESTORE, Action.UNHOLD, Action.HOLD)
"""The actions after which a message is open, and another one than was chosen."""
DECIDING = (Action.DISCARD, Action.HOLD, Action.REQUEUE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Handled:
    """How often the handler is known to have done its work for a message."""

    count: int
    attempts: Sequence[Attempt]
    """Those of which it is known when and where: a process that is killed may leave its success, and no attempt."""
    run: int | None
    """The last requeue run whose copy was handled more than once."""

    @classmethod
    def of(cls, attempts: Iterable[Attempt], items: Iterable[RequeueItem]) -> "Handled":
        """Join the attempts of a message with its places in requeue runs, the latest place first."""
        known = handlings(attempts)
        times, run = Counter(one.cycle for one in known), None
        for item in items:
            times[item.cycle] = max(times[item.cycle], item.handled)
            run = run or (item.run_id if item.handled > 1 else None)
        return cls(count=times.total(), attempts=known, run=run)

    @property
    def again(self) -> bool:
        """True if it did it more than once."""
        return self.count > 1

    def __str__(self) -> str:
        """Return when and by which processes a message was handled more than once; empty if it was not."""
        if not self.again:
            return ""
        each = _("{when} by {process}")
        shown = self.attempts[:MOST_HANDLINGS]
        times = [each.format(when=second(one.ended_at), process=f"{one.host}:{one.pid}") for one in shown]
        times += ["…"] if len(self.attempts) > MOST_HANDLINGS else []
        unknown = self.count - len(self.attempts)
        if unknown:
            text = ngettext("once at an unknown time", "%(count)d times at unknown times", unknown)
            times.append(text % {"count": unknown})
        text = _("Handled twice: {times}.") if self.count == 2 else _("Handled {count} times: {times}.")  # noqa: PLR2004
        return text.format(count=self.count, times=", ".join(times))


def outcome(message: ParkedMessage, run: RequeueRun | None, act: OperatorAction | None, handled: Handled) -> str:
    """Return what became of the message since it was parked; empty while it is parked.

    ``run`` is the last one that sent it, ``act`` the action that put it into its state.
    """
    parts = (str(handled), _ended(message, run, act), erased(message))
    return " ".join(filter(None, parts))


def discarded_before(message: ParkedMessage, act: OperatorAction | None) -> str:
    """Return who discarded a message that arrived again after it, and why; empty for any other message.

    ``act`` is the discard; the audit log may not have it any more.
    """
    if not message.came_back:
        return ""
    text = _("Discarded {at} by {name}{reason}. Then it arrived again, and was parked {again}.")
    return text.format(
        at=second(message.discarded_at) if message.discarded_at else "-",
        name=act.who if act else _("an unknown operator"),
        reason=f" ({resolution_text(act.reason)})" if act and act.reason else "",
        again=second(message.parked_at),
    )


def discard_of(message: ParkedMessage) -> OperatorAction | None:
    """Return the last discard of a message in the audit log."""
    acts = OperatorAction.objects.filter(acts_on([message.pk], runs=()), action=Action.DISCARD)
    return acts.order_by("-number").first()


def copies_of(message: ParkedMessage) -> list[tuple[ParkedMessage, str]]:
    """Return some other messages with the same content, each with a sentence on what became of it.

    Those that are only parked come last.
    """
    if not message.has_siblings or message.content is None:
        return []
    others = ParkedMessage.objects.filter(has_siblings=True, content=message.content).exclude(pk=message.pk)
    undone = Case(When(state=State.PARKED, then=Value(1)), default=Value(0))
    found = others.defer("body", "properties").order_by(undone, "-pk")
    return [(one, _as_copy(one)) for one in found[:MOST_COPIES_SHOWN]]


def _as_copy(message: ParkedMessage) -> str:
    if message.state == State.PROCESSED:
        return _("A copy of this message was processed {at}.").format(
            at=_second(message.succeeded_at or message.resolved_at)
        )
    if message.state in (State.REQUEUED, State.REQUEUEING):
        text = _("A copy of this message was requeued {at}; its outcome is not known yet.")
        return text.format(at=_second(message.requeued_at))
    if message.state == State.ON_HOLD:
        text = _("A copy of this message is on hold until {until}.")
        return text.format(until=_minute(message.held_until))
    if message.state == State.DISCARDED:
        text = _("A copy of this message was discarded {at} ({reason}).")
        return text.format(at=_second(message.resolved_at), reason=resolution_text(message.resolution))
    if message.unconfirmed:
        return _("A copy of this message may have been delivered.")
    return _("A copy of this message is parked.")


def others_of_key(message: ParkedMessage) -> list[tuple[ParkedMessage, str]]:
    """Return what became of the latest other messages with the business key of an open one, each with its sentence.

    Those are the last one that was discarded, which may have been done by hand, and the last one that was processed.
    """
    if not message.open or not message.business_key:
        return []
    rows = ParkedMessage.objects.filter(business_key=message.business_key).exclude(pk=message.pk)
    if message.has_siblings and message.content is not None:
        # Those with the same content are named as copies.
        rows = rows.exclude(content=message.content)
    latest = rows.order_by("-resolved_at").values("pk")
    last = [Subquery(latest.filter(state=state)[:1]) for state in (State.DISCARDED, State.PROCESSED)]
    found = ParkedMessage.objects.filter(Q(pk=last[0]) | Q(pk=last[1])).defer("body", "properties").order_by("state")
    return [(one, _as_other(one)) for one in found]


def _as_other(message: ParkedMessage) -> str:
    if message.state == State.PROCESSED:
        text = _("Another message with its business key was processed {at}.")
        return text.format(at=_second(message.succeeded_at or message.resolved_at))
    text = _("Another message with its business key was discarded {at} by {name} ({reason}).")
    act = discard_of(message)
    return text.format(
        at=_second(message.resolved_at),
        name=act.who if act else _("an unknown operator"),
        reason=resolution_text(message.resolution),
    )


def erased(message: ParkedMessage) -> str:
    """Return who erased the contents of a message, and when; empty if they are there."""
    if message.erased_at is None:
        return ""
    text = _("Its contents were erased {when} by {name}.")
    return text.format(when=_minute(message.erased_at), name=message.erased_by)


def _ended(message: ParkedMessage, run: RequeueRun | None, act: OperatorAction | None) -> str:
    names: dict[str, object] = {"run": run.pk, "name": run.who} if run else {}
    if message.state == State.PROCESSED:
        text = _("Processed {when} after requeue run {run} by {name}.") if run else _("Processed {when}.")
        return text.format(when=_minute(message.succeeded_at or message.resolved_at), **names)
    if message.state in (State.REQUEUED, State.REQUEUEING):
        text = _("Requeued {when}; its outcome is not known yet.")
        if run:
            text = _("Requeued {when} in requeue run {run} by {name}; its outcome is not known yet.")
        return text.format(when=_minute(message.requeued_at), **names)
    name = act.who if act else _("an unknown operator")
    if message.state == State.DISCARDED:
        text = _("Discarded {at} by {name} ({reason}): it will not be handled.")
        return text.format(at=_minute(message.resolved_at), name=name, reason=resolution_text(message.resolution))
    if message.state == State.ON_HOLD:
        text = _("On hold until {until}, by {name}")
        if message.hold_reason:
            text = _("On hold until {until}, by {name}: {reason}")
        return text.format(until=_minute(message.held_until), name=name, reason=message.hold_reason)
    return ""


def handled_of(message: ParkedMessage) -> Handled:
    """Return how often a message was handled, from the database."""
    if not message.succeeded_at:
        return Handled(count=0, attempts=(), run=None)
    items = RequeueItem.objects.filter(message=message.pk, handled__gt=0).order_by("-pk")
    return Handled.of(attempts_of(message).filter(verdict=ACK.name), items)


def outcome_of(message: ParkedMessage, handled: Handled | None = None) -> str:
    """Return what became of the message, with the run, the action and the attempts from the database."""
    items = RequeueItem.objects.filter(message=message.pk, sent_at__isnull=False).select_related("run")
    item = items.order_by("-pk").first() if message.state not in DECIDED_BY else None
    acts = OperatorAction.objects.filter(acts_on([message.pk], runs=()), action=DECIDED_BY.get(message.state, ""))
    act = acts.order_by("-number").first() if message.state in DECIDED_BY else None
    return outcome(message, item.run if item else None, act, handled or handled_of(message))


def decided_meanwhile(selection: Selection) -> str:
    """Return who decided on a selection of which nothing is left, and when; empty if that is not known."""
    if selection.named:
        rows = ParkedMessage.objects.filter(pk__in=list(selection.revisions)).defer("body", "properties")
        return outcome_of(rows[0]) if rows else ""
    return " ".join(decisions_since(selection)[:1])


def decisions_since(selection: Selection) -> list[str]:
    """Return the latest decisions on the error groups of a selection since it was chosen, the newest first."""
    groups = group_numbers(selection.filter.get("group", []))
    if not groups:
        return []
    acts = OperatorAction.objects.filter(group__in=groups, action__in=DECIDING, at__gte=selection.as_of)
    return [act_in_words(act) for act in acts.order_by("-number")[:MOST_DECISIONS]]


def decisions_on(examples: Sequence[tuple[int, str]]) -> list[tuple[int, str, str]]:
    """Return what was decided on some of these messages: number, name and sentence of each."""
    some = examples[:MOST_DECISIONS]
    rows = ParkedMessage.objects.defer("body", "properties").in_bulk([pk for pk, _name in some])
    found = [(pk, name, outcome_of(rows[pk]) or _changed_by(pk)) for pk, name in some if pk in rows]
    return [one for one in found if one[2]]


def _changed_by(pk: int) -> str:
    """Return who last changed an open message; empty if nobody did."""
    acts = OperatorAction.objects.filter(acts_on([pk], runs=()), action__in=CHANGING)
    act = acts.order_by("-number").first()
    return act_in_words(act) if act else ""


def act_in_words(act: OperatorAction) -> str:
    text = _("{action} by {name}, {when}.")
    return text.format(action=act.get_action_display(), name=act.who, when=_minute(act.at))


def kept_back_by(run: RequeueRun, code: str, messages: Sequence[ParkedMessage]) -> dict[int, ParkedMessage]:
    """Return for messages that a run left out for another one which that is, as far as it can still be told."""
    if code == ItemReason.KEY_DISCARDED:
        keys = {one.business_key for one in messages}
        discarded = ParkedMessage.objects.filter(PERHAPS_DONE, business_key__in=keys - {""}).order_by("resolved_at")
        latest = {one.business_key: one for one in discarded.defer("body", "properties")}
        return {one.pk: latest[one.business_key] for one in messages if one.business_key in latest}
    if code != ItemReason.COPIES:
        return {}
    contents = {one.content for one in messages if one.content is not None}
    alike = ParkedMessage.objects.filter(has_siblings__in=EITHER, content__in=contents).defer("body", "properties")
    first = RequeueItem.objects.filter(run=run, message=OuterRef("pk")).exclude(state=ItemState.SKIPPED)
    goes_first = [
        When(Exists(first), then=Value(0)),
        When(SENT, then=Value(1)),
        When(state=State.PARKED, then=Value(3)),
    ]
    ranked = alike.annotate(rank=Case(*goes_first, default=Value(2))).order_by("rank", "pk")
    others: dict[int | None, list[ParkedMessage]] = {}
    for other in ranked:
        others.setdefault(other.content, []).append(other)
    found = {one.pk: next((o for o in others.get(one.content, ()) if o.pk != one.pk), None) for one in messages}
    return {pk: other for pk, other in found.items() if other is not None}


def keeps_back(run: RequeueRun, code: str, other: ParkedMessage) -> str:
    """Return what became of the message because of which a run left others out."""
    if code == ItemReason.KEY_DISCARDED:
        return _as_other(other)
    if other.state == State.PARKED and vars(other).get("rank") == 0:
        return _("A copy of this message goes first in requeue run %(run)s.") % {"run": run.pk}
    return _as_copy(other)


def _second(at: datetime | None) -> str:
    return "-" if at is None else second(at)


def _minute(at: datetime | None) -> str:
    return "-" if at is None else minute(at)


def standing(known: ApprovalRequest, state: str) -> str:
    """Return the state of a request; of an approved one with what became of its messages since."""
    became = became_of(known)
    return _("Approved: %(became)s") % {"became": became} if became else state


def became_of(known: ApprovalRequest) -> str:
    """Return what became of the messages of an approved request; empty if its state says it."""
    if known.state != RequestState.DONE:
        return ""
    if known.run is not None:
        return _run(RequeueRun.objects.filter(pk=known.run).first())
    if known.act not in EDITS:
        return ""
    rows = ParkedMessage.objects.filter(pk__in=selection_of(known).revisions)
    fates = Counter(_fate(known, row) for row in rows.values("state", "requeued_at"))
    if sum(fates.values()) == 1:
        return next(iter(fates))
    return " · ".join(f"{number(count)} {fate}" for fate, count in fates.most_common())


def _fate(known: ApprovalRequest, row: Mapping[str, Any]) -> str:
    """Return what became of an edited message since its edit was approved."""
    ends: dict[str, str] = {
        State.PROCESSED: pgettext("what became of it", "processed"),
        State.DISCARDED: pgettext("what became of it", "discarded"),
        State.REQUEUED: pgettext("what became of it", "sent, its outcome is not known yet"),
        State.REQUEUEING: pgettext("what became of it", "being sent"),
    }
    if row["state"] in ends:
        return ends[row["state"]]
    sent = row["requeued_at"] and known.decided_at and row["requeued_at"] > known.decided_at
    if sent:
        return pgettext("what became of it", "sent, and failed again")
    return pgettext("what became of it", "stored, not sent yet")


def _run(run: RequeueRun | None) -> str:
    if run is None:
        return ""
    text = _("%(state)s, %(sent)s of %(total)s sent, %(processed)s processed, %(failed)s failed again")
    counts = {name: number(getattr(run, name)) for name in ("sent", "total", "processed", "failed")}
    return text % {"state": run.get_state_display(), **counts}

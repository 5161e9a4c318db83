"""What became of a parked message or a request, and who decided it: one sentence for pages, commands and refusals."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from operator import or_
from typing import Any

from django.db.models import Case, Exists, OuterRef, Q, Subquery, Value, When
from django.utils.translation import gettext as _
from django.utils.translation import ngettext, pgettext

from django_rmq_retry.attempts.history import attempts_of, handlings
from django_rmq_retry.messages.reasons import MAY_HAVE_RUN
from django_rmq_retry.models import (
    Action,
    ApprovalRequest,
    Attempt,
    GatedAct,
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
from django_rmq_retry.parked.audit import acts_on, named_by, newest_acts
from django_rmq_retry.parked.four_eyes import EDITS, selection_of
from django_rmq_retry.parked.selection import Selection, group_numbers
from django_rmq_retry.parked.siblings import EITHER, PERHAPS_DONE, SENT
from django_rmq_retry.policies.verdict import ACK
from django_rmq_retry.wording import minute, number, second

DECIDED_BY: Mapping[str, Action] = {State.DISCARDED: Action.DISCARD, State.ON_HOLD: Action.HOLD}
"""The action that put a message into a state."""
MOST_HANDLINGS = 5
"""The most times that are named of a message that was handled more than once."""
MOST_COPIES_SHOWN = 5
MOST_DECISIONS = 3
"""The most decisions that a preview names."""
CHANGING = (Action.EDIT, Action.RESTORE, Action.UNHOLD, Action.HOLD)
"""The actions after which a message is open, and another one than was chosen."""
BESIDE_DISCARDED = (State.PARKED, State.REQUEUED, State.PROCESSED)
BESIDE_OPEN = (State.DISCARDED, *BESIDE_DISCARDED)
"""The states of other messages with the same business key that an operator has to know of."""
DECIDING = (Action.DISCARD, Action.HOLD, Action.REQUEUE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Handled:
    """How often the handler is known to have done its work for a message."""

    count: int
    attempts: Sequence[Attempt]
    """Those of which it is known when and where: a process that is killed may leave its success, and no attempt."""
    run: int | None
    """The last requeue run whose copy was handled more than once."""
    doubted: bool = False
    """True if a copy was handled that a consumer had before, and had not acknowledged: perhaps it had done its work."""
    begun: int = 0
    """How many lost consumers had begun it besides, as far as that is known."""

    @classmethod
    def of(cls, attempts: Iterable[Attempt], items: Iterable[RequeueItem], *, begun: int = 0) -> "Handled":
        """Join the attempts of a message with its places in requeue runs, the latest place first."""
        known = handlings(attempts)
        times, run, doubted = Counter(one.cycle for one in known), None, False
        for item in items:
            times[item.cycle] = max(times[item.cycle], item.handled)
            run = run or (item.run_id if item.handled > 1 else None)
            doubted = doubted or (item.redelivered and item.handled > 0)
        return cls(count=times.total(), attempts=known, run=run, doubted=doubted, begun=begun)

    @property
    def again(self) -> bool:
        """True if it did it more than once."""
        return self.count > 1

    @property
    def perhaps(self) -> int:
        """How often it did it at most."""
        return max(self.count + self.begun, 2 * self.doubted) if self.count else 0

    def __str__(self) -> str:
        """Return when and by which processes a message was handled more than once, or perhaps; empty if it was not."""
        return " ".join(filter(None, (self._certainly(), self._perhaps())))

    def _perhaps(self) -> str:
        if self.perhaps <= max(self.count, 1):
            return ""
        if self.perhaps == 2:  # noqa: PLR2004 - twice has a word
            return _("Perhaps handled twice: a consumer that was lost had it first.")
        text = _("Perhaps handled {count} times: consumers that were lost had it, too.")
        return text.format(count=self.perhaps)

    def _certainly(self) -> str:
        if not self.again:
            return ""
        times = times_of(self.attempts)
        unknown = self.count - len(self.attempts)
        if unknown:
            text = ngettext("once at an unknown time", "%(count)d times at unknown times", unknown)
            times.append(text % {"count": unknown})
        text = _("Handled twice: {times}.") if self.count == 2 else _("Handled {count} times: {times}.")  # noqa: PLR2004
        return text.format(count=self.count, times=", ".join(times))


def how_often(certainly: int, perhaps: int) -> str:
    """Return how often a message was handled, and how often perhaps; empty if it was once at most."""
    parts = []
    if certainly > 1:
        text = pgettext("message", "Handled twice")
        if certainly > 2:  # noqa: PLR2004 - twice has a word
            text = pgettext("message", "Handled %(count)d times")
        parts.append(text % {"count": certainly})
    if perhaps > max(certainly, 1):
        text = _("Perhaps handled twice")
        if perhaps > 2:  # noqa: PLR2004
            text = _("Perhaps handled %(count)s times")
        parts.append(text % {"count": perhaps})
    return " · ".join(parts)


def times_of(handled: Sequence[Attempt]) -> list[str]:
    """Return when and by which processes a message was handled, of the first few attempts."""
    each = _("{when} by {process}")
    times = [each.format(when=second(one.ended_at), process=one.process) for one in handled[:MOST_HANDLINGS]]
    return [*times, "…"] if len(handled) > MOST_HANDLINGS else times


def handled_after_another(attempt: Attempt, when: str) -> str:
    """Return the sentence on an attempt that handled what another consumer may have handled."""
    text = _("Handled at %(time)s by %(process)s, delivered before to a consumer that did not acknowledge it")
    return text % {"time": when, "process": attempt.process}


def outcome(message: ParkedMessage, run: RequeueRun | None, act: OperatorAction | None, handled: Handled) -> str:
    """Return what became of the message since it was parked; empty while it is parked.

    ``run`` is the last one that sent it, ``act`` the action that put it into its state.
    """
    parts = (str(handled), _ended(message, run, act), _handled_elsewhere(message, run, handled), erased(message))
    return " ".join(filter(None, parts))


def _handled_elsewhere(message: ParkedMessage, run: RequeueRun | None, handled: Handled) -> str:
    """Return who handled a message that was sent to another queue, or to another handler, than it was parked for."""
    if message.state != State.PROCESSED:
        return ""
    last = handled.attempts[-1] if handled.attempts else None
    queue = last.queue if last else run.target if run else ""
    names = {"queue": queue or message.queue, "own": message.queue or message.parked_in, "made": message.handler}
    if last and message.handler and last.handler != message.handler:
        text = _("{handler} handled it, in {queue}; it was made for {made}, in {own}.")
        return text.format(handler=last.handler or "-", **names)
    if names["queue"] == names["own"]:
        return ""
    return _("It was handled in {queue}; it came from {own}.").format(**names)


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
    doubtful = message.unacked or message.reason in MAY_HAVE_RUN
    return _("A copy of this message may have been handled.") if doubtful else _("A copy of this message is parked.")


def others_of_key(message: ParkedMessage) -> list[tuple[ParkedMessage, str]]:
    """Return what became of the latest other messages with the business key of this one, each with its sentence.

    Of an open one these include the last one that was discarded, which may have been done by hand; of a discarded one
    they are parked, requeued or processed instead of it.
    """
    states = BESIDE_OPEN if message.open else BESIDE_DISCARDED if message.state == State.DISCARDED else ()
    if not states or not message.business_key:
        return []
    rows = ParkedMessage.objects.filter(business_key=message.business_key).exclude(pk=message.pk)
    if message.has_siblings and message.content is not None:
        # Those with the same content are named as copies.
        rows = rows.exclude(content=message.content)
    latest = rows.order_by("-resolved_at", "-pk").values("pk")
    last = (Q(pk=Subquery(latest.filter(state=state)[:1])) for state in states)
    found = ParkedMessage.objects.filter(reduce(or_, last)).defer("body", "properties").order_by("state")
    return [(one, _as_other(one)) for one in found]


def _as_other(message: ParkedMessage) -> str:
    if message.state == State.PROCESSED:
        text = _("Another message with its business key was processed {at}.")
        return text.format(at=_second(message.succeeded_at or message.resolved_at))
    if message.state == State.REQUEUED:
        text = _("Another message with its business key was requeued {at}; its outcome is not known yet.")
        return text.format(at=_second(message.requeued_at))
    if message.state == State.PARKED:
        return _("Another message with its business key is parked.")
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
        text = _("Discarded {at} by {name} ({reason}): no requeue sends it.")
        return text.format(at=_minute(message.resolved_at), name=name, reason=resolution_text(message.resolution))
    if message.state == State.ON_HOLD:
        text = _("On hold until {until}, by {name}")
        if message.hold_reason:
            text = _("On hold until {until}, by {name}: {reason}")
        return text.format(until=_minute(message.held_until), name=name, reason=message.hold_reason)
    return ""


def handled_of(message: ParkedMessage, *, begun: int = 0) -> Handled:
    """Return how often a message was handled, from the database; ``begun`` as ``Handled`` has it."""
    if not message.succeeded_at:
        return Handled(count=0, attempts=(), run=None)
    items = RequeueItem.objects.filter(message=message.pk, handled__gt=0).order_by("-pk")
    return Handled.of(attempts_of(message).filter(verdict=ACK.name), items, begun=begun)


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


def decisions_on(examples: Sequence[tuple[int, str]], *, most: int = MOST_DECISIONS) -> list[tuple[int, str, str]]:
    """Return what was decided on a few messages: number, name and sentence of each; four queries for all of them."""
    rows = ParkedMessage.objects.defer("body", "properties").in_bulk([pk for pk, _name in examples[:most]])
    if not rows:
        return []
    acts, runs = newest_acts(rows.keys(), {*DECIDED_BY.values(), *CHANGING}), _latest_runs(rows.values())
    found: list[tuple[int, str, str]] = []
    for pk, name in examples:
        row, known = rows.get(pk), acts.get(pk, ())
        if row is None:
            continue
        act = next((one for one in known if one.action == DECIDED_BY.get(row.state)), None)
        change = next((one for one in known if one.action in CHANGING), None)
        sentence = outcome(row, runs.get(pk), act, handled_of(row)) or _restored(row, known)
        sentence = sentence or (act_in_words(change) if change else "")
        found += [(pk, name, sentence)] if sentence else []
    return found


def _restored(message: ParkedMessage, acts: Iterable[OperatorAction]) -> str:
    """Return why a restored message had been discarded, and who restored it; empty for any other message."""
    act = next((one for one in acts if one.action == Action.RESTORE), None)
    if act is None or not (message.open and message.restored):
        return ""
    text = _("Discarded ({reason}), then restored by {name}, {when}.")
    return text.format(reason=resolution_text(message.resolution), name=act.who, when=_minute(act.at))


def _latest_runs(rows: Iterable[ParkedMessage]) -> dict[int, RequeueRun]:
    """Return the run that sent each of these messages last, if nobody has discarded or held it."""
    sent = RequeueItem.objects.filter(
        message__in=[row.pk for row in rows if row.state not in DECIDED_BY and row.requeued_at], sent_at__isnull=False
    )
    return {item.message_id: item.run for item in sent.select_related("run").order_by("pk")}


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
    """Return the state of a request, with what became of its messages since, or why it was rejected."""
    became = became_of(known)
    if became:
        return _("Approved: %(became)s") % {"became": became}
    return f"{state}: {known.remark}" if known.state == RequestState.REJECTED and known.remark else state


def became_of(known: ApprovalRequest) -> str:
    """Return what became of the messages of an approved request; empty while nothing was decided, or all was done."""
    if known.state != RequestState.DONE:
        return ""
    if known.run is not None:
        return _run(RequeueRun.objects.filter(pk=known.run).first())
    if known.act == GatedAct.CLOSE_BREAKER:
        return pgettext("what became of it", "breaker closed")
    fates = _fates(known)
    if known.count == fates.total() == 1:
        return next(iter(fates))
    left = Counter({pgettext("what became of it", "left out"): known.count - known.changed})
    return " · ".join(f"{number(count)} {fate}" for fate, count in [*fates.most_common(), *left.items()] if count)


def _fates(known: ApprovalRequest) -> Counter[str]:
    """Return how many of the changed messages of a request came to which end."""
    if known.act not in EDITS:
        return Counter({pgettext("what became of it", "discarded"): known.changed})
    rows = ParkedMessage.objects.filter(pk__in=edited_by(known)).values("state", "requeued_at")
    fates = Counter(_fate(known, row) for row in rows)
    fates[pgettext("what became of it", "deleted since")] = max(known.changed - fates.total(), 0)
    return +fates


def edited_by(known: ApprovalRequest) -> set[int]:
    """Return the messages that an approved edit changed; without the audit log all that it was about."""
    chosen = set(selection_of(known).revisions)
    if known.changed == known.count:
        return chosen
    act = OperatorAction.objects.filter(number=known.acted).first()
    spans = named_by(act) if act else []
    return {pk for pk in chosen if any(first <= pk <= last for first, last in spans)} if spans else chosen


def _fate(known: ApprovalRequest, row: Mapping[str, Any]) -> str:
    """Return what became of an edited message since its edit was approved."""
    ends: dict[str, str] = {
        State.PROCESSED: pgettext("what became of it", "processed"),
        State.DISCARDED: pgettext("what became of it", "stored, then discarded"),
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
    if run.skipped:
        text = _(
            "%(state)s, %(sent)s of %(total)s sent, %(processed)s processed, %(failed)s failed again, "
            "%(skipped)s left out"
        )
    counts = {name: number(getattr(run, name)) for name in ("sent", "total", "processed", "failed", "skipped")}
    text = text % {"state": run.get_state_display(), **counts}
    unsure = ngettext("%(count)d not confirmed", "%(count)d not confirmed", run.unconfirmed)
    return f"{text}, {unsure % {'count': run.unconfirmed}}" if run.unconfirmed else text

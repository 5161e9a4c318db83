"""The timeline of a message, its tracebacks and the activity of operators."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Case, F, JSONField, Q, Subquery, Value, When
from django.http import HttpRequest
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_rmq_retry import database_clock
from django_rmq_retry.admin import labels
from django_rmq_retry.attempts.history import NO_FAILURE, WITHHELD, handlings
from django_rmq_retry.handlers.verdicts import returns_told
from django_rmq_retry.health.begun import Begun
from django_rmq_retry.health.doubts import finding_of
from django_rmq_retry.markup import time_span
from django_rmq_retry.models import (
    Action,
    ApprovalRequest,
    Attempt,
    ConsumerProcess,
    EarlyRetry,
    GatedAct,
    ItemReason,
    ItemState,
    OperatorAction,
    ParkedMessage,
    RequestState,
    RequeueItem,
    State,
)
from django_rmq_retry.models.parked import reason_text
from django_rmq_retry.parked import missed_discards
from django_rmq_retry.parked.database import records_alias
from django_rmq_retry.parked.edited_keys import key_change_in
from django_rmq_retry.parked.links import trace_link
from django_rmq_retry.parked.operators import refusal
from django_rmq_retry.policies.verdict import ACK, DUPLICATE, Kind

MOST_ATTEMPTS_READ = 200
"""The newest attempts of a group that are searched for its deploys."""
MOST_DEPLOYS = 3
CHANGED: Mapping[str, Any] = {
    Action.DISCARD: gettext_lazy("Discarded by %(name)s"),
    Action.RESTORE: gettext_lazy("Restored by %(name)s"),
    Action.HOLD: gettext_lazy("Put on hold by %(name)s"),
    Action.UNHOLD: gettext_lazy("Taken off hold by %(name)s"),
    Action.EDIT: gettext_lazy("Edited by %(name)s"),
    Action.ASK: gettext_lazy("Approval asked for by %(name)s"),
    Action.APPROVE: gettext_lazy("Approved by %(name)s"),
    Action.REJECT: gettext_lazy("Rejected by %(name)s"),
    Action.CHECK: gettext_lazy("Checked by %(name)s"),
}
"""Actions that changed what is known of the message, or were meant to; a view of it is not among them."""
WITHDRAWN = gettext_lazy("Withdrawn by %(name)s")
OF_REQUESTS = (Action.ASK, Action.APPROVE, Action.REJECT)
GAVE_UP = re.compile(r"Gave up after (\d+) attempts?")
CLOCK_DIFFERENCE = timedelta(minutes=1)
"""The most by which the clocks of two hosts may differ: a message is parked after the attempt that parked it."""
EVENT_STEP = timedelta(microseconds=1)
"""The distance by which the later of two events with the same time is shown after the earlier."""
SIGNS = {
    "parked": "■",
    "failed": "✕",
    "succeeded": "✓",
    "spared": "↷",
    "begun": "!",
    "waited": "…",
    "action": "●",
    "sent": "→",
    "published": "→",
}
MOST_ACTIONS_SHOWN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceLine:
    file: str
    line: str
    function: str
    code: str
    own: bool

    def __str__(self) -> str:
        place = f'  File "{self.file}", line {self.line}, in {self.function}'
        return f"{place}\n    {self.code}" if self.code else place


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceCause:
    error: str
    text: str
    lines: tuple[TraceLine, ...]

    @property
    def own(self) -> tuple[TraceLine, ...]:
        return tuple(line for line in self.lines if line.own)

    @property
    def sentence(self) -> str:
        return f"{self.error}: {self.text}" if self.text else self.error


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """The traceback of an attempt, as far as it was stored."""

    attempt: Attempt
    causes: tuple[TraceCause, ...]

    @property
    def full(self) -> str:
        """Return the text as Python prints it, ready to copy; the newest exception is last."""
        return "\n\n".join("\n".join([*map(str, cause.lines), cause.sentence]) for cause in reversed(self.causes))


def trace_of(attempt: Attempt) -> Trace | None:
    causes = tuple(_causes(attempt.chain))
    return Trace(attempt=attempt, causes=causes) if causes else None


def latest(
    fingerprint: str, handlers: Collection[str], *, traced: bool
) -> tuple[Trace | None, list[tuple[str, datetime | None]]]:
    """Return the newest traceback of a group and the deploys of its newest attempts, by one query.

    The traceback is one of these handlers, whose messages are parked, if one of their attempts is among the newest; if
    another handler failed after them, this needs a second query.

    Each deploy has the time since when it was seen, newest first; None for the oldest, which may have begun earlier.
    """
    attempts = Attempt.objects.filter(fingerprint=fingerprint).order_by("-started_at", "-pk")
    # Read the chain of one row only, because a chain is long.
    newest = [When(pk=Subquery(attempts.values("pk")[:1]), then=F("chain"))] if traced else []
    newest_chain = Case(*newest, default=Value(None), output_field=JSONField(null=True))
    few = attempts.only("identity", "handler", "started_at", "host", "pid", "deploy")
    rows = list(few.annotate(newest_chain=newest_chain)[:MOST_ATTEMPTS_READ])
    since: dict[str, datetime | None] = {attempt.deploy: attempt.started_at for attempt in rows if attempt.deploy}
    if len(rows) == MOST_ATTEMPTS_READ and rows[-1].deploy:
        since[rows[-1].deploy] = None
    if not rows or not traced:
        return None, list(since.items())[:MOST_DEPLOYS]
    shown = next((row for row in rows if row.handler in handlers), rows[0])
    shown.chain = shown.newest_chain
    if shown.pk != rows[0].pk:
        shown.chain = Attempt.objects.filter(pk=shown.pk).values_list("chain", flat=True).first()
    return trace_of(shown), list(since.items())[:MOST_DEPLOYS]


def _causes(chain: Any) -> Iterator[TraceCause]:
    for entry in chain if isinstance(chain, list) else ():
        if isinstance(entry, Mapping):
            frames = entry.get("frames")
            lines = tuple(_lines(frames if isinstance(frames, list) else []))
            yield TraceCause(error=str(entry.get("error", "")), text=str(entry.get("text", "")), lines=lines)


def _lines(frames: list[Any]) -> Iterator[TraceLine]:
    for frame in frames:
        if isinstance(frame, Mapping):
            texts = {name: str(frame.get(name, "")) for name in ("file", "line", "function", "code")}
            yield TraceLine(**texts, own=bool(frame.get("own")))


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineEvent:
    at: datetime
    kind: str
    title: str
    text: str = ""
    attempt: Attempt | None = None
    trace: Trace | None = None
    spans: str = ""
    """The address of the attempt's spans in the tracing system."""
    run: int | None = None
    request: int | None = None
    """The request for a second person that it is about."""
    open: bool = False
    same: tuple["TimelineEvent", ...] = ()
    """Attempts, newest first, that failed with the error of the attempt above them; each with its wait as text."""

    @property
    def sign(self) -> str:
        return SIGNS[self.kind]


def timeline(
    message: ParkedMessage,
    attempts: Sequence[Attempt],
    actions: Sequence[OperatorAction],
    items: Sequence[RequeueItem],
    retries: Iterable[EarlyRetry],
    *,
    requests: Sequence[ApprovalRequest] = (),
    begun: Iterable[Begun] = (),
    died: Iterable[ConsumerProcess] = (),
    without: Iterable[Any] = (),
) -> list[TimelineEvent]:
    """Return all events; attempts arrive newest first, and only the newest is unfolded.

    ``without`` are the actions that left the message out by a key.
    """
    events = [*_own(message, attempts), *_actions(message, actions), *_sent(items, attempts), *_sent_early(retries)]
    events += [*_left_out(items, actions), *_ended_requests(message, requests, actions), *_left_out_by_key(without)]
    events += [*_earlier_parkings(message, attempts, items), *_begun(begun), *_died(message, died)]
    handled = handlings(attempts)
    for place, attempt in enumerate(attempts):
        lost = (attempt in handled or _cut_off(attempt)) and _came_again(attempt, attempts)
        events += _attempt(attempt, newest=place == 0, again=attempt in handled[1:], ack_lost=lost)
    return list(_folded(sorted(events, key=lambda event: event.at, reverse=True)))


def _folded(events: Iterable[TimelineEvent]) -> Iterator[TimelineEvent]:
    """Put attempts together that follow one with the same error: only what differs is worth reading."""
    last: TimelineEvent | None = None
    waits: list[TimelineEvent] = []
    same: list[TimelineEvent] = []
    for event in events:
        if event.kind == "waited":
            waits.append(event)
            continue
        if last is not None and _fails_alike(last, event):
            same.append(replace(event, text=" ".join(wait.title for wait in waits), open=False))
        else:
            yield from _put_together(same)
            yield from waits
            yield event
            last, same = (event if event.kind == "failed" else None), []
        waits = []
    yield from _put_together(same)
    yield from waits


def _fails_alike(one: TimelineEvent, other: TimelineEvent) -> bool:
    attempts = [event.attempt for event in (one, other) if event.attempt is not None]
    if any(attempt.interrupted for attempt in attempts):
        return False
    return other.kind == "failed" and one.text == other.text and len({attempt.cycle for attempt in attempts}) == 1


def _put_together(same: Sequence[TimelineEvent]) -> Iterator[TimelineEvent]:
    if not same:
        return
    numbers = sorted(event.attempt.number for event in same if event.attempt is not None)
    first, last = numbers[0], numbers[-1]
    in_row = len(numbers) > 2 and last - first == len(numbers) - 1  # noqa: PLR2004 - two are named
    shown = f"{first}-{last}" if in_row else ", ".join(map(str, numbers))
    title = ngettext("Attempt %(numbers)s: same error", "Attempts %(numbers)s: same error", len(numbers))
    yield TimelineEvent(at=same[0].at, kind="failed", title=title % {"numbers": shown}, same=tuple(same))


def deaths_in_words(message: ParkedMessage) -> str:
    """Return the same as a sentence; empty if it is not known."""
    count = returns_told(message.detail)
    if not count:
        return ""
    text = ngettext(
        "At least %(count)d time a worker took it and stopped, or lost its connection.",
        "At least %(count)d times a worker took it and stopped, or lost its connection.",
        count,
    )
    return text % {"count": count}


def _detail_in_words(detail: str) -> str:
    """Return why a consumer parked a message, which it writes in English, with the common beginning translated."""
    gave_up = GAVE_UP.match(detail)
    if gave_up is None:
        return detail
    count = int(gave_up[1])
    text = ngettext("Gave up after %(count)d attempt", "Gave up after %(count)d attempts", count) % {"count": count}
    return f"{text}{detail[gave_up.end() :]}"


def _own(message: ParkedMessage, attempts: Sequence[Attempt]) -> Iterator[TimelineEvent]:
    ended = next((attempt.ended_at for attempt in _parking(attempts)), None)
    if message.published_at:
        yield TimelineEvent(at=message.published_at, kind="published", title=_("Published"))
    text = deaths_in_words(message) or _detail_in_words(message.detail) or message.error_text
    at = message.parked_at
    if ended is not None and at <= ended < at + CLOCK_DIFFERENCE:
        at = ended + EVENT_STEP
    title = _("Parked: %(reason)s") % {"reason": reason_text(message.reason)}
    yield TimelineEvent(at=at, kind="parked", title=title, text=text)
    if message.came_back and message.discarded_at:
        began = [one.started_at for one in attempts if one.started_at > message.discarded_at]
        yield TimelineEvent(
            at=min([at, *began]) - EVENT_STEP, kind="published", title=_("Arrived again after it was discarded")
        )
    if message.succeeded_at:
        # The clock of the host that handled it may differ: show the outcome after the attempt that caused it.
        done = [one.ended_at for one in attempts if one.verdict in NO_FAILURE]
        at = max([message.succeeded_at, *(end for end in done if abs(end - message.succeeded_at) < CLOCK_DIFFERENCE)])
        yield TimelineEvent(at=at + EVENT_STEP, kind="succeeded", title=_("Handled by its consumer"))


def _parking(attempts: Iterable[Attempt]) -> list[Attempt]:
    """Return the attempts after which the message was parked."""
    return [attempt for attempt in attempts if attempt.verdict == Kind.PARK.value and not attempt.interrupted]


def _earlier_parkings(
    message: ParkedMessage, attempts: Sequence[Attempt], items: Iterable[RequeueItem]
) -> Iterator[TimelineEvent]:
    """Yield each parking before the last one, of which the message itself has the time.

    Why it was parked without an attempt, such as one whose workers died, is only known of the last one.
    """
    ended = {item.cycle: item.ended_at for item in items if item.state == ItemState.FAILED and item.ended_at}
    told = {attempt.cycle for attempt in _parking(attempts)}
    for cycle, at in {**ended, 1: message.recorded_at}.items():
        if cycle < message.parked_cycle and cycle not in told:
            yield TimelineEvent(at=at, kind="parked", title=str(State.PARKED.label))
    for place, attempt in enumerate(_parking(attempts)):
        if place or abs(attempt.ended_at - message.parked_at) >= CLOCK_DIFFERENCE:
            title = _("Parked: %(reason)s") % {"reason": reason_text(attempt.reason)}
            yield TimelineEvent(at=attempt.ended_at + EVENT_STEP, kind="parked", title=title)


def _cut_off(attempt: Attempt) -> bool:
    """Return True if a failed attempt was cut off, if another one has its number: what was settled counts on.

    What only goes back to its queue, as while a breaker is open, waits for nothing and keeps its number.
    """
    return attempt.redelivered and attempt.verdict not in NO_FAILURE and bool(attempt.wait or attempt.interrupted)


def _came_again(earlier: Attempt, attempts: Iterable[Attempt]) -> bool:
    """Return True if a copy was delivered again after an attempt, and not because that had failed."""
    since = [one for one in attempts if one.redelivered and one.started_at > earlier.started_at]
    return any((one.cycle, one.number) == (earlier.cycle, earlier.number) for one in since)


def _attempt(attempt: Attempt, *, newest: bool, again: bool, ack_lost: bool) -> Iterator[TimelineEvent]:
    """Yield an attempt; ``again`` is True if its handler did its work once more."""
    ended = attempt.ended_at
    succeeded = attempt.verdict == ACK.name
    if attempt.wait:
        text = _("Next attempt after %(span)s") % {"span": time_span(attempt.wait)}
        yield TimelineEvent(at=ended + EVENT_STEP, kind="waited", title=text)
    values: dict[str, Any] = {"number": attempt.number}
    kind, title = "failed", _("Attempt %(number)d failed")
    came_again = _("Delivered before to a consumer that did not acknowledge it") if attempt.redelivered else ""
    if ack_lost:
        # A consumer whose connection is lost marks its attempt, too.
        came_again = _("Its connection was lost before its acknowledgement arrived")
    text = ". ".join(filter(None, (came_again, attempt.failure)))
    if attempt.interrupted:
        title = _("Attempt %(number)d failed; parking was interrupted, and the broker delivered the message again")
    if attempt.verdict == DUPLICATE.name:
        kind, title = "spared", _("Delivered again, and not handled again (once=True)")
    elif attempt.verdict == WITHHELD:
        kind, title = "spared", _("A copy came and was dropped, not handled")
        text = _("Its status then: %(state)s") % {"state": dict(State.choices).get(attempt.reason, attempt.reason)}
    elif succeeded:
        kind, title = "succeeded", _("Handled again: attempt %(number)d succeeded")
        if not again:
            title = _("Attempt %(number)d succeeded")
    yield TimelineEvent(
        at=ended,
        kind=kind,
        title=title % values,
        text=text,
        attempt=attempt,
        trace=trace_of(attempt),
        spans=trace_link(attempt.traceparent),
        open=newest and kind == "failed",
    )


def _actions(message: ParkedMessage, actions: Iterable[OperatorAction]) -> Iterator[TimelineEvent]:
    for action in actions:
        if action.action in CHANGED:
            keys = key_change_in(action.details, message.pk)
            changed = _("Business key: %(change)s") % {"change": keys} if keys else ""
            title = (WITHDRAWN if action.withdraws else CHANGED[action.action]) % {"name": action.who}
            yield TimelineEvent(
                at=action.at,
                kind="action",
                title=title,
                request=action.details.get("request") if action.action in OF_REQUESTS else None,
                text=" · ".join(filter(None, (changed, finding_of(action), labels.action_reason(action)))),
            )


def _sent(items: Iterable[RequeueItem], attempts: Sequence[Attempt]) -> Iterator[TimelineEvent]:
    for item in items:
        sent_at = item.sent_at
        if sent_at is None and item.ended_at and item.state in (ItemState.PROCESSED, ItemState.FAILED):
            # Its sender was killed before it could write when: by the message itself, maybe.
            sent_at = item.ended_at - EVENT_STEP
        if sent_at:
            # The sender's clock may be ahead: the attempts of its own cycle began afterwards.
            began = [one.started_at - EVENT_STEP for one in attempts if item.cycle and one.cycle == item.cycle]
            at = min([sent_at, *(begin for begin in began if sent_at - begin < CLOCK_DIFFERENCE)])
            title = _("Requeued by %(name)s") % {"name": item.run.who}
            yield TimelineEvent(at=at, kind="sent", title=title, text=_run_text(item), run=item.run_id)


def _left_out(items: Iterable[RequeueItem], actions: Iterable[OperatorAction]) -> Iterator[TimelineEvent]:
    """Yield that a run did not send the message, and why; after the approval of the run, if it needed one."""
    approved = {act.run: act.at + EVENT_STEP for act in actions if act.action == Action.APPROVE and act.run}
    for item in items:
        if item.state == ItemState.SKIPPED and item.ended_at and not item.sent_at:
            at = max(item.ended_at, approved.get(item.run_id, item.ended_at))
            stopped, why = item.skip_code == ItemReason.STOPPED, str(item.get_skip_code_display())
            title = _("Not sent by the requeue") if stopped else _("Left out of the requeue")
            yield TimelineEvent(at=at, kind="spared", title=title, text=why, run=item.run_id)


def _left_out_by_key(actions: Iterable[Any]) -> Iterator[TimelineEvent]:
    """Yield that an operator left the message out of a requeue or a discard by a key."""
    titles = {Action.REQUEUE: _("Left out of the requeue"), Action.DISCARD: _("Left out of the discard")}
    for act in actions:
        if act.action in titles:
            by_key = _("%(key)s was left out by %(name)s") % {"key": act.left_out, "name": act.who}
            text = " · ".join(filter(None, (by_key, labels.action_reason(act))))
            yield TimelineEvent(at=act.at, kind="spared", title=titles[act.action], text=text, run=act.run)


def _ended_requests(
    message: ParkedMessage, requests: Sequence[ApprovalRequest], actions: Sequence[OperatorAction]
) -> Iterator[TimelineEvent]:
    """Yield that a request expired, or that its approved discard left the message out."""
    now = database_clock.now(records_alias())
    approved = [one.pk for one in requests if one.act == GatedAct.DISCARD and one.decided_at]
    missed = missed_discards.by_request(message.pk, approved)
    for one in requests:
        if one.state == RequestState.WAITING and one.expires_at <= now:
            title = _("%(request)s expired") % {"request": one}
            yield TimelineEvent(at=one.expires_at, kind="action", title=title, request=one.pk)
        if one.pk in missed and one.decided_at:
            title, text = _("Left out of the discard"), missed_discards.why(missed[one.pk], one, actions)
            at = max([one.decided_at, *(act.at for act in actions if act.details.get("request") == one.pk)])
            yield TimelineEvent(at=at + EVENT_STEP, kind="spared", title=title, text=text, request=one.pk)


def _run_text(item: RequeueItem) -> str:
    """Return the operator's reason for the run, and why it was not confirmed."""
    return " · ".join(filter(None, (item.run.reason, str(item.get_skip_code_display()))))


def _begun(begun: Iterable[Begun]) -> Iterator[TimelineEvent]:
    for one in begun:
        text = _("It was lost before it could say what it had done: that may have been done.")
        yield TimelineEvent(at=one.at, kind="begun", title=_("Begun by %(process)s") % {"process": one}, text=text)


def _died(message: ParkedMessage, processes: Iterable[ConsumerProcess]) -> Iterator[TimelineEvent]:
    for one in processes:
        title = _("A consumer of its queue was lost, perhaps with this message: %(process)s") % {"process": one}
        # Others noticed its end later, perhaps after the message was parked; its last heartbeat may be from before.
        at = max(one.beat_at, message.published_at + EVENT_STEP if message.published_at else one.beat_at)
        yield TimelineEvent(at=at, kind="begun", title=title, text=one.why_ended)


def _sent_early(retries: Iterable[EarlyRetry]) -> Iterator[TimelineEvent]:
    for retry in retries:
        title = _("Sent before it was due by %(name)s") % {"name": retry.run.by}
        yield TimelineEvent(at=retry.sent_at, kind="sent", title=title, run=retry.run_id)


def activity(request: HttpRequest, *about: Q, most: int = MOST_ACTIONS_SHOWN, **fields: int) -> dict[str, Any]:
    """Return the newest actions that the user may see, and the reason if the user sees none."""
    why = refusal(request.user, "view_audit")
    if why:
        return {"activity": (), "no_activity": why}
    actions = OperatorAction.objects.filter(*about, **fields).order_by("-number")
    only_own = bool(refusal(request.user, "view_all_audit"))
    seen = actions.filter(actor=request.user.pk) if only_own else actions
    return {"activity": with_reasons(seen[:most]), "no_activity": "", "only_own": only_own}


def with_reasons(actions: Iterable[OperatorAction]) -> list[tuple[OperatorAction, str]]:
    return [(action, labels.action_reason(action)) for action in actions]

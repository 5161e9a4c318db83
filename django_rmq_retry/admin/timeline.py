"""What happened to a message, the newest first: attempts, waits, parking, what people did, what came of it."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.utils.translation import gettext as _

from django_rmq_retry.admin import labels
from django_rmq_retry.admin.tracing import Trace, trace_of
from django_rmq_retry.models import Attempt, Item, OperatorAction, ParkedMessage, Verb
from django_rmq_retry.templatetags.rmq_retry import rmq_span

TOLD = {Verb.DISCARD, Verb.RESTORE, Verb.HOLD, Verb.RELEASE, Verb.EDIT}
"""Acts that changed what became of the message; looking at it did not."""
BESIDE = timedelta(minutes=1)
"""So far the clocks of two machines may be apart: a message is parked after the attempt that led to it."""
SIGNS = {"parked": "■", "failed": "✕", "succeeded": "✓", "waited": "…", "act": "●", "sent": "→", "published": "→"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One line of the history."""

    at: datetime
    kind: str
    title: str
    said: str = ""
    attempt: Attempt | None = None
    trace: Trace | None = None
    run: int | None = None
    open: bool = False

    @property
    def sign(self) -> str:
        return SIGNS[self.kind]


def timeline(
    message: ParkedMessage, attempts: Sequence[Attempt], acts: Iterable[OperatorAction], items: Iterable[Item]
) -> list[Event]:
    """All of it; attempts come newest first, and only the last of them is unfolded."""
    found = [*_own(message, _ended(attempts)), *_acts(acts), *_sent(items)]
    for place, attempt in enumerate(attempts):
        found += _attempt(attempt, newest=place == 0)
    return sorted(found, key=lambda event: event.at, reverse=True)


def _ended(attempts: Sequence[Attempt]) -> datetime | None:
    """When the attempt ended that led to the parking."""
    last = next((attempt for attempt in attempts if attempt.verdict == "park"), None)
    return last.started_at + timedelta(seconds=last.seconds) if last else None


def _own(message: ParkedMessage, ended: datetime | None) -> Iterator[Event]:
    if message.published_at:
        yield Event(at=message.published_at, kind="published", title=_("Published"))
    said = message.detail or message.error_text
    at = message.parked_at
    if ended is not None and at <= ended < at + BESIDE:
        at = ended + timedelta(microseconds=1)
    title = _("Parked: %(reason)s") % {"reason": labels.reason(message.reason)}
    yield Event(at=at, kind="parked", title=title, said=said)
    if message.succeeded_at:
        yield Event(at=message.succeeded_at, kind="succeeded", title=_("Handled by its consumer"))


def _attempt(attempt: Attempt, *, newest: bool) -> Iterator[Event]:
    ended = attempt.started_at + timedelta(seconds=attempt.seconds)
    succeeded = attempt.verdict == "ack"
    if attempt.wait:
        said = _("waits %(span)s for its next attempt") % {"span": rmq_span(attempt.wait)}
        yield Event(at=ended + timedelta(microseconds=1), kind="waited", title=said)
    values: dict[str, Any] = {"number": attempt.number}
    title = _("Attempt %(number)d succeeded") if succeeded else _("Attempt %(number)d failed")
    yield Event(
        at=ended,
        kind="succeeded" if succeeded else "failed",
        title=title % values,
        said=f"{attempt.error}: {attempt.error_text}" if attempt.error_text else attempt.error,
        attempt=attempt,
        trace=trace_of(attempt),
        open=newest and not succeeded,
    )


def _acts(acts: Iterable[OperatorAction]) -> Iterator[Event]:
    for act in acts:
        if act.verb in TOLD:
            title = _("%(act)s by %(name)s") % {"act": act.get_verb_display(), "name": act.actor_name}
            yield Event(at=act.at, kind="act", title=title, said=labels.act_reason(act))


def _sent(items: Iterable[Item]) -> Iterator[Event]:
    for item in items:
        if item.sent_at:
            title = _("Requeued by %(name)s") % {"name": item.run.by}
            yield Event(at=item.sent_at, kind="sent", title=title, said=_(item.why), run=item.run_id)

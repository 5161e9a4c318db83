"""What a requeue run's state says: its badge and outcome, and whether it waits for the broker."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from django.utils.html import format_html_join
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_rmq_retry import database_clock
from django_rmq_retry.admin.broker_look import Look
from django_rmq_retry.health.processes import lost_since_now
from django_rmq_retry.markup import MIXED, visible
from django_rmq_retry.models import ItemState, RequeueRun, RunState, RunWait
from django_rmq_retry.models.runs import SENT_LATELY
from django_rmq_retry.parked.database import records_alias
from django_rmq_retry.wording import counted, number

SIGNS = {
    ItemState.PROCESSED: ("processed", "✓"),
    ItemState.FAILED: ("parked", "✕"),
    ItemState.SENT: ("requeued", "…"),
    ItemState.UNCONFIRMED: ("on-hold", "?"),
    ItemState.SKIPPED: ("discarded", "↷"),
    ItemState.PENDING: ("requeued", "○"),
}
"""The badge and the sign of each part of a run."""
NOWHERE: Mapping[ItemState, str] = {}


def waits_for_broker(run: RequeueRun, seen: Look) -> bool:
    """True if nobody sends the run, because the broker is away for this process and, as far as is known, for all.

    Consumers say whether they have lost it. A lease says nothing: a driver that has just lost its connection has one
    too. Of others only what was sent since this process lost its own shows that they have a connection.
    """
    if not seen.unreachable or run.wait == RunWait.BROKER_AWAY:
        return bool(seen.unreachable)
    if lost_since_now():
        return True
    # Slow runs send less often.
    since = database_clock.reckoned(records_alias()) - max(SENT_LATELY, timedelta(seconds=2 / run.rate))
    since = max(since, seen.since) if seen.since else since
    return run.sent_at is None or run.sent_at < since


@dataclass(frozen=True, slots=True)
class Part:
    """Those messages of a run that have one state: all parts add up to the run."""

    state: ItemState
    count: int
    words: SafeString
    shown_at: str = ""
    """Where they are shown; empty if nowhere."""

    @property
    def kind(self) -> str:
        return SIGNS[self.state][0] if self.count else "skipped"

    @property
    def sign(self) -> str:
        return SIGNS[self.state][1]


def parts(run: RequeueRun, *, over: bool, not_sent: int = 0, shown_at: Mapping[ItemState, str] = NOWHERE) -> list[Part]:
    """Return the parts of a run, without empty ones except for its outcomes; of one that is over nothing comes.

    Of those that a stopped run has left out it had so many still to send, which nothing was wrong with.
    """
    tally = run.tally
    tally[ItemState.SKIPPED] -= not_sent
    tally[ItemState.PENDING] += not_sent
    outcomes = (ItemState.PROCESSED, ItemState.FAILED)
    return [
        Part(state, count, _in_words(state, count, run, over=over), shown_at.get(state, "") if count else "")
        for state, count in tally.items()
        if count or state in outcomes
    ]


def sum_of(run: RequeueRun, not_sent: int = 0) -> SafeString:
    """Return the parts of a run as a sum in one line: "170 = 160 processed + 6 failed again + 4 left out"."""
    shown = parts(run, over=run.state == RunState.FINISHED, not_sent=not_sent)
    words = [one.words for one in shown if one.count]
    signs = ["", "= ", *["+ "] * len(words)] if len(words) > 1 else [""]
    terms = [number(run.total), *words] if len(words) > 1 else words
    return format_html_join(" ", '<span class="rmq-whole">{}{}</span>', zip(signs, terms, strict=False))


def _in_words(state: ItemState, count: int, run: RequeueRun, *, over: bool) -> SafeString:
    texts = {
        ItemState.PROCESSED: ngettext(
            "<strong>%(counter)s</strong> processed", "<strong>%(counter)s</strong> processed", count
        ),
        ItemState.FAILED: ngettext(
            "<strong>%(counter)s</strong> failed again", "<strong>%(counter)s</strong> failed again", count
        ),
        ItemState.SENT: ngettext(
            "<strong>%(counter)s</strong> waiting for outcome",
            "<strong>%(counter)s</strong> waiting for outcome",
            count,
        ),
        ItemState.UNCONFIRMED: ngettext(
            "<strong>%(counter)s</strong> not confirmed", "<strong>%(counter)s</strong> not confirmed", count
        ),
        ItemState.SKIPPED: ngettext(
            "<strong>%(counter)s</strong> left out", "<strong>%(counter)s</strong> left out", count
        ),
        ItemState.PENDING: ngettext(
            "<strong>%(counter)s</strong> not sent yet", "<strong>%(counter)s</strong> not sent yet", count
        ),
    }
    if run.state == RunState.STOPPED:
        texts[ItemState.PENDING] = ngettext(
            "<strong>%(counter)s</strong> not sent", "<strong>%(counter)s</strong> not sent", count
        )
    if over:
        texts[ItemState.SENT] = ngettext(
            "<strong>%(counter)s</strong> without an outcome", "<strong>%(counter)s</strong> without an outcome", count
        )
    return mark_safe(counted(texts[state], counter=count))  # noqa: S308 - translations are ours


def run_outcome(
    run: RequeueRun, *, unreachable: bool = False, held: str = "", checked: bool = False, resolved: bool = False
) -> tuple[str, str]:
    """Return the badge's name and text: a finished requeue run shows its outcomes, a sending one needs a broker.

    One that waits shows which stopped queue it waits for; ``held`` has these words. It calls for nobody any more if an
    operator has ``checked`` what was handled twice, or perhaps, and if what was left of it is ``resolved``.
    """
    if run.state == RunState.RUNNING:
        return _sending(run, unreachable=unreachable, held=held)
    if run.state != RunState.FINISHED:
        guarded = run.state == RunState.PAUSED and run.wait == RunWait.GUARD
        return run.state, _because(_("Paused by its guard") if guarded else run.get_state_display(), held)
    doubt = (run.handled_twice or run.perhaps_twice) and not checked
    calm, left = MIXED if doubt else run.state, _left(run)
    if left is None:
        return (calm, run.get_state_display()) if run.sent else (ItemState.SKIPPED, _("Nothing was sent"))
    kind, text = left
    return (calm, "\N{NO-BREAK SPACE}· ".join([text, _("all resolved since")])) if resolved else (kind, text)


def _left(run: RequeueRun) -> tuple[str, str] | None:
    """Return the badge's name and text for what a finished run has not done; None if all that it sent was processed."""
    failed = ngettext("%(count)d failed again", "%(count)d failed again", run.failed)
    unsure = ngettext("%(count)d not confirmed", "%(count)d not confirmed", run.unconfirmed)
    known = [counted(text, count=count) for text, count in ((failed, run.failed), (unsure, run.unconfirmed)) if count]
    if run.failed:
        return MIXED if run.processed else ItemState.FAILED, " · ".join(known)
    silent = run.sent - run.processed
    if run.unconfirmed:
        return ItemState.UNCONFIRMED, " · ".join(known)
    if run.sent and silent > 0:
        text = ngettext("%(count)d without an outcome", "%(count)d without an outcome", silent)
        return RunState.WAITING, counted(text, count=silent)
    return None


def _because(text: str, held: str) -> str:
    return f"{text} · {visible(held)}" if held else text


def _sending(run: RequeueRun, *, unreachable: bool, held: str) -> tuple[str, str]:
    now = database_clock.reckoned(records_alias())
    if run.is_sent:
        return RunState.WAITING, _because(str(RunState.WAITING.label), held)
    if not unreachable and run.is_silent(now):
        return RunState.PAUSED, _("Standing still")
    if unreachable or run.wait == RunWait.BROKER_AWAY:
        return RunState.PLANNED, _("Waiting for the broker")
    if run.nothing_sent_since(now):
        return RunState.PLANNED, _because(_("Sends nothing now"), held)
    return run.state, run.get_state_display()

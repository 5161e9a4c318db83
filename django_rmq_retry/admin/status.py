"""The Live status page: problems first, then the numbers."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.contrib import admin
from django.db import Error
from django.db.models import Count, Max, Min
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.formats import date_format
from django.utils.translation import gettext as _
from django.utils.translation import ngettext, ngettext_lazy

from django_rmq_retry import database_clock
from django_rmq_retry.admin import broker_look, labels
from django_rmq_retry.admin.pages import Pages, refusal
from django_rmq_retry.admin.queues import Standing, Standstills
from django_rmq_retry.admin.timeline import activity
from django_rmq_retry.breakers.table import halted
from django_rmq_retry.handlers import registry
from django_rmq_retry.health.facts import blocked, outbox, parked
from django_rmq_retry.health.problems import Judged, Limits, blind, in_blocked, in_outbox
from django_rmq_retry.health.rules import Code
from django_rmq_retry.models import Attempt, ErrorGroup, LiveStatus, QueueControl, RequeueRun
from django_rmq_retry.models.runs import ACTIVE
from django_rmq_retry.parked import declared
from django_rmq_retry.parked.database import database
from django_rmq_retry.parked.retention import clocks_differ
from django_rmq_retry.templatetags.rmq_retry import rmq_span

Address = Callable[..., str]

MOST_ALARMS = 3
OUTBOX: Mapping[Code, Any] = {
    Code.OUTBOX_FAILED: ngettext_lazy(
        "%(count)d message in the outbox cannot be published and needs an operator.",
        "%(count)d messages in the outbox cannot be published and need an operator.",
        "count",
    ),
    Code.OUTBOX_OVERDUE: ngettext_lazy(
        "%(count)d message in the outbox has not been published for %(span)s.",
        "%(count)d messages in the outbox have not been published; the oldest has waited for %(span)s.",
        "count",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """One problem that needs attention, with a link."""

    text: str
    address: str = ""
    link: str = ""


def halted_text(line: QueueControl) -> str:
    """Return a sentence with the time since when an ordered queue is halted, and the reason."""
    text = _("halted since %(time)s at attempt %(count)d: %(error)s")
    at = "" if line.halted_at is None else date_format(timezone.localtime(line.halted_at), "H:i:s")
    return text % {"time": at, "count": line.halted_attempt or 0, "error": line.halted_error.rstrip(".")}


def alarms(
    request: HttpRequest,
    rows: Sequence[Judged],
    still: Mapping[str, Standing],
    *,
    recent: int,
    address: Address,
    halts: Sequence[QueueControl] = (),
) -> Iterator[Alarm]:
    """Yield all alarms; a page shows the first few."""
    apart = clocks_differ()
    if apart:
        yield Alarm(text=apart)
    yield from _unpublished(request, address)
    if any(problem.code is Code.BLOCKED_FULL for problem in in_blocked(blocked())):
        keys = "" if refusal(request, "view_key") else address("blockedkey_changelist")
        yield Alarm(text=_too_many(), address=keys, link=_("Blocked keys"))
    queues, link = address("queuecontrol_changelist"), _("Open the queues")
    for queue, one in still.items():
        yield Alarm(text=f"{queue}: {one.explanation}", address=queues, link=link)
    for line in halts:
        yield Alarm(text=f"{line.queue}: {halted_text(line)}.")
    yield from (Alarm(text=problem.line) for row in rows for problem in row.errors)
    if recent:
        yield _just_parked(recent, address)


def _unpublished(request: HttpRequest, address: Address) -> Iterator[Alarm]:
    rows = "" if refusal(request, "view_outbox") else address("outboxmessage_changelist")
    way: dict[str, Any] = {"address": rows, "link": _("Open the outbox")}
    try:
        figures = outbox()
    except Error:
        # A database is away. The pages that need it report that; this page must still work, now above all.
        yield Alarm(text=_("The outbox cannot be read: its database does not answer."), **way)
        return
    for problem in in_outbox(figures, database_clock.now(database()), Limits()):
        since = (database_clock.now(database()) - problem.since).total_seconds() if problem.since else 0
        words = {"count": problem.count, "span": rmq_span(since)}
        yield Alarm(text=str(OUTBOX[problem.code] % words), **way)


def _just_parked(recent: int, address: Address) -> Alarm:
    group = ErrorGroup.objects.filter(parked__gt=0, muted=False).order_by("-last_seen").first()
    text = ngettext(
        "%(count)d message was parked in the last 10 minutes.",
        "%(count)d messages were parked in the last 10 minutes.",
        recent,
    ) % {"count": recent}
    if group is None:
        return Alarm(text=text)
    cause = _("Last cause: %(cause)s.") % {"cause": group}
    return Alarm(text=f"{text} {cause}", address=address("errorgroup_change", group.pk), link=_("Open the group"))


def _too_many() -> str:
    """Return the same sentences as on the page of blocked keys."""
    text = _(
        "Consumers take only one further message a second, which slows down its queue. Resolve the messages "
        "that go first, or raise BLOCKED_PER_KEY or BLOCKED_TOTAL."
    )
    return f"{_('Too many messages wait behind blocked keys.')} {text}"


@admin.register(LiveStatus)
class LiveStatusAdmin(Pages):
    sees = "view_status"
    one_page = True

    def list_page(self, request: HttpRequest, **more: Any) -> HttpResponse:
        broker_look.remember(declared.rows())
        seen, halts = broker_look.look(), halted()
        stood = {line.queue: halted_text(line) for line in halts}
        counts = _counts()
        still = Standstills.among(work_queue.queue.name for work_queue in registry.work_queues())
        rows = still.judged(seen.levels)
        problems = list(alarms(request, rows, still.of, recent=counts["recent"], address=self.address, halts=halts))
        return self.page(
            request,
            "livestatus/status.html",
            part="parts/status.html",
            title=_("Live status"),
            look=seen,
            levels=[
                (
                    row.level,
                    labels.ROLES[row.level.role],
                    [problem.row for problem in row.errors],
                    stood.get(row.level.queue) or row.remark,
                    still.of.get(row.level.queue),
                )
                for row in rows
            ],
            blind=blind(seen.gauged),
            alarms=problems[:MOST_ALARMS],
            more_alarms=problems[MOST_ALARMS:],
            counts=counts,
            now=timezone.now(),
            declared=bool(registry.registrations()),
            runs=RequeueRun.objects.filter(state__in=ACTIVE).order_by("-pk")[:5],
            **activity(request, most=5),
        )


def _counts() -> dict[str, Any]:
    """Return the figures of the database, in three queries."""
    now = timezone.now()
    figures = parked(now)
    open_ones = {"parked": figures.count, "oldest": figures.oldest, "recent": figures.recent}
    ahead = Attempt.objects.filter(next_at__gt=now).order_by()
    waiting = ahead.aggregate(waiting=Count("pk"), next=Min("next_at"))
    lately = Attempt.objects.filter(started_at__gte=now - timedelta(minutes=1)).order_by()
    failed = lately.exclude(verdict="ack").aggregate(failed=Count("pk"), last=Max("started_at"))
    return {**open_ones, **waiting, **failed}

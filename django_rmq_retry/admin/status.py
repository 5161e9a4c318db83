"""Live status: what is wrong in a sentence each, then the numbers; from the database and a short look at the broker."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.contrib import admin
from django.db.models import Count, Max, Min
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_rmq_retry import registry
from django_rmq_retry.admin import allowing, labels, looking
from django_rmq_retry.admin.activity import activity
from django_rmq_retry.admin.pages import Pages, migrated
from django_rmq_retry.models import Attempt, ErrorGroup, LiveStatus, RequeueRun
from django_rmq_retry.models.runs import ACTIVE
from django_rmq_retry.operating.surveying import parked
from django_rmq_retry.ordering import limits
from django_rmq_retry.switching.states import standing

MOST = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """One thing that somebody should look at, with the way there."""

    said: str
    address: str = ""
    link: str = ""


@admin.register(LiveStatus)
class LiveStatusAdmin(Pages):
    """One page; it stands where the list of a model stands."""

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return not allowing.refusal(request, "view_status")

    def get_urls(self) -> list[Any]:
        """There are no records of it, so no page of one."""
        return [url for url in super().get_urls() if url.name == "rmq_retry_livestatus_changelist"]

    @migrated
    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        why = allowing.refusal(request, "view_status")
        if why:
            return self.refused(request, why)
        seen = looking.look()
        counts = _counts()
        return self.page(
            request,
            "livestatus/status.html",
            part="parts/status.html",
            title=_("Live status"),
            look=seen,
            levels=[
                (level, labels.ROLES[level.role], list(map(labels.trouble, level.problems))) for level in seen.levels
            ],
            blind=labels.trouble(seen.blind) if seen.blind else "",
            alarms=list(self._alarms(request, seen, counts))[:MOST],
            counts=counts,
            now=timezone.now(),
            declared=bool(registry.registrations()),
            runs=RequeueRun.objects.filter(state__in=ACTIVE).order_by("-pk")[:5],
            **activity(request, most=5),
        )

    def _alarms(self, request: HttpRequest, seen: looking.Look, counts: dict[str, Any]) -> Iterator[Alarm]:
        if limits.standing().full:
            keys = "" if allowing.refusal(request, "view_key") else self.address("blockedkey_changelist")
            yield Alarm(said=_too_many(), address=keys, link=_("Blocked keys"))
        queues, link = self.address("switch_changelist"), _("Open the queues")
        now = timezone.now().timestamp()
        for one in standing(intake.queue.name for intake in registry.intakes()):
            yield Alarm(said=f"{one.queue}: {one.said(now)}", address=queues, link=link)
        for level in seen.levels:
            for problem in level.problems:
                yield Alarm(said=f"{level.queue}: {labels.trouble(problem)}")
        if counts["recent"]:
            group = ErrorGroup.objects.filter(parked__gt=0, muted=False).order_by("-last_seen").first()
            said = ngettext(
                "%(count)d message was parked in the last 10 minutes.",
                "%(count)d messages were parked in the last 10 minutes.",
                counts["recent"],
            ) % {"count": counts["recent"]}
            if group is None:
                yield Alarm(said=said)
            else:
                cause = _("Last cause: %(cause)s.") % {"cause": group}
                yield Alarm(
                    said=f"{said} {cause}",
                    address=self.address("errorgroup_change", group.pk),
                    link=_("Open the group"),
                )


def _too_many() -> str:
    """As the page of the keys says it."""
    said = _(
        "Further ones are taken one a second and hold up their queue. Resolve what goes first, or raise HELD_PER_KEY "
        "or HELD_IN_ALL."
    )
    return f"{_('Too many messages wait.')} {said}"


def _counts() -> dict[str, Any]:
    """What the database knows, in three queries."""
    now = timezone.now()
    told = parked(now)
    open_ones = {"parked": told.count, "oldest": told.oldest, "recent": told.recent}
    ahead = Attempt.objects.filter(next_at__gt=now).order_by()
    waiting = ahead.aggregate(waiting=Count("pk"), next=Min("next_at"))
    failed = Attempt.objects.filter(started_at__gte=now - timedelta(minutes=1)).order_by()
    return {**open_ones, **waiting, **failed.aggregate(failed=Count("pk"), last=Max("started_at"))}

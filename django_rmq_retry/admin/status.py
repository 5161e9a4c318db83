"""Live status: what is wrong in a sentence each, then the numbers; from the database and a short look at the broker."""

from datetime import timedelta
from typing import Any

from django.contrib import admin
from django.db.models import Count, Max, Min
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.translation import gettext as _

from django_rmq_retry import registry
from django_rmq_retry.admin import allowing, labels, looking
from django_rmq_retry.admin.activity import activity
from django_rmq_retry.admin.alarms import alarms
from django_rmq_retry.admin.pages import Pages, migrated
from django_rmq_retry.models import Attempt, LiveStatus, RequeueRun
from django_rmq_retry.models.runs import ACTIVE
from django_rmq_retry.operating.surveying import parked

MOST = 3


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
            alarms=list(alarms(request, seen, recent=counts["recent"], address=self.address))[:MOST],
            counts=counts,
            now=timezone.now(),
            declared=bool(registry.registrations()),
            runs=RequeueRun.objects.filter(state__in=ACTIVE).order_by("-pk")[:5],
            **activity(request, most=5),
        )


def _counts() -> dict[str, Any]:
    """What the database knows, in three queries."""
    now = timezone.now()
    told = parked(now)
    open_ones = {"parked": told.count, "oldest": told.oldest, "recent": told.recent}
    ahead = Attempt.objects.filter(next_at__gt=now).order_by()
    waiting = ahead.aggregate(waiting=Count("pk"), next=Min("next_at"))
    failed = Attempt.objects.filter(started_at__gte=now - timedelta(minutes=1)).order_by()
    return {**open_ones, **waiting, **failed.aggregate(failed=Count("pk"), last=Max("started_at"))}

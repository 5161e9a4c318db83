"""The page of the message at which a strict-order queue is halted: which one, why, since when, and what can be done."""

from datetime import datetime, timedelta
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from django_rmq_retry import database_clock
from django_rmq_retry.admin import broker_look
from django_rmq_retry.admin.pages import Pages, migrated, refusal, requires
from django_rmq_retry.admin.timeline import trace_of
from django_rmq_retry.breakers.halts import halted
from django_rmq_retry.breakers.table import controls_alias
from django_rmq_retry.health.problems import Limits, in_halts
from django_rmq_retry.models import Attempt, ParkedMessage, QueueControl
from django_rmq_retry.parked import operators

SLACK = timedelta(minutes=5)
"""The time by which its first attempt may have begun before the queue counts as halted."""


@migrated
@requires("view_queue", "view")
def halted_first(pages: Pages, request: HttpRequest) -> HttpResponse:
    """Show what is known of the message. Its body is in the broker: nobody can read it and leave it where it is."""
    now, queue = database_clock.now(controls_alias()), request.GET.get("queue", "")
    row = next((one for one in halted(now) if one.queue == queue), None)
    return pages.page(
        request,
        "queuecontrol/first.html",
        part="parts/halted_first.html",
        title=_("First message of %(queue)s") % {"queue": queue},
        queue=queue,
        row=row,
        **(_known_of(request, row, now) if row else {}),
    )


def _known_of(request: HttpRequest, row: QueueControl, now: datetime) -> dict[str, Any]:
    look = broker_look.glimpse()
    levels = (look.last or look).levels
    attempt = _last_attempt(row)
    why_not = refusal(request, "view_traceback") or (_kept_back(request, attempt) if attempt else "")
    return {
        "halt": next(in_halts([row], now, Limits(), levels), None),
        "attempt": attempt,
        "is_due": attempt is not None and attempt.next_at is not None and attempt.next_at <= now,
        "trace": trace_of(attempt) if attempt and not why_not else None,
        "why_no_trace": why_not,
        "ready": next((one.ready for one in levels if one.queue == row.queue), None),
    }


def _last_attempt(row: QueueControl) -> Attempt | None:
    """Return the last attempt; it is among the newest of all attempts, because it is repeated at least each minute."""
    if not row.halted_message or row.halted_at is None:
        return None
    lately = Attempt.objects.filter(started_at__gte=row.halted_at - SLACK).order_by("-started_at", "-pk")
    return lately.filter(queue=row.queue, message_id=row.halted_message).first()


def _kept_back(request: HttpRequest, attempt: Attempt) -> str:
    """Return why the rules of the project withhold the traceback: they are asked about a record, if there is one."""
    if not operators.has_own_rules(request.user):
        return ""
    message = ParkedMessage.objects.filter(identity=attempt.identity).first()
    return operators.own_rules_refusal() if message is None else refusal(request, "view_traceback", message=message)

"""The page of consuming processes: their state and the messages that they have in flight."""

from typing import Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from django_rmq_retry.admin import broker_look
from django_rmq_retry.admin.pages import Pages, refusal
from django_rmq_retry.conf import settings
from django_rmq_retry.health import processes
from django_rmq_retry.health.process_list import ProcessList, Seen
from django_rmq_retry.models import ConsumerProcess


@admin.register(ConsumerProcess)
class ConsumerProcessAdmin(Pages):
    sees = "view_status"
    one_page = True

    def list_page(self, request: HttpRequest, **more: Any) -> HttpResponse:
        known, every = processes.processes(), "all" in request.GET
        found = ProcessList.of(known, _seen)
        tables = found.tables
        return self.page(
            request,
            "consumerprocess/consumers.html",
            part="parts/consumers.html",
            title=_("Consumers"),
            rows=found.rows,
            tables=[(one, one.rows if every else one.first) for one in tables],
            begun_told=any(one.begun_later for one in tables if not one.fold),
            summary=found.summary,
            every=every,
            problems=[(one, "manage.py rmq_consume" if found.starts(one) else "") for one in found.problems],
            none_runs=found.none_runs,
            records=settings().records,
            finds=not refusal(request, "view"),
            most=processes.MOST_LISTED_PROCESSES if len(known) == processes.MOST_LISTED_PROCESSES else 0,
        )


def _seen() -> Seen:
    look = broker_look.look()
    known = look.last or look
    return Seen(levels=known.levels, at=known.at, current=not (look.unreachable or look.late))

"""The page of what was handled lately after another consumer may have handled it: a list to check, each with why."""

from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from django_rmq_retry import database_clock
from django_rmq_retry.admin.pages import Pages, migrated, refusal, requires
from django_rmq_retry.health.doubts import acts_of
from django_rmq_retry.health.handled_again import MOST_HANDLED_AGAIN, TWICE_REPORTED_FOR, handled_again, named
from django_rmq_retry.health.processes import MOST_SURVEYED_PROCESSES
from django_rmq_retry.models import ConsumerProcess
from django_rmq_retry.parked.checked import checked
from django_rmq_retry.parked.database import records_alias


@migrated
@requires("view_status")
def handled_again_page(pages: Pages, request: HttpRequest) -> HttpResponse:
    """Show those that Live status counts, in the same order, each with a search for it."""
    now = database_clock.now(records_alias())
    processes = ConsumerProcess.objects.defer("in_flight").order_by("-beat_at")[:MOST_SURVEYED_PROCESSES]
    known = list(processes)
    found = handled_again(now, known)
    finds = not refusal(request, "view")
    search = pages.address("parkedmessage_changelist") if finds else ""
    acts = acts_of([one.mark for one in found], checked()) if found else {}
    rows = [
        (one, f"{search}?{urlencode({'q': one.message_id or one.name})}" if finds else "", acts.get(one.mark))
        for one in (named(found, known, now) if found else ())
    ]
    return pages.page(
        request,
        "livestatus/handled_again.html",
        title=_("Handled again"),
        rows=rows,
        names=dict.fromkeys(one.name for one, _address, _act in rows if one.name),
        since=now - TWICE_REPORTED_FOR,
        cut=len(rows) >= MOST_HANDLED_AGAIN,
    )

"""How many messages were parked since a list of them was opened: the bar above it. The rows stay where they are."""

from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseBadRequest
from django.utils.dateparse import parse_datetime

from django_rmq_retry.admin import allowing, helping
from django_rmq_retry.admin.filters import FILTERS
from django_rmq_retry.admin.pages import Pages
from django_rmq_retry.admin.rows import LEFT_OUT
from django_rmq_retry.models import ParkedMessage
from django_rmq_retry.operating.filtering import number_in

MOST = 100
SINCE, AFTER = "since", "after"
"""Words of the address: when the list was opened, and the highest number that was given then."""


def view(pages: Pages, request: HttpRequest) -> HttpResponse:
    """The bar alone: a part of a page, for the script."""
    why = allowing.refusal(request, "view")
    if why:
        return pages.refused(request, why)
    try:
        found = _found(request, _listed(pages, request))
    except ValueError:
        return HttpResponseBadRequest()
    again = request.GET.copy()
    for word in (SINCE, AFTER, "fragment"):
        again.pop(word, None)
    return pages.page(
        request,
        "parts/newer.html",
        title="",
        count=min(found, MOST),
        number=f"{MOST}+" if found > MOST else str(found),
        address=f"?{again.urlencode()}",
    )


def _listed(pages: Pages, request: HttpRequest) -> Any:
    """The rows that the list would show, on all its pages."""
    rows: Any = ParkedMessage.objects.all()
    words: Any = dict(request.GET.lists())
    for kind in FILTERS:
        rows = kind(request, words, ParkedMessage, pages).queryset(request, rows)
    return rows.order_by().values_list("pk", flat=True)


def _found(request: HttpRequest, rows: Any) -> int:
    """By when they were parked and by number: one that is parked again keeps its number, one may be recorded late."""
    since, after = parse_datetime(request.GET.get(SINCE, "")), number_in(request.GET.get(AFTER, ""))
    if since is None or since.tzinfo is None or after is None:
        raise ValueError(request.GET)
    late = rows.filter(parked_at__lte=since, pk__gt=after)
    found = list(rows.filter(parked_at__gt=since).union(late, all=True)[: MOST + 1])
    if found and helping.rules_apart(request):
        known = ParkedMessage.objects.filter(pk__in=found).defer(*LEFT_OUT)[: MOST + 1]
        return sum(not allowing.refusal(request, "view", one) for one in known)
    return len(found)

"""The members of a request by a filter: its messages, each with its revision, as they were when it was asked for.

What a second person approves are these and no others: one that has changed since is left out, and none takes its place.
"""

import hashlib
from collections.abc import Collection
from typing import Any

from django.db.models import Count, F, PositiveBigIntegerField, PositiveIntegerField, QuerySet, Value, Window
from django.db.models.expressions import Combinable
from django.db.models.functions import RowNumber

from django_rmq_retry.models import ParkedMessage, RequestMember
from django_rmq_retry.parked.database import records_alias
from django_rmq_retry.parked.left_meanwhile import left_meanwhile
from django_rmq_retry.parked.selection import Selection
from django_rmq_retry.statements import insert_found

COLUMNS = ("request", "place", "message", "revision")
READ_AT_ONCE = 5000


def freeze(request: int, selection: Selection) -> int:
    """Store the messages that match a filter now as the members of a request; return their number.

    Those that have left the filter since it was shown are members too, and of a revision that none has: whatever
    becomes of them, they are left out, and named.
    """
    count = _insert(request, selection.queryset(), revision=F("revision"))
    _insert(request, left_meanwhile(selection, count), revision=Value(0, PositiveIntegerField()), after=count)
    return count


def _insert(request: int, rows: QuerySet[ParkedMessage], *, revision: Combinable, after: int = 0) -> int:
    place = Window(RowNumber(), order_by=[F("parked_at").asc(), F("pk").asc()])
    values: dict[str, Combinable] = {
        "member_of": Value(request, PositiveBigIntegerField()),
        "member_place": place + Value(after, PositiveIntegerField()) if after else place,
        "member_message": F("pk"),
        "member_revision": revision,
    }
    found = rows.order_by().annotate(**values).values_list(*values)
    # One that leaves between the two statements is a member already.
    return insert_found(RequestMember, COLUMNS, found, using=records_alias(), ignore=bool(after))


def of(request: Any) -> QuerySet[RequestMember]:
    return RequestMember.objects.using(records_alias()).filter(request=request).order_by()


def counted_in(rows: QuerySet[ParkedMessage], among: Collection[int]) -> dict[int, int]:
    """Return those of the requests of which some of these messages are members, each with their number."""
    if not among:
        return {}
    mine: Any = rows.order_by().values("pk")
    members = RequestMember.objects.using(records_alias()).filter(request__in=among, message__in=mine).order_by()
    return dict(members.values_list("request").annotate(count=Count("pk")))


def digest(request: int) -> str:
    """Return the SHA-256 of the members in the order of their numbers; empty if there are none."""
    whole, last, rows = hashlib.sha256(), 0, of(request).order_by("message").values_list("message", "revision")
    while some := list(rows.filter(message__gt=last)[:READ_AT_ONCE]):
        whole.update("".join(f"{message} {revision}\n" for message, revision in some).encode())
        last = some[-1][0]
    return whole.hexdigest() if last else ""

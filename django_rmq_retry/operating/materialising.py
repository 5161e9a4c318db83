"""Freezes a selection as the items of a run: one statement in the database, whether for one message or a million."""

from typing import Any

from django.db import connections
from django.db.models import Case, CharField, DateTimeField, F, IntegerField, QuerySet, Value, When, Window
from django.db.models.expressions import Combinable
from django.db.models.functions import RowNumber
from django.utils import timezone

from django_rmq_retry.models import Item, ItemState, ParkedMessage, RequeueRun
from django_rmq_retry.operating.checking import Terms, reasons
from django_rmq_retry.operating.ending import COUNTED, count
from django_rmq_retry.operating.locking import database
from django_rmq_retry.operating.selecting import Selection

COLUMNS = ("run", "message", "place", "revision", "state", "cycle", "why", "ended_at")


def freeze(run: RequeueRun, selection: Selection, terms: Terms) -> None:
    """Write the items in the order in which they are sent; those that are left out say why at once."""
    using = database()
    chosen, params = _chosen(run, selection, terms).query.get_compiler(using=using).as_sql()
    meta: Any = Item._meta  # noqa: SLF001 - Django's own way
    quote = connections[using].ops.quote_name
    names = ", ".join(quote(meta.get_field(name).column) for name in COLUMNS)
    with connections[using].cursor() as cursor:
        cursor.execute(f"INSERT INTO {quote(meta.db_table)} ({names}) {chosen}", params)
    _count(run)


def _chosen(run: RequeueRun, selection: Selection, terms: Terms) -> "QuerySet[ParkedMessage, tuple[object, ...]]":
    """A row for each message with the values of its item, in the order of the columns."""
    objections = reasons(selection, terms)
    now = timezone.now()
    left_out = [When(condition, then=Value(why)) for why, condition in objections]
    ended = [When(condition, then=Value(now)) for _why, condition in objections]
    skipped = [When(condition, then=Value(ItemState.SKIPPED.value)) for _why, condition in objections]
    oldest_first = Window(RowNumber(), order_by=[F("parked_at").asc(), F("pk").asc()])
    values: dict[str, Combinable] = {
        "item_run": Value(run.pk, IntegerField()),
        "item_message": F("pk"),
        "item_place": oldest_first,
        "item_revision": F("revision"),
        "item_state": Case(*skipped, default=Value(ItemState.PENDING.value), output_field=CharField()),
        "item_cycle": Value(0, IntegerField()),
        "item_why": Case(*left_out, default=Value(""), output_field=CharField()),
        "item_ended": Case(*ended, default=Value(None), output_field=DateTimeField()),
    }
    return selection.queryset().order_by().annotate(**values).values_list(*values)


def _count(run: RequeueRun) -> None:
    run.total = run.items.count()
    count(run)
    run.save(update_fields=["total", *COUNTED])

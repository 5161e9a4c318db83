"""Makes a frozen selection the items of a run: a small one at once, a large one part by part by whoever drives the run.

How far that is stands in the run itself, and each part is a transaction of its own: a driver may be killed anywhere.
"""

from datetime import datetime
from typing import Any

from django.db import connections, transaction
from django.db.models import Case, CharField, DateTimeField, F, IntegerField, QuerySet, Value, When, Window
from django.db.models.constants import OnConflict
from django.db.models.expressions import Combinable
from django.db.models.functions import RowNumber
from django.utils import timezone

from django_rmq_retry.models import Item, ItemState, ParkedMessage, RequeueRun, RunState
from django_rmq_retry.models.walking import behind
from django_rmq_retry.operating import words
from django_rmq_retry.operating.checking import Terms, reasons
from django_rmq_retry.operating.ending import COUNTED, count
from django_rmq_retry.operating.locking import database, locked_run, steadily
from django_rmq_retry.operating.selecting import Selection

COLUMNS = ("run", "message", "place", "revision", "state", "cycle", "why", "ended_at")
AT_ONCE = 500
"""Messages whose items are written where the run is started."""
PART = 2000
"""Items of one transaction."""
LISTING = "listing"
"""Beside the selection of a run whose items are not all written: on which terms they are, and how far it is."""

Rows = QuerySet[ParkedMessage]


def at_once(selection: Selection) -> bool:
    """Whether a run of it is listed where it is started: only a filter can be asked once more later."""
    return not selection.filter or selection.count <= AT_ONCE


def freeze(run: RequeueRun, selection: Selection, terms: Terms) -> None:
    """Write all items in the order in which they are sent; those that are left out say why at once."""
    _insert(run, selection.queryset().order_by(), selection, terms)
    run.total = run.items.count()
    count(run)
    run.save(update_fields=["total", *COUNTED])


def postpone(run: RequeueRun, selection: Selection, terms: Terms) -> None:
    """Count the messages, and leave their items to whoever drives the run; what is parked from now on is not meant."""
    run.total = selection.queryset().count()
    run.why = words.LISTING
    told = {
        "include": sorted(terms.include),
        "permanent": terms.confirmed_permanent,
        "most": run.total,
        "listed": 0,
        "place": 0,
    }
    run.selection = {**run.selection, LISTING: told}
    run.save(update_fields=["total", "why", "selection"])


def listing(run: RequeueRun) -> bool:
    """Whether some of its items are not written yet."""
    return LISTING in run.selection


def listed(run: RequeueRun) -> None:
    """End the listing where it is: what has no item yet is not part of the run any more."""
    known = dict(run.selection)
    run.total = known.pop(LISTING)["listed"]
    run.selection = known


def list_part(run: int, driver: str) -> None:
    """Write the next items of a run, if it is still this driver's and nobody has stopped it."""
    steadily(lambda: _list_part(run, driver))


def _list_part(run: int, driver: str) -> None:
    using = database()
    with transaction.atomic(using=using):
        known = locked_run(run)
        if known is None or known.driver != driver or known.state not in (RunState.PLANNED, RunState.RUNNING):
            return
        if not listing(known):
            return
        told = known.selection[LISTING]
        selection, terms = _meant(known)
        rest = _after(selection.queryset(), told)
        # Where the part ends is asked first: a row that is parked anew meanwhile must not carry the mark with it.
        mark = rest.values_list("parked_at", "pk")[PART - 1 : PART].first()
        part = rest if mark is None else rest.filter(~behind("parked_at", mark[0], "pk", mark[1]))
        room, first = told["most"] - told["listed"], told["place"]
        if room < PART:
            part = part[: room + _there(known, part)]
        made = _insert(known, part, selection, terms, first=first)
        left_out = known.items.filter(state=ItemState.SKIPPED, place__gt=first).count()
        after = mark and [mark[0].isoformat(), mark[1]]
        told |= {"listed": told["listed"] + made, "place": first + PART, "after": after}
        known.skipped += left_out
        known.why = words.LISTING
        if mark is None or made >= room:
            listed(known)
            known.why = ""
        known.save(using=using, update_fields=["total", "skipped", "why", "selection"])


def _meant(run: RequeueRun) -> tuple[Selection, Terms]:
    """What was chosen when the run was started, and on which terms."""
    facts = run.selection
    as_of = datetime.fromisoformat(facts["as_of"])
    selection = Selection(filter=facts["filter"], max_id=facts["max_id"], as_of=as_of, count=facts["count"])
    told = facts[LISTING]
    return selection, Terms(target=run.target, include=told["include"], confirmed_permanent=told["permanent"])


def _after(rows: Rows, told: dict[str, Any]) -> Rows:
    """What is not listed yet, oldest first."""
    ordered = rows.order_by("parked_at", "pk")
    if not told.get("after"):
        return ordered
    at, pk = told["after"]
    return ordered.filter(behind("parked_at", datetime.fromisoformat(at), "pk", pk))


def _there(run: RequeueRun, part: Rows) -> int:
    """How many of a part have an item already, which takes no room."""
    numbers = list(part.values_list("pk", flat=True)[:PART])
    return Item.objects.using(database()).filter(run=run, message__in=numbers).count()


def _insert(run: RequeueRun, rows: Rows, selection: Selection, terms: Terms, *, first: int = 0) -> int:
    """Items of these rows, by one statement in the database; how many there are.

    One that was parked anew meanwhile has its item already and is ignored: to leave it out beforehand would take the
    longer the more items there are.
    """
    using = database()
    ops, ignore = connections[using].ops, OnConflict.IGNORE
    chosen, params = _chosen(run, rows, selection, terms, first=first).query.get_compiler(using=using).as_sql()
    meta: Any = Item._meta  # noqa: SLF001 - Django's own way
    quote = ops.quote_name
    names = ", ".join(quote(meta.get_field(name).column) for name in COLUMNS)
    with connections[using].cursor() as cursor:
        into = f"{ops.insert_statement(on_conflict=ignore)} {quote(meta.db_table)} ({names}) {chosen}"
        cursor.execute(f"{into} {ops.on_conflict_suffix_sql([], ignore, [], [])}", params)
        return int(cursor.rowcount)


def _chosen(
    run: RequeueRun, rows: Rows, selection: Selection, terms: Terms, *, first: int
) -> "QuerySet[ParkedMessage, tuple[object, ...]]":
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
        "item_place": oldest_first + Value(first, IntegerField()) if first else oldest_first,
        "item_revision": F("revision"),
        "item_state": Case(*skipped, default=Value(ItemState.PENDING.value), output_field=CharField()),
        "item_cycle": Value(0, IntegerField()),
        "item_why": Case(*left_out, default=Value(""), output_field=CharField()),
        "item_ended": Case(*ended, default=Value(None), output_field=DateTimeField()),
    }
    return rows.annotate(**values).values_list(*values)

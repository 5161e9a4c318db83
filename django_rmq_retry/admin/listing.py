"""The list of messages: counted up to a bound, read without bodies."""

from typing import Any

from django.contrib.admin.views.main import ChangeList
from django.core.paginator import Paginator
from django.db.models import Subquery
from django.http import HttpRequest
from django.utils import timezone
from django.utils.functional import cached_property

from django_rmq_retry.admin import allowing
from django_rmq_retry.admin.filters import Word
from django_rmq_retry.admin.newer import AFTER, SINCE
from django_rmq_retry.models import ParkedMessage, State

MOST_COUNTED = 10_000


class CappedPaginator(Paginator):  # type: ignore[type-arg]  # it is generic in the stubs only
    """Counts no further than people turn pages."""

    column = "pk"

    @cached_property
    def found(self) -> int:
        rows: Any = self.object_list
        # In no order and of one column that the indexes have: the database need not look beyond them.
        return int(rows.order_by().values(self.column)[: MOST_COUNTED + 1].count())

    @cached_property
    def count(self) -> int:
        return min(self.found, MOST_COUNTED)

    @property
    def capped(self) -> bool:
        return self.found > MOST_COUNTED


class MessagePaginator(CappedPaginator):
    """Of messages: the state is in the index of every filter. By the same one Django pages their history."""

    @property
    def column(self) -> str:  # type: ignore[override]  # it depends on what is paged
        return "state" if self.object_list.model is ParkedMessage else "pk"  # type: ignore[attr-defined]  # of rows


class MessageList(ChangeList):
    """What is chosen by words, as a selection says it; rows that the project's rules hide are left out."""

    capped = False
    newest = 0
    """The highest number that was given when the list was read."""

    def get_results(self, request: HttpRequest) -> None:
        self.as_of = timezone.now()
        last = ParkedMessage.objects.order_by("-pk").values("pk")[:1]
        self.queryset = self.queryset.annotate(newest=Subquery(last))
        super().get_results(request)
        self.capped = bool(getattr(self.paginator, "capped", False))
        if not self.result_count:
            # That nothing fits is known from an index; the rows might be looked for in the whole table.
            self.result_list = []
        for row in self.result_list:
            # Of a worker whose clock is ahead: it is on this page, so it is not newer.
            self.newest, self.as_of = row.newest, max(self.as_of, row.parked_at)
        self.result_list = [row for row in self.result_list if not allowing.refusal(request, "view", row)]

    def words(self) -> dict[str, Any]:
        """The filter of everything that this list would show on all its pages."""
        found: dict[str, Any] = {"search": self.query} if self.query else {}
        for spec in self.filter_specs:
            if isinstance(spec, Word):
                found |= spec.meaning()
        return found

    def chosen(self) -> list[tuple[str, str, str]]:
        """The filters that narrow the list: what, by which value, and the address without it."""
        found = []
        for spec in self.filter_specs:
            if isinstance(spec, Word) and spec.used_parameters:
                name = str(spec.parameter_name)
                value = str(spec.value() or "")
                label = {str(choice): said for choice, said in spec.lookup_choices}.get(value, value)
                found.append((str(spec.title), str(label), self.get_query_string(remove=[name])))
        if self.query:
            found.append(("", self.query, self.get_query_string(remove=["q"])))
        return found

    @property
    def newer(self) -> str:
        """What the bar above the list asks for; nothing where what is parked anew would not be listed."""
        if self.query or State.PARKED not in self.words().get("state", [State.PARKED]):
            return ""
        return self.get_query_string({SINCE: self.as_of.isoformat(), AFTER: self.newest})

    @property
    def last_time(self) -> str:
        """Where the pages after the last one begin."""
        rows = list(self.result_list)
        return rows[-1].parked_at.isoformat() if rows else ""

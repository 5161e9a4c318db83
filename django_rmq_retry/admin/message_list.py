"""The list of parked messages: filters, search and newer arrivals."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

from django.contrib.admin import SimpleListFilter
from django.contrib.admin.views.main import ORDER_VAR, PAGE_VAR, ChangeList
from django.core.exceptions import ValidationError
from django.core.paginator import Paginator
from django.db.models import Case, F, QuerySet, Subquery, Sum, Value, When
from django.http import HttpRequest, HttpResponse, HttpResponseBadRequest
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.functional import cached_property
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, npgettext

from django_rmq_retry import database_clock
from django_rmq_retry.admin import places
from django_rmq_retry.admin.broker_look import waiting_seen
from django_rmq_retry.admin.labels import LEFT_OUT, left_out_text, value_text, with_decisions, with_failures
from django_rmq_retry.admin.pages import Listed, Pages, refusal, requires
from django_rmq_retry.markup import visible
from django_rmq_retry.messages.reasons import Reason
from django_rmq_retry.models import ErrorGroup, ParkedMessage, ParkedOrigin, State
from django_rmq_retry.models.parked import reason_text
from django_rmq_retry.parked import operators
from django_rmq_retry.parked.database import records_alias
from django_rmq_retry.parked.elsewhere import elsewhere
from django_rmq_retry.parked.found import Elsewhere, Found
from django_rmq_retry.parked.may_have_run import with_doubts
from django_rmq_retry.parked.nameless import with_content
from django_rmq_retry.parked.selection import (
    DOUBTS,
    FIELDS,
    group_numbers,
    narrowed,
    number_in,
    numbers_of,
    queues_with_records,
    reasons_with_records,
)
from django_rmq_retry.wording import number

AGES = {"1h": timedelta(hours=1), "24h": timedelta(days=1), "7d": timedelta(days=7)}
MOST_NAMELESS = 20
"""The most messages without a business key that a search names by their contents."""
REFUSED_VALUES = (ValueError, TypeError, ValidationError)
"""What a filter raises for a value that it does not take."""
MOST_CHOICES = 30
"""The most values that a filter offers; any other can be in the address."""
MOST_ORIGINS = 1000
UNFILTERED = {"state", "o", "p"}
"""Query parameters beside which a list shows all messages of its state."""
MOST_NEWER = 100
SINCE, AFTER = "since", "after"
"""Query parameters: the time at which the list was opened, and the highest id at that time."""
MOST_PAGED_ROWS = 10_000
MOST_PAGED_MESSAGES = 1000
"""Fewer than of other rows: messages have many filters, and most combinations of them are in no index."""


class Word(SimpleListFilter):
    """A filter for one field of a selection; a value that is not among its choices is shown as a choice too."""

    def __init__(self, request: HttpRequest, params: Any, model: Any, model_admin: Any) -> None:
        self.request = request
        super().__init__(request, params, model, model_admin)

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        # The bar of newer messages, which is asked for again and again, shows no choices.
        known = [] if SINCE in request.GET else list(self.known())
        chosen = request.GET.get(self.parameter_name or "")
        if chosen and chosen not in dict(known):
            known.append((chosen, chosen))
        return [(value, visible(label)) for value, label in known]

    def known(self) -> Iterable[tuple[str, Any]]:
        raise NotImplementedError

    def meaning(self) -> dict[str, Any]:
        """Return the filter's value as a part of a selection."""
        value = self.value()
        return {str(self.parameter_name): value} if value else {}

    def queryset(self, request: HttpRequest, queryset: QuerySet[ParkedMessage]) -> QuerySet[ParkedMessage]:
        try:
            return narrowed(queryset, self.meaning())
        except REFUSED_VALUES:
            return queryset.none()


def state_shown(request: HttpRequest) -> str:
    """Return the state of the listed messages, or "all": the default of a search, which finds an id in every state."""
    return request.GET.get("state") or ("all" if request.GET.get("q") else State.PARKED.value)


class ByState(Word):
    title = gettext_lazy("status")
    parameter_name = "state"

    def known(self) -> Iterable[tuple[str, Any]]:
        return (*State.choices, ("all", _("All")))

    def meaning(self) -> dict[str, Any]:
        chosen = state_shown(self.request)
        return {} if chosen == "all" else {"state": [chosen]}

    def value(self) -> str | None:
        return super().value() or ("all" if self.request.GET.get("q") else None)

    def choices(self, changelist: Any) -> Iterator[Any]:
        """Yield the choices. Parked is the default, so its link has no value, and no choice All comes before it."""
        chosen = self.value() or State.PARKED
        for value, label in self.lookup_choices:
            words = {"remove": ["state"]} if value == State.PARKED else {"new_params": {"state": value}}
            yield {
                "selected": str(chosen) == str(value),
                "query_string": changelist.get_query_string(**words),
                "display": label,
            }


class ByAge(Word):
    title = gettext_lazy("time of parking")
    parameter_name = "parked"

    def known(self) -> Iterable[tuple[str, Any]]:
        return (("1h", _("last hour")), ("24h", _("last 24 hours")), ("7d", _("last 7 days")))

    def meaning(self) -> dict[str, Any]:
        age = AGES.get(self.value() or "")
        return {"parked_after": (database_clock.now(records_alias()) - age).isoformat()} if age else {}


class ByTime(Word):
    """A bound that a form or a link sets; a time without a zone is one of the reader's."""

    def known(self) -> Iterable[tuple[str, Any]]:
        return ()

    def meaning(self) -> dict[str, Any]:
        try:
            at = parse_datetime(self.value() or "")
        except ValueError:
            at = None
        known = {} if at is None or at.tzinfo else {str(self.parameter_name): timezone.make_aware(at).isoformat()}
        return super().meaning() | known


class ByParkedAfter(ByTime):
    title = gettext_lazy("parked after")
    parameter_name = "parked_after"


class ByParkedBefore(ByTime):
    title = gettext_lazy("parked before")
    parameter_name = "parked_before"


class ByGroup(Word):
    """An error group, or several separated by commas, that a link sets; it has the name of the group."""

    title = gettext_lazy("group")
    parameter_name = "group"

    def known(self) -> Iterable[tuple[str, Any]]:
        chosen = self.request.GET.get("group", "")
        numbers = [found for text in chosen.split(",") if (found := number_in(text)) is not None]
        groups = {group.pk: group for group in ErrorGroup.objects.filter(pk__in=numbers)[: len(numbers)]}
        return ((chosen, ", ".join(str(groups.get(one, f"#{one}")) for one in numbers)),) if numbers else ()


class ByLeftOut(Word):
    """The messages that a requeue run left out, which a link of its page sets; with the reason if it names one."""

    title = FIELDS["left_out_of_run"].label
    parameter_name = "left_out_of_run"

    def known(self) -> Iterable[tuple[str, Any]]:
        chosen = self.request.GET.get("left_out_of_run", "")
        return ((chosen, left_out_text(chosen)),) if chosen else ()


class ByEdit(Word):
    """The messages that one edit of many has changed, which the page after it links to."""

    title = FIELDS["edited_at"].label
    parameter_name = "edited_at"

    def known(self) -> Iterable[tuple[str, Any]]:
        chosen = self.request.GET.get("edited_at", "")
        return ((chosen, value_text("edited_at", chosen)),) if chosen else ()


class Occurring(Word):
    """A filter whose choices are the values that messages have, those of most messages first."""

    column = 0
    """The place of its value in a row of ``_origins``."""

    def known(self) -> Iterable[tuple[str, Any]]:
        counts: Counter[str] = Counter()
        for row in _origins(self.request):
            counts[row[self.column]] += row[-1]
        del counts[""]
        # The counters know no other filter, so beside one they would tell another number than the list.
        counted = state_shown(self.request) == State.PARKED and not self.request.GET.keys() - UNFILTERED
        return [
            (value, f"{value} ({number(count)})" if counted else value)
            for value, count in counts.most_common(MOST_CHOICES)
        ]


class ByQueue(Occurring):
    title = gettext_lazy("queue")
    parameter_name = "queue"

    def known(self) -> Iterable[tuple[str, Any]]:
        known = list(super().known())
        if state_shown(self.request) != State.PARKED:
            values = dict(known)
            known += [(name, name) for name in sorted(queues_with_records()) if name not in values]
        return known


class ByType(Occurring):
    title = gettext_lazy("message type")
    parameter_name = "type"
    column = 1


class ByError(Occurring):
    """The errors by groups; a message without an error is found by its reason."""

    title = FIELDS["error"].label
    parameter_name = "error"
    column = 2


class ByReason(Word):
    title = gettext_lazy("reason")
    parameter_name = "reason"

    def known(self) -> Iterable[tuple[str, Any]]:
        shown = state_shown(self.request)
        some = reasons_with_records(State(shown)) if shown in State.values else set(Reason)
        return ((reason.value, reason_text(reason)) for reason in Reason if reason in some)


def _origins(request: HttpRequest) -> list[tuple[Any, ...]]:
    """Return queue, type, error and number of the parked messages; of those that were parked once, the number is 0."""
    known: list[tuple[Any, ...]] | None = request.__dict__.get("rmq_origins")
    if known is None:
        rows = ParkedOrigin.objects.all()
        if state_shown(request) == State.PARKED:
            rows = rows.filter(count__gt=0)
        title = Case(When(group__title=F("group__reason"), then=Value("")), default=F("group__title"))
        counted = rows.values_list("queue", "type", title).annotate(n=Sum("count")).order_by("-n")
        known = request.__dict__["rmq_origins"] = list(counted[:MOST_ORIGINS])
    return known


def _by(parameter: str, label: Any, choices: Callable[[], Iterable[tuple[str, Any]]] = tuple) -> type[Word]:
    """Return a filter for a word of a selection; without choices it is shown only while a link sets it."""
    known = staticmethod(choices)
    return type(f"By_{parameter}", (Word,), {"title": label, "parameter_name": parameter, "known": known})


FILTERS = (
    ByState,
    ByQueue,
    ByType,
    ByReason,
    ByError,
    ByAge,
    _by("doubt", FIELDS["doubt"].label, DOUBTS.items),
    _by("cycle_min", gettext_lazy("earlier requeues"), lambda: (("2", _("at least once")),)),
    ByParkedAfter,
    ByParkedBefore,
    ByGroup,
    _by("handler", gettext_lazy("handler")),
    _by("processed_of_run", FIELDS["processed_of_run"].label),
    _by("handled_twice_of_run", FIELDS["handled_twice_of_run"].label),
    _by("perhaps_twice_of_run", FIELDS["perhaps_twice_of_run"].label),
    _by("failed_of_run", FIELDS["failed_of_run"].label),
    _by("no_outcome", gettext_lazy("missing outcome"), lambda: (("1", _("for an hour")),)),
    _by("waiting_of_run", FIELDS["waiting_of_run"].label),
    _by("unconfirmed_of_run", FIELDS["unconfirmed_of_run"].label),
    ByLeftOut,
    ByEdit,
    _by("unsent_of_run", FIELDS["unsent_of_run"].label),
)


@requires("view")
def newer(pages: Pages, request: HttpRequest) -> HttpResponse:
    """Return the bar of newer messages alone: a part of a page, for the script."""
    try:
        count = _found(request, _listed(pages, request))
    except ValueError:
        return HttpResponseBadRequest()
    again = request.GET.copy()
    for word in (SINCE, AFTER, "fragment"):
        again.pop(word, None)
    return pages.page(
        request,
        "parts/new_messages.html",
        title="",
        count=min(count, MOST_NEWER),
        number=f"{MOST_NEWER}+" if count > MOST_NEWER else str(count),
        address=f"?{again.urlencode()}",
    )


def _listed(pages: Pages, request: HttpRequest) -> Any:
    """Return the rows that the list would show on all its pages."""
    rows: Any = ParkedMessage.objects.all()
    words: Any = dict(request.GET.lists())
    for kind in FILTERS:
        rows = kind(request, words, ParkedMessage, pages).queryset(request, rows)
    return rows.order_by().values_list("pk", flat=True)


def _found(request: HttpRequest, rows: Any) -> int:
    """Count the newer messages by time and by id: a message parked again keeps its id, and one may be recorded late."""
    since, after = parse_datetime(request.GET.get(SINCE, "")), number_in(request.GET.get(AFTER, ""))
    if since is None or since.tzinfo is None or after is None:
        raise ValueError(request.GET)
    late = rows.filter(parked_at__lte=since, pk__gt=after)
    numbers = list(rows.filter(parked_at__gt=since).union(late, all=True)[: MOST_NEWER + 1])
    if numbers and operators.has_own_rules(request.user):
        known = ParkedMessage.objects.filter(pk__in=numbers).defer(*LEFT_OUT)[: MOST_NEWER + 1]
        return sum(not refusal(request, "view", message=one) for one in known)
    return len(numbers)


def counted_as(listed: ChangeList, name: str) -> ChangeList:
    """Return a copy of a list with a name of its rows, singular or plural, for the line below them."""
    same = copy(listed)
    same.opts = SimpleNamespace(verbose_name=name, verbose_name_plural=name)  # type: ignore[assignment]  # names only
    return same


def chosen_in(listed: ChangeList) -> list[tuple[str, str, str]]:
    """Return the filters that narrow a list: title, value, and the address without it; a search has no title."""
    filters = []
    for spec in listed.filter_specs:
        if isinstance(spec, SimpleListFilter) and spec.used_parameters:
            name = str(spec.parameter_name)
            value = str(spec.value() or "")
            label = {str(choice): text for choice, text in spec.lookup_choices}.get(value, value)
            filters.append((str(spec.title), str(label), listed.get_query_string(remove=[name])))
    if listed.query:
        filters.append(("", listed.query, listed.get_query_string(remove=["q"])))
    return filters


class CappedPaginator(Paginator):  # type: ignore[type-arg]  # it is generic in the stubs only
    """A paginator that counts no further than users turn pages."""

    column = "pk"
    most = MOST_PAGED_ROWS

    @cached_property
    def found(self) -> int:
        rows: Any = self.object_list
        # Without an order and with an indexed column only, the database can count from an index alone.
        return int(rows.order_by().values(self.column)[: self.most + 1].count())

    @cached_property
    def count(self) -> int:
        return min(self.found, self.most)

    @property
    def capped(self) -> bool:
        return self.found > self.most


class MessagePaginator(CappedPaginator):
    """A paginator that counts messages by state, a column in the index of every filter.

    Django uses the same paginator for the history of a message.
    """

    @property
    def column(self) -> str:  # type: ignore[override]  # the column depends on the rows
        return "state" if self._of_messages else "pk"

    @property
    def most(self) -> int:  # type: ignore[override]  # as does the limit
        return MOST_PAGED_MESSAGES if self._of_messages else MOST_PAGED_ROWS

    @property
    def _of_messages(self) -> bool:
        return self.object_list.model is ParkedMessage  # type: ignore[attr-defined]  # it has rows


def found(request: HttpRequest, asked: str) -> list[int]:
    """Return the records with the ID of a search, which is looked up once for each request."""
    known: dict[str, list[int]] = request.__dict__.setdefault("rmq_found", {})
    if asked not in known:
        known[asked] = numbers_of(asked)
    return known[asked]


def searched(request: HttpRequest, asked: str) -> dict[str, Any]:
    """Return what a search means as a filter: an ID that is stored, else how one begins."""
    return {"search" if found(request, asked) else "begins": asked} if asked else {}


def counted_by_origin(words: dict[str, Any]) -> int | None:
    """Return the number of messages that a filter means by the counters of origins; None if they do not tell it."""
    named = {**words}
    if named.pop("state", None) != [State.PARKED] or named.keys() - {"group", "queue", "handler", "type"}:
        return None
    if "group" in named:
        named["group__in"] = group_numbers(named.pop("group"))
    total = ParkedOrigin.objects.filter(**named, count__gt=0).aggregate(n=Sum("count"))["n"]
    return int(total or 0)


class MessageList(Listed):
    """The list, whose filters also form a selection; rows that the project's rules withhold are left out."""

    capped = False
    known: int | None = None
    """The number of all rows, where the pages show not all of them and the counters tell it."""
    newest = 0
    """The highest id when the list was read."""
    same: tuple[str, ...] = ()
    """Columns that say the same in each row, so that they say nothing."""

    framed = True
    """True: the field in the frame of the page searches it."""
    queued = 0
    """For a search: how many messages wait on the broker, whose keys are not known."""
    elsewhere: Elsewhere | None = None
    """What else a search has searched, and found."""
    nameless: Sequence[ParkedMessage] = ()
    """If a search finds no message: those without a business key in whose contents its text stands."""
    others: Sequence[tuple[str, str]] = ()
    """If a filter finds nothing in the state shown: the other states in which it does, each with its address."""
    begins = False
    """True if no ID is exactly the text of the search, but some begin with it."""

    def get_results(self, request: HttpRequest) -> None:
        self.as_of = database_clock.now(records_alias())
        self.searched = searched(request, self.query.strip())
        self.begins = "begins" in self.searched
        last = ParkedMessage.objects.order_by("-pk").values("pk")[:1]
        self.queryset = with_doubts(self.queryset.annotate(newest=Subquery(last)))
        super().get_results(request)
        self.capped = bool(getattr(self.paginator, "capped", False))
        if self.capped:
            self.known = counted_by_origin(self.words())
        if self.query:
            # Of a customer some messages may be parked, and others not.
            self.elsewhere = elsewhere(self.query, places.rooms_of(request))
            if not self.result_count:
                known = with_content(self.query)
                self.nameless = [row for row in known if not refusal(request, "view", message=row)][:MOST_NAMELESS]
            if not refusal(request, "view_status"):
                # Nobody knows whose they are.
                self.queued = waiting_seen()
        elif not self.result_count and not operators.has_own_rules(request.user):
            self.others = list(self._in_other_states())
        if not self.result_count:
            # An index has shown that no row matches; a query for the rows might search the whole table.
            self.result_list = []
        for row in self.result_list:
            # A worker's clock may be ahead: its message is on this page already, so it is not newer.
            self.newest, self.as_of = row.newest, max(self.as_of, row.parked_at)
        self.result_list = [row for row in self.result_list if not refusal(request, "view", message=row)]
        with_failures(self.result_list)
        if state_shown(request) == State.DISCARDED:
            with_decisions(self.result_list, State.DISCARDED)
        with_decisions(self.result_list, State.ON_HOLD)
        self.same = tuple(self._same())

    def _in_other_states(self) -> Iterator[tuple[str, str]]:
        words = self.words()
        if not words.pop("state", None) or not words:
            return
        try:
            rows = narrowed(ParkedMessage.objects.order_by(), words)
        except REFUSED_VALUES:
            return
        found = list(rows.values_list("state", flat=True)[: MOST_PAGED_MESSAGES + 1])
        counts = Counter(found)
        for state in State:
            if state in counts:
                label = f"{state.label} ({number(counts[state])})" if len(found) <= MOST_PAGED_MESSAGES else state.label
                yield str(label), self.get_query_string({"state": state.value})

    def _same(self) -> Iterator[str]:
        rows = list(self.result_list)
        if len(self.words().get("state", ())) == 1:
            yield "status"
        for column, field in (("kind", "type"), ("queue", "queue"), ("attempts", "failed")):
            if len({getattr(row, field) for row in rows}) == 1:
                yield column

    @property
    def total(self) -> str:
        """How many messages match, as far as they are counted."""
        if self.known is not None:
            return number(self.known)
        return f"{number(self.result_count)}+" if self.capped else number(self.result_count)

    @property
    def by_state(self) -> list[tuple[int, str]]:
        """How many of the rows are in each state, if they are in several and all on this page, as those of a search."""
        counts = Counter(row.state for row in self.result_list)
        whole = len(counts) > 1 and len(self.result_list) == self.result_count
        return [(counts[state], str(state.label)) for state in State if counts[state]] if whole else []

    @property
    def counted(self) -> ChangeList:
        """The same list, whose rows need not be parked: a search finds messages in all states."""
        same: Any = counted_as(self, npgettext("counted", "message", "messages", self.result_count))
        same.result_count = self.total
        return cast("ChangeList", same)

    @property
    def oldest_first(self) -> bool:
        """True if the operator has turned the order round: messages can be sorted by the time of parking only."""
        order = self.params.get(ORDER_VAR, "")
        return bool(order) and not order.startswith("-")

    @property
    def following(self) -> str:
        """Return the query string of the next page; empty on the last one."""
        last = self.page_num >= self.paginator.num_pages
        return "" if last else self.get_query_string({PAGE_VAR: self.page_num + 1})

    @property
    def addressed(self) -> list[tuple[Found, str]]:
        """What a search found elsewhere, each with the address of a page that shows it; empty if none does."""
        found = self.elsewhere.every if self.elsewhere else ()
        pages: Any = self.model_admin
        return [(one, places.address_of(pages, one)) for one in found]

    def words(self) -> dict[str, Any]:
        """Return the filter of all messages that this list would show on all its pages."""
        filters = dict(self.searched)
        for spec in self.filter_specs:
            if isinstance(spec, Word):
                filters |= spec.meaning()
        return filters

    def chosen(self) -> list[tuple[str, str, str]]:
        return chosen_in(self)

    @property
    def newer(self) -> str:
        """Return the query string of the bar above the list; empty if the list would not show newly parked messages."""
        if self.query or State.PARKED not in self.words().get("state", [State.PARKED]):
            return ""
        return self.get_query_string({SINCE: self.as_of.isoformat(), AFTER: self.newest})

    @property
    def older(self) -> str:
        """Return the query string of the messages after the last page, with the same filters; empty on other pages.

        They begin with the last row of this page, because others may have been parked at the same time.
        """
        rows = list(self.result_list)
        if not self.capped or not rows or self.page_num != self.paginator.num_pages:
            return ""
        return self.get_query_string({"parked_before": (rows[-1].parked_at + timedelta.resolution).isoformat()})

"""The filters of the list of messages: the words of a selection, with choices that cost no query."""

from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Any

from django.contrib.admin import SimpleListFilter
from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_rmq_retry import registry
from django_rmq_retry.admin import labels
from django_rmq_retry.conf import settings
from django_rmq_retry.core.verdict import Reason
from django_rmq_retry.models import ParkedMessage, State
from django_rmq_retry.operating.filtering import narrowed

AGES = {"1h": timedelta(hours=1), "24h": timedelta(days=1), "7d": timedelta(days=7)}


class Word(SimpleListFilter):
    """A filter of one word of a selection; a value that is no choice is shown as one all the same."""

    def __init__(self, request: HttpRequest, params: Any, model: Any, model_admin: Any) -> None:
        self.request = request
        super().__init__(request, params, model, model_admin)

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        known = list(self.known())
        chosen = request.GET.get(self.parameter_name or "")
        if chosen and chosen not in dict(known):
            known.append((chosen, chosen))
        return known

    def known(self) -> Iterable[tuple[str, Any]]:
        raise NotImplementedError

    def meaning(self) -> dict[str, Any]:
        """The words of a selection."""
        value = self.value()
        return {str(self.parameter_name): value} if value else {}

    def queryset(self, request: HttpRequest, queryset: QuerySet[ParkedMessage]) -> QuerySet[ParkedMessage]:
        try:
            return narrowed(queryset, self.meaning())
        except (ValueError, TypeError, ValidationError):
            return queryset.none()


class ByState(Word):
    title = gettext_lazy("status")
    parameter_name = "state"

    def known(self) -> Iterable[tuple[str, Any]]:
        return (*State.choices, ("all", _("All")))

    def meaning(self) -> dict[str, Any]:
        chosen = self.value() or State.PARKED
        return {} if chosen == "all" else {"state": [chosen]}

    def value(self) -> str | None:
        """Whoever searches for an id means the message wherever it stands."""
        return super().value() or ("all" if self.request.GET.get("q") else None)

    def choices(self, changelist: Any) -> Iterator[Any]:
        """Parked is what stands there without a word; there is no choice called All before it."""
        chosen = self.value() or State.PARKED
        for value, label in self.lookup_choices:
            words = {"remove": ["state"]} if value == State.PARKED else {"new_params": {"state": value}}
            yield {
                "selected": str(chosen) == str(value),
                "query_string": changelist.get_query_string(**words),
                "display": label,
            }


class ByQueue(Word):
    title = gettext_lazy("queue")
    parameter_name = "queue"

    def known(self) -> Iterable[tuple[str, Any]]:
        names = sorted({intake.queue.name for intake in registry.intakes()} | set(settings().parked_queues))
        return ((name, name) for name in names if "*" not in name)


class ByType(Word):
    title = gettext_lazy("message type")
    parameter_name = "type"

    def known(self) -> Iterable[tuple[str, Any]]:
        types = {one.match.type or "" for one in registry.subscriptions()} - {""}
        return ((name, name) for name in sorted(types))


class ByReason(Word):
    title = gettext_lazy("reason")
    parameter_name = "reason"

    def known(self) -> Iterable[tuple[str, Any]]:
        return ((reason.value, labels.reason(reason)) for reason in Reason)


class ByAge(Word):
    title = gettext_lazy("parked")
    parameter_name = "parked"

    def known(self) -> Iterable[tuple[str, Any]]:
        return (("1h", _("last hour")), ("24h", _("last 24 hours")), ("7d", _("last 7 days")))

    def meaning(self) -> dict[str, Any]:
        age = AGES.get(self.value() or "")
        return {"parked_after": (timezone.now() - age).isoformat()} if age else {}


class ByCycle(Word):
    title = gettext_lazy("requeued before")
    parameter_name = "cycle_min"

    def known(self) -> Iterable[tuple[str, Any]]:
        return (("2", _("at least once")),)


class ByTime(Word):
    """The way to what is older than the last page."""

    title = gettext_lazy("parked before")
    parameter_name = "parked_before"

    def known(self) -> Iterable[tuple[str, Any]]:
        return ()


class ByGroup(Word):
    title = gettext_lazy("group")
    parameter_name = "group"

    def known(self) -> Iterable[tuple[str, Any]]:
        return ()


FILTERS = (ByState, ByQueue, ByType, ByReason, ByAge, ByCycle, ByTime, ByGroup)

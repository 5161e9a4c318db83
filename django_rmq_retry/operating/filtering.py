"""The words by which messages are chosen, the same in the admin's addresses, in tokens and on the command line."""

from collections.abc import Callable, Mapping
from typing import Any

from django.db.models import Exists, OuterRef, Q, QuerySet
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext as _

from django_rmq_retry.models import BusinessKey, Item, ItemState, ParkedMessage, State
from django_rmq_retry.operating.locking import database

Narrowing = Callable[[Any], Q]
MOST_IDS = 1000
"""So many records of one id are named; more are looked for among all messages."""


def narrowed(rows: QuerySet[ParkedMessage], filter: Mapping[str, Any]) -> QuerySet[ParkedMessage]:  # noqa: A002
    """The rows that a filter means; ValueError for a word that is not known."""
    for name, value in filter.items():
        if name not in WORDS:
            raise ValueError(
                _("%(name)r is no filter; known are %(known)s.") % {"name": name, "known": ", ".join(WORDS)}
            )
        rows = rows.filter(WORDS[name](value))
    return rows


def _states(value: Any) -> Q:
    chosen = _several(value)
    unknown = set(chosen) - set(State.values)
    if unknown:
        raise ValueError(f"state {', '.join(sorted(unknown))}; known are {', '.join(State.values)}")
    return Q(state__in=chosen)


def _several(value: Any) -> list[str]:
    return [str(one) for one in value] if isinstance(value, (list, tuple)) else [str(value)]


def _one_of(field: str) -> Narrowing:
    return lambda value: Q(**{f"{field}__in": _several(value)})


def _number(lookup: str) -> Narrowing:
    return lambda value: Q(**{lookup: int(value)})


def _moment(lookup: str) -> Narrowing:
    def narrow(value: Any) -> Q:
        at = parse_datetime(value) if isinstance(value, str) else value
        if at is None or at.tzinfo is None:
            raise ValueError(_("%(value)r is no time with its zone, such as 2026-11-21T03:00:00Z") % {"value": value})
        return Q(**{lookup: at})

    return narrow


def _key(value: Any) -> Q:
    return Q(Exists(BusinessKey.objects.filter(message=OuterRef("pk"), value=str(value))))


def numbers_of(text: str) -> list[int]:
    """The records that somebody means by an id, each kind of id by its own index; no more than ``MOST_IDS`` + 1.

    They are asked for beforehand: MariaDB would look through all messages for those that are in a union.
    """
    records = ParkedMessage.objects.using(database()).order_by()
    keys = BusinessKey.objects.using(database()).filter(value=text).values_list("message_id")
    kinds = [records.filter(message_id=text), records.filter(correlation_id=text)]
    number = number_in(text.removeprefix("#"))
    kinds += [records.filter(pk=number)] if number is not None else []
    return [row[0] for row in keys.union(*(kind.values_list("pk") for kind in kinds))[: MOST_IDS + 1]]


def _any_id(value: Any) -> Q:
    """What a person has in hand: a payment's number, a message's id, a correlation id, or the record's own number."""
    text = str(value)
    found = numbers_of(text)
    if len(found) <= MOST_IDS:
        # No record is number 0: of an empty list Django makes no statement at all, and a run is made of one.
        return Q(pk__in=found or [0])
    number = number_in(text.removeprefix("#"))
    return _key(text) | Q(message_id=text) | Q(correlation_id=text) | (Q() if number is None else Q(pk=number))


def number_in(text: str) -> int | None:
    """The number that a text is, if it may be one of a row: longer ones fit into no column."""
    return int(text) if text.isdecimal() and len(text) < 19 else None  # noqa: PLR2004 - a bigint has 19 digits


def _failed_of_run(value: Any) -> Q:
    failed = Item.objects.filter(run=int(value), state=ItemState.FAILED, message=OuterRef("pk"))
    return Q(Exists(failed))


WORDS: Mapping[str, Narrowing] = {
    "state": _states,
    "group": _number("group"),
    "queue": _one_of("queue"),
    "type": _one_of("type"),
    "handler": _one_of("handler"),
    "reason": _one_of("reason"),
    "error": _one_of("error"),
    "key": _key,
    "message_id": _one_of("message_id"),
    "correlation_id": _one_of("correlation_id"),
    "search": _any_id,
    "parked_after": _moment("parked_at__gte"),
    "parked_before": _moment("parked_at__lt"),
    "cycle_min": _number("cycle__gte"),
    "failed_of_run": _failed_of_run,
    "without": lambda value: ~Q(pk__in=[int(one) for one in value]),
}

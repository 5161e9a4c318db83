"""Selections of parked messages: by number, filter or page."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from django.core.exceptions import ValidationError
from django.core.signing import BadSignature, SignatureExpired, dumps, loads
from django.db import connections, router
from django.db.models import BinaryField, Count, Exists, F, Func, Max, OuterRef, Q, QuerySet
from django.db.models.lookups import Exact
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext as _

from django_rmq_retry import server
from django_rmq_retry.models import (
    BusinessKey,
    ItemState,
    KeyList,
    ListedKey,
    ParkedMessage,
    RequeueItem,
    State,
)
from django_rmq_retry.parked.database import database
from django_rmq_retry.parked.operators import NothingChosen, Outdated, Refused

Narrowing = Callable[[Any], Q]
MOST_SEARCHED_IDS = 1000
"""So many records of one id are named; more are looked for among all messages."""
LISTED, EXCEPT = "keys", "except_keys"
"""The words that name a list of keys: the messages it named when it was stored; all but those that it names now."""
USABLE = timedelta(days=1)
"""For so long a list is usable that no action refers to."""


_QUEUES = """
WITH RECURSIVE named(queue) AS (
    SELECT MIN(queue) FROM rmq_retry_parkedmessage
    UNION ALL
    SELECT (SELECT MIN(queue) FROM rmq_retry_parkedmessage WHERE queue > named.queue) FROM named
    WHERE named.queue IS NOT NULL
)
SELECT queue FROM named WHERE queue IS NOT NULL AND queue <> '' LIMIT 1000
"""
"""From one name to the next by the index: DISTINCT reads every record."""


def queues_with_records() -> set[str]:
    """Every queue that has a record, also one that no handler has any more."""
    with connections[database()].cursor() as cursor:
        cursor.execute(_QUEUES)
        return {name for (name,) in cursor.fetchall()}


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
    return [row[0] for row in keys.union(*(kind.values_list("pk") for kind in kinds))[: MOST_SEARCHED_IDS + 1]]


def _any_id(value: Any) -> Q:
    """What a person has in hand: a payment's number, a message's id, a correlation id, or the record's own number."""
    text = str(value)
    found = numbers_of(text)
    if len(found) <= MOST_SEARCHED_IDS:
        # No record is number 0: of an empty list Django makes no statement at all, and a run is made of one.
        return Q(pk__in=found or [0])
    number = number_in(text.removeprefix("#"))
    return _key(text) | Q(message_id=text) | Q(correlation_id=text) | (Q() if number is None else Q(pk=number))


def number_in(text: str) -> int | None:
    """The number that a text is, if it may be one of a row: longer ones fit into no column."""
    return int(text) if text.isdecimal() and len(text) < 19 else None  # noqa: PLR2004 - a bigint has 19 digits


def _failed_of_run(value: Any) -> Q:
    failed = RequeueItem.objects.filter(run=int(value), state=ItemState.FAILED, message=OuterRef("pk"))
    return Q(Exists(failed))


def _listed(value: Any) -> Q:
    return Q(pk__in=_keys_of(value).filter(message__isnull=False).values("message"))


def _unlisted(value: Any) -> Q:
    """By key, at each look: a message that arrives with such a key is not meant either."""
    listed = _keys_of(value)
    keys = _named_by(listed, BusinessKey.objects.order_by(), "value").values("message")
    ids = _named_by(listed, ParkedMessage.objects.order_by(), "message_id").values("pk")
    return ~Q(pk__in=keys) & ~Q(pk__in=ids)


def _named_by(listed: QuerySet[ListedKey], rows: QuerySet[Any], column: str) -> QuerySet[Any]:
    found = rows.filter(**{f"{column}__in": listed.values("value")})
    if connections[database()].vendor != "mysql":
        return found
    # Its usual collations take two keys for one that differ in case, accents or spaces at the end.
    exact = Exact(_bytes(F("value")), _bytes(OuterRef(column)))
    return found.filter(Exists(listed.filter(exact, value=OuterRef(column))))


def _bytes(text: F) -> Func:
    return Func(text, template="CAST(%(expressions)s AS BINARY)", output_field=BinaryField())


def _keys_of(value: Any) -> QuerySet[ListedKey]:
    number = value["list"]
    known = KeyList.objects.using(database()).filter(pk=number).first()
    if known is None or not (known.kept or known.created_at > server.now(database()) - USABLE):
        # Without its list an exclusion would exclude nothing.
        raise Outdated(_("The list of keys is older than a day. Paste it again."))
    return ListedKey.objects.filter(list=number).order_by()


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
    LISTED: _listed,
    EXCEPT: _unlisted,
}


SALT = "django_rmq_retry.selection"
VALID_FOR = 3600
"""Seconds for which a preview may be acted upon."""
MOST_IDS = 200
"""A token travels in addresses; more than these are meant by a filter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Messages that were chosen; those that are parked afterwards are never among them."""

    filter: Mapping[str, Any] = field(default_factory=dict)
    """See ``filtering``; where records are named it is empty, or keeps some of them out."""
    revisions: Mapping[int, int] = field(default_factory=dict)
    """The records that are named, each with its revision at that time."""
    max_id: int = 0
    as_of: datetime
    count: int

    @classmethod
    def of_filter(cls, filter: Mapping[str, Any]) -> "Selection":  # noqa: A002 - its name
        """Everything that a filter finds now; an empty one finds all."""
        words = dict(filter) or {"state": State.values}
        try:
            rows = narrowed(_records(), words)
            told = rows.order_by().aggregate(count=Count("pk"), last=Max("pk"), parked=Max("parked_at"))
        except (ValueError, TypeError, ValidationError) as error:
            raise Refused(_("The filter cannot be used: %(error)s") % {"error": error}) from error
        now = server.now(rows.db)
        # A worker whose clock is ahead may have parked it "later" than now; it was seen all the same.
        as_of = max(now, told["parked"] or now)
        return cls(filter=words, max_id=told["last"] or 0, as_of=as_of, count=told["count"])

    @classmethod
    def of_ids(cls, ids: Iterable[int]) -> "Selection":
        """These records, as they are now."""
        wanted = list(dict.fromkeys(ids))
        found: dict[int, int] = {}
        for start in range(0, len(wanted), 500):
            rows = _records().filter(pk__in=wanted[start : start + 500])
            found.update(rows.values_list("pk", "revision"))
        return cls(revisions=found, as_of=server.now(_records().db), count=len(found))

    @property
    def named(self) -> bool:
        """Whether the records are named one by one."""
        return bool(self.revisions) or not self.filter

    def leaving_out(self, listed: Mapping[str, int] | None) -> "Selection":
        """The same frozen choice without what a list of keys names; with all of it again where there is no list."""
        words = {name: value for name, value in self.filter.items() if name != EXCEPT}
        changed = replace(self, filter={**words, **({EXCEPT: dict(listed)} if listed else {})})
        return replace(changed, count=changed.queryset().count())

    def token(self) -> str:
        """To be carried through a form or an address for an hour; nobody can widen it."""
        if len(self.revisions) > MOST_IDS:
            said = _("At most %(most)s messages can be chosen one by one; choose more by a filter.")
            raise Refused(said % {"most": MOST_IDS})
        return dumps(self.facts(), salt=SALT, compress=True)

    @classmethod
    def read(cls, token: str) -> "Selection":
        """What a token means; ``Outdated`` where it is too old or not of our making."""
        try:
            facts = loads(token, salt=SALT, max_age=VALID_FOR)
        except SignatureExpired as error:
            raise Outdated(_("This preview is older than an hour. Refresh it and look again.")) from error
        except BadSignature as error:
            raise Outdated(_("This is no selection of this site. Choose the messages again.")) from error
        return cls(
            filter=facts.get("filter", {}),
            revisions={int(pk): revision for pk, revision in facts.get("ids", {}).items()},
            max_id=facts["max_id"],
            as_of=datetime.fromisoformat(facts["as_of"]),
            count=facts["count"],
        )

    def facts(self) -> dict[str, Any]:
        """As it stands in the token and in the record of a run."""
        what: dict[str, Any] = {"filter": dict(self.filter)} if self.filter else {}
        if self.named:
            what["ids"] = {str(pk): revision for pk, revision in list(self.revisions.items())[:MOST_IDS]}
        return {**what, "max_id": self.max_id, "as_of": self.as_of.isoformat(), "count": self.count}

    def queryset(self) -> QuerySet[ParkedMessage]:
        """The records that are still meant: what was parked, or parked again, since then is left out."""
        rows = narrowed(_records(), self.filter)
        if self.named:
            return rows.filter(pk__in=list(self.revisions))
        return rows.filter(pk__lte=self.max_id, parked_at__lte=self.as_of)

    def check(self, found: int) -> None:
        """Refuse a set that has grown, and one of which nothing is left."""
        if found > self.count:
            said = _("%(found)s messages match now and %(count)s did when you looked. Refresh the preview.")
            raise Outdated(said % {"found": found, "count": self.count})
        if not found:
            raise NothingChosen(_("None of the chosen messages is there any more. Nothing was done."))

    @property
    def description(self) -> str:
        """In short, for the page of a run."""
        some = [", ".join(f"#{pk}" for pk in sorted(self.revisions)[:10])] if self.named else []
        return " · ".join([*some, *(f"{name} {_words(value)}" for name, value in self.filter.items())])


def _words(value: object) -> str:
    if isinstance(value, Mapping):
        return f"{value['count']} (list {value['list']})"
    return " ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _records() -> QuerySet[ParkedMessage]:
    return ParkedMessage.objects.using(router.db_for_write(ParkedMessage))


PAGE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a page ended. It holds although the row there is deleted, or parked again."""

    number: int
    at: datetime

    def __str__(self) -> str:
        return f"{self.number}@{self.at.astimezone(UTC).isoformat().replace('+00:00', 'Z')}"

    @classmethod
    def of(cls, row: ParkedMessage) -> "Place":
        return cls(number=row.pk, at=row.parked_at)

    @classmethod
    def read(cls, text: str) -> "Place | None":
        """What ``str`` made of it, or a number whose row is still there; ValueError for what is neither."""
        number, divider, time = text.removeprefix("#").partition("@")
        if divider:
            at = parse_datetime(time)
            if at is None or at.tzinfo is None:
                raise ValueError(text)
            return cls(number=int(number), at=at)
        row = ParkedMessage.objects.filter(pk=int(number)).only("parked_at").first()
        return None if row is None else cls.of(row)


def pages(
    rows: QuerySet[ParkedMessage], *, after: Place | None = None, limit: int | None = None
) -> Iterator[list[ParkedMessage]]:
    """A statement for each page: some databases hand over a whole result at once, whatever the cursor."""
    ordered, left = rows.order_by("-parked_at", "-pk"), limit
    while left is None or left > 0:
        size = PAGE if left is None else min(PAGE, left)
        found = list((ordered if after is None else _behind(ordered, after))[:size])
        if found:
            yield found
        if len(found) < size:
            return
        after = Place.of(found[-1])
        left = None if left is None else left - size


def _behind(rows: QuerySet[ParkedMessage], place: Place) -> QuerySet[ParkedMessage]:
    return rows.filter(parked_at__lte=place.at).filter(Q(parked_at__lt=place.at) | Q(pk__lt=place.number))

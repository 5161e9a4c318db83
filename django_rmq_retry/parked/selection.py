"""Selections of parked messages: by number, filter or page."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from django.core.exceptions import ValidationError
from django.core.signing import BadSignature, SignatureExpired, dumps, loads
from django.db import connections, router
from django.db.models import BinaryField, Count, Exists, F, Func, Max, OuterRef, Q, QuerySet
from django.db.models.lookups import Exact
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, pgettext_lazy

from django_rmq_retry import database_clock
from django_rmq_retry.arguments import plural
from django_rmq_retry.models import (
    BusinessKey,
    EarlyRetry,
    ErrorGroup,
    ItemReason,
    ItemState,
    KeyList,
    ListedKey,
    MessageVersion,
    ParkedMessage,
    RequestMember,
    RequeueItem,
    RequeueRun,
    State,
)
from django_rmq_retry.models.parked import OPEN, folded
from django_rmq_retry.parked.database import records_alias
from django_rmq_retry.parked.may_have_run import may_have_run
from django_rmq_retry.parked.operators import NothingChosen, Outdated, Refused
from django_rmq_retry.parked.overdue import overdue
from django_rmq_retry.statements import in_slices, none_of, takes_arrays

Narrowing = Callable[[Any], Q]
LAST_CHARACTER = "\U0010ffff"
MOST_SEARCHED_IDS = 1000
"""Largest number of records of one ID that a query lists; if there are more, it searches all messages."""
LISTED, EXCEPT = "keys", "except_keys"
"""Filter words for a list of keys: the messages that it named when stored; all but the messages that it names now."""
DOUBTS: Mapping[str, Any] = {
    "handled": gettext_lazy("perhaps handled"),
    "twice": gettext_lazy("perhaps done twice"),
}
LIST_USABLE = timedelta(days=1)
"""Time for which a list can be used that no action refers to."""

_NAMES = """
WITH RECURSIVE named(name) AS (
    SELECT MIN({column}) FROM rmq_retry_parkedmessage WHERE {among}
    UNION ALL
    SELECT (SELECT MIN({column}) FROM rmq_retry_parkedmessage WHERE {among} AND {column} > named.name) FROM named
    WHERE named.name IS NOT NULL
)
SELECT name FROM named WHERE name IS NOT NULL AND name <> '' LIMIT 1000
"""
"""Steps through the index from one name to the next, because DISTINCT reads every record."""

SALT = "django_rmq_retry.selection"
TOKEN_SECONDS = 3600
"""Seconds for which an operator may act on a preview."""
MOST_IDS = 200
"""Largest number of messages named in a token, which is part of URLs; larger selections need a filter."""
PAGE_MESSAGES = 500
MOST_DESCRIBED = 10
"""The most records that a description names."""
DESCRIBED_BYTES = 200
"""The most bytes of their keys, so that no column cuts one: an erasure would not find it."""
MOMENTS = ("edited_at", "parked_after", "parked_before")
"""Filter words whose value is a time."""


def queues_with_records() -> set[str]:
    """Return every queue that has a record, even if no handler uses it any more."""
    return _names(_NAMES.format(column="queue", among="1 = 1"))


def reasons_with_records(state: State) -> set[str]:
    """Return every reason for which a message in this state was parked."""
    return _names(_NAMES.format(column="reason", among="state = %s"), state.value, state.value)


def _names(statement: str, *values: str) -> set[str]:
    with connections[records_alias()].cursor() as cursor:
        cursor.execute(statement, values)
        return {name for (name,) in cursor.fetchall()}


def narrowed(rows: QuerySet[ParkedMessage], filter: Mapping[str, Any]) -> QuerySet[ParkedMessage]:  # noqa: A002
    """Return the rows that match a filter; raise ValueError for an unknown filter word."""
    for name, value in filter.items():
        if name not in FIELDS:
            text = _("%(name)r is not a filter. Valid filters: %(known)s.")
            raise ValueError(text % {"name": name, "known": ", ".join(FIELDS)})
        rows = rows.filter(FIELDS[name].narrow(value))
    return rows


def _states(value: Any) -> Q:
    chosen = _several(value)
    unknown = set(chosen) - set(State.values)
    if unknown:
        raise ValueError(f"unknown state {', '.join(sorted(unknown))}; known are {', '.join(State.values)}")
    return Q(state__in=chosen)


def _several(value: Any) -> list[str]:
    return [str(one) for one in value] if isinstance(value, (list, tuple)) else [str(value)]


def _one_of(field: str) -> Narrowing:
    return lambda value: Q(**{f"{field}__in": _several(value)})


def _number(lookup: str) -> Narrowing:
    return lambda value: Q(**{lookup: int(value)})


def group_numbers(value: Any) -> list[int]:
    """Return the error groups that a filter names: one, a list, or numbers separated by commas."""
    return [int(one) for one in (value.split(",") if isinstance(value, str) else _several(value))]


def _groups(value: Any) -> Q:
    return Q(group__in=group_numbers(value))


def _moment(lookup: str) -> Narrowing:
    def narrow(value: Any) -> Q:
        at = parse_datetime(value) if isinstance(value, str) else value
        if at is None or at.tzinfo is None:
            text = _("%(value)r is not a time with a time zone, such as 2026-11-21T03:00:00Z")
            raise ValueError(text % {"value": value})
        return Q(**{lookup: at})

    return narrow


def _key(value: Any) -> Q:
    return Q(Exists(BusinessKey.objects.filter(message=OuterRef("pk"), value=str(value))))


def numbers_of(text: str) -> list[int]:
    """Return the records with this ID of any kind, each kind searched by its index; at most ``MOST_SEARCHED_IDS`` + 1.

    This is a query of its own, because MariaDB would read all messages to find those in a union.
    """
    records = ParkedMessage.objects.using(records_alias()).order_by()
    keys = BusinessKey.objects.using(records_alias()).filter(value=text).values_list("message_id")
    kinds = [records.filter(message_id=text), records.filter(correlation_id=text)]
    number = number_in(text.removeprefix("#"))
    kinds += [records.filter(pk=number)] if number is not None else []
    return [row[0] for row in keys.union(*(kind.values_list("pk") for kind in kinds))[: MOST_SEARCHED_IDS + 1]]


def _any_id(value: Any) -> Q:
    """Match any ID that an operator may have: a business key, message ID, correlation ID, or record number."""
    text = str(value)
    numbers = numbers_of(text)
    if len(numbers) <= MOST_SEARCHED_IDS:
        # No record has number 0. For an empty list Django generates no SQL, from which a run's items are inserted.
        return Q(pk__in=numbers or [0])
    number = number_in(text.removeprefix("#"))
    return _key(text) | Q(message_id=text) | Q(correlation_id=text) | (Q() if number is None else Q(pk=number))


def beginning(field: str, text: str) -> Q:
    """Match texts by how they begin, in the form for which this database uses an index of the field."""
    vendor = connections[records_alias()].vendor
    if vendor == "sqlite":
        return Q(**{f"{field}__gte": text, f"{field}__lt": text + LAST_CHARACTER})
    return Q(**{f"{field}__{'istartswith' if vendor == 'mysql' else 'startswith'}": text})


def _begins(value: Any) -> Q:
    """Match business keys and message IDs by how they begin; case is ignored in business keys."""
    text = str(value)
    if not text.strip() or not folded(text):
        # Every key begins with an empty text, such as that of a shell variable that is not set.
        return Q(pk__in=[0])
    of_key, of_id = beginning("folded", folded(text)), beginning("message_id", text)
    keys = BusinessKey.objects.using(records_alias()).order_by().filter(of_key).values_list("message", flat=True)
    records = ParkedMessage.objects.using(records_alias()).order_by().filter(of_id).values_list("pk", flat=True)
    # Each with a limit of its own, because a union would read all that begin so before it is cut.
    by_key, by_id = list(keys[: MOST_SEARCHED_IDS + 1]), list(records[: MOST_SEARCHED_IDS + 1])
    if max(len(by_key), len(by_id)) <= MOST_SEARCHED_IDS:
        return Q(pk__in=list({*by_key, *by_id}) or [0])
    # With OR the database would first list all that one of them finds, also if the other finds nothing.
    if not by_id:
        return Q(pk__in=keys)
    return of_id | Q(pk__in=keys) if by_key else of_id


def number_in(text: str) -> int | None:
    """Return the number in a text if it can be a row's number: longer ones fit in no column."""
    return int(text) if text.isdecimal() and len(text) < 19 else None  # noqa: PLR2004 - a bigint has 19 digits


def _edited_at(value: Any) -> Q:
    """Match the messages of one edit: its versions have one time."""
    edited = MessageVersion.objects.using(records_alias()).filter(at=datetime.fromisoformat(value)).order_by()
    return Q(pk__in=list(edited.values_list("message", flat=True)[:MOST_SEARCHED_IDS]) or [0])


def _of_run(**outcome: Any) -> Callable[[Any], Q]:
    """Match the messages that had this outcome in a requeue run, which may have sent them as waiting retries."""

    def match(value: Any) -> Q:
        run = int(value)
        if RequeueRun.objects.filter(pk=run).exclude(retries_of="").exists():
            return Q(Exists(EarlyRetry.objects.filter(run=run, identity=OuterRef("identity"), **outcome)))
        return _of_item(run, **outcome)

    return match


def _of_item(run: int, **outcome: Any) -> Q:
    return Q(Exists(RequeueItem.objects.filter(run=run, message=OuterRef("pk"), **outcome)))


def _left_out(value: Any) -> Q:
    """Match the messages that a requeue run left out, such as 12, or only those of one reason, such as 12:late."""
    run, _colon, code = str(value).partition(":")
    return _of_item(int(run), state=ItemState.SKIPPED, **({"skip_code": code} if code else {}))


def _sent_after(value: Any) -> Q:
    """Match the messages that a later requeue run has sent."""
    later = RequeueItem.objects.filter(run__gt=int(value), message=OuterRef("pk"), sent_at__isnull=False)
    return Q(Exists(later))


def _doubted(value: Any) -> Q:
    if value not in DOUBTS:
        raise ValueError(f"unknown doubt {value}; known are {', '.join(DOUBTS)}")
    items = RequeueItem.objects.filter(Q(handled__gt=1) | Q(handled=1, redelivered=True)).order_by()
    return Q(pk__in=items.values("message")) if value == "twice" else Q(state__in=OPEN) & may_have_run()


def _listed(value: Any) -> Q:
    return Q(pk__in=_keys_of(value).filter(message__isnull=False).values("message"))


def _unlisted(value: Any) -> Q:
    """Match by key at each evaluation, so that a message that arrives later with such a key is excluded too."""
    listed = _keys_of(value)
    keys = _named_by(listed, BusinessKey.objects.order_by(), "value").values("message")
    ids = _named_by(listed, ParkedMessage.objects.order_by(), "message_id").values("pk")
    return ~Q(pk__in=keys) & ~Q(pk__in=ids)


def _named_by(listed: QuerySet[ListedKey], rows: QuerySet[Any], column: str) -> QuerySet[Any]:
    chosen = rows.filter(**{f"{column}__in": listed.values("value")})
    if connections[records_alias()].vendor != "mysql":
        return chosen
    # The usual collations of MySQL treat keys as equal that differ in case, accents or trailing spaces.
    exact = Exact(_bytes(F("value")), _bytes(OuterRef(column)))
    return chosen.filter(Exists(listed.filter(exact, value=OuterRef(column))))


def _bytes(text: F) -> Func:
    return Func(text, template="CAST(%(expressions)s AS BINARY)", output_field=BinaryField())


def _keys_of(value: Any) -> QuerySet[ListedKey]:
    number = value["list"]
    known = KeyList.objects.using(records_alias()).filter(pk=number).first()
    if known is None or not (known.kept or known.created_at > database_clock.now(records_alias()) - LIST_USABLE):
        # Without its list an exclusion would exclude nothing.
        raise Outdated(_("The list of keys is older than a day. Paste it again."))
    return ListedKey.objects.filter(list=number).order_by()


class Field(NamedTuple):
    """A field by which messages are selected: its condition, its name in pages, and its option of ``rmq_parked``."""

    narrow: Narrowing
    label: Any
    metavar: str = ""
    """AGE is an age or a time; empty if there is no option."""
    help: str = ""
    option: str = ""
    """The name of the option if it is not the field's."""


FIELDS: Mapping[str, Field] = {
    "state": Field(_states, gettext_lazy("status")),
    "group": Field(_groups, gettext_lazy("group"), "N", "in this error group; several are separated by commas"),
    "queue": Field(_one_of("queue"), gettext_lazy("queue"), "QUEUE", "that failed in this queue"),
    "type": Field(_one_of("type"), gettext_lazy("message type"), "TYPE", "of this message type"),
    "handler": Field(_one_of("handler"), gettext_lazy("handler"), "NAME", "parked by this handler"),
    "reason": Field(
        _one_of("reason"),
        gettext_lazy("reason"),
        "REASON",
        'parked for this reason, such as "permanent"',
        option="parked_reason",
    ),
    "error": Field(_one_of("error"), gettext_lazy("error"), "CLASS", "with this error class"),
    "key": Field(_key, gettext_lazy("business key"), "KEY", "with this business key"),
    "message_id": Field(_one_of("message_id"), gettext_lazy("message id"), "ID", "with this message id"),
    "correlation_id": Field(
        _one_of("correlation_id"), gettext_lazy("correlation id"), "ID", "with this correlation id"
    ),
    "search": Field(
        _any_id,
        pgettext_lazy("filter", "key or id"),
        "TEXT",
        "with this business key, message id or correlation id",
    ),
    "begins": Field(
        _begins,
        pgettext_lazy("filter", "key or id begins with"),
        "TEXT",
        "with a business key or message id that begins so; case is ignored in keys",
    ),
    "failed_of_run": Field(
        _of_run(state=ItemState.FAILED),
        pgettext_lazy("filter", "failed again in requeue run"),
        "RUN",
        "that failed again in this requeue run",
    ),
    "processed_of_run": Field(_of_run(state=ItemState.PROCESSED), pgettext_lazy("filter", "processed in requeue run")),
    "waiting_of_run": Field(
        _of_run(state=ItemState.SENT), pgettext_lazy("filter", "without an outcome in requeue run")
    ),
    "no_outcome": Field(
        lambda _value: overdue(database_clock.now(records_alias())), pgettext_lazy("filter", "without an outcome")
    ),
    "left_out_of_run": Field(_left_out, pgettext_lazy("filter", "left out of requeue run")),
    "unsent_of_run": Field(
        lambda value: _left_out(f"{int(value)}:{ItemReason.STOPPED}") & ~_sent_after(value),
        pgettext_lazy("filter", "not sent by requeue run"),
    ),
    "unconfirmed_of_run": Field(
        _of_run(state=ItemState.UNCONFIRMED),
        pgettext_lazy("filter", "not confirmed in requeue run"),
        "RUN",
        "that the broker did not confirm in this requeue run",
    ),
    "handled_twice_of_run": Field(
        _of_run(handled__gt=1),
        pgettext_lazy("filter", "handled twice in requeue run"),
        "RUN",
        "that were handled twice in this requeue run",
    ),
    "perhaps_twice_of_run": Field(
        _of_run(handled__lte=1, redelivered=True),
        pgettext_lazy("filter", "perhaps handled twice in requeue run"),
        "RUN",
        "that may have been handled twice in this requeue run",
    ),
    "doubt": Field(
        _doubted,
        pgettext_lazy("filter", "doubt"),
        "DOUBT",
        '"handled" for those that may have been handled, "twice" for those that were handled twice, or perhaps',
    ),
    "edited_at": Field(_edited_at, pgettext_lazy("filter", "edited at")),
    "cycle_min": Field(
        _number("cycle__gte"), pgettext_lazy("filter", "from cycle"), "N", "sent to their queue at least N times"
    ),
    "parked_after": Field(
        _moment("parked_at__gte"),
        pgettext_lazy("filter", "parked since"),
        "AGE",
        "parked since: 90s, 10m, 1h, 7d, or a time",
        option="since",
    ),
    "parked_before": Field(
        _moment("parked_at__lt"),
        gettext_lazy("parked before"),
        "AGE",
        "parked before: 10m, 1h, 7d, or a time",
        option="until",
    ),
    "without": Field(lambda value: ~Q(pk__in=[int(pk) for pk in value]), pgettext_lazy("filter", "without")),
    LISTED: Field(_listed, pgettext_lazy("filter", "named by")),
    EXCEPT: Field(_unlisted, pgettext_lazy("filter", "except those named by")),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Chosen messages; messages parked or restored afterwards are never included."""

    filter: Mapping[str, Any] = field(default_factory=dict)
    """``FIELDS`` with their values; if records are named, it is empty or excludes some of them."""
    revisions: Mapping[int, int] = field(default_factory=dict)
    """The named records, each with its revision when it was chosen."""
    request: int = 0
    """The request for a second person whose members these are; the filter then only says how they were chosen."""
    max_id: int = 0
    as_of: datetime
    count: int
    apart: frozenset[int] | None = None
    """The records that its list of keys leaves out, if a page has read them."""

    @classmethod
    def of_filter(cls, filter: Mapping[str, Any]) -> "Selection":  # noqa: A002 - its name
        """Select all messages that match a filter now; an empty filter matches all."""
        words = dict(filter) or {"state": State.values}
        # Before they are counted: what is opened again meanwhile may not be among them.
        now = database_clock.now(_records().db)
        try:
            rows = narrowed(_records(), words)
            totals = rows.order_by().aggregate(count=Count("pk"), last=Max("pk"), parked=Max("parked_at"))
        except (ValueError, TypeError, ValidationError) as error:
            raise Refused(_("The filter cannot be used: %(error)s") % {"error": error}) from error
        # A worker whose clock is ahead may have parked a message "later" than now; it is selected nevertheless.
        as_of = max(now, totals["parked"] or now)
        return cls(filter=words, max_id=totals["last"] or 0, as_of=as_of, count=totals["count"])

    @classmethod
    def of_ids(cls, ids: Iterable[int]) -> "Selection":
        wanted = list(dict.fromkeys(ids))
        order: dict[int, int] = {}
        for some in in_slices(wanted, 500):
            rows = _records().filter(pk__in=some)
            order.update(rows.values_list("pk", "revision"))
        return cls(revisions=order, as_of=database_clock.now(_records().db), count=len(order))

    @property
    def group(self) -> int | None:
        """The error group of all its messages; None if they are chosen in another way, or from several groups."""
        numbers = group_numbers(self.filter.get("group", []))
        return numbers[0] if len(numbers) == 1 else None

    @property
    def named(self) -> bool:
        """True if the records are named one by one."""
        return bool(self.revisions) or not self.filter

    @property
    def alone(self) -> bool:
        """True if it is one message, named by its number."""
        return len(self.revisions) == 1 and not self.filter

    @property
    def members(self) -> QuerySet[RequestMember]:
        """The members of the request: messages, each with its revision when it was asked for."""
        return RequestMember.objects.using(records_alias()).filter(request=self.request).order_by()

    def revisions_of(self, ids: Collection[int]) -> Mapping[int, int]:
        """Return the revisions that these messages, and others between them, had when they were chosen, if kept."""
        if not self.request or not ids:
            return self.revisions
        between = self.members.filter(message__gte=min(ids), message__lte=max(ids))
        return dict(between.values_list("message", "revision"))

    def leaving_out(self, listed: Mapping[str, int] | None) -> "Selection":
        """Return this frozen selection without the messages that a list names; all of it if there is no list."""
        words = {**self._whole, **({EXCEPT: dict(listed)} if listed else {})}
        changed = replace(self, filter=words, request=0, apart=None)
        return replace(changed, count=changed.queryset().count())

    def undiminished(self) -> QuerySet[ParkedMessage]:
        """Return the records that still match, with those that a list leaves out, also of a request."""
        return replace(self, filter=self._whole, request=0, apart=None).queryset()

    def looked_at(self, apart: frozenset[int]) -> "Selection":
        """Return it for the queries of one page that has read which records its list of keys leaves out.

        None of them matches keys then, which takes longer than all else. What acts takes the selection itself, because
        a message with such a key may arrive meanwhile.
        """
        _keys_of(self.filter[EXCEPT])
        return replace(self, apart=apart) if takes_arrays(records_alias()) else self

    @property
    def _whole(self) -> Mapping[str, Any]:
        return {name: value for name, value in self.filter.items() if name != EXCEPT}

    def token(self) -> str:
        """Return a signed token for a form or URL; it is valid for an hour, and clients cannot change it."""
        if len(self.revisions) > MOST_IDS:
            text = _("At most %(most)s messages can be chosen one by one; choose more by a filter.")
            raise Refused(text % {"most": MOST_IDS})
        return dumps(self.facts(), salt=SALT, compress=True)

    @classmethod
    def read(cls, token: str) -> "Selection":
        """Return the selection of a token; raise ``Outdated`` if the token is too old or not signed by this site."""
        try:
            facts = loads(token, salt=SALT, max_age=TOKEN_SECONDS)
        except SignatureExpired as error:
            raise Outdated(_("This preview is older than an hour. Refresh it and check it again.")) from error
        except BadSignature as error:
            text = _("The selection is invalid: this site did not sign it. Choose the messages again.")
            raise Outdated(text) from error
        return cls.of_facts(facts)

    @classmethod
    def of_facts(cls, facts: Mapping[str, Any]) -> "Selection":
        """Return the selection with these values, which ``facts`` returned."""
        return cls(
            filter=facts.get("filter", {}),
            revisions={int(pk): revision for pk, revision in facts.get("ids", {}).items()},
            request=facts.get("request", 0),
            max_id=facts["max_id"],
            as_of=datetime.fromisoformat(facts["as_of"]),
            count=facts["count"],
        )

    def facts(self, *, most: int | None = MOST_IDS) -> dict[str, Any]:
        """Return the selection's values for a token and for the record of a run, with at most so many named records."""
        what: dict[str, Any] = {"filter": dict(self.filter)} if self.filter else {}
        if self.named:
            what["ids"] = {str(pk): revision for pk, revision in list(self.revisions.items())[:most]}
        if self.request:
            what["request"] = self.request
        return {**what, "max_id": self.max_id, "as_of": self.as_of.isoformat(), "count": self.count}

    def queryset(self, members: QuerySet[RequestMember] | None = None) -> QuerySet[ParkedMessage]:
        """Return the records that still match, without those parked, or parked or opened again, since then.

        Named records and members, or only some ``members``, are returned whatever became of them.
        """
        if self.request:
            return _records().filter(pk__in=(self.members if members is None else members).values("message"))
        rows = narrowed(_records(), self.filter if self.apart is None else self._whole)
        if self.apart:
            rows = rows.filter(none_of("pk", self.apart, using=rows.db))
        if self.named:
            return rows.filter(pk__in=list(self.revisions))
        # Others that match now were discarded, on hold or under way then, so nobody has seen them among these.
        seen = Q(reopened_at=None) | Q(reopened_at__lte=self.as_of)
        return rows.filter(seen, pk__lte=self.max_id, parked_at__lte=self.as_of)

    def check(self, count_now: int) -> None:
        """Refuse a selection that has grown, or of which no message is left."""
        if count_now > self.count:
            text = _("%(found)s messages match now, but %(count)s matched in your preview. Refresh the preview.")
            raise Outdated(text % {"found": count_now, "count": self.count})
        if not count_now:
            raise NothingChosen(_("None of the chosen messages exists any more. Nothing was done."))

    @property
    def description(self) -> str:
        """A short text with the causes of error groups. That the messages are parked is not said."""
        return self._naming([f"#{pk}" for pk in sorted(self.revisions)[:MOST_DESCRIBED]])

    @property
    def subject(self) -> str:
        """The same for the audit log, which names messages by their keys. Who sees a run may not see its messages."""
        numbers = sorted(self.revisions)[:MOST_DESCRIBED]
        known = _records().only("business_key", "message_id").in_bulk(numbers) if numbers else {}
        names = [str(known.get(number, f"#{number}")) for number in numbers]
        while len(names) > 1 and len(", ".join(names).encode()) > DESCRIBED_BYTES:
            names.pop()
        return self._naming(names)

    def _naming(self, names: Sequence[str]) -> str:
        more = ["…"] if len(names) < len(self.revisions) else []
        some = [", ".join([*names, *more])] if self.named else []
        return " · ".join([*some, *(_described(name, value) for name, value in worth_saying(self.filter).items())])


def worth_saying(filters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the filters of a selection without that of the state, if it only says that the messages are parked."""
    parked = len(filters) > 1 and filters.get("state") in ([State.PARKED], State.PARKED)
    return {name: value for name, value in filters.items() if not (parked and name == "state")}


def _described(name: str, value: Any) -> str:
    if name in (LISTED, EXCEPT):
        keys = plural(value["count"], "key")
        return f"list of {keys}" if name == LISTED else f"without {keys}"
    if name == "state":
        return " or ".join(one.replace("_", " ") for one in _several(value))
    if name != "group":
        return f"{name.replace('_', ' ')} {_time(value) if name in MOMENTS else _words(value)}"
    groups = ErrorGroup.objects.using(records_alias()).in_bulk(group_numbers(value))
    return ", ".join(str(groups.get(number, f"#{number}")) for number in group_numbers(value))


def _time(value: object) -> str:
    """Return a time to the second; the log keeps this text for readers in any time zone."""
    text = str(value)
    with suppress(ValueError):
        at = datetime.fromisoformat(text)
        return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC" if at.tzinfo else text
    return text


def _words(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _records() -> QuerySet[ParkedMessage]:
    return ParkedMessage.objects.using(router.db_for_write(ParkedMessage))


@dataclass(frozen=True, slots=True, kw_only=True)
class PageEnd:
    """The end of a page, which stays valid if the row there is deleted, or parked again."""

    number: int
    at: datetime

    def __str__(self) -> str:
        return f"{self.number}@{self.at.astimezone(UTC).isoformat().replace('+00:00', 'Z')}"

    @classmethod
    def of(cls, row: ParkedMessage) -> "PageEnd":
        return cls(number=row.pk, at=row.parked_at)

    @classmethod
    def read(cls, text: str) -> "PageEnd | None":
        """Return the place from the text of ``str``, or from the number of an existing row; None if the row is gone.

        Raise ValueError for any other text.
        """
        number, divider, time = text.removeprefix("#").partition("@")
        if divider:
            at = parse_datetime(time)
            if at is None or at.tzinfo is None:
                raise ValueError(text)
            return cls(number=int(number), at=at)
        row = ParkedMessage.objects.filter(pk=int(number)).only("parked_at").first()
        return None if row is None else cls.of(row)


def pages(
    rows: QuerySet[ParkedMessage], *, after: PageEnd | None = None, limit: int | None = None
) -> Iterator[list[ParkedMessage]]:
    """Yield pages, each by its own query: some databases return a whole result at once, even through a cursor."""
    ordered, left = rows.order_by("-parked_at", "-pk"), limit
    while left is None or left > 0:
        size = PAGE_MESSAGES if left is None else min(PAGE_MESSAGES, left)
        if after is not None:
            ordered = rows.order_by("-parked_at", "-pk").filter(parked_at__lte=after.at)
            ordered = ordered.filter(Q(parked_at__lt=after.at) | Q(pk__lt=after.number))
        rows_of_page = list(ordered[:size])
        if rows_of_page:
            yield rows_of_page
        if len(rows_of_page) < size:
            return
        after = PageEnd.of(rows_of_page[-1])
        left = None if left is None else left - size

"""Messages to send that have the first business key of another one: which of them may be one request, sent twice."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any, NamedTuple

from django.db import connections
from django.db.models import Count, QuerySet, Sum
from django.utils.translation import gettext as _

from django_rmq_retry.conf import settings
from django_rmq_retry.messages.json_fields import differing
from django_rmq_retry.messages.masking import masked
from django_rmq_retry.models import BusinessKey, ParkedMessage
from django_rmq_retry.models.parked import OPEN
from django_rmq_retry.parked.database import records_alias
from django_rmq_retry.parked.edit import changes_in_one_line
from django_rmq_retry.statements import KEYS_AT_ONCE, with_one_of
from django_rmq_retry.wording import minute

SHOWN = 5
MOST_SORTED = 10_000
"""The most messages of a selection whose business keys are sorted; those of more are compared with ``shared_keys``."""
MOST_SHARED = 5000
MOST_TWIN_KEYS, MOST_TWINS = 500, 1000
"""The most keys of twins, and twins, of which the later ones are listed, so that one button leaves them out."""
MOST_COMPARED_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class SameKeys:
    """The messages that share their business keys."""

    keys: Sequence[str] = ()
    """Some of the keys."""
    count: int = 0
    twins: Collection[str] | None = ()
    """The keys of which messages share queue and type, too; None if there are too many keys to tell."""
    twin_count: int = 0


class Twin(NamedTuple):
    """A message to send that may be the same request as another one to send."""

    key: str
    queue: str
    type: str
    parked_at: datetime
    pk: int
    message_id: str

    @property
    def kind(self) -> tuple[str, str, str]:
        return self.key, self.queue, self.type


@dataclass(frozen=True, slots=True, kw_only=True)
class Twins:
    """The messages that may be one request each with another one, in the order in which they are sent."""

    examples: Sequence[tuple[int, str, str]]
    """Number, key, and a sentence with what differs from the one before, of the first few."""
    later: Sequence[str]
    """The ids of all but the first of each; empty if they are too many."""


def same_keys(rows: QuerySet[ParkedMessage], count: int) -> SameKeys:
    """Return which of these messages share their business keys. All are open; ``count`` is how many there are."""
    if count < 2:  # noqa: PLR2004 - two can share a key
        return SameKeys()
    named = rows.exclude(business_key="").order_by()
    keys = shared_keys(named if count <= MOST_SORTED else None)
    if keys is None:
        shared = _shared(named)
        messages = shared.aggregate(messages=Sum("n"))["messages"] or 0
        shown = list(shared.values_list("business_key", flat=True)[:SHOWN] if messages else ())
        return SameKeys(keys=shown, count=messages, twins=None)
    # Each query evaluates the whole filter, so there is only one if a statement may have that many parameters.
    most = connections[rows.db].features.max_query_params
    at_once = KEYS_AT_ONCE if most and most < 2 * MOST_SHARED else MOST_SHARED
    counts, twins = Counter[str](), Counter[str]()
    for some in with_one_of(named, "business_key", keys, most=at_once):
        for key, _queue, _type, n in some.values_list("business_key", "queue", "type").annotate(n=Count("pk")):
            counts[key] += n
            twins[key] += n if n > 1 else 0
    several = {key: n for key, n in counts.items() if n > 1}
    return SameKeys(
        keys=sorted(several)[:SHOWN],
        count=sum(several.values()),
        twins=sorted(+twins),
        twin_count=twins.total(),
    )


def shared_keys(rows: QuerySet[ParkedMessage] | None = None) -> list[str] | None:
    """Return the business keys that several of the rows have, or several open messages; None if they are too many."""
    if rows is not None:
        shared = _shared(rows)
    else:
        # These are read from an index, and Count("pk") would need a column that it does not have.
        named = ParkedMessage.objects.using(records_alias()).filter(business_key__gt="", state__in=OPEN).order_by()
        shared = named.values("business_key").annotate(n=Count("*")).filter(n__gt=1)
    keys = list(shared.values_list("business_key", flat=True)[: MOST_SHARED + 1])
    return None if len(keys) > MOST_SHARED else keys


def _shared(rows: QuerySet[ParkedMessage]) -> Any:
    return rows.values("business_key").annotate(n=Count("pk")).filter(n__gt=1).order_by("business_key")


def with_keys(rows: QuerySet[ParkedMessage], keys: Sequence[str]) -> QuerySet[ParkedMessage]:
    """Return those of the rows that have these first keys, by the table of business keys, which has an index."""
    named = BusinessKey.objects.using(rows.db).filter(value__in=keys).values("message")
    return rows.filter(pk__in=named, business_key__in=keys)


def twins_among(rows: QuerySet[ParkedMessage], keys: Sequence[str]) -> Twins:
    """Return the messages of these keys, which several of one queue and type have; three queries."""
    order = ("business_key", "queue", "type", "parked_at", "pk")
    found = with_keys(rows, keys[:MOST_TWIN_KEYS]).order_by(*order).values_list(*order, "message_id")
    known = [Twin._make(row) for row in found[: MOST_TWINS + 1]]
    kinds = Counter(one.kind for one in known)
    twins = [one for one in known if kinds[one.kind] > 1]
    later = [after.message_id for before, after in pairwise(twins) if before.kind == after.kind and after.message_id]
    whole = len(keys) <= MOST_TWIN_KEYS and len(known) <= MOST_TWINS
    return Twins(examples=_told(twins[:SHOWN], rows.db), later=later if whole else ())


def _told(twins: Sequence[Twin], using: str) -> list[tuple[int, str, str]]:
    # What is sent of an edited one is another body.
    compared = ParkedMessage.objects.using(using).filter(size__lte=MOST_COMPARED_BYTES, version=1)
    records = compared.only("body", "content_type").in_bulk([one.pk for one in twins])
    told = _("%(type)s in %(queue)s, parked %(when)s")
    words = [told % {"type": one.type or "-", "queue": one.queue, "when": minute(one.parked_at)} for one in twins]
    for place, (before, after) in enumerate(pairwise(twins), 1):
        if before.kind == after.kind and before.pk in records and after.pk in records:
            change = changes_in_one_line(_differing(records[before.pk], records[after.pk]))
            words[place] = ", ".join(filter(None, (words[place], change)))
    return [(one.pk, one.key, text) for one, text in zip(twins, words, strict=True)]


def _differing(*both: ParkedMessage) -> Sequence[tuple[str, str | None, str | None]]:
    """Return the values that differ, without those that are masked; none if a body is no JSON."""
    paths = settings().operators.mask
    texts = [masked(bytes(one.body), one.content_type, paths)[0] for one in both]
    known = [text for text in texts if text is not None]
    return differing(*known) if len(known) == len(both) else ()

"""Parked messages without a business key, found by their contents: of a body that nobody can read no key is stored."""

from collections.abc import Mapping, Sequence

from django.db.models import BinaryField
from django.db.models.functions import Substr

from django_rmq_retry.models import ParkedMessage
from django_rmq_retry.models.parked import OPEN
from django_rmq_retry.parked.database import records_alias
from django_rmq_retry.parked.key_match import Beginnings, Keys, Wanted, text_of
from django_rmq_retry.parked.stored_keys import MOST_LISTED_BYTES

MOST_READ = 500
"""The most of these messages, the latest, whose contents are searched, in some 20 milliseconds."""


def with_content(asked: str) -> list[ParkedMessage]:
    """Return the latest open messages without a key in whose contents the text stands, without regard to case."""
    text = asked.strip()
    return _look(Beginnings([text])).get(text, []) if text else []


def with_contents(keys: Sequence[str]) -> Mapping[str, list[ParkedMessage]]:
    """Return the same for each of these keys that stands in one."""
    return _look(Keys(keys)) if keys else {}


def _look(wanted: Wanted) -> dict[str, list[ParkedMessage]]:
    found: dict[str, list[ParkedMessage]] = {}
    rows = ParkedMessage.objects.using(records_alias()).filter(business_key="", state__in=OPEN)
    start = Substr("body", 1, MOST_LISTED_BYTES, output_field=BinaryField())
    latest = rows.defer("body", "properties").annotate(start=start).order_by("-pk")[:MOST_READ]
    for row in latest:
        for key in wanted.in_text(text_of(row.start)):
            found.setdefault(key, []).append(row)
    return found

"""Messages page by page, the latest first: each page begins behind the last row of the one before."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from django.db.models import Q, QuerySet
from django.utils.dateparse import parse_datetime

from django_rmq_retry.models import ParkedMessage

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

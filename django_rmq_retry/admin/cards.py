"""What a list of causes shows of each: how many, since when, whether it grows, what it means in plain words."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_rmq_retry.conf import settings
from django_rmq_retry.core.verdict import Reason
from django_rmq_retry.models import ErrorGroup, ParkedMessage, State
from django_rmq_retry.operating.trending import parked_lately

LASTING = {Reason.PERMANENT, Reason.UNDECODABLE_BODY, Reason.UNDECODABLE_HEADERS}
"""Reasons that a requeue alone does not take away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """How many were parked in each span of time, the oldest first."""

    counts: tuple[int, ...]
    starts: tuple[datetime, ...]

    @property
    def recent(self) -> int:
        return self.counts[-1] if self.counts else 0

    @property
    def said(self) -> str:
        """The bars in a sentence."""
        first, last = self.counts[0], self.counts[-1]
        highest = max(self.counts)
        text = _("Parked per 10 minutes in the last 3 hours: first %(first)d, now %(last)d, at most %(highest)d.")
        return text % {"first": first, "last": last, "highest": highest}

    def rows(self) -> list[tuple[datetime, int]]:
        return list(zip(self.starts, self.counts, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One cause in a list."""

    group: ErrorGroup
    trend: Trend
    plain: str

    @property
    def growing(self) -> str:
        recent = self.trend.recent
        if not recent:
            return ""
        return ngettext("growing (+%(count)d in 10 min)", "growing (+%(count)d in 10 min)", recent) % {"count": recent}

    @property
    def lasting(self) -> bool:
        return lasting(self.group)


def cards(groups: Sequence[ErrorGroup]) -> list[Card]:
    """The cards of these groups, by one query more."""
    trends = trends_of([group.pk for group in groups])
    return [Card(group=group, trend=trends[group.pk], plain=plain_words(group)) for group in groups]


def trends_of(groups: Iterable[int]) -> dict[int, Trend]:
    """How many messages of each group were parked lately; one query for all of them."""
    starts, counts = parked_lately(groups)
    return {group: Trend(counts=tuple(found), starts=tuple(starts)) for group, found in counts.items()}


def plain_words(group: ErrorGroup) -> str:
    """What the cause means for people who read no code; empty where nobody has said so."""
    return group.plain or settings().plain_words.get(group.title, "")


def lasting(group: ErrorGroup) -> bool:
    """Whether the same message will fail the same way until somebody changes something."""
    return group.reason in LASTING


def oldest_open() -> datetime | None:
    """Since when the oldest parked message waits."""
    parked = ParkedMessage.objects.filter(state=State.PARKED)
    return parked.order_by("parked_at").values_list("parked_at", flat=True).first()

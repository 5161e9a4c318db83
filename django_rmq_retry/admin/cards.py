"""The cards of error groups: name, trend, cause and what is under way."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from django.utils.translation import gettext as _

from django_rmq_retry import database_clock
from django_rmq_retry.admin.labels import one_short_line
from django_rmq_retry.conf import settings
from django_rmq_retry.handlers import registry
from django_rmq_retry.handlers.layout import homes_of
from django_rmq_retry.health.problems import growth
from django_rmq_retry.messages.reasons import MAY_HAVE_RUN
from django_rmq_retry.models import ApprovalRequest, ErrorGroup, ParkedOrigin, RequeueRun
from django_rmq_retry.parked import approvals
from django_rmq_retry.parked.database import records_alias
from django_rmq_retry.parked.findings import PERMANENT_REASONS
from django_rmq_retry.parked.groups import (
    STILL_GROWS,
    Origin,
    group_grows,
    has_grown,
    origins_of,
    parked_lately,
    settled_at,
)
from django_rmq_retry.parked.items import LeftBehind, groups_of_runs, left_behind_lately
from django_rmq_retry.wording import counted, listed, minute


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """The number of messages parked in each span of time, oldest first."""

    counts: tuple[int, ...]
    starts: tuple[datetime, ...]
    newest: int
    """The new messages of its last burst, by which a group grows or not."""
    newest_since: datetime | None
    """The minute of the first of them; None if there are none."""

    @property
    def sentence(self) -> str:
        """Return the bars as a sentence."""
        first, last = self.counts[0], self.counts[-1]
        highest = max(self.counts)
        text = _("Parked per 10 minutes in the last 3 hours: first %(first)d, now %(last)d, at most %(highest)d.")
        return counted(text, first=first, last=last, highest=highest)

    def rows(self) -> list[tuple[datetime, int]]:
        return list(zip(self.starts, self.counts, strict=True))


@dataclass(frozen=True, kw_only=True)
class Card:
    group: ErrorGroup
    trend: Trend
    plain: str
    origins: Sequence[Origin] = ()
    of: int = 0
    """The parked messages of all groups."""
    failed_in: str = ""
    """The queue in which its last message failed, if it had been sent there from another one."""
    run: RequeueRun | None = None
    """An active requeue run that has not sent some of its messages."""
    left_behind: Sequence[LeftBehind] = ()
    """What stopped requeue runs have not sent of its messages."""
    asked_for: Sequence[ApprovalRequest] = ()
    """The open requests for acts on some of its messages."""

    @cached_property
    def growing(self) -> str:
        newest = self.trend.newest
        since = self.trend.newest_since
        now = database_clock.reckoned(records_alias())
        if since is None or not group_grows(self.group, newest, now, run=self.run):
            return ""
        text = _("growing (+%(count)d since %(time)s)")
        return counted(text, count=newest, time=minute(since))

    @cached_property
    def lull(self) -> str:
        """Return for how long none failed of a group that has grown.

        Of others, and if one failed since that was requeued, the time of the last failure says it.
        """
        trend, group, now = self.trend, self.group, database_clock.reckoned(records_alias())
        if self.growing or self._repeated or not has_grown(trend.newest) or now - group.last_seen < STILL_GROWS:
            return ""
        return growth(
            trend.newest,
            trend.newest_since,
            last_new=group.last_new or group.last_seen,
            now=now,
            parked=group.parked,
            settled=settled_at(group.last_handled, [self.run] if self.run else []),
        )

    @property
    def failed_again(self) -> bool:
        """True if what was parked last had been requeued: what was decided on since is not meant."""
        return self._repeated and bool(getattr(self.group, "last_again", False))

    @property
    def _repeated(self) -> bool:
        """True if its last failure was that of a message that had been requeued."""
        last_new = self.group.last_new
        return last_new is not None and last_new < self.group.last_seen

    @cached_property
    def handlers(self) -> str:
        """Return the handlers, unless the name of the group says the same: its error was raised in the handler."""
        names = {origin.handler for origin in self.origins}
        place = self.group.culprit.replace(":", ".")
        return "" if names == {place} else _named(origin.handler for origin in self.origins)

    @property
    def name(self) -> str:
        """Return the name of the group, with its queues if it has no place in the code: workers die in many."""
        return str(self.group) if self.group.culprit else " · ".join(filter(None, (str(self.group), self.queues)))

    @property
    def may_have_run(self) -> bool:
        """True if what its messages request may have been done, although no handler has said so."""
        return self.group.reason in MAY_HAVE_RUN

    @property
    def share(self) -> int:
        """Return its part of all parked messages, in percent; 0 if it has all of them."""
        here = max(self.group.parked - getattr(self.group, "held", 0), 0)
        return round(100 * here / self.of) if here < self.of else 0

    @property
    def queues(self) -> str:
        return _named(origin.queue for origin in self.origins)

    @property
    def is_permanent(self) -> bool:
        return is_permanent(self.group)


def _named(names: Iterable[str]) -> str:
    return listed(one_short_line(name) for name in dict.fromkeys(names) if name)


def _elsewhere(queue: str, origins: Iterable[Origin]) -> str:
    return "" if queue in {origin.queue for origin in origins} else one_short_line(queue)


def cards_of(groups: Sequence[ErrorGroup], *, of: int = 0) -> list[Card]:
    """Return the cards of these groups, by four additional queries, and some for each active or stopped requeue run."""
    numbers = [group.pk for group in groups]
    trends, origins, runs = trends_of(numbers), origins_of(numbers), groups_of_runs(numbers)
    stopped = left_behind_lately(numbers)
    asked = approvals.groups_of_requests()
    homes = homes_of(registry.work_queues())
    return [
        Card(
            group=group,
            trend=trends[group.pk],
            plain=plain_words(group),
            origins=origins[group.pk],
            of=of,
            failed_in=_elsewhere(homes.get(getattr(group, "parked_in", ""), ""), origins[group.pk]),
            run=runs.get(group.pk),
            left_behind=[one.of_group(group.pk) for one in stopped if group.pk in one.by_group],
            asked_for=asked.get(group.pk, ()),
        )
        for group in groups
    ]


def names_of(groups: Iterable[ErrorGroup]) -> dict[int, str]:
    """Return the name of each group, with its handlers where several groups have one name; one query for these."""
    names = {group.pk: str(group) for group in groups}
    shared = Counter(names.values())
    alike = [group for group, name in names.items() if shared[name] > 1]
    if not alike:
        return names
    handlers: dict[int, list[str]] = {group: [] for group in alike}
    origins = ParkedOrigin.objects.filter(group__in=alike).order_by("handler")
    for group, handler in origins.values_list("group", "handler").distinct():
        handlers[group].append(handler)
    return names | {group: " · ".join(filter(None, (names[group], _named(handlers[group])))) for group in alike}


def trends_of(groups: Iterable[int]) -> dict[int, Trend]:
    """Return the number of recently parked messages over time, for all groups by one query."""
    lately = parked_lately(groups)
    starts = tuple(lately.starts)
    return {
        group: Trend(
            counts=tuple(counts), starts=starts, newest=lately.newest[group], newest_since=lately.began.get(group)
        )
        for group, counts in lately.counts.items()
    }


def plain_words(group: ErrorGroup) -> str:
    """Return the cause in plain words for users who read no code; empty if the project gives none."""
    return group.plain or settings().operators.error_labels.get(group.title, "")


def is_permanent(group: ErrorGroup) -> bool:
    """Return True if the same message will fail the same way until its cause is fixed."""
    return group.reason in PERMANENT_REASONS

"""Who sends the outbox: each consumer has a relay and reports itself; any other relay is known by what it takes."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import router
from django.db.models import Count, Exists, Max, Min, OuterRef, Q
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_rmq_retry import database_clock
from django_rmq_retry.conf import settings
from django_rmq_retry.models import ConsumerProcess, OutboxMessage
from django_rmq_retry.models.controls import has_vanished
from django_rmq_retry.parked.database import records_alias
from django_rmq_retry.wording import messages_counted, second, span

TAKEN_WITHIN = timedelta(seconds=30)
"""The time within which a relay takes what is due, even behind many others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Senders:
    """The consumers, whose relays send what is due."""

    at: datetime
    alive: int
    connected: int
    vanished: datetime | None
    """The last heartbeat of those that vanished."""

    @classmethod
    def now(cls) -> "Senders":
        """Look at the heartbeats; one query."""
        alias = router.db_for_read(ConsumerProcess)
        now = database_clock.reckoned(alias)
        living = Q(~has_vanished(now), stopping=False)
        found = ConsumerProcess.objects.using(alias).aggregate(
            alive=Count("pk", filter=living),
            connected=Count("pk", filter=living & Q(connected=True)),
            vanished=Max("beat_at", filter=has_vanished(now)),
        )
        return cls(at=now, **found)

    @property
    def sentence(self) -> str:
        """Return who sends what is due, or why nobody is known to."""
        if self.connected:
            text = ngettext(
                "%(count)d consumer is alive and sends what is due.",
                "%(count)d consumers are alive and send what is due.",
                self.connected,
            )
            return text % {"count": self.connected}
        if self.alive:
            text = ngettext(
                "%(count)d consumer is alive, without a connection to the broker: it sends what is due once it has "
                "one.",
                "%(count)d consumers are alive, without a connection to the broker: they send what is due once they "
                "have one.",
                self.alive,
            )
            return text % {"count": self.alive}
        if not settings().records:
            return _("Consumers report nothing here, so who sends what is due is not known.")
        if self.vanished:
            text = _("No consumer is alive; the last one that vanished was heard of at %(time)s. %(start)s")
            return text % {"time": second(self.vanished), "start": _start()}
        return _("No consumer is alive. %(start)s") % {"start": _start()}


def _start() -> str:
    return _("Start manage.py rmq_consume or manage.py rmq_relay.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Untaken:
    """The messages of the outbox that are due and that no relay has taken."""

    count: int
    since: datetime | None
    at: datetime

    @classmethod
    def now(cls) -> "Untaken":
        """Count them, without those that wait behind another one of their ordering key; one query."""
        now = database_clock.reckoned(records_alias())
        earlier = OutboxMessage.objects.filter(order_key=OuterRef("order_key"), pk__lt=OuterRef("pk"))
        late = OutboxMessage.objects.filter(failed_at__isnull=True, due_at__lt=now - TAKEN_WITHIN)
        found = late.filter(Q(order_key="") | ~Exists(earlier)).aggregate(count=Count("pk"), since=Min("due_at"))
        return cls(count=found["count"], since=found["since"], at=now)

    @property
    def sentence(self) -> str:
        text = ngettext(
            "%(messages)s is due and nobody has taken it, for %(span)s.",
            "%(messages)s are due and nobody has taken them, the first for %(span)s.",
            self.count,
        )
        passed = self.at - self.since if self.since else timedelta()
        return text % {"messages": messages_counted(self.count), "span": span(passed)} if self.count else ""

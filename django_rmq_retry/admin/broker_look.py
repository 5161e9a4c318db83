"""A short look at the broker, within a time limit."""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from django.core.exceptions import ImproperlyConfigured

from django_rmq_retry import database_clock, declared
from django_rmq_retry.amqp.levels import Gauged, Level
from django_rmq_retry.errors import RmqRetryError
from django_rmq_retry.health.condition import waiting_messages
from django_rmq_retry.health.problems import unreachable
from django_rmq_retry.health.rules import Problem
from django_rmq_retry.models import Declared
from django_rmq_retry.parked.database import records_alias
from django_rmq_retry.publishing import broker_connections
from django_rmq_retry.topology.declarations import Role

PAGE_PATIENCE_SECONDS = 0.8
"""Seconds for which a page waits for a look."""
AWAY_SECONDS = 3.0
"""Seconds without an answer after which a look finds the broker away; until then it is only late."""
FRESH_LOOK_SECONDS = 2.0
KNOWN_SECONDS = 60.0
"""Seconds for which a page that sends nothing may show an old look, while a thread takes a new one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    at: datetime
    away: Problem | None = None
    """What is wrong if the broker does not answer."""
    since: datetime | None = None
    """When this process asked in vain first: the broker was lost earlier, so no page shows this time."""
    late: bool = False
    """True if the broker has not answered this look yet; what it said before is shown meanwhile."""
    last: "Look | None" = None
    """The last look that the broker answered, if it cannot be reached now."""
    gauged: Gauged = Gauged(levels=(), api_set=True)

    @property
    def levels(self) -> tuple[Level, ...]:
        return self.gauged.levels

    @property
    def unreachable(self) -> str:
        """The reason that the broker cannot be reached, without a stop, for brackets; empty if it can."""
        return self.away.text.removesuffix(".") if self.away else ""

    def level(self, queue: str) -> Level | None:
        return next((level for level in self.levels if level.queue == queue), None)


class _Window:
    """The last look of this process. One thread looks; other threads wait for it, up to ``PAGE_PATIENCE_SECONDS``."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._looking: threading.Thread | None = None
        self._seen: Look | None = None
        self._last: Look | None = None
        self._until = 0.0
        self._known: tuple[Declared, ...] = ()
        self._since: datetime | None = None

    def remember(self, known: Sequence[Declared]) -> None:
        """Store the project's declared objects, as read by a page: the thread has no database connection."""
        with self._lock:
            if {row.digest for row in known} != {row.digest for row in self._known}:
                self._known, self._until = tuple(known), 0.0

    def look(self) -> Look:
        with self._lock:
            if self._seen is not None and time.monotonic() < self._until:
                return self._seen
            looking = self._begin()
        looking.join(PAGE_PATIENCE_SECONDS)
        with self._lock:
            if not looking.is_alive() and self._seen is not None:
                return self._seen
            return replace(self._seen or Look(at=_now()), late=True)

    def glimpse(self) -> Look:
        """Return the last look without waiting if it is not too old; a newer one is then ready for the next page.

        One in vain is soon too old: the broker may be back, and no page may say that it is away.
        """
        with self._lock:
            late = time.monotonic() - self._until
            if self._seen is not None and late < (0 if self._seen.away else KNOWN_SECONDS):
                if late >= 0:
                    self._begin()
                return self._seen
        return self.look()

    def _begin(self) -> threading.Thread:
        if self._looking is None or not self._looking.is_alive():
            self._looking = threading.Thread(target=self._see, args=(self._known,), name="rmq-look", daemon=True)
            self._looking.start()
        return self._looking

    def forget(self) -> None:
        """Clear everything, for tests and in a forked child process."""
        with self._lock:
            self._seen, self._until, self._since, self._looking = None, 0.0, None, None
            self._known, self._last = (), None

    def _see(self, known: Sequence[Declared]) -> None:
        try:
            seen = _ask_broker(known)
        except (RmqRetryError, OSError, ImproperlyConfigured) as error:
            with self._lock:
                seen = self._away(unreachable(error))
        else:
            self._since, self._last = None, seen
        with self._lock:
            self._seen, self._until = seen, time.monotonic() + FRESH_LOOK_SECONDS

    def _away(self, away: Problem) -> Look:
        self._since = self._since or _now()
        return Look(at=_now(), away=away, since=self._since, last=self._last)


def _now() -> datetime:
    return database_clock.reckoned(records_alias())


def _ask_broker(known: Sequence[Declared]) -> Look:
    # What is heard of a consumer from now on is newer: a queue may have been looked at before it was consumed.
    began = _now()
    with broker_connections.connections.session(purpose="admin", patience=AWAY_SECONDS) as session:
        if session is None:
            return Look(at=began)
        gauged = declared.gauged(declared.declarer_on(session), known)
    return Look(at=began, gauged=gauged)


_window = _Window()
look = _window.look
remember = _window.remember
glimpse = _window.glimpse
forget = _window.forget


def waiting_seen() -> int:
    """Return how many messages wait on the broker, due or not: their keys are not known."""
    seen = glimpse()
    levels = (seen.last or seen).levels
    not_due = waiting_messages(levels, database_clock.now(records_alias()))[0].count or 0
    return not_due + sum(level.ready or 0 for level in levels if level.role is not Role.WAITING)

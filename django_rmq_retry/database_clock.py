"""The clock of the database server, by which all hosts measure time."""

import logging
import time
from dataclasses import dataclass
from datetime import MAXYEAR, UTC, datetime, timedelta

from django.conf import settings
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils import timezone

from django_rmq_retry.messages.properties import EPOCH, Properties
from django_rmq_retry.wording import span

log = logging.getLogger("django_rmq_retry")

CLOCK_TOLERANCE = timedelta(minutes=5)
"""The largest accepted difference between the clocks. If they differ more, nothing is deleted by age."""
READING_SECONDS = 60.0
"""Seconds for which a reading of the clocks is reused."""
MOVED_SECONDS = 1.0
"""Seconds by which the host's clock may drift from the monotonic clock before the database clock is read again."""
SLOWEST_READING_SECONDS = 0.5
"""Seconds. The reading of a slower query is not reused, because it is unknown when the database read its clock."""
_ASKED = {
    # Not now(), which returns the start of the transaction.
    "postgresql": "SELECT CAST(extract(epoch FROM clock_timestamp()) AS double precision)",
    # In UTC, because the session's time zone may be that of the server.
    "mysql": "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) / 1000000",
}
_differing: set[str] = set()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockReading:
    """The time of the host's and of the monotonic clock at one moment, and how far the database's is ahead of each."""

    host: float
    steady: float
    ahead: float
    """Seconds by which the database's clock is ahead of the host's."""
    since_steady: float
    """The database's time when the monotonic clock was at 0."""


_readings: dict[str, ClockReading] = {}


def now(using: str) -> datetime:
    """Return the time by the database's clock, aware or naive like ``timezone.now()``."""
    connection = connections[using]
    if connection.vendor not in _ASKED:
        return timezone.now()
    return stored(_fresh(connection).since_steady + time.monotonic())


def reckoned(using: str) -> datetime:
    """Return the database's time without a query, from the last reading; before the first one by the host's clock."""
    return stored(epoch(using))


def epoch(using: str) -> float:
    """Return the same time as ``reckoned``, in seconds of the epoch."""
    reading = _readings.get(using)
    return time.time() if reading is None else reading.since_steady + time.monotonic()


def epoch_ms(using: str) -> int:
    """Return the same time as ``reckoned``, in whole milliseconds of the epoch."""
    return int(epoch(using) * 1000)


def ahead(using: str) -> timedelta:
    """Query the database, and return by how much its clock is ahead of the host's."""
    connection = connections[using]
    return timedelta(seconds=_read(connection).ahead if connection.vendor in _ASKED else 0.0)


def trusted(using: str) -> datetime | None:
    """Return the time for deletion by age; None, logged once, if the clocks differ by more than CLOCK_TOLERANCE."""
    apart = ahead(using)
    if abs(apart) > CLOCK_TOLERANCE:
        if using not in _differing:
            _differing.add(using)
            text = "%s Nothing is deleted by age until they agree. Synchronize both by NTP."
            log.error(text, difference_text(apart, using), extra={"event": "clocks", "database": using})
        return None
    if using in _differing:
        _differing.discard(using)
        log.info("The clocks of this host and of database %r agree again", using, extra={"event": "clocks"})
    return now(using)


def difference_text(apart: timedelta, using: str) -> str:
    """Return a sentence that describes the difference between the clocks."""
    word = "behind" if apart > timedelta() else "ahead of"
    return f"The clock of this host is {span(abs(apart))} {word} the clock of database {using!r}."


def _fresh(connection: BaseDatabaseWrapper) -> ClockReading:
    reading = _readings.get(connection.alias)
    moved = False
    if reading is not None:
        passed = time.monotonic() - reading.steady
        # The monotonic clock stops while the machine is suspended; the host's clock shows the gap afterwards.
        moved = abs(time.time() - reading.host - passed) >= MOVED_SECONDS
        if passed < READING_SECONDS and not moved:
            return reading
    asked = _read(connection)
    return asked if moved else _readings.get(connection.alias, asked)


def _read(connection: BaseDatabaseWrapper) -> ClockReading:
    # Use the driver's cursor, so that the query does not appear in the project's query counts and logs.
    connection.ensure_connection()
    raw = connection.connection
    with connection.wrap_database_errors, raw.cursor() as cursor:
        began = time.monotonic()
        cursor.execute(_ASKED[connection.vendor])
        database = float(cursor.fetchone()[0])
        ended, host = time.monotonic(), time.time()
    took = ended - began
    # Assume that the database read its clock in the middle of the query.
    host, steady = host - took / 2, began + took / 2
    reading = ClockReading(host=host, steady=steady, ahead=database - host, since_steady=database - steady)
    if took <= SLOWEST_READING_SECONDS:
        _readings[connection.alias] = reading
    return reading


def stored(seconds: float) -> datetime:
    """Return a time in seconds of the epoch as ``now`` returns it."""
    return _as_stored(datetime.fromtimestamp(seconds, UTC))


def stated_time(milliseconds: int) -> datetime | None:
    """Return the time that a message states; None if it states none, or one outside the calendar."""
    if milliseconds <= 0:
        return None
    try:
        at = EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return None
    # Exclude the last year: in another time zone it may already be the next one.
    return None if at.year == MAXYEAR else _as_stored(at)


def published_at(properties: Properties) -> datetime | None:
    """Return the time of a message, which has whole seconds; None if it has none, or one outside the calendar."""
    return stated_time((properties.timestamp or 0) * 1000)


def _as_stored(at: datetime) -> datetime:
    return at if settings.USE_TZ else timezone.make_naive(at, timezone.get_default_timezone())

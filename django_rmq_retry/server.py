"""The database server: its clock, and the meaning of its errors."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.utils import Error, InterfaceError, OperationalError
from django.utils import timezone

from django_rmq_retry.policies.policy import Overrule

log = logging.getLogger("django_rmq_retry")

TOLERANCE = timedelta(minutes=5)
"""Clocks further apart than this are a problem, and nothing is deleted by age."""
FRESH = 60.0
"""Seconds for which a reading is used."""
MOVED = 1.0
"""Seconds by which the host's clock may run off a steady one before the database is asked anew."""
SLOWEST = 0.5
"""Seconds: a question that took longer does not tell at which moment of it the database answered."""
_ASKED = {
    # Never now(): in a transaction that is its beginning.
    "postgresql": "SELECT CAST(extract(epoch FROM clock_timestamp()) AS double precision)",
    # In UTC: the zone of the session is the server's own.
    "mysql": "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) / 1000000",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Three clocks at one moment, in seconds."""

    database: float
    host: float
    steady: float

    @property
    def ahead(self) -> float:
        """By so much the database's clock is ahead of the host's."""
        return self.database - self.host


_readings: dict[str, Reading] = {}
_told: set[str] = set()


def now(using: str) -> datetime:
    """The time by the database's clock, of the kind that ``timezone.now()`` returns."""
    connection = connections[using]
    return _stored(_reckoned(_fresh(connection))) if connection.vendor in _ASKED else timezone.now()


def reckoned(using: str) -> datetime:
    """The same without a question: by the last reading; before the first one by the host's clock."""
    return _stored(epoch(using))


def epoch(using: str) -> float:
    """As ``reckoned``, in seconds of the epoch."""
    reading = _readings.get(using)
    return time.time() if reading is None else _reckoned(reading)


def ahead(using: str) -> timedelta:
    """How far the database's clock is ahead of the host's, as asked just now."""
    connection = connections[using]
    return timedelta(seconds=_read(connection).ahead if connection.vendor in _ASKED else 0.0)


def trusted(using: str) -> datetime | None:
    """The time for a deletion by age; None where the two clocks differ, for one of them is wrong. Logged once."""
    apart = ahead(using)
    if abs(apart) > TOLERANCE:
        if using not in _told:
            _told.add(using)
            said = "%s Nothing is deleted by age until they agree: set both by NTP."
            log.error(said, difference(apart, using), extra={"event": "clocks", "database": using})
        return None
    if using in _told:
        _told.discard(using)
        log.info("The clocks of this host and of database %r agree again", using, extra={"event": "clocks"})
    return now(using)


def difference(apart: timedelta, using: str) -> str:
    """As a sentence."""
    word = "behind" if apart > timedelta() else "ahead of"
    return f"The clock of this host is {span(abs(apart))} {word} the clock of database {using!r}."


def span(length: timedelta) -> str:
    """In the largest unit of which it is two at least: ``45 min``, ``30 h``, ``2922 d``."""
    seconds = length.total_seconds()
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _fresh(connection: BaseDatabaseWrapper) -> Reading:
    reading = _readings.get(connection.alias)
    moved = False
    if reading is not None:
        passed = time.monotonic() - reading.steady
        # A steady clock stands still with a suspended machine; the host's shows it as it wakes up.
        moved = abs(time.time() - reading.host - passed) >= MOVED
        if passed < FRESH and not moved:
            return reading
    asked = _read(connection)
    return asked if moved else _readings.get(connection.alias, asked)


def _read(connection: BaseDatabaseWrapper) -> Reading:
    # By the driver's own cursor: what a project counts and logs are its own queries.
    connection.ensure_connection()
    raw = connection.connection
    with connection.wrap_database_errors, raw.cursor() as cursor:
        began = time.monotonic()
        cursor.execute(_ASKED[connection.vendor])
        database = float(cursor.fetchone()[0])
        ended, host = time.monotonic(), time.time()
    took = ended - began
    # The answer was read at about the middle of the question.
    reading = Reading(database=database, host=host - took / 2, steady=began + took / 2)
    if took <= SLOWEST:
        _readings[connection.alias] = reading
    return reading


def _reckoned(reading: Reading) -> float:
    return reading.database + time.monotonic() - reading.steady


def _stored(seconds: float) -> datetime:
    at = datetime.fromtimestamp(seconds, UTC)
    return at if settings.USE_TZ else timezone.make_naive(at, timezone.get_default_timezone())


# Serialization failure, deadlock; MariaDB's are: changed since it was read, lock not had in time, deadlock.
_CLASHES_POSTGRES = frozenset({"40001", "40P01"})
_CLASHES_MYSQL = frozenset({1020, 1205, 1213})
_BUSY, _LOCKED = 5, 6
_LOST_CLASSES = frozenset({"08"})
_LOST_POSTGRES = frozenset({"40003", "57P01", "57P02", "57P03"})
_LOST_MYSQL = frozenset({0, 1053, 1927, 2006, 2013, 2055, 4031})
_TOO_LARGE_MYSQL = 1153


def clashed(error: BaseException) -> bool:
    """Whether another transaction was in the way: the same again may well succeed."""
    cause = error.__cause__
    if not isinstance(error, OperationalError) or cause is None:
        return False
    number = _of_mysql(cause)
    if number is not None:
        return number in _CLASHES_MYSQL
    state = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)
    if isinstance(state, str):
        return state in _CLASHES_POSTGRES
    code = getattr(cause, "sqlite_errorcode", None)
    # The lower byte: the rest tells which kind of it.
    return isinstance(code, int) and code & 0xFF in (_BUSY, _LOCKED)


def uncertain(error: BaseException) -> bool:
    """Whether the connection failed at the commit, so that nobody knows what became of it."""
    if not isinstance(error, (InterfaceError, OperationalError)):
        return False
    cause = error.__cause__
    number = _of_mysql(cause)
    if number is not None:
        return number in _LOST_MYSQL
    state = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)
    if isinstance(state, str):
        return state[:2] in _LOST_CLASSES or state in _LOST_POSTGRES
    # libpq has no code for a connection that breaks.
    return getattr(cause, "sqlite_errorcode", None) is None


def _of_mysql(cause: BaseException | None) -> int | None:
    """The number of an error of MariaDB or MySQL: both drivers give it first, newer ones with an sqlstate too."""
    number = cause.args[0] if cause is not None and cause.args else None
    return number if isinstance(number, int) else None


def lost(connection: Any, error: BaseException | None = None) -> bool:
    """Whether the connection is no more, as its driver knows it; nobody is asked over the network in vain."""
    raw = connection.connection
    if raw is None or connection.closed_in_transaction or isinstance(error, Overrule):
        return False
    if connection.vendor == "postgresql":
        return bool(raw.closed)
    if connection.vendor != "mysql":
        return False
    if not raw.open:
        return True
    code = error.__cause__.args[:1] if error is not None and error.__cause__ is not None else ()
    told = isinstance(error, (InterfaceError, OperationalError)) and bool(code) and code[0] in _LOST_MYSQL
    # mysqlclient calls a connection open until it is closed on this side.
    return told and not connection.is_usable()


def too_large(error: BaseException) -> bool:
    """Whether MariaDB says of a statement that it is above ``max_allowed_packet``; of a larger one it only hangs up."""
    cause = error.__cause__
    return isinstance(error, OperationalError) and cause is not None and cause.args[:1] == (_TOO_LARGE_MYSQL,)


def asked_anew(connection: Any, question: Callable[[], bool]) -> bool | None:
    """What a new connection answers at once; None where there is none to be had, for the database is away."""
    try:
        connection.close()
        return question()
    except Error:
        return None

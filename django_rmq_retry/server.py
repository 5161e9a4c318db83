"""The database server: its clock, the connections to it, and the classification of its errors."""

import logging
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from django.db.utils import Error, InterfaceError, OperationalError
from django.utils import timezone

from django_rmq_retry.policies.verdict import Overrule

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

# PostgreSQL: serialization failure, deadlock. MariaDB: record changed since it was read, lock wait timeout, deadlock.
_CLASHES_POSTGRES = frozenset({"40001", "40P01"})
_CLASHES_MYSQL = frozenset({1020, 1205, 1213})
_BUSY, _LOCKED = 5, 6
_LOST_CLASSES = frozenset({"08"})
_LOST_POSTGRES = frozenset({"40003", "57P01", "57P02", "57P03"})
_LOST_MYSQL = frozenset({0, 1053, 1927, 2006, 2013, 2055, 4031})
_TOO_LARGE_MYSQL = 1153
_ACTIVE, _IN_TRANSACTION, _IN_ERROR = 1, 2, 3
_SERVER_STATUS_IN_TRANS = 1

OPEN_ADVICE = "Use `with transaction.atomic():`, which commits, or rolls back, when it is left."


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
    """Return the time to use for deletion by age; None if the clocks differ by more than CLOCK_TOLERANCE.

    One of the clocks is wrong then, which is logged once.
    """
    apart = ahead(using)
    if abs(apart) > CLOCK_TOLERANCE:
        if using not in _differing:
            _differing.add(using)
            text = "%s Nothing is deleted by age until they agree. Synchronize both by NTP."
            log.error(text, difference(apart, using), extra={"event": "clocks", "database": using})
        return None
    if using in _differing:
        _differing.discard(using)
        log.info("The clocks of this host and of database %r agree again", using, extra={"event": "clocks"})
    return now(using)


def difference(apart: timedelta, using: str) -> str:
    """Return a sentence that describes the difference between the clocks."""
    word = "behind" if apart > timedelta() else "ahead of"
    return f"The clock of this host is {span(abs(apart))} {word} the clock of database {using!r}."


def span(length: timedelta) -> str:
    """Format a duration in the largest unit that gives at least two: ``45 min``, ``30 h``, ``2922 d``."""
    seconds = length.total_seconds()
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


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
    at = datetime.fromtimestamp(seconds, UTC)
    return at if settings.USE_TZ else timezone.make_naive(at, timezone.get_default_timezone())


class _Thread(threading.local):
    """The state of one worker thread."""

    connects = False
    """True once this thread has connected to a database: checking all of Django's connections costs more."""
    interrupted = False
    """True if a deadline has interrupted a handler here: a connection may hold an answer that was never read."""


_thread = _Thread()


def _connected(**_: object) -> None:
    _thread.connects = True


connection_created.connect(_connected, dispatch_uid="django_rmq_retry.server")


def interrupted() -> None:
    """Note that a deadline has interrupted the handler of this thread."""
    _thread.interrupted = True


def renew_connections() -> None:
    """Close this thread's unusable and expired connections and clear its query logs, as Django does for a request."""
    for connection in connections.all(initialized_only=True):
        connection.queries_log.clear()
        connection.close_if_unusable_or_obsolete()


def close_for_fork() -> None:
    """Close the connections of this thread, and the pools of the process: a child would use the same sockets."""
    connections.close_all()
    for alias in connections:
        with suppress(ImproperlyConfigured):
            connection = connections[alias]
            # Of a database that no thread has used, close_pool() would open a pool.
            if alias in getattr(connection, "_connection_pools", {}):
                connection.close_pool()  # type: ignore[attr-defined]  # only psycopg has pools


class FreshConnections:
    """Close unusable and obsolete database connections before and after an attempt, as Django does for a request."""

    __slots__ = ()

    def __enter__(self) -> None:
        if _thread.interrupted:
            # What was interrupted before the attempt, an order_by, may have left an answer unread on a connection.
            self.__exit__()
        elif _thread.connects:
            renew_connections()

    def __exit__(self, *_error: object) -> None:
        if not _thread.connects:
            return
        for left in tidied():
            # By whom is not known: a receiver of a signal, or another function around the handler.
            log.error("%s", left, extra={"event": "left_open", "database": left.database})
        interrupted, _thread.interrupted = _thread.interrupted, False
        for connection in connections.all(initialized_only=True):
            if interrupted:
                connection.close()
            else:
                connection.close_if_unusable_or_obsolete()


@dataclass(frozen=True, slots=True)
class LeftOpen:
    """A transaction that code of the project has left open."""

    database: str
    what: str

    def __str__(self) -> str:
        return f"Database {self.database!r} was left with {self.what}. It is rolled back. {OPEN_ADVICE}"


def tidied(spared: Collection[str] = ()) -> list[LeftOpen]:
    """Close each connection of this thread with an open transaction, which rolls it back, and return what was open.

    A database with ``AUTOCOMMIT`` False is left alone, because its project commits by hand, and so are those in
    ``spared``.

    This costs no query, except after autocommit was left off on MariaDB, and nothing in a thread that uses no database.
    Between two pieces of a project's code no transaction may be open: whoever commits next would commit it too, or
    nobody would.
    """
    if not _thread.connects:
        return []
    found: list[LeftOpen] = []
    for connection in connections.all(initialized_only=True):
        if connection.alias in spared:
            continue
        what = left_open(connection)
        if what:
            found.append(LeftOpen(connection.alias, what))
            in_block = connection.in_atomic_block
            with suppress(Exception):
                connection.close()
            if in_block:
                # A wrapper in a block cannot connect again, and whoever entered the block may never leave it.
                del connections[connection.alias]
        elif connection.connection is not None and _autocommits(connection) != connection.settings_dict["AUTOCOMMIT"]:
            # Nothing was open, so nothing is lost; but the next statement would begin what nobody commits.
            with suppress(Exception):
                connection.close()
    return found


def left_open(connection: BaseDatabaseWrapper) -> str:
    """Return what is open on a connection between two pieces of code, without a query; empty if nothing is."""
    if connection.in_atomic_block:
        # Django marks the blocks around a TestCase, which no handler has entered, for its own durable=True.
        blocks = [block for block in connection.atomic_blocks if not getattr(block, "_from_testcase", False)]
        return "an atomic() block that was entered and never left" if blocks else ""
    if not connection.settings_dict["AUTOCOMMIT"]:
        # The project commits by hand, and even a SELECT after its commit() begins a transaction.
        return ""
    # What an interrupted statement leaves on a connection says nothing; it is closed after the attempt.
    if connection.connection is None or _thread.interrupted or not _in_transaction(connection):
        return ""
    if not connection.autocommit:
        return "a transaction that set_autocommit(False) began and nothing committed"
    return "a transaction that was begun, such as by BEGIN, and neither committed nor rolled back"


def _in_transaction(connection: BaseDatabaseWrapper) -> bool:
    """True if the driver knows of an open transaction. mysqlclient does not know of one that BEGIN began."""
    raw: Any = connection.connection
    try:
        if connection.vendor == "postgresql":
            return raw.info.transaction_status in (_ACTIVE, _IN_TRANSACTION, _IN_ERROR)
        if connection.vendor == "mysql":
            return _in_transaction_of_mysql(raw, autocommit=_autocommits(connection))
        return bool(getattr(raw, "in_transaction", False))
    except Exception:  # noqa: BLE001 - drivers raise many types; a connection that the project closed has nothing open
        return False


def _autocommits(connection: BaseDatabaseWrapper) -> bool:
    """True if each statement is committed by itself. Of SET autocommit=0 only the driver knows."""
    raw: Any = connection.connection
    if connection.vendor == "mysql":
        with suppress(Exception):
            return bool(raw.get_autocommit())
    return bool(connection.autocommit)


def _in_transaction_of_mysql(raw: Any, *, autocommit: bool) -> bool:
    status = getattr(raw, "server_status", None)
    if not autocommit:
        # PyMySQL keeps the status of the last answer without rows, so INSERT … RETURNING may have begun one unnoticed.
        # A connection whose autocommit was left off is rare, so it may be asked.
        try:
            if status is None:
                # mysqlclient keeps no status.
                with raw.cursor() as cursor:
                    cursor.execute("SELECT @@in_transaction")
                    return bool(cursor.fetchone()[0])
            raw.ping(reconnect=False)
        except Exception:  # noqa: BLE001 - drivers raise many types; MySQL has no such variable
            return True
        status = raw.server_status
    return bool((status or 0) & _SERVER_STATUS_IN_TRANS)


def clashed(error: BaseException) -> bool:
    """True if the error is a conflict with another transaction, so that a retry may succeed."""
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
    # The lower byte is the primary result code; the rest specifies a variant of it.
    return isinstance(code, int) and code & 0xFF in (_BUSY, _LOCKED)


def uncertain(error: BaseException) -> bool:
    """True if the connection failed at the commit, so that it is unknown whether the transaction was committed."""
    if not isinstance(error, (InterfaceError, OperationalError)):
        return False
    cause = error.__cause__
    number = _of_mysql(cause)
    if number is not None:
        return number in _LOST_MYSQL
    state = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)
    if isinstance(state, str):
        return state[:2] in _LOST_CLASSES or state in _LOST_POSTGRES
    # libpq reports no code for a broken connection.
    return getattr(cause, "sqlite_errorcode", None) is None


def _of_mysql(cause: BaseException | None) -> int | None:
    """Return the error number of MariaDB or MySQL: both drivers put it first in the arguments of the exception.

    Newer drivers also give an sqlstate, so this must be checked before the sqlstate.
    """
    number = cause.args[0] if cause is not None and cause.args else None
    return number if isinstance(number, int) else None


def lost(connection: Any, error: BaseException | None = None) -> bool:
    """True if the driver knows that the connection is lost. The server is queried only if the driver cannot know."""
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
    reported = isinstance(error, (InterfaceError, OperationalError)) and bool(code) and code[0] in _LOST_MYSQL
    # mysqlclient reports a connection as open until the client closes it, so test it with a query.
    return reported and not connection.is_usable()


def too_large(error: BaseException) -> bool:
    """True if MariaDB reports that a statement exceeds ``max_allowed_packet``.

    For an even larger statement MariaDB only closes the connection.
    """
    cause = error.__cause__
    return isinstance(error, OperationalError) and cause is not None and cause.args[:1] == (_TOO_LARGE_MYSQL,)


def asked_again(connection: Any, question: Callable[[], bool]) -> bool | None:
    """Return the result of a query on a new connection; None if the database is unreachable."""
    try:
        connection.close()
        return question()
    except Error:
        return None

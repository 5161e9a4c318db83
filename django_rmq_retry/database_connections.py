"""The database connections of a thread: renews lost ones, limits the wait for one, rolls back what was left open."""

import logging
import threading
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

log = logging.getLogger("django_rmq_retry")

ACTIVE, IN_TRANSACTION, IN_ERROR, UNKNOWN = 1, 2, 3, 4
"""Transaction states, with the numbers of libpq."""
_SERVER_STATUS_IN_TRANS = 1

MOST_GIVEN_UP, GIVEN_UP_SECONDS = 10, 60.0
"""The most connections that may still wait for an answer that nobody waits for, and how long each of them counts."""
_given_up: list[tuple[threading.Thread, float]] = []

OPEN_ADVICE = "Use `with transaction.atomic():`, which commits, or rolls back, when it is left."


class _Thread(threading.local):
    """The state of one worker thread."""

    connects = False
    """True once this thread has connected to a database: checking all of Django's connections costs more."""
    interrupted = False
    """True if a deadline has interrupted a handler here: a connection may hold an answer that was never read."""


_thread = _Thread()


def _connected(**_: object) -> None:
    _thread.connects = True


connection_created.connect(_connected, dispatch_uid="django_rmq_retry.database_connections")


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
        for left in roll_back_left_open():
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


def roll_back_left_open(spared: Collection[str] = ()) -> list[LeftOpen]:
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


def in_transaction() -> bool:
    """True if code of the project has a transaction open in this thread."""
    return any(map(left_open, connections.all(initialized_only=True)))


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
            return raw.info.transaction_status in (ACTIVE, IN_TRANSACTION, IN_ERROR)
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


class Unanswered(Exception):
    def __init__(self, alias: str, seconds: float, *, still: bool = False) -> None:
        """``still`` is True if a query that was given up before has been waiting for so long."""
        within = f"has not answered for {seconds:.0f} s" if still else f"did not answer within {seconds:g} s"
        super().__init__(f"{alias!r} {within}")


def connect_in_time(alias: str, timeout: float) -> None:
    """Connect this thread to a database, or see that it still answers; raise Unanswered after the timeout.

    No driver limits the time of both on its own, so another thread asks. It asks on the connection of this thread,
    which this thread then uses: a page needs no second one.
    """
    if alone_sees_its_data(alias):
        return
    now = time.monotonic()
    _given_up[:] = [(one, since) for one, since in _given_up if one.is_alive() and now - since < GIVEN_UP_SECONDS]
    if len(_given_up) >= MOST_GIVEN_UP:
        # Each page that loads again by itself would leave one more thread and socket.
        raise Unanswered(alias, timeout)
    connection = connections[alias]
    broken: list[Exception] = []
    over = threading.Lock()
    """Whoever takes it first, the answer or the timeout, has decided who uses the connection."""

    def connect() -> None:
        try:
            if connection.connection is not None and not connection.is_usable():
                connection.close()
            connection.ensure_connection()
        except Exception as error:  # noqa: BLE001 - raised again in the thread that asked
            broken.append(error)
        if not over.acquire(blocking=False):
            connection.close()

    connection.inc_thread_sharing()
    asking = threading.Thread(target=connect, name="rmq-connect", daemon=True)
    asking.start()
    asking.join(timeout)
    if over.acquire(blocking=False):
        _given_up.append((asking, now))
        # The other thread may never leave it, so this one makes a new one when it needs one.
        del connections[alias]
        raise Unanswered(alias, timeout)
    connection.dec_thread_sharing()
    if broken:
        raise broken[0]


def alone_sees_its_data(alias: str) -> bool:
    """Return True if no other connection sees the data of this thread's connection."""
    connection = connections[alias]
    return connection.in_atomic_block or bool(getattr(connection, "is_in_memory_db", bool)())

"""What an error of the database means: a conflict, a lost connection, or a statement that is too large."""

from collections.abc import Callable
from typing import Any

from django.db.utils import Error, InterfaceError, OperationalError

from django_rmq_retry.policies.verdict import Overrule

# PostgreSQL: serialization failure, deadlock. MariaDB: record changed since it was read, lock wait timeout, deadlock.
_CLASHES = frozenset({"40001", "40P01", 1020, 1205, 1213})
_BUSY, _LOCKED = 5, 6
_LOST_CLASSES = frozenset({"08"})
_LOST_POSTGRES = frozenset({"40003", "57P01", "57P02", "57P03"})
_LOST_MYSQL = frozenset({0, 1053, 1927, 2006, 2013, 2055, 4031})
_TOO_LARGE_MYSQL = 1153
_UNREACHABLE_MYSQL = frozenset({1040, 2002, 2003, 2005})
"""Too many connections; no connection through the socket, to the host, or to its name."""


def clashed(error: BaseException) -> bool:
    """True if the error is a conflict with another transaction, so that a retry may succeed."""
    cause = error.__cause__
    if not isinstance(error, OperationalError) or cause is None:
        return False
    code = _code_of(cause)
    if code is not None:
        return code in _CLASHES
    return locked(error)


def locked(error: BaseException) -> bool:
    """True if another connection has locked the file of SQLite for longer than its ``timeout``."""
    number = getattr(error.__cause__, "sqlite_errorcode", None)
    # The lower byte is the primary result code; the rest specifies a variant of it.
    return isinstance(number, int) and number & 0xFF in (_BUSY, _LOCKED)


def uncertain(error: BaseException) -> bool:
    """True if the connection failed at the commit, so that it is unknown whether the transaction was committed."""
    if not isinstance(error, (InterfaceError, OperationalError)):
        return False
    code = _code_of(error.__cause__)
    if isinstance(code, int):
        return code in _LOST_MYSQL
    if code is not None:
        return code[:2] in _LOST_CLASSES or code in _LOST_POSTGRES
    # libpq reports no code for a broken connection.
    return getattr(error.__cause__, "sqlite_errorcode", None) is None


def away(error: BaseException) -> bool:
    """True if the database cannot be reached, or the connection to it was lost."""
    refused = isinstance(error, OperationalError) and _code_of(error.__cause__) in _UNREACHABLE_MYSQL
    return refused or uncertain(error)


def _code_of(cause: BaseException | None) -> int | str | None:
    """Return the number of MariaDB or MySQL, first in the arguments also beside an sqlstate; or PostgreSQL's state."""
    number = cause.args[0] if cause is not None and cause.args else None
    state = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)
    return number if isinstance(number, int) else state if isinstance(state, str) else None


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
    """True if a statement exceeds MariaDB's ``max_allowed_packet``; over an even larger one it only disconnects."""
    cause = error.__cause__
    return isinstance(error, OperationalError) and cause is not None and cause.args[:1] == (_TOO_LARGE_MYSQL,)


def asked_again(connection: Any, question: Callable[[], bool]) -> bool | None:
    """Return the result of a query on a new connection; None if the database is unreachable."""
    try:
        connection.close()
        return question()
    except Error:
        return None

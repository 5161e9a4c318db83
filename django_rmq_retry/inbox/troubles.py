"""What is wrong where a database fails: two transactions in each other's way, or no connection any more."""

from typing import Any

from django.db.utils import InterfaceError, OperationalError

from django_rmq_retry.core.overrule import Overrule

# Serialization failure, deadlock; MariaDB's are: changed since it was read, lock not had in time, deadlock.
_CLASHES_POSTGRES = frozenset({"40001", "40P01"})
_CLASHES_MYSQL = frozenset({1020, 1205, 1213})
_BUSY, _LOCKED = 5, 6
_LOST_CLASSES = frozenset({"08"})
_LOST_POSTGRES = frozenset({"40003", "57P01", "57P02", "57P03"})
_LOST_MYSQL = frozenset({0, 1053, 1927, 2006, 2013, 2055, 4031})


def clashed(error: BaseException) -> bool:
    """Whether another transaction was in the way: the same again may well succeed."""
    cause = error.__cause__
    if not isinstance(error, OperationalError) or cause is None:
        return False
    state = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)
    if isinstance(state, str):
        return state in _CLASHES_POSTGRES
    code = getattr(cause, "sqlite_errorcode", None)
    if isinstance(code, int):
        # The lower byte: the rest tells which kind of it.
        return code & 0xFF in (_BUSY, _LOCKED)
    return bool(cause.args) and cause.args[0] in _CLASHES_MYSQL


def uncertain(error: BaseException) -> bool:
    """Whether the connection failed at the commit, so that nobody knows what became of it."""
    if not isinstance(error, (InterfaceError, OperationalError)):
        return False
    cause = error.__cause__
    state = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)
    if isinstance(state, str):
        return state[:2] in _LOST_CLASSES or state in _LOST_POSTGRES
    if getattr(cause, "sqlite_errorcode", None) is not None:
        return False
    args = cause.args if cause is not None else ()
    # libpq has no code for a connection that breaks; both drivers of MySQL give a number first.
    return not (args and isinstance(args[0], int)) or args[0] in _LOST_MYSQL


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

"""The savepoint behind an inbox entry, which saves a handler its first savepoint.

A handler with ``once`` runs in a transaction, so each ``atomic()`` of its own sets a savepoint and releases it: two
round trips, which it does not need without ``once``. Before anything else is executed, such a savepoint would equal
the one that is set together with the entry, in the same round trip; so that one stands in for it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django_rmq_retry.database_connections import IN_ERROR
from django_rmq_retry.inbox import mariadb

NAME = "rmq_once"


def sets_both_at_once(connection: Any) -> bool:
    """True if entry and savepoint take one round trip, which depends on the database, its driver and the settings."""
    if mariadb.is_mariadb(connection):
        return True
    # psycopg 2 reports the rows of the last statement only, and a server that binds the parameters takes no second one.
    by_server = connection.settings_dict["OPTIONS"].get("server_side_binding")
    return connection.vendor == "postgresql" and hasattr(connection.connection, "pgconn") and not by_server


def with_savepoint(connection: Any, insert: str) -> str:
    """Return the statement that inserts the entry and, where that is possible, sets the savepoint behind it."""
    if not sets_both_at_once(connection):
        return insert
    both = f"{insert}; SAVEPOINT {NAME}"
    return mariadb.BEGIN.format(both) if mariadb.is_mariadb(connection) else both


@contextmanager
def standing_in(connection: Any) -> Iterator[None]:
    """Let the savepoint behind the entry stand in for those that are set before anything is executed."""
    if not sets_both_at_once(connection):
        yield
        return
    stand_in = _StandIn(connection)
    replaced = {
        "_savepoint": stand_in.create,
        "_savepoint_commit": stand_in.release,
        "_savepoint_rollback": stand_in.roll_back,
    }
    connection.__dict__.update(replaced)
    try:
        yield
    finally:
        stand_in.stop_watching()
        for name in replaced:
            del connection.__dict__[name]


class _StandIn:
    """What Django calls for the savepoints of a connection while a handler runs on it."""

    def __init__(self, connection: Any) -> None:
        self._connection, self._raw, self._names = connection, connection.connection, set[str]()
        self._create, self._release = connection._savepoint, connection._savepoint_commit  # noqa: SLF001 - for backends
        self._roll_back = connection._savepoint_rollback  # noqa: SLF001 - as above
        self._untouched = True
        # Every statement needs a cursor, also one that Django does not see, such as COPY.
        self._raw.cursor = self._open_cursor

    def stop_watching(self) -> None:
        self._untouched = False
        self._raw.__dict__.pop("cursor", None)

    def create(self, name: str) -> None:
        if self._untouched:
            self._names.add(name)
        else:
            self._create(name)

    def release(self, name: str) -> None:
        if name not in self._names:
            self._release(name)
        elif self._failed():
            # PostgreSQL refuses it, which Django answers with a rollback to the savepoint.
            self._release(NAME)
        else:
            self._names.discard(name)

    def roll_back(self, name: str) -> None:
        if name not in self._names:
            self._roll_back(name)
        elif not self._untouched:
            self._roll_back(NAME)

    def _failed(self) -> bool:
        return self._connection.vendor == "postgresql" and bool(self._raw.info.transaction_status == IN_ERROR)

    def _open_cursor(self, *arguments: Any, **options: Any) -> Any:
        self.stop_watching()
        return self._raw.cursor(*arguments, **options)

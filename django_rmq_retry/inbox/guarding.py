"""Before the commit: whether there is anything to commit, for some ways to lose a transaction are silent."""

from typing import Any

from django_rmq_retry.core.errors import EffectsLost
from django_rmq_retry.inbox.entries import present
from django_rmq_retry.inbox.naming import Name

IN_TRANSACTION, IN_ERROR, UNKNOWN = 2, 3, 4
"""As libpq numbers them."""


SWALLOWED = "Let the error leave the handler, or catch it outside of an atomic() block of its own."
OWN_END = (
    "Leave COMMIT, ROLLBACK and closing to the transaction that the handler runs in; a part may have its own atomic()."
)


def guard(connection: Any, handler: str, name: Name) -> None:
    """Raise EffectsLost where the commit that follows would change nothing."""
    found = _found(connection, name)
    if found is not None:
        what, advice = found
        raise EffectsLost(handler, connection.alias, what=what, advice=advice)


def _found(connection: Any, name: Name) -> tuple[str, str] | None:
    if connection.closed_in_transaction:
        return "the connection was closed in the transaction, which ends it", OWN_END
    if connection.needs_rollback:
        return (
            "the transaction is marked for rollback, by set_rollback() or by an error that was caught",
            SWALLOWED,
        )
    if connection.vendor == "postgresql":
        return _told(connection.connection.info.transaction_status)
    if connection.vendor == "sqlite":
        ended = not connection.connection.in_transaction
        return ("the transaction was ended, by the handler or by SQLite after an error", OWN_END) if ended else None
    # MariaDB rolls all back at a deadlock, and goes on in a new transaction without a word.
    if not present(connection, name):
        return "the transaction was rolled back on the way, as by a deadlock whose error was caught", SWALLOWED
    return None


def _told(status: int) -> tuple[str, str] | None:
    """By what the driver knows without asking; a lost connection is found at the commit."""
    if status == IN_ERROR:
        return "a database error was caught, and PostgreSQL turns this COMMIT into a ROLLBACK", SWALLOWED
    if status not in (IN_TRANSACTION, UNKNOWN):
        return "the transaction was ended by the handler", OWN_END
    return None

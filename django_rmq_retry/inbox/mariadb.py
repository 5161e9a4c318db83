"""The transaction of an entry on MariaDB, which begins with the entry and ends with a look for it.

Django turns autocommit off before the first statement and on after the commit, and a transaction that MariaDB rolled
back on its own shows only by its entry: four round trips, which take two here.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.db import DatabaseError
from django.db.backends.utils import debug_transaction

BEGIN = "BEGIN NOT ATOMIC SET autocommit = 0; {}; END"
"""A block is a single statement, because a client need not allow several."""
END = "BEGIN NOT ATOMIC IF EXISTS ({}) THEN COMMIT; SET autocommit = 1; ELSE SIGNAL SQLSTATE '45000'; END IF; END"
_SIGNALLED = 1644


def is_mariadb(connection: Any) -> bool:
    return connection.vendor == "mysql" and bool(connection.mysql_is_mariadb)


@contextmanager
def shortened(
    connection: Any, present: str, key: Callable[[], str], lost: Callable[[], BaseException]
) -> Iterator[bool]:
    """Shorten the transaction that is begun inside: its first statement must be a ``BEGIN`` of this module.

    It is committed only if ``present`` finds the key, else the error of ``lost`` is raised. Yield False if nothing is
    shortened: on other databases, and in the transaction of a test.
    """
    if not is_mariadb(connection) or connection.in_atomic_block:
        yield False
        return
    turn = connection._set_autocommit  # noqa: SLF001 - for backends

    def commit() -> None:
        if connection.connection is None:
            return
        opened: Any = connection.connection.cursor()
        with debug_transaction(connection, "COMMIT"), connection.wrap_database_errors, opened as cursor:
            cursor.execute(END.format(present), (key(),))

    # The driver knows from the server that autocommit is on again, and sends nothing more to turn it on.
    replaced = {"_set_autocommit": lambda on: turn(on) if on else None, "_commit": commit}
    connection.__dict__.update(replaced)
    try:
        yield True
    except DatabaseError as error:
        if error.__cause__ is not None and error.__cause__.args[:1] == (_SIGNALLED,):
            raise lost() from error
        raise
    finally:
        for name in replaced:
            del connection.__dict__[name]

"""Forks of this process by code of the project: the child must not act for its parent."""

import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

from django.db import connections
from django.db.backends.signals import connection_created

count = 0
"""The number of forks from the import of this module to this process: in a child it differs from its parent's."""
_disowns = False
_disowned: list[object] = []
"""What belongs to the parent. It is kept, because its destructor could write to the parent's sockets."""
_open: set[weakref.ref[object]] = set()
"""The database connections of all threads."""
_parents: list[object] = []
"""Those connections, from the moment before a fork to the moment after it."""


def disown_connections() -> None:
    """From now on, a child has no database connections of its parent: it opens its own when it first needs one.

    Call this in a process that owns its handlers, never in a web process, whose forks belong to its server.
    """
    global _disowns  # noqa: PLW0603 - there is one process
    _disowns = True


def end_since(forked: int, error: BaseException | None = None) -> None:
    """End this process if it is a child that was forked since ``count`` had this value."""
    if count != forked:
        end_child(error)


@contextmanager
def ending() -> Iterator[None]:
    """Surround a call of the project's code: a child forked in it ends there. Handlers and hooks do it faster."""
    forked = count
    try:
        yield
    except BaseException as error:
        end_since(forked, error)
        raise
    end_since(forked)


def end_child(error: BaseException | None) -> NoReturn:
    """End a child that has returned from the code that forked it, without any clean-up: that is its parent's."""
    code = 0 if error is None else 1
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    how = "returned" if error is None else f"raised {type(error).__name__}"
    with suppress(OSError):
        os.write(
            2,
            f"Process {os.getpid()}, which code of the project forked, {how} and was ended: only its parent may go on. "
            "End a forked child with os._exit().\n".encode(),
        )
    os._exit(code & 0xFF)


def _forked() -> None:
    global count  # noqa: PLW0603 - as above
    count += 1
    if not _disowns:
        return
    _disowned.extend(_parents)
    for alias in connections:
        # Without closing it: that would end the parent's session, and the transaction that it may have begun.
        with suppress(Exception):
            connection = connections[alias]
            pools = getattr(connection, "_connection_pools", {})
            _disowned.extend((connection, pools.pop(alias, None)))
            del connections[alias]
            if connection.in_atomic_block:
                # The child may leave its parent's block, which must not connect: another thread of the parent may have
                # held a lock of SQLite's, and nobody in the child would ever release it.
                connections[alias].closed_in_transaction = True


def _opened(connection: object, **_: object) -> None:
    _open.add(weakref.ref(connection, _open.discard))


def _hold() -> None:
    # The child loses the locals of all other threads before it calls _forked(), and with them their connections.
    _parents.extend([one() for one in list(_open)] if _disowns else [])


connection_created.connect(_opened, dispatch_uid="django_rmq_retry.forks")
os.register_at_fork(before=_hold, after_in_parent=_parents.clear, after_in_child=_forked)

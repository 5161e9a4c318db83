"""The databases of a command: the chosen one, system checks without one, and errors in one sentence."""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError
from django.db import Error, InterfaceError, OperationalError, connections, models, router

from django_rmq_retry.database_errors import locked, uncertain
from django_rmq_retry.health.facts import Unmigrated
from django_rmq_retry.messages.texts import short
from django_rmq_retry.parked.operators import LABEL
from django_rmq_retry.statements import missing_tables

UNREACHABLE = (OperationalError, InterfaceError)
"""The errors of Django's database drivers for a lost connection, among other causes."""
LONGEST_ERROR = 300
"""The longest text of a database's error in a sentence."""
LOCKED_SECONDS = 20.0
"""Seconds to wait for the lock of an SQLite file: Python's 5 are too few while the threads of a consumer write."""


class _Pin:
    """A database router that goes before all others."""

    def __init__(self, alias: str, labels: Collection[str]) -> None:
        self._alias = alias
        self._labels = labels

    def _placed(self, model: type[models.Model], **_hints: object) -> str | None:
        return self._alias if model._meta.app_label in self._labels else None  # noqa: SLF001 - documented

    db_for_read = db_for_write = _placed


@contextmanager
def pinned(alias: str | None, also: Collection[str] = ()) -> Iterator[None]:
    """Read and write the models of this package, and of the apps in ``also``, in the given database."""
    if alias is None:
        yield
        return
    pin = _Pin(alias, {LABEL, *also})
    router.routers.insert(0, pin)
    try:
        yield
    finally:
        router.routers.remove(pin)


def look_without_lock() -> None:
    """Ask each SQLite database if it supports JSON, without a lock.

    Django asks in a transaction, from 6.1 on before every command with checks. If transactions take SQLite's lock at
    their start, that query waits for the lock's owner, and then Django reports that this SQLite has no JSON support.
    """
    for connection in connections.all():
        if connection.vendor != "sqlite" or not connection.settings_dict["OPTIONS"].get("transaction_mode"):
            continue
        try:
            with connection.cursor() as cursor:
                cursor.execute("SELECT JSON('{}')")
        except OperationalError:
            # Django reports the problem.
            continue
        connection.features.supports_json_field = True


def check_without_database(check: Callable[..., None], say: Callable[[str], None]) -> None:
    """Run the checks; without a database, skip only the checks of field types, which query MariaDB."""
    try:
        check()
    except UNREACHABLE:
        away = _away()
        if not away:
            # The error comes from the check itself, such as a missing table.
            raise
        left = ", ".join(f"{alias!r} ({_words(error)})" for alias, error in away.items())
        try:
            check(databases=[alias for alias in connections if alias not in away])
        except UNREACHABLE as another:
            names = " and ".join(map(repr, away))
            verb = "does" if len(away) == 1 else "do"
            text = f"A system check queries a database while {names} {verb} not answer: {_words(another)}."
            raise CommandError(f"{text} Start the database, or pass --skip-checks.") from another
        say(f"The checks skip the types of model fields, because a database does not answer: {left}.")


def _away() -> dict[str, Exception]:
    """Return the databases that accept no new connection, each with its error."""
    errors: dict[str, Exception] = {}
    for connection in connections.all():
        fresh = connection.copy()
        try:
            fresh.ensure_connection()
        except UNREACHABLE as error:
            errors[connection.alias] = error
        except ImproperlyConfigured:
            # No database is configured here, so Django's checks skip it.
            continue
        finally:
            fresh.close()
    return errors


def wait_for_locks() -> None:
    """Let SQLite wait for other processes that write as long as a busy consumer may need, unless settings say else."""
    for alias in connections:
        known = connections.settings[alias]
        if known["ENGINE"].endswith("sqlite3"):
            known["OPTIONS"].setdefault("timeout", LOCKED_SECONDS)


class DatabaseAway(Exception):
    """A database does not answer, or is locked; the text names it, with the repair."""


@contextmanager
def named_errors() -> Iterator[None]:
    """Raise DatabaseAway or Unmigrated in place of an error that a database away, locked or without our tables caused.

    Such an error does not name its database, but Django notes on a thread's own connection that one has occurred,
    until a rollback has succeeded.
    """
    try:
        yield
    except Error as error:
        used = [one for one in connections.all(initialized_only=True) if one.errors_occurred]
        for connection in used:
            if isinstance(error, UNREACHABLE) and (connection.connection is None or uncertain(error)):
                text = f"The database {connection.alias!r} does not answer ({_words(error)})."
                text += f" Start it, or correct DATABASES[{connection.alias!r}] in the settings."
                raise DatabaseAway(text) from error
        if locked(error):
            text = "Other processes have kept the SQLite database locked for too long. Run the command again, or use"
            raise DatabaseAway(f"{text} PostgreSQL or MariaDB.") from error
        ours = list(apps.get_app_config(LABEL).get_models())
        managed = [model for model in ours if model._meta.managed]  # noqa: SLF001 - documented
        for alias in dict.fromkeys([one.alias for one in used] + [router.db_for_write(model) for model in ours]):
            with suppress(Error):
                if missing_tables(managed, alias):
                    raise Unmigrated(alias) from error
        raise


def _words(error: Exception) -> str:
    text = " ".join(str(error.args[-1] if error.args else error).split()) or type(error).__name__
    return short(text, LONGEST_ERROR)

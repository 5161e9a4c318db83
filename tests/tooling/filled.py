"""Databases with tables for processes that a test starts, which do not see the test's transaction."""

import json
import secrets
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from django.core.management import call_command
from django.db import connections

from tests.tooling import databases

VARIABLE = "RMQ_TEST_OWN_DATABASE"
ALIAS = "own"


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """One of these databases: the alias "own" in the test, the default in processes."""

    settings: databases.Settings

    @property
    def environment(self) -> dict[str, str]:
        """The environment that selects it in a process."""
        return {VARIABLE: json.dumps(self.settings)}


def given(value: str | None) -> databases.Settings:
    """Return a process's database: the one in its environment, or one in memory."""
    found: databases.Settings = json.loads(value) if value else databases.settings(databases.SQLITE)
    if found["ENGINE"].endswith("mysql"):
        databases.play_mysqlclient()
    return found


@contextmanager
def own_database(folder: Path, copied: str = "", kind: str = "") -> Iterator[Own]:
    """Create a database with tables, of this run's kind unless another is named; drop it at the end.

    It is a copy of the one made by `to_copy`, if that is given.
    """
    kind = kind or databases.chosen()
    with _created(kind, folder / "own.sqlite3", copied) as name, registered(databases.settings(kind, name=name)) as own:
        if not copied:
            call_command("migrate", database=ALIAS, verbosity=0)
        yield own


@contextmanager
def to_copy(folder: Path) -> Iterator[str]:
    """Create a database with tables, of which others are copies; MariaDB copies none, so there the name is empty."""
    kind = databases.chosen()
    if kind == databases.MARIADB:
        yield ""
        return
    with _created(kind, folder / "copied.sqlite3") as name:
        with registered(databases.settings(kind, name=name)):
            call_command("migrate", database=ALIAS, verbosity=0)
        yield name


@contextmanager
def _created(kind: str, file: Path, copied: str = "") -> Iterator[str]:
    """Create a database, empty or as a copy, and drop it at the end."""
    if kind == databases.SQLITE:
        if copied:
            shutil.copy(copied, file)
        yield str(file)
        return
    name = f"rmq_own_{secrets.token_hex(6)}"
    of_postgresql = f" TEMPLATE {copied}" if copied else ""
    _execute(
        kind, f"CREATE DATABASE {name}" + (" CHARACTER SET utf8mb4" if kind == databases.MARIADB else of_postgresql)
    )
    try:
        yield name
    finally:
        force = " WITH (FORCE)" if kind == databases.POSTGRESQL else ""
        _execute(kind, f"DROP DATABASE IF EXISTS {name}{force}")


@contextmanager
def registered(settings: databases.Settings) -> Iterator[Own]:
    """Register the alias with Django inside the block."""
    connections.settings[ALIAS] = connections.configure_settings({"default": {}, ALIAS: dict(settings)})[ALIAS]
    try:
        yield Own(settings=settings)
    finally:
        # A thread that ends after its alias is gone would leave its connection open.
        for thread in threading.enumerate():
            if thread.name == "rmq-sender":
                thread.join(10)
        with suppress(AttributeError):
            connections[ALIAS].close()
            del connections[ALIAS]
        del connections.settings[ALIAS]


def _execute(kind: str, statement: str) -> None:
    """Run a statement on the server, outside of any transaction."""
    server = databases.settings(kind, name="postgres" if kind == databases.POSTGRESQL else "mysql")
    with registered(server):
        connection = connections[ALIAS]
        connection.set_autocommit(True)
        with connection.cursor() as cursor:
            cursor.execute(statement)

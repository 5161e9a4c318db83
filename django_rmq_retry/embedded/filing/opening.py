"""Opening the broker's file: one that is new, or ours and whole; any other is refused and left as it is."""

import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from django_rmq_retry.core.errors import ConfigurationError

# "rmqb" in bytes: what SQLite keeps for telling apart whose a file is.
_OURS = 0x726D7162
_FORMAT = 1
_SCHEMA = """
CREATE TABLE queues (number INTEGER PRIMARY KEY, name BLOB UNIQUE NOT NULL, arguments TEXT NOT NULL);
CREATE TABLE exchanges (
    name BLOB PRIMARY KEY, kind TEXT NOT NULL, auto_delete INTEGER NOT NULL, internal INTEGER NOT NULL,
    arguments TEXT NOT NULL
);
CREATE TABLE bindings (
    source BLOB NOT NULL, destination BLOB NOT NULL, key BLOB NOT NULL, to_exchange INTEGER NOT NULL,
    arguments TEXT NOT NULL, UNIQUE (source, destination, key, to_exchange, arguments)
);
CREATE TABLE messages (
    id INTEGER PRIMARY KEY, exchange BLOB NOT NULL, key BLOB NOT NULL, properties BLOB NOT NULL, body BLOB NOT NULL,
    expires REAL, past TEXT
);
CREATE TABLE places (
    id INTEGER PRIMARY KEY, turn INTEGER NOT NULL, place TEXT NOT NULL, until REAL, reason TEXT,
    redelivered INTEGER NOT NULL, count INTEGER NOT NULL, unkept INTEGER NOT NULL,
    acquired INTEGER NOT NULL
);
"""
_MOVE = "Move it away to begin with an empty broker, or name another folder in RMQ_RETRY['URL']."


class UnusableFile(ConfigurationError):
    """The broker's file cannot be used."""

    def __init__(self, path: Path, problem: str) -> None:
        self.path = path
        self.problem = problem
        super().__init__(f"The embedded broker's file {path} {problem}")


def opened(path: Path) -> sqlite3.Connection:
    """The file, for nobody else until it is closed; UnusableFile where that cannot be."""
    try:
        if not path.exists():
            _make(path)
        _check(path)
        return _claimed(path)
    except sqlite3.OperationalError as error:
        if _is_busy(error):
            raise UnusableFile(path, "is in use by another embedded broker.") from None
        raise UnusableFile(path, f"cannot be opened ({error}).") from error
    except sqlite3.DatabaseError as error:
        raise UnusableFile(path, f"is damaged ({error}) and left as it is. {_MOVE}") from error


def _make(path: Path) -> None:
    """In one piece: a file that a killed broker has left half made is never found."""
    draft = path.with_name(f"{path.name}.new")
    for rest in ("", "-journal", "-wal"):
        draft.with_name(draft.name + rest).unlink(missing_ok=True)
    with closing(_connected(draft, "rwc")) as connection:
        connection.executescript(_SCHEMA)
        connection.execute(f"PRAGMA application_id = {_OURS}")
        connection.execute(f"PRAGMA user_version = {_FORMAT}")
        connection.execute("PRAGMA journal_mode = WAL").fetchall()
    draft.replace(path)


def _check(path: Path) -> None:
    """By a connection that cannot write."""
    with closing(_connected(path, "ro")) as connection:
        if _owner(connection) != _OURS:
            raise UnusableFile(path, f"is not one that it wrote, and left as it is. {_MOVE}")
        found = _number(connection, "user_version")
        if found != _FORMAT:
            raise UnusableFile(path, f"has format {found}; this version reads format {_FORMAT}. {_MOVE}")
        said = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if said != "ok":
            raise UnusableFile(path, f"is damaged ({said}) and left as it is. {_MOVE}")


def _claimed(path: Path) -> sqlite3.Connection:
    connection = _connected(path, "rw")
    try:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE").fetchall()
        # What is committed survives the death of the process at once, and a power cut from the next checkpoint on.
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA wal_autocheckpoint = 4000").fetchall()
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("COMMIT")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _connected(path: Path, mode: str) -> sqlite3.Connection:
    uri = f"file:{quote(str(path))}?mode={mode}"
    # The thread that serves need not be the one that opened.
    return sqlite3.connect(uri, uri=True, timeout=0, isolation_level=None, check_same_thread=False)


def _owner(connection: sqlite3.Connection) -> int:
    try:
        return _number(connection, "application_id")
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_NOTADB:
            return 0
        raise


def _number(connection: sqlite3.Connection, pragma: str) -> int:
    return int(connection.execute(f"PRAGMA {pragma}").fetchone()[0])


def _is_busy(error: sqlite3.Error) -> bool:
    return error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)

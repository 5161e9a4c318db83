"""The embedded broker's SQLite file, which survives a restart."""

import json
import sqlite3
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import asdict
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import quote

from django_rmq_retry.embedded.engine.entries import NEVER, Entry
from django_rmq_retry.embedded.engine.envelopes import NO_PROPERTIES, Glance, StoredMessage, XDeath
from django_rmq_retry.embedded.engine.specs import ExchangeSpec, QueueSpec
from django_rmq_retry.embedded.engine.store import (
    Detail,
    DurableStore,
    KeptBinding,
    KeptContent,
    KeptMessage,
    MessagePlace,
)
from django_rmq_retry.errors import ConfigurationError

# "rmqb" in bytes: SQLite's application_id, which identifies the owner of a file.
_APPLICATION_ID = 0x726D7162
_FORMAT = 1
_MOVE_HINT = "Move it away to start with an empty broker, or name another folder in RMQ_RETRY['URL']."

SqlRow = tuple[object, ...]
# A message's id is its queue's number and, in the lower bits, its position there.
_POSITION_BITS = 40
_SOONER_SECONDS = 1e-6
"""Seconds since 1970 have fewer digits than the clock: this margin keeps expired messages expired."""
_MESSAGE = "INSERT INTO messages VALUES (?, ?, ?, ?, ?, ?, ?)"
_PLACE = "INSERT OR REPLACE INTO places VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"

_UNTOUCHED: tuple[int, MessagePlace, None, None, int, int, int, int] = (0, "fresh", None, None, 0, 0, 0, 0)

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


def name_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def name_text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def table_text(table: Mapping[str, object]) -> str:
    """Return an argument table as JSON; a value without a JSON type becomes an object with one key."""
    return json.dumps({key: _written(value) for key, value in table.items()})


def table_of(text: str) -> dict[str, object]:
    return {key: _read(value) for key, value in json.loads(text).items()}


def past_text(message: StoredMessage) -> str | None:
    """Return the state of a message that its bytes do not hold; None for most messages."""
    if not message.more and not message.deaths and message.count is None:
        return None
    deaths = [asdict(death) for death in message.deaths]
    return json.dumps({"more": message.more, "bcc": message.bcc, "count": message.count, "deaths": deaths})


def message_of(exchange: bytes, key: bytes, raw: bytes, body: bytes, past: str | None) -> StoredMessage:
    message = StoredMessage(name_text(exchange), name_text(key), raw, body)
    if raw != NO_PROPERTIES:
        message.note(Glance(raw))
    if past is not None:
        state = json.loads(past)
        message.more, message.bcc, message.count = tuple(state["more"]), tuple(state["bcc"]), state["count"]
        message.deaths = tuple(XDeath(**{**death, "keys": tuple(death["keys"])}) for death in state["deaths"])
    return message


def _written(value: object) -> object:
    match value:
        case bytes():
            return {"bytes": b64encode(value).decode()}
        case Decimal():
            return {"decimal": str(value)}
        case datetime():
            return {"time": value.isoformat()}
        case dict():
            return {"table": {key: _written(item) for key, item in value.items()}}
        case list():
            return [_written(item) for item in value]
    return value


def _read(value: Any) -> object:
    match value:
        case {"bytes": str(text)}:
            return b64decode(text)
        case {"decimal": str(text)}:
            return Decimal(text)
        case {"time": str(text)}:
            moment = datetime.fromisoformat(text)
            return moment if moment.tzinfo is None else moment.astimezone(UTC)
        case {"table": dict(table)}:
            return {key: _read(item) for key, item in table.items()}
        case list():
            return [_read(item) for item in value]
    return value


class UnusableFile(ConfigurationError):
    """The broker's file cannot be used."""

    def __init__(self, path: Path, problem: str) -> None:
        self.path = path
        self.problem = problem
        super().__init__(f"The embedded broker's file {path} {problem}")


def opened(path: Path) -> sqlite3.Connection:
    """Open the file exclusively, or raise UnusableFile."""
    try:
        if not path.exists():
            _make(path)
        _check(path)
        return _claim(path)
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise UnusableFile(path, "is in use by another embedded broker.") from None
        raise UnusableFile(path, f"cannot be opened ({error}).") from error
    except sqlite3.DatabaseError as error:
        raise UnusableFile(path, f"is damaged ({error}) and was left unchanged. {_MOVE_HINT}") from error


def _make(path: Path) -> None:
    """Create the file under another name and rename it, so that a killed broker leaves no half-written file."""
    draft = path.with_name(f"{path.name}.new")
    for rest in ("", "-journal", "-wal"):
        draft.with_name(draft.name + rest).unlink(missing_ok=True)
    with closing(_connect(draft, "rwc")) as connection:
        connection.executescript(_SCHEMA)
        connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {_FORMAT}")
        connection.execute("PRAGMA journal_mode = WAL").fetchall()
    draft.replace(path)


def _check(path: Path) -> None:
    """Check the file through a read-only connection."""
    with closing(_connect(path, "ro")) as connection:
        if _owner(connection) != _APPLICATION_ID:
            raise UnusableFile(path, f"was not written by it and was left unchanged. {_MOVE_HINT}")
        version = _number(connection, "user_version")
        if version != _FORMAT:
            raise UnusableFile(path, f"has format {version}; this version reads format {_FORMAT}. {_MOVE_HINT}")
        result = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if result != "ok":
            raise UnusableFile(path, f"is damaged ({result}) and was left unchanged. {_MOVE_HINT}")


def _claim(path: Path) -> sqlite3.Connection:
    connection = _connect(path, "rw")
    try:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE").fetchall()
        # A commit survives the death of the process at once, and a power cut from the next checkpoint on.
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA wal_autocheckpoint = 4000").fetchall()
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("COMMIT")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    uri = f"file:{quote(str(path))}?mode={mode}"
    # Another thread may serve than the one that opened the file.
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


class FileStore(DurableStore):
    """Collects changes and writes them at `commit`. A message that came and went in between is never written."""

    def __init__(self, path: Path, *, epoch: float) -> None:
        self._path = path
        self._epoch = epoch
        self._file = opened(path)
        self._numbers: dict[str, int] = {}
        for number, name in self._file.execute("SELECT number, name FROM queues"):
            self._numbers[name_text(name)] = number
        self._last = max(self._numbers.values(), default=0)
        self._turn: int = self._file.execute("SELECT coalesce(max(turn), 0) FROM places").fetchone()[0]
        self._changes: list[tuple[str, SqlRow]] = []
        self._emptied: list[int] = []
        self._added: dict[int, Entry] = {}
        self._moved: dict[int, tuple[Entry, MessagePlace, Detail]] = {}
        self._gone: list[tuple[int]] = []

    def queue_declared(self, spec: QueueSpec) -> None:
        if spec.name in self._numbers:
            return
        self._last += 1
        self._numbers[spec.name] = self._last
        row = (self._last, name_bytes(spec.name), table_text(spec.arguments))
        self._change("INSERT INTO queues VALUES (?, ?, ?)", row)

    def queue_deleted(self, name: str) -> None:
        number = self._numbers.pop(name)
        self._emptied.append(number)
        for row_id in [one for one in self._added if one >> _POSITION_BITS == number]:
            del self._added[row_id]
        for row_id in [one for one in self._moved if one >> _POSITION_BITS == number]:
            del self._moved[row_id]
        self._change("DELETE FROM queues WHERE number = ?", (number,))
        self._change("DELETE FROM bindings WHERE NOT to_exchange AND destination = ?", (name_bytes(name),))

    def exchange_declared(self, spec: ExchangeSpec) -> None:
        row = (name_bytes(spec.name), spec.type, spec.auto_delete, spec.internal, table_text(spec.arguments))
        self._change("INSERT OR REPLACE INTO exchanges VALUES (?, ?, ?, ?, ?)", row)

    def exchange_deleted(self, name: str) -> None:
        raw = name_bytes(name)
        self._change("DELETE FROM exchanges WHERE name = ?", (raw,))
        self._change("DELETE FROM bindings WHERE source = ? OR (to_exchange AND destination = ?)", (raw, raw))

    def bound(self, binding: KeptBinding) -> None:
        self._change("INSERT OR IGNORE INTO bindings VALUES (?, ?, ?, ?, ?)", _binding_row(binding))

    def unbound(self, binding: KeptBinding) -> None:
        same = "source = ? AND destination = ? AND key = ? AND to_exchange = ? AND arguments = ?"
        self._change(f"DELETE FROM bindings WHERE {same}", _binding_row(binding))  # noqa: S608 - constant text

    def enqueued(self, queue: str, entry: Entry) -> None:
        self._added[self._id(queue, entry.position)] = entry

    def moved(self, queue: str, entry: Entry, place: MessagePlace, detail: Detail) -> None:
        row_id = self._id(queue, entry.position)
        # Moved to the end, because the order of the places is the order in which messages reached them.
        self._moved.pop(row_id, None)
        self._moved[row_id] = entry, place, detail

    def removed(self, queue: str, position: int) -> None:
        row_id = self._id(queue, position)
        self._moved.pop(row_id, None)
        if self._added.pop(row_id, None) is None:
            self._gone.append((row_id,))

    def commit(self) -> None:
        """Write every change since the last commit in one transaction, or raise UnusableFile."""
        if not (self._changes or self._added or self._moved or self._gone or self._emptied):
            return
        try:
            self._write()
        except sqlite3.Error as error:
            why = f"cannot be written ({error}). The broker stops: it must not confirm messages that it cannot store."
            raise UnusableFile(self._path, why) from error
        for pending in (self._changes, self._added, self._moved, self._gone, self._emptied):
            pending.clear()

    def close(self) -> None:
        self._file.close()

    def read(self) -> KeptContent:
        every = self._file.execute
        return KeptContent(
            queues=tuple(
                QueueSpec(name=name_text(name), durable=True, arguments=table_of(arguments))
                for name, arguments in every("SELECT name, arguments FROM queues ORDER BY number")
            ),
            exchanges=tuple(
                ExchangeSpec(
                    name=name_text(name),
                    type=kind,
                    auto_delete=bool(auto_delete),
                    internal=bool(internal),
                    arguments=table_of(arguments),
                )
                for name, kind, auto_delete, internal, arguments in every("SELECT * FROM exchanges ORDER BY rowid")
            ),
            bindings=tuple(
                KeptBinding(
                    source=name_text(source),
                    destination=name_text(destination),
                    key=name_text(key),
                    to_exchange=bool(to_exchange),
                    arguments=table_of(arguments),
                )
                for source, destination, key, to_exchange, arguments in every("SELECT * FROM bindings ORDER BY rowid")
            ),
            messages=self._messages(),
        )

    def _messages(self) -> Iterator[KeptMessage]:
        """Return the messages never delivered, queue by queue, then the others in the order of their return."""
        names = {number: name for name, number in self._numbers.items()}
        places = {row[0]: row[1:] for row in self._file.execute("SELECT * FROM places")}
        moved: list[tuple[int, KeptMessage]] = []
        for row_id, exchange, key, raw, body, expires, past in self._file.execute("SELECT * FROM messages ORDER BY id"):
            turn, place, until, reason, redelivered, count, unkept, acquired = places.get(row_id, _UNTOUCHED)
            entry = Entry(
                message_of(exchange, key, raw, body, past),
                position=row_id & ((1 << _POSITION_BITS) - 1),
                expires=NEVER if expires is None else expires - self._epoch - _SOONER_SECONDS,
                count=count,
                unkept=unkept,
                acquired=acquired,
                redelivered=bool(redelivered),
            )
            detail = reason if until is None else until - self._epoch - _SOONER_SECONDS
            one = KeptMessage(queue=names[row_id >> _POSITION_BITS], entry=entry, place=place, detail=detail)
            if place == "fresh":
                yield one
            else:
                moved.append((turn, one))
        yield from (one for _, one in sorted(moved, key=lambda pair: pair[0]))

    def _write(self) -> None:
        file = self._file
        file.execute("BEGIN")
        try:
            for statement, row in self._changes:
                file.execute(statement, row)
            file.executemany(_MESSAGE, self._message_rows())
            file.executemany(_PLACE, self._place_rows())
            file.executemany("DELETE FROM messages WHERE id = ?", self._gone)
            file.executemany("DELETE FROM places WHERE id = ?", self._gone)
            for number in self._emptied:
                ends = (number << _POSITION_BITS, (number + 1) << _POSITION_BITS)
                file.execute("DELETE FROM messages WHERE id >= ? AND id < ?", ends)
                file.execute("DELETE FROM places WHERE id >= ? AND id < ?", ends)
            file.execute("COMMIT")
        except sqlite3.Error:
            if file.in_transaction:
                file.execute("ROLLBACK")
            raise

    def _message_rows(self) -> Iterator[SqlRow]:
        for row_id, entry in self._added.items():
            message = entry.message
            expires = None if entry.expires == NEVER else entry.expires + self._epoch
            place = name_bytes(message.exchange), name_bytes(message.key)
            yield (row_id, *place, message.raw, message.body, expires, past_text(message))

    def _place_rows(self) -> Iterator[SqlRow]:
        for row_id, (entry, place, detail) in self._moved.items():
            self._turn += 1
            until = detail + self._epoch if isinstance(detail, float) else None
            reason = detail if isinstance(detail, str) else None
            counts = entry.count, entry.unkept, entry.acquired
            yield (row_id, self._turn, place, until, reason, entry.redelivered, *counts)

    def _change(self, statement: str, row: SqlRow) -> None:
        self._changes.append((statement, row))

    def _id(self, queue: str, position: int) -> int:
        return self._numbers[queue] << _POSITION_BITS | position


def _binding_row(binding: KeptBinding) -> SqlRow:
    names = map(name_bytes, (binding.source, binding.destination, binding.key))
    return (*names, binding.to_exchange, table_text(binding.arguments))

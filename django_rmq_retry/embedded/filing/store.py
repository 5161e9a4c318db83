"""Writes down what a virtual host has to remember, in groups; and reads it again."""

import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path

from django_rmq_retry.embedded.engine.arguments import QueueSpec
from django_rmq_retry.embedded.engine.entries import NEVER, Entry
from django_rmq_retry.embedded.engine.store import Detail, Kept, KeptBinding, KeptExchange, KeptMessage, Place
from django_rmq_retry.embedded.filing.opening import UnusableFile, opened
from django_rmq_retry.embedded.filing.values import (
    message_of,
    name_bytes,
    name_text,
    past_text,
    table_of,
    table_text,
)

Row = tuple[object, ...]
# A message's id is the number of its queue and, in the lower bits, its position there.
_SHIFT = 40
_SOONER = 1e-6
"""Seconds since 1970 are kept less exactly than the clock runs: what is over by then stays over."""
_MESSAGE = "INSERT INTO messages VALUES (?, ?, ?, ?, ?, ?, ?)"
_PLACE = "INSERT OR REPLACE INTO places VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"


class FileStore:
    """Nothing is written before `commit`; what came and went in between never is. `epoch` is that of the clock."""

    def __init__(self, path: Path, *, epoch: float) -> None:
        self._path = path
        self._epoch = epoch
        self._file = opened(path)
        self._numbers: dict[str, int] = {}
        for number, name in self._file.execute("SELECT number, name FROM queues"):
            self._numbers[name_text(name)] = number
        self._last = max(self._numbers.values(), default=0)
        self._turn: int = self._file.execute("SELECT coalesce(max(turn), 0) FROM places").fetchone()[0]
        self._changes: list[tuple[str, Row]] = []
        self._emptied: list[int] = []
        self._added: dict[int, Entry] = {}
        self._moved: dict[int, tuple[Entry, Place, Detail]] = {}
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
        for found in [one for one in self._added if one >> _SHIFT == number]:
            del self._added[found]
        for found in [one for one in self._moved if one >> _SHIFT == number]:
            del self._moved[found]
        self._change("DELETE FROM queues WHERE number = ?", (number,))
        self._change("DELETE FROM bindings WHERE NOT to_exchange AND destination = ?", (name_bytes(name),))

    def exchange_declared(
        self, name: str, kind: str, *, auto_delete: bool, internal: bool, arguments: Mapping[str, object]
    ) -> None:
        row = (name_bytes(name), kind, auto_delete, internal, table_text(arguments))
        self._change("INSERT OR REPLACE INTO exchanges VALUES (?, ?, ?, ?, ?)", row)

    def exchange_deleted(self, name: str) -> None:
        raw = name_bytes(name)
        self._change("DELETE FROM exchanges WHERE name = ?", (raw,))
        self._change("DELETE FROM bindings WHERE source = ? OR (to_exchange AND destination = ?)", (raw, raw))

    def bound(
        self, source: str, destination: str, key: str, *, to_exchange: bool, arguments: Mapping[str, object]
    ) -> None:
        row = (name_bytes(source), name_bytes(destination), name_bytes(key), to_exchange, table_text(arguments))
        self._change("INSERT OR IGNORE INTO bindings VALUES (?, ?, ?, ?, ?)", row)

    def unbound(
        self, source: str, destination: str, key: str, *, to_exchange: bool, arguments: Mapping[str, object]
    ) -> None:
        row = (name_bytes(source), name_bytes(destination), name_bytes(key), to_exchange, table_text(arguments))
        same = "source = ? AND destination = ? AND key = ? AND to_exchange = ? AND arguments = ?"
        self._change(f"DELETE FROM bindings WHERE {same}", row)  # noqa: S608 - our own words

    def enqueued(self, queue: str, entry: Entry) -> None:
        self._added[self._id(queue, entry.position)] = entry

    def moved(self, queue: str, entry: Entry, place: Place, detail: Detail) -> None:
        found = self._id(queue, entry.position)
        # To the end: the order in which places are written is the order in which they were taken.
        self._moved.pop(found, None)
        self._moved[found] = entry, place, detail

    def removed(self, queue: str, position: int) -> None:
        found = self._id(queue, position)
        self._moved.pop(found, None)
        if self._added.pop(found, None) is None:
            self._gone.append((found,))

    def commit(self) -> None:
        """Write down all that was told since the last time, or nothing of it: then it is an UnusableFile."""
        if not (self._changes or self._added or self._moved or self._gone or self._emptied):
            return
        try:
            self._write()
        except sqlite3.Error as error:
            why = f"cannot be written ({error}). The broker ends: it must not confirm what it cannot keep."
            raise UnusableFile(self._path, why) from error
        for pending in (self._changes, self._added, self._moved, self._gone, self._emptied):
            pending.clear()

    def close(self) -> None:
        self._file.close()

    def read(self) -> Kept:
        """What the file holds."""
        every = self._file.execute
        return Kept(
            queues=tuple(
                QueueSpec(name=name_text(name), durable=True, arguments=table_of(arguments))
                for name, arguments in every("SELECT name, arguments FROM queues ORDER BY number")
            ),
            exchanges=tuple(
                KeptExchange(
                    name=name_text(name),
                    kind=kind,
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
        """First those that nobody was given, each queue in its order, then the others as they came back."""
        names = {number: name for name, number in self._numbers.items()}
        places = {row[0]: row[1:] for row in self._file.execute("SELECT * FROM places")}
        moved: list[tuple[int, KeptMessage]] = []
        for found, exchange, key, raw, body, expires, past in self._file.execute("SELECT * FROM messages ORDER BY id"):
            turn, place, until, reason, redelivered, count, unkept, acquired = places.get(found, _UNTOUCHED)
            one = KeptMessage(
                queue=names[found >> _SHIFT],
                position=found & ((1 << _SHIFT) - 1),
                message=message_of(exchange, key, raw, body, past),
                expires=NEVER if expires is None else expires - self._epoch - _SOONER,
                place=place,
                detail=reason if until is None else until - self._epoch - _SOONER,
                redelivered=bool(redelivered),
                count=count,
                unkept=unkept,
                acquired=acquired,
            )
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
                ends = (number << _SHIFT, (number + 1) << _SHIFT)
                file.execute("DELETE FROM messages WHERE id >= ? AND id < ?", ends)
                file.execute("DELETE FROM places WHERE id >= ? AND id < ?", ends)
            file.execute("COMMIT")
        except sqlite3.Error:
            if file.in_transaction:
                file.execute("ROLLBACK")
            raise

    def _message_rows(self) -> Iterator[Row]:
        for found, entry in self._added.items():
            message = entry.message
            expires = None if entry.expires == NEVER else entry.expires + self._epoch
            place = name_bytes(message.exchange), name_bytes(message.key)
            yield (found, *place, message.raw, message.body, expires, past_text(message))

    def _place_rows(self) -> Iterator[Row]:
        for found, (entry, place, detail) in self._moved.items():
            self._turn += 1
            until = detail + self._epoch if isinstance(detail, float) else None
            reason = detail if isinstance(detail, str) else None
            counts = entry.count, entry.unkept, entry.acquired
            yield (found, self._turn, place, until, reason, entry.redelivered, *counts)

    def _change(self, statement: str, row: Row) -> None:
        self._changes.append((statement, row))

    def _id(self, queue: str, position: int) -> int:
        return self._numbers[queue] << _SHIFT | position


_UNTOUCHED: tuple[int, Place, None, None, bool, None, int, int] = (0, "fresh", None, None, False, None, 0, 0)

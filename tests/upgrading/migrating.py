"""Migrates a large PostgreSQL database while somebody writes into it, and tells how long a write had to wait."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from django.core.management import call_command
from django.db import connections

FIRST = "0001_initial"
TABLE = "rmq_retry_parkedmessage"
WRITE = f"UPDATE {TABLE} SET copies = copies + 1 WHERE id = (SELECT min(id) FROM {TABLE})"  # noqa: S608 - ours
REWRITE = f"ALTER TABLE {TABLE} ADD COLUMN rewritten double precision DEFAULT random()"
"""What a migration must not do: another value for each row, so each row is written anew, and all who write wait."""


@dataclass(slots=True, kw_only=True)
class Writer:
    """Writes without a pause."""

    alias: str
    longest: float = 0.0
    """Seconds that one write took."""
    writes: int = 0

    def run(self, over: threading.Event) -> None:
        try:
            with connections[self.alias].cursor() as cursor:
                while not over.is_set():
                    began = time.perf_counter()
                    cursor.execute(WRITE)
                    self.longest = max(self.longest, time.perf_counter() - began)
                    self.writes += 1
        finally:
            connections[self.alias].close()


@contextmanager
def writing(alias: str) -> Iterator[Writer]:
    """Somebody writes meanwhile."""
    writer, over = Writer(alias=alias), threading.Event()
    thread = threading.Thread(target=writer.run, args=(over,))
    thread.start()
    try:
        yield writer
    finally:
        over.set()
        thread.join()


def back(alias: str) -> None:
    """To the tables of version 1."""
    call_command("migrate", "rmq_retry", FIRST, database=alias, verbosity=0)


def longest_wait(alias: str, act: Callable[[], object]) -> float:
    """Of a write, while this is done."""
    with writing(alias) as writer:
        before = writer.writes
        act()
        after = writer.writes
    assert writer.writes >= after >= before
    return writer.longest


def migrating(alias: str) -> float:
    """The longest wait of a write while all migrations after the first are made."""
    back(alias)
    return longest_wait(alias, lambda: call_command("migrate", "rmq_retry", database=alias, verbosity=0))


def rewriting(alias: str) -> float:
    """The same while the table is written anew, for comparison; it is as before afterwards."""

    def rewrite() -> None:
        with connections[alias].cursor() as cursor:
            cursor.execute(REWRITE)

    try:
        return longest_wait(alias, rewrite)
    finally:
        with connections[alias].cursor() as cursor:
            cursor.execute(f"ALTER TABLE {TABLE} DROP COLUMN IF EXISTS rewritten")

"""The buffer between workers and database: it loses nothing without need, and no worker waits."""

import logging
import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest
from django.db import DataError, OperationalError, ProgrammingError

from django_rmq_retry.attempts import buffer as buffers
from django_rmq_retry.attempts.buffer import DRAFTS_AT_ONCE, Buffer
from django_rmq_retry.attempts.doubtful import TRIES
from django_rmq_retry.attempts.rows import AttemptDraft, draft_of
from tests.attempts.attempted import failure
from tests.handlers.factories import delivery
from tests.tooling.waiting import wait_until


class Table:
    """The drafts that were written, and the errors that writing raises."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.refuse: Callable[[AttemptDraft], Exception | None] = lambda _: None
        self.forgiving = False
        self.away: Exception | None = None
        self.tried = 0
        self.threads: set[str] = set()

    def write(self, drafts: Sequence[AttemptDraft], *, plain: bool = False) -> None:
        self.tried += 1
        self.threads.add(threading.current_thread().name)
        if self.away:
            raise self.away
        for draft in drafts:
            error = None if plain and self.forgiving else self.refuse(draft)
            if error:
                raise error
        self.batches.append([f"{draft.message_id}{' plain' if plain else ''}" for draft in drafts])

    @property
    def names(self) -> list[str]:
        return [name for batch in self.batches for name in batch]


def draft(name: str) -> AttemptDraft:
    return draft_of(failure(delivery(message_id=name)), None)


def filled(table: Table, *names: str, **options: int) -> Buffer:
    """A buffer in which these wait: its thread has not begun."""
    buffer = Buffer(table.write, **options)
    buffer._begin = lambda: None  # type: ignore[method-assign]
    for name in names:
        buffer.add(draft(name))
    return buffer


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "FIRST_REWRITE_SECONDS", 0.001)
    monkeypatch.setattr(buffers, "LONGEST_REWRITE_SECONDS", 0.01)


def test_one_thread_writes_the_attempts_of_all_workers() -> None:
    table = Table()
    buffer = Buffer(table.write)

    for number in range(3):
        buffer.add(draft(f"m-{number}"))
    wait_until(lambda: len(table.names) == 3)

    assert (table.names, table.threads) == (["m-0", "m-1", "m-2"], {"rmq-recorder"})
    assert len(buffer) == 0
    buffer.close(5)


def test_no_thread_starts_before_the_first_attempt() -> None:
    before = threading.active_count()

    Buffer(Table().write).close(5)

    assert threading.active_count() == before


def test_attempts_are_written_in_batches() -> None:
    table = Table()
    buffer = filled(table, *(f"m-{number}" for number in range(2 * DRAFTS_AT_ONCE + 1)))

    buffer.flush()

    assert [len(batch) for batch in table.batches] == [DRAFTS_AT_ONCE, DRAFTS_AT_ONCE, 1]


def test_attempts_added_during_a_write_wait_for_the_next_batch() -> None:
    table = Table()
    buffer = filled(table, "a", "b")

    def comes(_: AttemptDraft) -> None:
        if len(table.batches) < 3:
            buffer.add(draft(f"later {len(buffer)}"))

    table.refuse = comes
    buffer.flush()

    assert (table.batches, len(buffer)) == ([["a", "b"]], 2)


def test_a_full_buffer_drops_the_oldest_attempts_and_counts_them(caplog: pytest.LogCaptureFixture) -> None:
    table = Table()
    buffer = filled(table, "m-0", "m-1", "m-2", "m-3", most=2)

    with caplog.at_level(logging.WARNING, "django_rmq_retry"):
        table.away = OperationalError("no server")
        buffer._step(0.0)
        table.away = None
        buffer.flush()

    assert table.names == ["m-2", "m-3"]
    assert caplog.messages == [
        "Attempts cannot be recorded ('OperationalError: no server'). 2 are buffered, 2 dropped; next write in 1 s."
    ]


def test_a_buffer_over_its_size_in_bytes_drops_attempts() -> None:
    size = draft("m-0").size
    buffer = filled(Table(), "m-0", "m-1", "m-2", room=2 * size)

    assert len(buffer) == 2

    alone = filled(Table(), "m-0", room=1)

    assert len(alone) == 1


@pytest.mark.usefixtures("quick")
def test_an_unavailable_database_is_retried_and_logged_once_per_retry(caplog: pytest.LogCaptureFixture) -> None:
    table = Table()
    table.away = OperationalError("no server")
    buffer = Buffer(table.write)

    with caplog.at_level(logging.WARNING, "django_rmq_retry"):
        buffer.add(draft("m-0"))
        wait_until(lambda: table.tried >= 5)
        assert buffer.away
        buffer.add(draft("m-1"))
        table.away = None
        wait_until(lambda: caplog.messages[-1:] == ["Attempts are recorded again"])

    assert table.names == ["m-0", "m-1"]
    assert len(caplog.messages) == table.tried
    buffer.close(5)


def test_the_pause_between_retries_grows_to_a_minute() -> None:
    table = Table()
    table.away = OperationalError("no such table")
    buffer = filled(table, "m-0")
    buffer._closing.set()

    waits = [0.0]
    for _ in range(8):
        waits.append(buffer._step(waits[-1]))

    assert waits == [0, 1, 2, 4, 8, 16, 32, 60, 60]


def test_buffered_attempts_are_written_at_an_orderly_stop() -> None:
    table = Table()
    buffer = Buffer(table.write)
    for number in range(3 * DRAFTS_AT_ONCE):
        buffer.add(draft(f"m-{number}"))

    buffer.close(30)

    assert len(table.names) == 3 * DRAFTS_AT_ONCE
    assert "rmq-recorder" not in [thread.name for thread in threading.enumerate()]


def test_attempts_that_cannot_be_written_at_the_stop_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    table = Table()
    table.away = OperationalError("no server")
    buffer = Buffer(table.write)
    buffer.add(draft("m-0"))
    wait_until(lambda: buffer.away)

    with caplog.at_level(logging.ERROR, "django_rmq_retry"):
        buffer.close(30)

    assert caplog.messages[-1:] == ["1 attempts and outcomes were not recorded, because the database was unavailable."]


def test_a_refused_row_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    table = Table()
    table.refuse = lambda one: DataError("too long") if one.message_id == "m-1" else None
    buffer = filled(table, "m-0", "m-1", "m-2")

    with caplog.at_level(logging.ERROR, "django_rmq_retry"):
        buffer.flush()

    assert table.names == ["m-0", "m-2"]
    assert caplog.messages == ["An attempt of queue 'payments' cannot be stored: 'DataError: too long'"]


def test_a_character_that_the_table_cannot_store_is_replaced() -> None:
    table = Table()
    table.refuse = lambda one: None if one.message_id.isascii() else OperationalError(1366, "Incorrect string")
    table.forgiving = True
    buffer = filled(table, "m-\U0001f4a9", "m-1")

    buffer.flush()

    assert table.names == ["m-\U0001f4a9 plain", "m-1"]


def test_a_database_lost_among_refused_rows_loses_no_attempt() -> None:
    table = Table()
    errors = iter([DataError("too long"), None, OperationalError("gone")])
    table.refuse = lambda _: next(errors, None)
    buffer = filled(table, "m-0", "m-1", "m-2")

    with pytest.raises(OperationalError, match="gone"):
        buffer.flush()
    buffer.flush()

    assert table.names == ["m-0", "m-1", "m-2"]


@pytest.mark.parametrize(
    ("add", "said"),
    [
        (Buffer.add_outcome, "An outcome cannot be stored. The state of its parked message does not change."),
        (
            Buffer.add_correction,
            "An attempt cannot be corrected. Its history says that the message was parked, but it was not.",
        ),
    ],
)
def test_what_can_never_be_stored_is_logged_as_what_it_is_and_dropped(
    caplog: pytest.LogCaptureFixture, add: Callable[[Buffer, Callable[[], None]], None], said: str
) -> None:
    table = Table()
    buffer = filled(table, "m-0")

    def tell() -> None:
        raise DataError("out of range")

    add(buffer, tell)
    with caplog.at_level(logging.ERROR, "django_rmq_retry"):
        buffer.flush()

    assert (table.names, len(buffer)) == (["m-0"], 0)
    assert caplog.messages == [said]


class Rows:
    """Updates of rows by name, and the error that some of them raise."""

    def __init__(self, errors: dict[str, Exception]) -> None:
        self.errors = errors
        self.made: list[str] = []

    def update(self, name: str) -> Callable[[], None]:
        def make() -> None:
            if name in self.errors:
                raise self.errors[name]
            self.made.append(name)

        return make


def turn(buffer: Buffer, *, most: int, each: Callable[[], Any]) -> None:
    """Flush the buffer until that raises nothing, and something before each time."""
    for _ in range(most):
        each()
        with suppress(Exception):
            buffer.flush()
            break
    assert len(buffer) == 0


HOSTILE = [KeyError("boom"), RecursionError("too deep"), ProgrammingError("index row size 5048 exceeds 2704")]


@pytest.mark.parametrize("error", HOSTILE, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("add", [Buffer.add_outcome, Buffer.add_correction])
def test_an_update_that_never_succeeds_costs_no_other_entry(
    caplog: pytest.LogCaptureFixture, add: Callable[[Buffer, Callable[[], None]], None], error: Exception
) -> None:
    table, rows = Table(), Rows({"hostile": error})
    buffer = filled(table, "m-0")
    for name in ("a", "hostile", "b"):
        add(buffer, rows.update(name))

    with caplog.at_level(logging.ERROR, "django_rmq_retry"):
        with pytest.raises(type(error)):
            buffer.flush()
        assert (rows.made, table.names, len(buffer)) == (["a", "b"], ["m-0"], 1)
        numbers = iter(range(TRIES))
        turn(buffer, most=TRIES, each=lambda: add(buffer, rows.update(f"later {next(numbers)}")))

    assert rows.made[2:] == [f"later {number}" for number in range(TRIES - 1)]
    [logged] = caplog.records
    assert (logged.event, logged.exc_info[1]) == ("unrecorded", error)  # type: ignore[attr-defined, index]


@pytest.mark.parametrize("error", HOSTILE, ids=lambda error: type(error).__name__)
def test_an_attempt_that_can_never_be_written_costs_no_other(
    caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    table = Table()
    table.refuse = lambda one: error if one.message_id == "hostile" else None
    buffer = filled(table, "m-0", "hostile", "m-1")

    with caplog.at_level(logging.ERROR, "django_rmq_retry"):
        turn(buffer, most=TRIES, each=lambda: buffer.add(draft("later")))

    assert table.names == ["m-0", "m-1", *["later"] * TRIES]
    assert [line.split(":")[0] for line in caplog.messages] == ["An attempt of queue 'payments' cannot be stored"]


def test_many_hostile_updates_in_a_row_hold_the_others_back_for_a_few_turns_only() -> None:
    rows = Rows({f"hostile {number}": KeyError("boom") for number in range(5)})
    buffer = filled(Table())
    for name in (*rows.errors, "a", "b"):
        buffer.add_outcome(rows.update(name))

    for _ in range(5):
        with pytest.raises(KeyError):
            buffer.flush()

    assert rows.made == ["a", "b"]


def test_updates_that_all_fail_are_kept_for_as_long_as_that_lasts() -> None:
    # Of the tables of parked messages a new column is missing until `migrate`; the history can be written.
    table, rows = Table(), Rows({f"m-{number}": ProgrammingError("no such column") for number in range(9)})
    buffer = filled(table)
    names = list(rows.errors)
    for name in names:
        buffer.add_outcome(rows.update(name))

    for number in range(3 * TRIES):
        buffer.add(draft(f"a-{number}"))
        with pytest.raises(ProgrammingError):
            buffer.flush()
    assert (rows.made, len(table.names)) == ([], 3 * TRIES)

    rows.errors.clear()
    buffer.flush()
    assert sorted(rows.made) == names


def test_an_update_of_a_row_that_is_locked_is_never_given_up() -> None:
    locked = OperationalError("database is locked")
    locked.__cause__ = sqlite3.OperationalError("database is locked")
    locked.__cause__.sqlite_errorcode = sqlite3.SQLITE_BUSY
    rows = Rows({"locked": locked})
    buffer = filled(Table())
    buffer.add_outcome(rows.update("locked"))
    for _ in range(3 * TRIES):
        buffer.add_outcome(rows.update("other"))
        with pytest.raises(OperationalError):
            buffer.flush()

    rows.errors.clear()
    buffer.flush()

    assert rows.made == [*["other"] * 3 * TRIES, "locked"]

"""The buffer between workers and database: it loses nothing without need, and no worker waits."""

import logging
import threading
from collections.abc import Callable, Sequence

import pytest
from django.db import DataError, OperationalError

from django_rmq_retry.parked import history
from django_rmq_retry.parked.attempts import Draft, draft_of
from django_rmq_retry.parked.history import AT_ONCE, Buffer
from tests.handlers.factories import delivery
from tests.parked.attempted import failure
from tests.tooling.waiting import wait_until


class Table:
    """The drafts that were written, and the errors that writing raises."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.refuse: Callable[[Draft], Exception | None] = lambda _: None
        self.forgiving = False
        self.away: Exception | None = None
        self.tried = 0
        self.threads: set[str] = set()

    def write(self, drafts: Sequence[Draft], *, plain: bool = False) -> None:
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


def draft(name: str) -> Draft:
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
    monkeypatch.setattr(history, "FIRST_WAIT", 0.001)
    monkeypatch.setattr(history, "LONGEST_WAIT", 0.01)


def test_one_thread_writes_what_workers_hand_over() -> None:
    table = Table()
    buffer = Buffer(table.write)

    for number in range(3):
        buffer.add(draft(f"m-{number}"))
    wait_until(lambda: len(table.names) == 3)

    assert (table.names, table.threads) == (["m-0", "m-1", "m-2"], {"rmq-recorder"})
    assert len(buffer) == 0
    buffer.close(5)


def test_no_thread_begins_before_there_is_something_to_write() -> None:
    before = threading.active_count()

    Buffer(Table().write).close(5)

    assert threading.active_count() == before


def test_much_is_written_in_batches() -> None:
    table = Table()
    buffer = filled(table, *(f"m-{number}" for number in range(2 * AT_ONCE + 1)))

    buffer.flush()

    assert [len(batch) for batch in table.batches] == [AT_ONCE, AT_ONCE, 1]


def test_what_comes_during_a_write_waits_for_the_next_batch() -> None:
    table = Table()
    buffer = filled(table, "a", "b")

    def comes(_: Draft) -> None:
        if len(table.batches) < 3:
            buffer.add(draft(f"later {len(buffer)}"))

    table.refuse = comes
    buffer.flush()

    assert (table.batches, len(buffer)) == ([["a", "b"]], 2)


def test_the_oldest_make_room_and_are_counted(caplog: pytest.LogCaptureFixture) -> None:
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


def test_large_rows_make_room_too() -> None:
    size = draft("m-0").size
    buffer = filled(Table(), "m-0", "m-1", "m-2", room=2 * size)

    assert len(buffer) == 2

    alone = filled(Table(), "m-0", room=1)

    assert len(alone) == 1


@pytest.mark.usefixtures("quick")
def test_a_database_that_is_away_is_tried_again_with_one_line_for_each_step(caplog: pytest.LogCaptureFixture) -> None:
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


def test_the_waits_grow_up_to_a_minute() -> None:
    table = Table()
    table.away = OperationalError("no such table")
    buffer = filled(table, "m-0")
    buffer._closing.set()

    waits = [0.0]
    for _ in range(8):
        waits.append(buffer._step(waits[-1]))

    assert waits == [0, 1, 2, 4, 8, 16, 32, 60, 60]


def test_what_waits_is_written_at_an_orderly_stop() -> None:
    table = Table()
    buffer = Buffer(table.write)
    for number in range(3 * AT_ONCE):
        buffer.add(draft(f"m-{number}"))

    buffer.close(30)

    assert len(table.names) == 3 * AT_ONCE
    assert "rmq-recorder" not in [thread.name for thread in threading.enumerate()]


def test_what_cannot_be_written_at_the_end_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    table = Table()
    table.away = OperationalError("no server")
    buffer = Buffer(table.write)
    buffer.add(draft("m-0"))
    wait_until(lambda: buffer.away)

    with caplog.at_level(logging.ERROR, "django_rmq_retry"):
        buffer.close(30)

    assert caplog.messages[-1:] == ["1 attempts and outcomes were not recorded, because the database was unavailable."]


def test_a_row_that_is_refused_keeps_no_other_from_the_table(caplog: pytest.LogCaptureFixture) -> None:
    table = Table()
    table.refuse = lambda one: DataError("too long") if one.message_id == "m-1" else None
    buffer = filled(table, "m-0", "m-1", "m-2")

    with caplog.at_level(logging.ERROR, "django_rmq_retry"):
        buffer.flush()

    assert table.names == ["m-0", "m-2"]
    assert caplog.messages == ["An attempt of queue 'payments' cannot be stored: 'DataError: too long'"]


def test_a_character_that_the_table_has_not_is_replaced() -> None:
    table = Table()
    table.refuse = lambda one: None if one.message_id.isascii() else OperationalError(1366, "Incorrect string")
    table.forgiving = True
    buffer = filled(table, "m-\U0001f4a9", "m-1")

    buffer.flush()

    assert table.names == ["m-\U0001f4a9 plain", "m-1"]


def test_a_database_that_goes_away_among_refused_rows_loses_none() -> None:
    table = Table()
    errors = iter([DataError("too long"), None, OperationalError("gone")])
    table.refuse = lambda _: next(errors, None)
    buffer = filled(table, "m-0", "m-1", "m-2")

    with pytest.raises(OperationalError, match="gone"):
        buffer.flush()
    buffer.flush()

    assert table.names == ["m-0", "m-1", "m-2"]


def test_outcomes_are_reported_until_the_database_has_them() -> None:
    told: list[int] = []
    errors = iter([OperationalError("gone"), None])
    buffer = filled(Table())

    def tell() -> None:
        error = next(errors)
        if error:
            raise error
        told.append(7)

    buffer.add_outcome(tell)
    with pytest.raises(OperationalError):
        buffer.flush()
    assert (len(buffer), told) == (1, [])

    buffer.flush()
    assert (len(buffer), told) == (0, [7])


def test_an_outcome_that_can_never_be_reported_holds_up_nothing(caplog: pytest.LogCaptureFixture) -> None:
    table = Table()
    buffer = filled(table, "m-0")

    def tell() -> None:
        raise DataError("out of range")

    buffer.add_outcome(tell)
    with caplog.at_level(logging.ERROR, "django_rmq_retry"):
        buffer.flush()

    assert table.names == ["m-0"]
    assert caplog.messages == ["An outcome cannot be stored. The state of its parked message does not change."]

"""Running a batch of a handler with ``once`` in one transaction with the inbox entries of all its messages."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

from django.db import IntegrityError

from django_rmq_retry import database_clock
from django_rmq_retry.database_errors import asked_again
from django_rmq_retry.handlers.call import HandlerSkipped, OnceState
from django_rmq_retry.handlers.subscription import Subscription
from django_rmq_retry.inbox.names import Name, name_for
from django_rmq_retry.inbox.once import (
    PLACES,
    OnceRun,
    connection_of,
    insert,
    is_duplicate,
    present,
    repeated,
    row_of,
    statements_of,
)
from django_rmq_retry.inbox.savepoint import with_savepoint
from django_rmq_retry.messages.codecs import decoded
from django_rmq_retry.messages.message import Delivery
from django_rmq_retry.models import InboxEntry
from django_rmq_retry.policies.verdict import DUPLICATE

MOST_ROWS = 500
"""The most rows of one INSERT."""


def once_batch(subscription: Subscription, messages: Sequence[tuple[Delivery, OnceState]]) -> Collection[int]:
    """Run the handler in one transaction with the entries of the messages; its error rolls all of them back.

    Return the places of the messages that the handler has not seen. Their entries exist, or they have no name: ``once``
    decides on each of them alone.
    """
    named: dict[int, tuple[Delivery, Name]] = {}
    for place, (delivery, _state) in enumerate(messages):
        try:
            named[place] = delivery, name_for(subscription, delivery)
        except HandlerSkipped:
            continue
    if not named:
        return range(len(messages))
    state = OnceState()
    run = BatchRun(subscription, named, connection_of(subscription), state)
    try:
        repeated(run)
    except HandlerSkipped:
        return range(len(messages))
    finally:
        if state.begun:
            for _delivery, each in messages:
                each.begun = True
    return [place for place in range(len(messages)) if place not in run.entered]


class BatchRun(OnceRun):
    """One transaction for the messages of a batch, each with its entry."""

    def __init__(
        self, subscription: Subscription, named: dict[int, tuple[Delivery, Name]], connection: Any, state: OnceState
    ) -> None:
        first = next(iter(named.values()))[0]
        super().__init__(subscription, first, connection, state)
        self._named = named
        self.entered: list[int] = []
        """The places of the messages whose entries were inserted: the handler gets these."""

    def _enter(self, name: Name) -> Name:
        """Insert the entries; return the name of one. Raise HandlerSkipped if all of them exist."""
        fresh = _inserted(self._connection, self._subscription.inbox_name, [one for _, one in self._named.values()])
        self.entered = []
        for place, (_delivery, each) in self._named.items():
            # Of two messages with the same name the second is decided alone, when the first one is done.
            if each.key in fresh:
                fresh.discard(each.key)
                self.entered.append(place)
        self._leave_renamed()
        if not self.entered:
            raise HandlerSkipped(DUPLICATE)
        return self._named[self.entered[0]][1]

    def _leave_renamed(self) -> None:
        """Leave out what was handled under another name of a renamed handler."""
        names = {place: self._named[place][1] for place in self.entered}
        also = [key for name in names.values() for key in name.also]
        if not also:
            return
        entries = InboxEntry.objects.using(self._connection.alias)
        earlier = {key.hex for key in entries.filter(key__in=also).values_list("key", flat=True)}
        known = [place for place, name in names.items() if not earlier.isdisjoint(name.also)]
        entries.filter(key__in=[names[place].key for place in known]).delete()
        self.entered = [place for place in self.entered if place not in known]

    def _run(self) -> object:
        if self._subscription.run_batch is None:
            raise AssertionError("only a handler with batch runs one")
        return self._subscription.run_batch([self._named[place][0] for place in self.entered])

    def _restore(self) -> None:
        subscription = self._subscription
        self._named = {
            place: (replace(delivery, data=decoded(delivery, subscription.codec, subscription.limits)), name)
            for place, (delivery, name) in self._named.items()
        }

    def _loses_each_connection(self) -> bool:
        """True if one of the messages may have lost the connection: the database is there, and nothing is committed."""
        return asked_again(self._connection, lambda: present(self._connection, self._entered.key)) is False


def _inserted(connection: Any, handler: str, names: Sequence[Name]) -> set[str]:
    """Insert the entries that do not exist, and return their keys.

    In the order of their keys: of two processes that insert the same entries, one waits for the other.
    """
    at = connection.ops.adapt_datetimefield_value(database_clock.now(connection.alias))
    ordered = sorted({name.key: name for name in reversed(names)}.values(), key=lambda name: name.key)
    return {key for some in _parts(connection, ordered) for key in _insert_some(connection, handler, some, at)}


def _parts(connection: Any, names: Sequence[Name]) -> Iterator[Sequence[Name]]:
    values = connection.features.max_query_params or MOST_ROWS * PLACES.count("%s")
    rows = min(MOST_ROWS, values // PLACES.count("%s"))
    return (names[first : first + rows] for first in range(0, len(names), rows))


def _insert_some(connection: Any, handler: str, names: Sequence[Name], at: object) -> Iterator[str]:
    statement = statements_of(connection.vendor).insert.replace(PLACES, ", ".join([PLACES] * len(names)))
    values = [value for name in names for value in row_of(name, handler, at)]
    with connection.cursor() as cursor:
        if connection.vendor != "mysql" and connection.features.can_return_rows_from_bulk_insert:
            cursor.execute(f"{statement} RETURNING {connection.ops.quote_name('key')}", values)
            return iter([str(row[0]).replace("-", "") for row in cursor.fetchall()])
        if connection.vendor == "mysql":
            try:
                cursor.execute(with_savepoint(connection, statement), values)
            except IntegrityError as error:
                # One of them exists. The statement has inserted nothing, and does not say which one it was.
                if not is_duplicate(connection, error):
                    raise
            else:
                return iter([name.key for name in names])
    return (name.key for name in names if insert(connection, handler, name))

"""Running a handler with ``once`` in one transaction with its inbox entry."""

import logging
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum
from functools import lru_cache
from typing import Any

from django.db import DEFAULT_DB_ALIAS, DataError, Error, IntegrityError, connections, router, transaction
from django.utils.connection import ConnectionDoesNotExist

from django_rmq_retry import database_clock
from django_rmq_retry.database_connections import IN_ERROR, IN_TRANSACTION, OPEN_ADVICE, UNKNOWN, left_open
from django_rmq_retry.database_errors import asked_again, clashed, lost, uncertain
from django_rmq_retry.errors import EffectsLost
from django_rmq_retry.handlers.call import HandlerSkipped, OnceState, Unready
from django_rmq_retry.handlers.subscription import Subscription
from django_rmq_retry.handlers.ticket import ticket_of
from django_rmq_retry.inbox import mariadb
from django_rmq_retry.inbox.names import Name, name_for, parked_unrun
from django_rmq_retry.inbox.savepoint import standing_in, with_savepoint
from django_rmq_retry.messages.codecs import decoded
from django_rmq_retry.messages.message import Delivery
from django_rmq_retry.messages.reasons import Reason
from django_rmq_retry.messages.stamp import stamp_of
from django_rmq_retry.messages.texts import ErrorNote
from django_rmq_retry.models import InboxEntry, ParkedMessage
from django_rmq_retry.policies.verdict import DUPLICATE
from django_rmq_retry.publishing import broker_connections

log = logging.getLogger("django_rmq_retry")

DECIDED = (Reason.CONFLICT.value, Reason.ALIKE.value)
"""Reasons for which only an operator can decide. A message parked for one of them is run if an operator requeues it."""

_META = InboxEntry._meta  # noqa: SLF001 - a documented API despite the underscore
_DUPLICATE = 1062
_COLUMNS = ("key", "handler", "name", "digest", "handled_at")
PLACES = f"({', '.join(['%s'] * len(_COLUMNS))})"

ERROR_ADVICE = (
    "Let the error leave the handler, or catch it outside an atomic() block around the statement that failed."
)
END_ADVICE = "Do not commit, roll back or close the connection in the handler. Use atomic() for a part of its work."
# MariaDB rolls the whole transaction back at a deadlock and silently continues in a new one.
ROLLED_BACK = (
    "the transaction was rolled back in the handler, such as by a deadlock whose error was caught",
    ERROR_ADVICE,
)

MOST_REPEATS = 3
"""The number of times a handler is run again at once after a conflict with another transaction."""
MOST_LOSSES = 3
"""Attempts in a row that lose a connection which can be opened again at once; then the message is the cause."""


def conflict(handler: str, name: str) -> HandlerSkipped:
    return parked_unrun(
        Reason.CONFLICT,
        f"Handler {handler} has handled {name!r} before, with another body. This message was not run. Compare "
        "the two bodies; requeue this message to run it, or discard it.",
    )


def skipped_as_alike(handler: str) -> HandlerSkipped:
    return parked_unrun(
        Reason.ALIKE,
        f"The message has no id, and handler {handler} has handled a message with the same body. It may be a second "
        "message or a copy of the first. Requeue it to run it; discard it if it is a copy.",
    )


def came_before(delivery: Delivery, *, begun: bool) -> bool:
    """True if this is certainly not the first delivery, so that an entry with the same bytes is most likely its own."""
    if begun or delivery.redelivered or delivery.quarantined or delivery.attempt > 1:
        return True
    return stamp_of(delivery).attempts > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Statements:
    """The SQL statements in the dialect of one database."""

    insert: str
    same: str
    present: str


def insert(connection: Any, handler: str, name: Name) -> bool:
    """Insert the entry; return False if it exists. Waits for a concurrent transaction that inserts the same entry.

    It must be the first statement of its transaction: on SQLite the write of a transaction that has read before is
    rejected if another transaction has written since.
    """
    at = connection.ops.adapt_datetimefield_value(database_clock.now(connection.alias))
    with connection.cursor() as cursor:
        try:
            statement = with_savepoint(connection, statements_of(connection.vendor).insert)
            cursor.execute(statement, row_of(name, handler, at))
        except IntegrityError as error:
            if is_duplicate(connection, error):
                return False
            raise
        return bool(cursor.rowcount)


def row_of(name: Name, handler: str, at: object) -> tuple[object, ...]:
    """Return the values of an entry, in the order of the statement ``insert``."""
    return name.key, handler, name.text, name.digest, at


def is_duplicate(connection: Any, error: IntegrityError) -> bool:
    """True for the error by which MariaDB tells that an entry exists."""
    return connection.vendor == "mysql" and error.args[:1] == (_DUPLICATE,)


def has_same_body(connection: Any, name: Name) -> bool | None:
    """True if the existing entry has the same body; None if the entry was deleted meanwhile."""
    with connection.cursor() as cursor:
        cursor.execute(statements_of(connection.vendor).same, (name.digest, name.key))
        row = cursor.fetchone()
    return None if row is None else bool(row[0])


def present(connection: Any, key: str) -> bool:
    with connection.cursor() as cursor:
        cursor.execute(statements_of(connection.vendor).present, (key,))
        return cursor.fetchone() is not None


@lru_cache(maxsize=8)
def statements_of(vendor: str) -> Statements:
    quote = next(one for one in connections.all() if one.vendor == vendor).ops.quote_name
    table, key, digest = quote(_META.db_table), quote("key"), quote("digest")
    columns = ", ".join(map(quote, _COLUMNS))
    # On MariaDB the duplicate error reports an existing entry. INSERT IGNORE would hide other errors, and Django
    # connects with FOUND_ROWS, which counts rows that exist as changed.
    end = "" if vendor == "mysql" else f" ON CONFLICT ({key}) DO NOTHING"
    return Statements(
        insert=f"INSERT INTO {table} ({columns}) VALUES {PLACES}{end}",  # noqa: S608 - names of our own only
        same=f"SELECT CASE WHEN {digest} = %s THEN 1 ELSE 0 END FROM {table} WHERE {key} = %s",  # noqa: S608 - as above
        present=f"SELECT 1 FROM {table} WHERE {key} = %s",  # noqa: S608 - as above
    )


def guard(connection: Any, handler: str, name: Name | None, *, blocks: int) -> None:
    """Raise EffectsLost if the commit would not store all effects; ``blocks`` are the atomic() blocks of a test.

    Without a name, MariaDB is not asked for the entry, because the commit itself looks for it.
    """
    problem = _problem(connection, name)
    if len(connection.savepoint_ids) > blocks:
        # Leaving the transaction would leave only that block, and commit nothing.
        problem = "it left an atomic() block that was entered and never left", OPEN_ADVICE
    if problem is not None:
        what, advice = problem
        raise EffectsLost(handler, connection.alias, what=what, advice=advice)


def _problem(connection: Any, name: Name | None) -> tuple[str, str] | None:
    if connection.closed_in_transaction:
        return "the connection was closed in the transaction, which ends it", END_ADVICE
    if connection.needs_rollback:
        return (
            "the transaction is marked for rollback, by set_rollback() or by an error that was caught",
            ERROR_ADVICE,
        )
    if connection.vendor == "postgresql":
        return _problem_by_status(connection.connection.info.transaction_status)
    if connection.vendor == "sqlite":
        ended = not connection.connection.in_transaction
        return ("the transaction was ended, by the handler or by SQLite after an error", END_ADVICE) if ended else None
    return None if name is None or present(connection, name.key) else ROLLED_BACK


def _problem_by_status(status: int) -> tuple[str, str] | None:
    """Return problem and advice for a state that the driver knows without a query. UNKNOWN shows at the commit."""
    if status == IN_ERROR:
        return "a database error was caught, and PostgreSQL turns this COMMIT into a ROLLBACK", ERROR_ADVICE
    if status not in (IN_TRANSACTION, UNKNOWN):
        return "the transaction was ended by the handler", END_ADVICE
    return None


class Stage(Enum):
    ENTERING = "entering"
    RUNNING = "running"
    COMMITTING = "committing"
    COMMITTED = "committed"


class EntryDeleted(Exception):
    """The conflicting entry was deleted meanwhile, so the insert must be tried again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Requeue:
    which: str
    """The record and the number of its requeue, as ``record.cycle``."""
    decided: bool
    """True if the message was parked for this decision, so that the requeue means to run it."""
    at: datetime | None


def once(subscription: Subscription, delivery: Delivery, state: OnceState) -> object:
    """Run the handler in a transaction with its inbox entry; its error rolls both back, and is raised."""
    return repeated(OnceRun(subscription, delivery, connection_of(subscription), state))


def connection_of(subscription: Subscription) -> Any:
    try:
        return connections[alias_of(subscription)]
    except ConnectionDoesNotExist as error:
        raise Unready(f"Handler {subscription.name} has using={subscription.using!r}: {error}") from error


def repeated(run: "OnceRun") -> object:
    """Return the answer of a run, which is repeated after a conflict."""
    for left in reversed(range(MOST_REPEATS + 1)):
        try:
            return run()
        except (HandlerSkipped, Unready):
            raise
        except BaseException as error:
            if run.stage is Stage.COMMITTED:
                # The effects are committed, so a retry would not run the handler again. An error of an on_commit
                # callback is only logged.
                log.critical(
                    "Handler %s has committed, but a callback of its on_commit() failed: %s",
                    *(run.handler, ErrorNote.of(error)),
                    exc_info=error,
                    extra={"event": "after_commit", "handler": run.handler},
                )
                return run.answer
            run.refuse(error, last=not left)
    raise AssertionError("the last attempt either returns or raises")


def alias_of(subscription: Subscription) -> str:
    """Return the alias of the database in which the handler's transaction runs."""
    return subscription.using or DEFAULT_DB_ALIAS


class OnceRun:
    """One attempt of a handler with ``once``, and its transaction. It may be called again after a conflict."""

    def __init__(self, subscription: Subscription, delivery: Delivery, connection: Any, state: OnceState) -> None:
        self._subscription = subscription
        self._delivery = delivery
        self._connection = connection
        self._name = self._entered = name_for(subscription, delivery)
        self._state = state
        self._begun = state.begun
        self._lost = False
        self._kept: Any = None
        self.stage = Stage.ENTERING
        self.answer: object = None

    def __call__(self) -> object:
        connection, self.stage, self._lost = self._connection, Stage.ENTERING, False
        _close_without_autocommit(connection)
        # Skip Django's health check of a persistent connection: the first statement detects a lost one as well, and
        # saves a query.
        self._kept, connection.health_check_done = connection.connection, True
        open_before = {other.alias for other in self._others() if left_open(other)}
        with self._shortened() as asks_at_commit, transaction.atomic(using=connection.alias, durable=True):
            blocks = len(connection.savepoint_ids)
            name = self._entered = self._enter(self._name)
            transaction.on_commit(self._committed, using=connection.alias)
            self.stage = Stage.RUNNING
            inside = broker_connections.in_once.set(True)
            try:
                self.answer = self._run()
            except BaseException as error:
                # Check now: leaving the atomic() block may open a new connection.
                self._lost = lost(connection, error)
                raise
            finally:
                broker_connections.in_once.reset(inside)
            self.stage = Stage.COMMITTING
            guard(connection, self._subscription.name, None if asks_at_commit else name, blocks=blocks)
            self._guard_others(open_before)
            # Set only now: an attempt that was rolled back before the commit does not count as an earlier delivery.
            self._state.begun = True
        return self.answer

    @property
    def handler(self) -> str:
        return self._subscription.name

    def _run(self) -> object:
        with standing_in(self._connection):
            return self._subscription.run(self._delivery)

    def _shortened(self) -> AbstractContextManager[bool]:
        def lost() -> EffectsLost:
            what, advice = ROLLED_BACK
            return EffectsLost(self.handler, self._connection.alias, what=what, advice=advice)

        present = statements_of(self._connection.vendor).present
        return mariadb.shortened(self._connection, present, lambda: self._entered.key, lost)

    def _others(self) -> list[Any]:
        return [other for other in connections.all(initialized_only=True) if other is not self._connection]

    def _guard_others(self, open_before: set[str]) -> None:
        """Raise EffectsLost if the handler left a transaction open on another database: nobody would commit it."""
        for other in self._others():
            what = left_open(other)
            if what and other.alias not in open_before:
                raise EffectsLost(self._subscription.name, other.alias, what=f"it left {what}", advice=OPEN_ADVICE)

    def refuse(self, error: BaseException, *, last: bool) -> None:
        """Raise the error that reports this failed run, or return if the run should be repeated."""
        if clashed(error):
            self._state.begun = self._begun
        if not last and self.stage is Stage.ENTERING and self._connection_was_lost():
            return
        if not last and (clashed(error) or isinstance(error, EntryDeleted)):
            self._restore()
            return
        name = self._connection.alias
        if self.stage is Stage.RUNNING and self._lost:
            if self._loses_each_connection():
                raise error
            raise Unready(f"Database {name!r} was lost while handler {self._subscription.name} ran.") from error
        # A DataError, such as a name with characters that the database cannot store, would fail again after any wait.
        if (
            self.stage is Stage.ENTERING
            and isinstance(error, (Error, EntryDeleted))
            and not isinstance(error, DataError)
        ):
            self._state.losses = 0
            raise Unready(f"Database {name!r} cannot be used: {ErrorNote.of(error)}.") from error
        if self.stage is Stage.COMMITTING and uncertain(error):
            if self._loses_each_connection():
                raise error
            raise Unready(
                f"The commit returned an error, and database {name!r} may have committed: {ErrorNote.of(error)}."
            ) from error
        if self.stage is Stage.COMMITTING and clashed(error):
            raise Unready(
                f"Database {name!r} cannot commit after a conflict with another transaction: {ErrorNote.of(error)}."
            ) from error
        raise error

    def _loses_each_connection(self) -> bool:
        """True if the message itself keeps losing the connection, without a commit, while the database is there."""
        state = self._state
        kept = asked_again(self._connection, lambda: present(self._connection, self._entered.key))
        if kept is None:
            state.losses = 0
            return False
        state.losses += 1
        if kept or state.losses < MOST_LOSSES:
            return False
        state.losses = 0
        log.warning(
            "Handler %s has lost its connection to database %r %s times with the same message, and each time a new one "
            "could be opened at once. This attempt counts as failed",
            *(self._subscription.name, self._connection.alias, MOST_LOSSES),
            extra={"event": "connection_lost", "handler": self._subscription.name},
        )
        return True

    def _connection_was_lost(self) -> bool:
        """True if a connection kept from an earlier message was lost, so that a new one may work."""
        if self._kept is None or self._connection.in_atomic_block:
            return False
        if self._connection.connection is self._kept and not self._connection.is_usable():
            self._connection.close()
        # Leaving the transaction may have opened a new connection already.
        return self._connection.connection is not self._kept

    def _restore(self) -> None:
        """Decode the data again, because the rolled back run may have modified them."""
        subscription = self._subscription
        self._delivery = replace(self._delivery, data=decoded(self._delivery, subscription.codec, subscription.limits))

    def _enter(self, name: Name) -> Name:
        """Insert the entry and return its name. Raise HandlerSkipped if the message must not be handled now."""
        connection, handler = self._connection, self._subscription
        if insert(connection, handler.inbox_name, name):
            earlier_key = next((key for key in name.also if present(connection, key)), None)
            if earlier_key is None:
                return name
            # It was handled under another name of a renamed handler, so that entry decides.
            InboxEntry.objects.using(connection.alias).filter(key=name.key).delete()
            name = replace(name, key=earlier_key)
        same_body = has_same_body(connection, name)
        if same_body is None:
            raise EntryDeleted
        if same_body and self._name.certain:
            raise HandlerSkipped(DUPLICATE)
        requeue = self._requeue()
        if requeue is not None and requeue.decided:
            # An operator has seen the conflict and wants this message handled: once for each requeue.
            name = name.again(requeue.which)
            if insert(connection, handler.inbox_name, name):
                return name
            raise HandlerSkipped(DUPLICATE)
        if not same_body:
            raise conflict(handler.name, name.text)
        # Another message may have the same name and body. Only a delivery that came before can be the same message.
        came = came_before(self._delivery, begun=self._state.begun)
        if came and not self._handled_before_requeue(requeue, name):
            raise HandlerSkipped(DUPLICATE)
        raise skipped_as_alike(handler.name)

    def _requeue(self) -> Requeue | None:
        ticket = ticket_of(self._delivery)
        if ticket is None:
            return None
        records = ParkedMessage.objects.using(router.db_for_write(ParkedMessage)).filter(pk=ticket.record)
        record = records.values_list("reason", "requeued_at").first()
        if record is None:
            return None
        reason, at = record
        return Requeue(which=f"{ticket.record}.{ticket.cycle}", decided=reason in DECIDED, at=at)

    def _handled_before_requeue(self, requeue: Requeue | None, name: Name) -> bool:
        """True if the entry existed when an operator requeued this message, so it belongs to another message."""
        if requeue is None or requeue.at is None:
            return False
        entries = InboxEntry.objects.using(self._connection.alias)
        return entries.filter(key=name.key, handled_at__lt=requeue.at).exists()

    def _committed(self) -> None:
        self.stage = Stage.COMMITTED


def _close_without_autocommit(connection: Any) -> None:
    """Close a connection left without autocommit: atomic() would not commit. Raise Unready if the settings say so."""
    if connection.in_atomic_block or connection.get_autocommit():
        return
    if not connection.settings_dict["AUTOCOMMIT"]:
        raise Unready(
            f"Database {connection.alias!r} has AUTOCOMMIT False, so nothing would be committed. Remove it from "
            "the settings."
        )
    log.warning(
        "A handler has left autocommit off on database %r. The connection is closed and opened again", connection.alias
    )
    connection.close()

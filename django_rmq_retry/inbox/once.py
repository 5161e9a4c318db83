"""Running a handler with ``once`` in one transaction with its inbox entry."""

import logging
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum
from typing import Any

from django.db import DEFAULT_DB_ALIAS, DataError, Error, connections, router, transaction
from django.utils.connection import ConnectionDoesNotExist

from django_rmq_retry.errors import EffectsLost
from django_rmq_retry.handlers.attempt import Instead, OnceState, Unready
from django_rmq_retry.handlers.subscription import Subscription
from django_rmq_retry.handlers.ticket import ticket_of
from django_rmq_retry.inbox.names import DECIDED, Name, alike, came_before, conflict, insert, name_for, present, same
from django_rmq_retry.messages.codecs import decoded
from django_rmq_retry.messages.message import Delivery
from django_rmq_retry.messages.tracebacks import ErrorNote
from django_rmq_retry.models import InboxEntry, ParkedMessage
from django_rmq_retry.policies.policy import DUPLICATE
from django_rmq_retry.publishing import broker_connections
from django_rmq_retry.server import asked_anew, clashed, lost, uncertain

IN_TRANSACTION, IN_ERROR, UNKNOWN = 2, 3, 4
"""Transaction states, with the numbers of libpq."""


SWALLOWED = "Let the error leave the handler, or catch it outside of an atomic() block of its own."
OWN_END = (
    "Leave COMMIT, ROLLBACK and closing to the transaction that the handler runs in; a part may have its own atomic()."
)


def guard(connection: Any, handler: str, name: Name) -> None:
    """Raise EffectsLost if the following commit would not store the handler's effects."""
    found = _found(connection, name)
    if found is not None:
        what, advice = found
        raise EffectsLost(handler, connection.alias, what=what, advice=advice)


def _found(connection: Any, name: Name) -> tuple[str, str] | None:
    if connection.closed_in_transaction:
        return "the connection was closed in the transaction, which ends it", OWN_END
    if connection.needs_rollback:
        return (
            "the transaction is marked for rollback, by set_rollback() or by an error that was caught",
            SWALLOWED,
        )
    if connection.vendor == "postgresql":
        return _told(connection.connection.info.transaction_status)
    if connection.vendor == "sqlite":
        ended = not connection.connection.in_transaction
        return ("the transaction was ended, by the handler or by SQLite after an error", OWN_END) if ended else None
    # MariaDB rolls the whole transaction back at a deadlock and silently continues in a new one.
    if not present(connection, name):
        return "the transaction was rolled back on the way, as by a deadlock whose error was caught", SWALLOWED
    return None


def _told(status: int) -> tuple[str, str] | None:
    """Return the problem and advice for a state that the driver knows without a query; None if there is no problem.

    A lost connection (UNKNOWN) is detected at the commit.
    """
    if status == IN_ERROR:
        return "a database error was caught, and PostgreSQL turns this COMMIT into a ROLLBACK", SWALLOWED
    if status not in (IN_TRANSACTION, UNKNOWN):
        return "the transaction was ended by the handler", OWN_END
    return None


log = logging.getLogger("django_rmq_retry")

AGAIN = 3
"""The number of times a handler is run again at once after a conflict with another transaction."""
LOSSES = 3
"""Consecutive attempts of a message that lose the connection, while a new one can be opened at once.

After this number the message counts as the cause, and the attempt counts as failed.
"""


class Stage(Enum):
    ENTERING = "entering"
    RUNNING = "running"
    COMMITTING = "committing"
    COMMITTED = "committed"


class Gone(Exception):
    """The conflicting entry was deleted meanwhile, so the insert must be tried again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SentBack:
    """The requeue of this message by an operator."""

    which: str
    """The record and the number of its requeue, as ``record.cycle``."""
    decided: bool
    """True if the message was parked for this decision, so that the requeue means to run it."""
    at: datetime | None


def once(subscription: Subscription, delivery: Delivery, state: OnceState) -> object:
    """Run the handler in a transaction with its inbox entry, and return its answer after the commit.

    If the handler raises an error, everything is rolled back and the error is raised.
    """
    try:
        connection = connections[alias_of(subscription)]
    except ConnectionDoesNotExist as error:
        raise Unready(f"Handler {subscription.name} has using={subscription.using!r}: {error}") from error
    run = Run(subscription, delivery, connection, state)
    for left in reversed(range(AGAIN + 1)):
        try:
            return run()
        except (Instead, Unready):
            raise
        except BaseException as error:
            if run.stage is Stage.COMMITTED:
                # The effects are committed, so a retry would not run the handler again. An error of an on_commit
                # callback is only logged.
                log.critical(
                    "Handler %s has committed, but what it left for after that failed: %s",
                    *(subscription.name, ErrorNote.of(error)),
                    exc_info=error,
                    extra={"event": "after_commit", "handler": subscription.name},
                )
                return run.answer
            run.refuse(error, last=not left)
    raise AssertionError("the last time either returns or raises")


def alias_of(subscription: Subscription) -> str:
    """Return the alias of the database in which the handler's transaction runs."""
    return subscription.using or DEFAULT_DB_ALIAS


class Run:
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
        _heal(connection)
        # Skip Django's health check of a persistent connection: the first statement detects a lost one as well, and
        # saves a query.
        self._kept, connection.health_check_done = connection.connection, True
        with transaction.atomic(using=connection.alias, durable=True):
            name = self._entered = self._enter(self._name)
            transaction.on_commit(self._committed, using=connection.alias)
            self.stage = Stage.RUNNING
            inside = broker_connections.in_once.set(True)
            try:
                self.answer = self._subscription.run(self._delivery)
            except BaseException as error:
                # Check now: leaving the atomic() block may open a new connection.
                self._lost = lost(connection, error)
                raise
            finally:
                broker_connections.in_once.reset(inside)
            self.stage = Stage.COMMITTING
            guard(connection, self._subscription.name, name)
            # Set only now: an attempt that was rolled back before the commit does not count as an earlier delivery.
            self._state.begun = True
        return self.answer

    def refuse(self, error: BaseException, *, last: bool) -> None:
        """Raise the error that reports this failed run, or return if the run should be repeated."""
        if clashed(error):
            self._state.begun = self._begun
        if not last and self.stage is Stage.ENTERING and self._had_died():
            return
        if not last and (clashed(error) or isinstance(error, Gone)):
            self._restore()
            return
        name = self._connection.alias
        if self.stage is Stage.RUNNING and self._lost:
            if self._loses_each_time():
                raise error
            raise Unready(f"Database {name!r} was lost while handler {self._subscription.name} ran.") from error
        # A DataError, such as a name with characters that the database cannot store, would fail again after any wait.
        if self.stage is Stage.ENTERING and isinstance(error, (Error, Gone)) and not isinstance(error, DataError):
            self._state.losses = 0
            raise Unready(f"Database {name!r} cannot be used: {ErrorNote.of(error)}.") from error
        if self.stage is Stage.COMMITTING and uncertain(error):
            if self._loses_each_time():
                raise error
            raise Unready(f"Nobody knows whether database {name!r} has committed: {ErrorNote.of(error)}.") from error
        if self.stage is Stage.COMMITTING and clashed(error):
            raise Unready(f"Database {name!r} cannot commit beside others: {ErrorNote.of(error)}.") from error
        raise error

    def _loses_each_time(self) -> bool:
        """True if the message itself repeatedly loses the connection, while the database is available.

        If the transaction was committed in spite of the error, it is False: the next attempt finds the entry.
        """
        state = self._state
        kept = asked_anew(self._connection, lambda: present(self._connection, self._entered))
        if kept is None:
            state.losses = 0
            return False
        state.losses += 1
        if kept or state.losses < LOSSES:
            return False
        state.losses = 0
        log.warning(
            "Handler %s has lost its connection to database %r %s times with the same message, and a new one was to be "
            "had at once each time: this attempt counts",
            *(self._subscription.name, self._connection.alias, LOSSES),
            extra={"event": "connection_lost", "handler": self._subscription.name},
        )
        return True

    def _had_died(self) -> bool:
        """True if a connection kept from an earlier message was lost, so that a new one may work."""
        if self._kept is None or self._connection.in_atomic_block:
            return False
        if self._connection.connection is self._kept and not self._connection.is_usable():
            self._connection.close()
        # Leaving the transaction may have opened a new connection already.
        return self._connection.connection is not self._kept

    def _restore(self) -> None:
        """Decode the data again, because the rolled back run may have modified them."""
        self._delivery = replace(self._delivery, data=decoded(self._delivery, self._subscription.codec))

    def _enter(self, name: Name) -> Name:
        """Insert the entry and return its name. Raise Instead if the message was handled or an operator must decide."""
        if insert(self._connection, self._subscription.name, name):
            return name
        equal = same(self._connection, name)
        if equal is None:
            raise Gone
        if equal and self._name.certain:
            raise Instead(DUPLICATE)
        sent_back = self._sent_back()
        if sent_back is None or not sent_back.decided:
            came = came_before(self._delivery, begun=self._state.begun)
            if equal and came and not self._handled_before(sent_back, name):
                raise Instead(DUPLICATE)
            raise alike(self._subscription.name) if equal else conflict(self._subscription.name, name.text)
        name = name.again(sent_back.which)
        if insert(self._connection, self._subscription.name, name):
            return name
        raise Instead(DUPLICATE)

    def _sent_back(self) -> SentBack | None:
        ticket = ticket_of(self._delivery)
        if ticket is None:
            return None
        records = ParkedMessage.objects.using(router.db_for_write(ParkedMessage)).filter(pk=ticket.record)
        found = records.values_list("reason", "requeued_at").first()
        if found is None:
            return None
        reason, at = found
        return SentBack(which=f"{ticket.record}.{ticket.cycle}", decided=reason in DECIDED, at=at)

    def _handled_before(self, sent_back: SentBack | None, name: Name) -> bool:
        """True if the entry existed when an operator requeued this message, so it belongs to another message."""
        if sent_back is None or sent_back.at is None:
            return False
        entries = InboxEntry.objects.using(self._connection.alias)
        return entries.filter(key=name.key, handled_at__lt=sent_back.at).exists()

    def _committed(self) -> None:
        self.stage = Stage.COMMITTED


def _heal(connection: Any) -> None:
    """Close a connection on which a handler left autocommit off: there Django's atomic() silently does not commit.

    Raise Unready if the settings switch autocommit off.
    """
    if connection.in_atomic_block or connection.get_autocommit():
        return
    if not connection.settings_dict["AUTOCOMMIT"]:
        raise Unready(
            f"Database {connection.alias!r} has AUTOCOMMIT False, so that nothing would be committed. Leave it out."
        )
    log.warning("A handler has left autocommit off on %r: the connection is made anew", connection.alias)
    connection.close()

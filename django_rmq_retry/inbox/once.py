"""Runs a handler with ``once=True`` in one transaction with its inbox entry."""

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
"""As libpq numbers them."""


SWALLOWED = "Let the error leave the handler, or catch it outside of an atomic() block of its own."
OWN_END = (
    "Leave COMMIT, ROLLBACK and closing to the transaction that the handler runs in; a part may have its own atomic()."
)


def guard(connection: Any, handler: str, name: Name) -> None:
    """Raise EffectsLost where the commit that follows would change nothing."""
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
    # MariaDB rolls all back at a deadlock, and goes on in a new transaction without a word.
    if not present(connection, name):
        return "the transaction was rolled back on the way, as by a deadlock whose error was caught", SWALLOWED
    return None


def _told(status: int) -> tuple[str, str] | None:
    """By what the driver knows without asking; a lost connection is found at the commit."""
    if status == IN_ERROR:
        return "a database error was caught, and PostgreSQL turns this COMMIT into a ROLLBACK", SWALLOWED
    if status not in (IN_TRANSACTION, UNKNOWN):
        return "the transaction was ended by the handler", OWN_END
    return None


log = logging.getLogger("django_rmq_retry")

AGAIN = 3
"""So often a handler is run again at once where another transaction was in the way."""
LOSSES = 3
"""Runs of one message that lose the connection, each time with a new one to be had at once: then it is the message."""


class Stage(Enum):
    ENTERING = "entering"
    RUNNING = "running"
    COMMITTING = "committing"
    COMMITTED = "committed"


class Gone(Exception):
    """The entry that was met has gone: the same again will tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SentBack:
    """That a person has sent this message back."""

    which: str
    """Of which record, for which time."""
    decided: bool
    """Whether that was the decision to run it all the same."""
    at: datetime | None


def once(subscription: Subscription, delivery: Delivery, state: OnceState) -> object:
    """The handler's answer, with its effects committed; or what it raised, with all rolled back."""
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
                # It was done, and will not be done again: whatever followed the commit cannot be mended by a retry.
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
    """The database in which it runs."""
    return subscription.using or DEFAULT_DB_ALIAS


class Run:
    """A handler, its message and the transaction about them."""

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
        # Whether one that was kept still lives its first statement tells as well as a question before it, and sooner.
        self._kept, connection.health_check_done = connection.connection, True
        with transaction.atomic(using=connection.alias, durable=True):
            name = self._entered = self._enter(self._name)
            transaction.on_commit(self._committed, using=connection.alias)
            self.stage = Stage.RUNNING
            inside = broker_connections.in_once.set(True)
            try:
                self.answer = self._subscription.run(self._delivery)
            except BaseException as error:
                # Now: when the transaction has been left, there may be a new connection.
                self._lost = lost(connection, error)
                raise
            finally:
                broker_connections.in_once.reset(inside)
            self.stage = Stage.COMMITTING
            guard(connection, self._subscription.name, name)
            # Only now: what was never to be committed is no earlier arrival of the message.
            self._state.begun = True
        return self.answer

    def refuse(self, error: BaseException, *, last: bool) -> None:
        """Raise what becomes of it; nothing where the same is to be done again."""
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
        # What a database cannot store, such as a name in letters that it has not, no waiting mends.
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
        """Whether it is the message that costs the connection, and not the database that is away.

        What was committed all the same is no loss: the next run finds its entry.
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
        """Whether the connection was kept since the last message and is none any more: another one may do."""
        if self._kept is None or self._connection.in_atomic_block:
            return False
        if self._connection.connection is self._kept and not self._connection.is_usable():
            self._connection.close()
        # Leaving the transaction may have made another one already.
        return self._connection.connection is not self._kept

    def _restore(self) -> None:
        """The data as they came: what a run that was rolled back has changed in them must not reach the next one."""
        self._delivery = replace(self._delivery, data=decoded(self._delivery, self._subscription.codec))

    def _enter(self, name: Name) -> Name:
        """Add the entry; Instead where the message was handled, or a person has to look at it."""
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
        """Whether the entry was there when a person sent this back: then it tells of another message."""
        if sent_back is None or sent_back.at is None:
            return False
        entries = InboxEntry.objects.using(self._connection.alias)
        return entries.filter(key=name.key, handled_at__lt=sent_back.at).exists()

    def _committed(self) -> None:
        self.stage = Stage.COMMITTED


def _heal(connection: Any) -> None:
    """Where a connection does not commit by itself, Django's atomic() would not either, and say nothing."""
    if connection.in_atomic_block or connection.get_autocommit():
        return
    if not connection.settings_dict["AUTOCOMMIT"]:
        raise Unready(
            f"Database {connection.alias!r} has AUTOCOMMIT False, so that nothing would be committed. Leave it out."
        )
    log.warning("A handler has left autocommit off on %r: the connection is made anew", connection.alias)
    connection.close()

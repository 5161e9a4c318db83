"""Runs a handler in one transaction with the record of it."""

import logging
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any

from django.db import DEFAULT_DB_ALIAS, DataError, Error, connections, router, transaction
from django.utils.connection import ConnectionDoesNotExist

from django_rmq_retry import wiring
from django_rmq_retry.core.message import Delivery
from django_rmq_retry.core.subscription import Subscription
from django_rmq_retry.core.verdict import DUPLICATE, ErrorNote
from django_rmq_retry.inbox.doubts import DECIDED, alike, conflict
from django_rmq_retry.inbox.entries import insert, same
from django_rmq_retry.inbox.guarding import guard
from django_rmq_retry.inbox.naming import Name, came_before, name_for
from django_rmq_retry.inbox.troubles import clashed, lost, uncertain
from django_rmq_retry.models import InboxEntry, ParkedMessage
from django_rmq_retry.records.rows import ticket_of
from django_rmq_retry.runtime.preparing import ready
from django_rmq_retry.runtime.surroundings import Instead, Unready

log = logging.getLogger("django_rmq_retry")

AGAIN = 3
"""So often a handler is run again at once where another transaction was in the way."""


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


def once(subscription: Subscription, delivery: Delivery) -> object:
    """The handler's answer, with its effects committed; or what it raised, with all rolled back."""
    try:
        connection = connections[alias_of(subscription)]
    except ConnectionDoesNotExist as error:
        raise Unready(f"Handler {subscription.name} has using={subscription.using!r}: {error}") from error
    run = Run(subscription, delivery, connection)
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
                    extra={"event": "after commit", "handler": subscription.name},
                )
                return run.answer
            run.refuse(error, last=not left)
    raise AssertionError("the last time either returns or raises")


def alias_of(subscription: Subscription) -> str:
    """The database in which it runs."""
    return subscription.using or DEFAULT_DB_ALIAS


class Run:
    """A handler, its message and the transaction about them."""

    def __init__(self, subscription: Subscription, delivery: Delivery, connection: Any) -> None:
        self._subscription = subscription
        self._delivery = delivery
        self._connection = connection
        self._name = name_for(subscription, delivery)
        self._begun = delivery.begun
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
            name = self._enter(self._name)
            transaction.on_commit(self._committed, using=connection.alias)
            self.stage = Stage.RUNNING
            inside = wiring.in_once.set(True)
            try:
                self.answer = self._subscription.run(self._delivery)
            except BaseException as error:
                # Now: when the transaction has been left, there may be a new connection.
                self._lost = lost(connection, error)
                raise
            finally:
                wiring.in_once.reset(inside)
            self.stage = Stage.COMMITTING
            guard(connection, self._subscription.name, name)
            # Only now: what was never to be committed is no earlier arrival of the message.
            self._delivery.begun = True
        return self.answer

    def refuse(self, error: BaseException, *, last: bool) -> None:
        """Raise what becomes of it; nothing where the same is to be done again."""
        if clashed(error):
            self._delivery.begun = self._begun
        if not last and self.stage is Stage.ENTERING and self._had_died():
            return
        if not last and (clashed(error) or isinstance(error, Gone)):
            self._restore()
            return
        name = self._connection.alias
        if self.stage is Stage.RUNNING and self._lost:
            raise Unready(f"Database {name!r} was lost while handler {self._subscription.name} ran.") from error
        # What a database cannot store, such as a name in letters that it has not, no waiting mends.
        if self.stage is Stage.ENTERING and isinstance(error, (Error, Gone)) and not isinstance(error, DataError):
            raise Unready(f"Database {name!r} cannot be used: {ErrorNote.of(error)}.") from error
        if self.stage is Stage.COMMITTING and uncertain(error):
            raise Unready(f"Nobody knows whether database {name!r} has committed: {ErrorNote.of(error)}.") from error
        if self.stage is Stage.COMMITTING and clashed(error):
            raise Unready(f"Database {name!r} cannot commit beside others: {ErrorNote.of(error)}.") from error
        raise error

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
        unreadable = ready(self._delivery, self._subscription)
        if unreadable is not None:
            raise unreadable

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
            if equal and came_before(self._delivery) and not self._handled_before(sent_back, name):
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

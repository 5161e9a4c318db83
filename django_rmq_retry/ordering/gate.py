"""The gate of handlers with ``order_by``: messages wait in the database behind a failed one with their ordering key."""

import logging
import threading
import time
from collections.abc import Hashable

from django.db import InterfaceError, OperationalError, connections, transaction

from django_rmq_retry.database_errors import asked_again, lost, too_large
from django_rmq_retry.errors import HeadersTooLarge
from django_rmq_retry.handlers.call import Unready
from django_rmq_retry.handlers.subscription import Subscription
from django_rmq_retry.messages.header_names import PREFIX_BYTES
from django_rmq_retry.messages.identity import text_digest
from django_rmq_retry.messages.message import DONE, Delivery, Instruction, Settlement
from django_rmq_retry.messages.reasons import Reason
from django_rmq_retry.messages.texts import ErrorNote
from django_rmq_retry.models import BlockedKey
from django_rmq_retry.ordering.keys import (
    Full,
    MessageNames,
    add_waiting,
    block,
    goes_first,
    keys_alias,
    locked,
    pass_on,
    unblock,
)
from django_rmq_retry.policies.verdict import Kind, Verdict, park

log = logging.getLogger("django_rmq_retry")

FULL_SECONDS = 1.0
"""Seconds unacked while limits are exceeded; then it is stored: the message that goes first may be behind it."""
LOG_SECONDS = 60.0
"""Seconds between two log lines about exceeded limits."""


class NotStored(Exception):
    """Raised if writing a message's row loses the database connection; if that repeats, the message is parked."""


class OrderGate:
    """The gate of a process. Blocked keys are in memory: only the queue's active consumer, one process, blocks any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocked: dict[str, set[str]] = {}
        """The digests of blocked keys, by queue; unblocked keys may still be among them."""
        self._lines: dict[str, object] = {}
        """The line of each queue over which its blocked keys were read."""
        self._slowed: dict[Hashable, str] = {}
        """The tokens of deliveries that have waited unacked because the limits were exceeded, with their queues."""
        self._log_at = 0.0

    def enter(self, delivery: Delivery, subscription: Subscription) -> Settlement | Verdict | None:
        if subscription.order_by is None:
            return None
        if delivery.is_stale:
            # The message is redelivered behind what failed before it; this result is unused.
            return DONE
        blocked = self._known(delivery)
        if not blocked:
            return None
        key = text_digest(subscription.name, delivery.key or "")
        return self._wait_behind(delivery, key) if key in blocked else None

    def leave(
        self, delivery: Delivery, subscription: Subscription, verdict: Verdict, error: BaseException | None
    ) -> Verdict:
        if subscription.order_by is None or isinstance(error, Unready) or delivery.is_stale:
            return verdict
        if verdict.kind in (Kind.ACK, Kind.DISCARD):
            blocked = self._blocked.get(delivery.queue)
            # Another process may have had the message earlier, and have blocked its key after the keys were read here.
            if not blocked and not delivery.redelivered:
                return verdict
            key = text_digest(subscription.name, delivery.key or "")
            self._unblock(delivery, key)
            if blocked and PREFIX_BYTES in delivery.raw:
                self._unblock_elsewhere(delivery, key)
            return verdict
        self._block(delivery, subscription, parked=verdict.kind is Kind.PARK)
        return verdict

    def _known(self, delivery: Delivery) -> set[str]:
        """Return the blocked keys of the queue, read again on each new line: another process may have had it."""
        line, queue = delivery.line, delivery.queue
        if queue in self._blocked and self._lines.get(queue) is line:
            return self._blocked[queue]
        with self._lock:
            if queue not in self._blocked or self._lines.get(queue) is not line:
                rows = BlockedKey.objects.using(keys_alias()).filter(queue=queue)
                self._blocked[queue] = set(rows.values_list("digest", flat=True))
                self._lines[queue] = line
                self._slowed = {one: where for one, where in self._slowed.items() if where != queue}
            return self._blocked[queue]

    def _wait_behind(self, delivery: Delivery, key: str) -> Settlement | Verdict | None:
        """Store the message behind the one that goes first; None if it is that one, or if its key is not blocked."""
        slowed = self._slowed.pop(delivery.token, None) is not None
        try:
            with transaction.atomic(using=keys_alias()):
                blocked_key = locked(key)
                if blocked_key is not None and not goes_first(blocked_key, delivery):
                    _store(blocked_key, delivery, even_if_full=slowed)
                    return DONE
        except Full as full:
            self._log_full(full)
            self._slowed[delivery.token] = delivery.queue
            return Settlement(instruction=Instruction.KEEP, hold=FULL_SECONDS)
        except (HeadersTooLarge, ValueError) as error:
            text = f"The message cannot wait behind a failed message with its ordering key: {error}"
            return park(Reason.PERMANENT, text, ErrorNote.of(error), counted=False)
        except NotStored as error:
            using = keys_alias()
            if asked_again(connections[using], BlockedKey.objects.using(using).exists) is None:
                raise Unready(f"The connection to database {using!r} was lost while a message was stored.") from error
            raise
        if blocked_key is None:
            self._forget(delivery.queue, key)
        return None

    def _block(self, delivery: Delivery, subscription: Subscription, *, parked: bool) -> None:
        key = text_digest(subscription.name, delivery.key or "")
        with transaction.atomic(using=keys_alias()):
            block(delivery, handler=subscription.name, digest=key, parked=parked)
        with self._lock:
            self._blocked.setdefault(delivery.queue, set()).add(key)

    def _unblock(self, delivery: Delivery, key: str) -> None:
        if key not in self._blocked.get(delivery.queue, ()) and not delivery.redelivered:
            return
        with transaction.atomic(using=keys_alias()):
            blocked_key = locked(key)
            free = blocked_key is None or (goes_first(blocked_key, delivery) and pass_on(blocked_key) is None)
        if free:
            self._forget(delivery.queue, key)

    def _unblock_elsewhere(self, delivery: Delivery, key: str) -> None:
        """Unblock keys that the message has blocked under an earlier ``order_by`` or name of its handler."""
        names = MessageNames.of(delivery)
        rows = BlockedKey.objects.using(keys_alias()).filter(
            identity=names.identity, name=names.name, queue=delivery.queue
        )
        for blocked_key in rows.exclude(digest=key):
            unblock(blocked_key)

    def _forget(self, queue: str, key: str) -> None:
        with self._lock:
            self._blocked.get(queue, set()).discard(key)

    def _log_full(self, full: Full) -> None:
        now = time.monotonic()
        if now < self._log_at:
            return
        self._log_at = now + LOG_SECONDS
        log.critical(
            "Too many messages of queue %r wait behind key %r of %s: %s (%s). Each further one waits 1 s and blocks "
            "the queue meanwhile. Resolve the message that goes first: `manage.py rmq_blocked list`.",
            *(full.block.queue, full.block.key, full.block.handler, full, full.limit.value),
            extra={"event": "full", "queue": full.block.queue, "handler": full.block.handler},
        )


def _store(blocked_key: BlockedKey, delivery: Delivery, *, even_if_full: bool) -> None:
    connection = connections[keys_alias()]
    try:
        add_waiting(blocked_key, delivery, even_if_full=even_if_full)
    except (InterfaceError, OperationalError) as error:
        # Check here: after the transaction there may be a new connection.
        if not too_large(error) and not lost(connection, error):
            raise
        size = len(delivery.body)
        raise NotStored(
            f"it cannot wait behind a failed message with its ordering key, because its {size} bytes broke the "
            f"connection to database {connection.alias!r}: {ErrorNote.of(error)}"
        ) from error

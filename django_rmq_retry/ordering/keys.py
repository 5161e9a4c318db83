"""Blocked ordering keys: block, pass on, unblock, and limits."""

import hashlib
import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from uuid import uuid4
from weakref import WeakKeyDictionary

from django.db import router, transaction
from django.db.models import Count, Exists, F, Max, Min, OuterRef, Q, QuerySet, Sum

from django_rmq_retry import conf, database_clock
from django_rmq_retry.amqp.frames import check_writable
from django_rmq_retry.handlers import registry
from django_rmq_retry.handlers.settlement import copied_to
from django_rmq_retry.handlers.ticket import ticket_of
from django_rmq_retry.messages.header_names import PREFIX_BYTES
from django_rmq_retry.messages.identity import (
    BODY,
    body_identity,
    message_identity,
    message_name,
    named_by_bytes,
    text_digest,
)
from django_rmq_retry.messages.message import Delivery, Message
from django_rmq_retry.messages.properties import decode_properties, encode_properties
from django_rmq_retry.messages.stamp import at_origin
from django_rmq_retry.messages.texts import COLUMN_BYTES, short
from django_rmq_retry.models import BlockedKey, BlockedMessage, OutboxMessage, ParkedMessage
from django_rmq_retry.models.parked import RESOLVED
from django_rmq_retry.publishing import outbox
from django_rmq_retry.statements import in_slices, locking, with_one_of

log = logging.getLogger("django_rmq_retry")

SEARCH_SECONDS = 3.0
"""Seconds between two searches for messages that an operator or another process has resolved."""
MOST_AT_ONCE = 100

_lines: WeakKeyDictionary[object, str] = WeakKeyDictionary()
"""A name for each line, unique among all processes; a delivery's tag is unique only on its line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageNames:
    """The names of one message: for display, for comparison, and the identity of its parked message."""

    shown: str
    name: str
    identity: str

    @classmethod
    def of(cls, delivery: Delivery) -> "MessageNames":
        name = message_name(delivery)
        given, sha256 = delivery.id, hashlib.sha256(delivery.body).hexdigest()
        return cls(
            shown=short(name, COLUMN_BYTES),
            # Include the body: a sender may give several messages one id, and the second must not pass the first.
            name=text_digest(name, sha256),
            identity=message_identity(delivery.queue, given, delivery.body) if given else body_identity(sha256),
        )


def delivery_digest(delivery: Delivery) -> str:
    """Return a name that is the same for two deliveries of one message.

    Without an id it is the same only for two attempts of one delivery: equal bytes may be two payments, and an equal
    message that was stored before, over this or an earlier channel, may have been acked.
    """
    name = message_name(delivery)
    return text_digest(
        name, *(_arrival(delivery) if named_by_bytes(name) else (hashlib.sha256(delivery.body).hexdigest(),))
    )


def stored_copy(delivery: Delivery, queue: str) -> Message:
    """Return the copy that goes back to this queue, and to no other, when it is the message's turn."""
    copy = copied_to(delivery, queue, None).copy
    assert copy is not None  # noqa: S101 - copied_to() always sets a copy
    return copy


def identities(record: ParkedMessage) -> tuple[str, ...]:
    """Return the identities under which a parked message may block a key."""
    return (record.identity,) if record.message_id else (record.identity, body_identity(record.sha256))


def _arrival(delivery: Delivery) -> tuple[str, ...]:
    """Return texts that identify a delivery, and are the same for each of its attempts."""
    line, tag = delivery.token
    if line is None:
        return (uuid4().hex,)
    return _lines.setdefault(line, uuid4().hex), str(tag)


class WaitingLimit(Enum):
    """A limit on the messages that wait, by the name of its setting."""

    PER_KEY = "BLOCKED_PER_KEY"
    TOTAL = "BLOCKED_TOTAL"


class Full(Exception):
    """Raised if more messages wait than a limit allows, for one key or in total."""

    def __init__(self, block: BlockedKey, *, most: int, limit: WaitingLimit) -> None:
        self.block = block
        self.limit = limit
        where = "behind one message" if limit is WaitingLimit.PER_KEY else "in total"
        super().__init__(f"{most} messages wait already {where}")


def keys_alias() -> str:
    """Return the database of the blocked keys; its outbox sends the messages of an unblocked key."""
    return router.db_for_write(BlockedKey)


def locked(digest: str) -> BlockedKey | None:
    """Return the blocked key, locked against other changes until the transaction ends; None if it is not blocked."""
    return locking(BlockedKey.objects.using(keys_alias()).filter(digest=digest)).first()


def block(delivery: Delivery, *, handler: str, digest: str, parked: bool) -> None:
    """Block the key with a message that has failed, unless another message blocks it already."""
    using, names = keys_alias(), MessageNames.of(delivery)
    blocked_key = BlockedKey(
        handler=short(handler, COLUMN_BYTES),
        key=short(delivery.key or "", COLUMN_BYTES),
        digest=digest,
        queue=short(delivery.queue, COLUMN_BYTES),
        blocker=names.shown,
        name=names.name,
        identity=names.identity,
        parked=parked,
        since=database_clock.now(using),
    )
    # No query before the insert: on MariaDB two transactions that find no row would wait for each other.
    BlockedKey.objects.using(using).bulk_create([blocked_key], ignore_conflicts=True)
    row = locked(digest)
    if row is None:
        raise RuntimeError(f"The key {blocked_key} was unblocked meanwhile; the message stays unacked.")
    if goes_first(row, delivery):
        BlockedKey.objects.using(using).filter(pk=row.pk).update(parked=parked, name=names.name, blocker=names.shown)


def goes_first(blocked_key: BlockedKey, delivery: Delivery) -> bool:
    """Return True if the others wait for this message, by its name or as the requeued copy of its parked message."""
    if blocked_key.name == MessageNames.of(delivery).name:
        return True
    ticket = ticket_of(delivery)
    if ticket is None:
        return False
    rows = ParkedMessage.objects.using(router.db_for_write(ParkedMessage)).filter(pk=ticket.record)
    record = rows.only("identity", "message_id", "sha256", "queue").first()
    return record is not None and record.queue == blocked_key.queue and blocked_key.identity in identities(record)


def add_waiting(blocked_key: BlockedKey, delivery: Delivery, *, even_if_full: bool = False) -> None:
    """Store a message once behind the one that goes first. Raise Full above a limit, ValueError if it is unsendable."""
    using, digest = keys_alias(), delivery_digest(delivery)
    waiting = BlockedMessage.objects.using(using).filter(block=blocked_key)
    if waiting.filter(digest=digest).exists():
        return
    copy = stored_copy(delivery, delivery.queue)
    check_writable(copy)
    if not even_if_full:
        _check_room(blocked_key)
    names = MessageNames.of(delivery)
    BlockedMessage.objects.using(using).create(
        block=blocked_key,
        shown=names.shown,
        name=names.name,
        identity=names.identity,
        digest=digest,
        exchange=short(delivery.exchange, COLUMN_BYTES),
        routing_key=short(delivery.routing_key, COLUMN_BYTES),
        body=delivery.body,
        properties=encode_properties(copy.properties),
        waiting_since=database_clock.now(using),
    )
    BlockedKey.objects.using(using).filter(pk=blocked_key.pk).update(waiting=F("waiting") + 1)


def pass_on(blocked_key: BlockedKey) -> BlockedMessage | None:
    """Let the next message go first, back in its queue, as the first is resolved; unblock the key if none waits."""
    using = keys_alias()
    following = BlockedMessage.objects.using(using).filter(block=blocked_key).order_by("pk").first()
    rows = BlockedKey.objects.using(using).filter(pk=blocked_key.pk)
    if following is None:
        rows.delete()
        return None
    rows.update(
        blocker=following.shown,
        name=following.name,
        identity=following.identity,
        parked=False,
        since=database_clock.now(using),
        waiting=BlockedMessage.objects.using(using).filter(block=blocked_key).count() - 1,
    )
    outbox.writer.keep([copy_back(following, blocked_key.queue)], using=using)
    following.delete(using=using)
    return following


def copy_back(waiting: BlockedMessage, queue: str) -> Message:
    properties = decode_properties(bytes(waiting.properties))
    return Message(body=bytes(waiting.body), properties=properties, exchange="", routing_key=queue)


def _check_room(blocked_key: BlockedKey) -> None:
    settings = conf.settings()
    if blocked_key.waiting >= settings.blocked_per_key:
        raise Full(blocked_key, most=settings.blocked_per_key, limit=WaitingLimit.PER_KEY)
    total = BlockedKey.objects.using(keys_alias()).aggregate(total=Sum("waiting"))["total"] or 0
    if total >= settings.blocked_total:
        raise Full(blocked_key, most=settings.blocked_total, limit=WaitingLimit.TOTAL)


def unblock_resolved() -> bool:
    """Unblock keys whose first message was resolved by an operator or elsewhere; return True if there may be more."""
    if not BlockedKey.objects.using(keys_alias()).exists():
        return False
    keys = list(_resolved_keys()[:MOST_AT_ONCE])
    left = list(_without_order()[:MOST_AT_ONCE])
    failed = [*_errors_of(unblock, keys), *_errors_of(_unblock_all, left)]
    if failed:
        raise failed[0]
    return MOST_AT_ONCE in (len(keys), len(left))


def _errors_of(act: Callable[[BlockedKey], object], keys: Sequence[BlockedKey]) -> Iterator[Exception]:
    """Call a function for each key and yield its errors: a key that fails does not stop the others."""
    for blocked_key in keys:
        try:
            act(blocked_key)
        except Exception as error:  # noqa: BLE001 - any error of a database driver
            yield error


def resolved(messages: Collection[int]) -> None:
    """Unblock, without the wait for the next search, the keys of parked messages that have just been resolved."""
    if not BlockedKey.objects.using(keys_alias()).exists():
        return
    rows = ParkedMessage.objects.using(router.db_for_write(ParkedMessage)).filter(state__in=RESOLVED)
    for some in in_slices(sorted(messages), MOST_AT_ONCE):
        records = rows.filter(pk__in=some).only("identity", "message_id", "sha256", "queue")
        queues = {name: record.queue for record in records for name in identities(record)}
        for blocked_key in BlockedKey.objects.using(keys_alias()).filter(identity__in=queues):
            if blocked_key.queue == queues[blocked_key.identity]:
                unblock(blocked_key)


def never_sent(rows: Collection[OutboxMessage]) -> None:
    """Unblock keys whose first message was in the outbox, to return to its queue, and is discarded from there."""
    queues = {row.routing_key for row in rows if not row.exchange}
    blocked = set(BlockedKey.objects.using(keys_alias()).filter(queue__in=queues).values_list("queue", flat=True))
    for row in rows:
        if row.exchange or row.routing_key not in blocked or PREFIX_BYTES not in bytes(row.properties):
            continue
        came = Delivery(
            queue=row.routing_key, routing_key=row.routing_key, body=bytes(row.body), raw=bytes(row.properties)
        )
        gone = at_origin(came, came_by=came)
        for blocked_key in BlockedKey.objects.using(keys_alias()).filter(
            queue=gone.queue, identity=MessageNames.of(gone).identity
        ):
            if not blocked_key.parked:
                unblock(blocked_key)


def unblock(blocked_key: BlockedKey) -> bool:
    """Let the next message of a key go first, unless another one does by now; return True on success."""
    with transaction.atomic(using=keys_alias()):
        now = locked(blocked_key.digest)
        if now is None or (now.name, now.since) != (blocked_key.name, blocked_key.since):
            return False
        pass_on(now)
    return True


def blocked_by(record: ParkedMessage) -> QuerySet[BlockedKey]:
    """Return the keys that the parked message blocks: one, unless other bytes were published under its name."""
    rows = BlockedKey.objects.using(keys_alias())
    return rows.filter(identity__in=identities(record), queue=record.queue)


def record_of(blocked_key: BlockedKey) -> ParkedMessage | None:
    """Return the newest parked message for the one that goes first, if it is parked and was stored."""
    return _records(blocked_key).order_by("-pk").first()


def records_blocking(rows: Sequence[BlockedKey]) -> Iterator[tuple[int, BlockedKey]]:
    """Yield each parked message that goes first on one of these keys; without an id, all that have its body."""
    records = ParkedMessage.objects.using(router.db_for_write(ParkedMessage)).order_by()
    named = {(row.queue, row.identity): row for row in rows}
    for some in with_one_of(records, "identity", [row.identity for row in rows]):
        for pk, queue, identity in some.values_list("pk", "queue", "identity"):
            if (queue, identity) in named:
                yield pk, named[queue, identity]
    bodies = [row.identity.removeprefix(BODY) for row in rows if row.identity.startswith(BODY)]
    for some in with_one_of(records.filter(message_id=""), "sha256", bodies):
        for pk, queue, sha256 in some.values_list("pk", "queue", "sha256"):
            if (queue, body_identity(sha256)) in named:
                yield pk, named[queue, body_identity(sha256)]


def records_of(rows: Sequence[BlockedKey]) -> dict[int, ParkedMessage]:
    """Return the parked messages by the ids of these keys: one query, plus one for each message without an id."""
    named = {row.identity: row for row in rows if row.parked and not row.identity.startswith(BODY)}
    records = ParkedMessage.objects.using(router.db_for_write(ParkedMessage)).filter(identity__in=named)
    slim = records.defer("body", "properties")
    numbers = {named[one.identity].pk: one for one in slim if one.queue == named[one.identity].queue}
    nameless = ((row.pk, record_of(row)) for row in rows if row.parked and row.identity.startswith(BODY))
    return numbers | {pk: one for pk, one in nameless if one is not None}


def _records(blocked_key: BlockedKey) -> QuerySet[ParkedMessage]:
    rows = ParkedMessage.objects.using(router.db_for_write(ParkedMessage)).filter(queue=blocked_key.queue)
    if blocked_key.identity.startswith(BODY):
        return rows.filter(message_id="", sha256=blocked_key.identity.removeprefix(BODY))
    return rows.filter(identity=blocked_key.identity)


def _without_order() -> QuerySet[BlockedKey]:
    """Return the keys of queues whose handlers use no ``order_by`` now: no gate would see how a message ends."""
    without_order = [work_queue.queue.name for work_queue in registry.work_queues() if not work_queue.keyed]
    return BlockedKey.objects.using(keys_alias()).filter(queue__in=without_order).order_by("pk")


def _unblock_all(blocked_key: BlockedKey) -> None:
    """Unblock the key and send all its waiting messages back to their queue, in their order."""
    with transaction.atomic(using=keys_alias()):
        now = locked(blocked_key.digest)
        while now is not None and pass_on(now) is not None:
            continue
    text = "Key %r of %s is no longer ordered. Its waiting messages are sent back to queue %r"
    names = (blocked_key.key, blocked_key.handler, blocked_key.queue)
    log.warning(text, *names, extra={"event": "disbanded", "queue": blocked_key.queue, "handler": blocked_key.handler})


def _resolved_keys() -> QuerySet[BlockedKey]:
    """Return the keys whose first message was parked and then resolved after it had failed."""
    records = ParkedMessage.objects.using(keys_alias()).filter(queue=OuterRef("queue"))
    named = records.filter(identity=OuterRef("identity"))
    ended = named.filter(state__in=RESOLVED, resolved_at__gte=OuterRef("since"))
    rows = BlockedKey.objects.using(keys_alias()).exclude(identity__startswith=BODY).filter(Exists(ended))
    nameless = [blocked_key.pk for blocked_key in _nameless() if _ended(blocked_key)]
    if not nameless:
        return rows.order_by("pk")
    return (
        BlockedKey.objects.using(keys_alias()).filter(Q(pk__in=rows.values("pk")) | Q(pk__in=nameless)).order_by("pk")
    )


def _nameless() -> QuerySet[BlockedKey]:
    """Return up to ``MOST_AT_ONCE`` keys whose first message has no id, at random: each costs a query of its own."""
    rows = BlockedKey.objects.using(keys_alias()).filter(identity__startswith=BODY, parked=True)
    return rows.order_by("?")[:MOST_AT_ONCE]


def _ended(blocked_key: BlockedKey) -> bool:
    newest = record_of(blocked_key)
    if newest is None or newest.state not in RESOLVED:
        return False
    return (newest.resolved_at or blocked_key.since) >= blocked_key.since


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockedFigures:
    keys: int
    waiting: int
    """Messages that wait, over all keys."""
    most: int
    """The messages that wait for the key with the most."""
    parked: int
    """Keys on which an operator has to decide."""
    oldest: datetime | None
    full: bool
    """True if messages of a blocked key slow down their queue because a limit is reached."""


def blocked_figures() -> BlockedFigures:
    """Return the present figures, from one query over the blocked keys."""
    figures = {"keys": Count("pk"), "parked": Count("pk", filter=Q(parked=True)), "oldest": Min("since")}
    totals = BlockedKey.objects.using(keys_alias()).aggregate(total=Sum("waiting"), most=Max("waiting"), **figures)
    waiting, most, settings = totals["total"] or 0, totals["most"] or 0, conf.settings()
    return BlockedFigures(
        keys=totals["keys"],
        waiting=waiting,
        most=most,
        parked=totals["parked"],
        oldest=totals["oldest"],
        full=most >= settings.blocked_per_key or waiting >= settings.blocked_total,
    )

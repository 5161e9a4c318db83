"""Blocked ordering keys: block, pass on, unblock, and limits."""

import hashlib
import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import uuid4

from django.db import connections, router, transaction
from django.db.models import Count, Exists, F, Max, Min, OuterRef, Q, QuerySet, Sum

from django_rmq_retry import server
from django_rmq_retry.amqp.frames import check_writable
from django_rmq_retry.conf import settings
from django_rmq_retry.handlers import registry
from django_rmq_retry.handlers.settlement import set_apart
from django_rmq_retry.handlers.subscription import at_origin
from django_rmq_retry.handlers.ticket import ticket_of
from django_rmq_retry.messages.message import Delivery, Message
from django_rmq_retry.messages.parked import identity, name_of, nameless
from django_rmq_retry.messages.properties import decode_properties, encode_properties
from django_rmq_retry.messages.stamp import MARK
from django_rmq_retry.messages.tracebacks import short
from django_rmq_retry.models import BlockedKey, BlockedMessage, OutboxMessage, ParkedMessage
from django_rmq_retry.models.parked import RESOLVED
from django_rmq_retry.publishing.outbox import keep

NAME = 255
BODY = "body:"
"""Begins what stands for the record of a message without an id: that is found by its bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """One message by its names."""

    shown: str
    name: str
    identity: str

    @classmethod
    def of(cls, delivery: Delivery) -> "Said":
        name = name_of(delivery)
        known = delivery.id
        return cls(
            shown=short(name, NAME),
            # With its body: a sender may give one id to several messages, and the second must not pass the first.
            name=digest(name, _of_body(delivery.body)),
            identity=identity(delivery.queue, known, delivery.body) if known else BODY + _of_body(delivery.body),
        )


def digest(*texts: str) -> str:
    """Of texts, whatever they hold and however long they are."""
    parts = (text.encode("utf-8", "surrogatepass") for text in texts)
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()


def once(delivery: Delivery) -> str:
    """The same for two deliveries of one message; two without an id may be two payments, unless the broker says so."""
    name = name_of(delivery)
    if nameless(name) and not delivery.redelivered:
        return digest(name, uuid4().hex)
    return digest(name, _of_body(delivery.body))


def copy_of(delivery: Delivery, queue: str) -> Message:
    """What goes back to its queue, and to no other, when its turn has come."""
    copy = set_apart(delivery, queue).copy
    assert copy is not None  # noqa: S101 - it always has one
    return copy


def identities(record: ParkedMessage) -> tuple[str, ...]:
    """Under which a record may stand where its message goes first."""
    return (record.identity,) if record.message_id else (record.identity, BODY + record.sha256)


def _of_body(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


class Full(Exception):
    """More messages wait than should: of one key, or of all."""

    def __init__(self, block: BlockedKey, *, limit: int, of: str) -> None:
        self.block = block
        self.limit = limit
        self.of = of
        super().__init__(
            f"{limit} messages wait already {'behind one message' if of == 'BLOCKED_PER_KEY' else 'in all'}"
        )


def database() -> str:
    """Where it is kept; the outbox of that database sends the messages of an unblocked key."""
    return router.db_for_write(BlockedKey)


def locked(digest: str) -> BlockedKey | None:
    """A blocked key, as nobody else can change it until the transaction ends."""
    using = database()
    rows = BlockedKey.objects.using(using).filter(digest=digest)
    if not connections[using].features.has_select_for_update:
        # SQLite refuses a transaction that has read when another one has written since: it writes first.
        rows.update(waiting=F("waiting"))
    return rows.select_for_update().first()


def block(delivery: Delivery, *, handler: str, digest: str, parked: bool) -> None:
    """Have a message that has failed go first; nothing where another one does already."""
    using, said = database(), Said.of(delivery)
    made = BlockedKey(
        handler=short(handler, NAME),
        key=short(delivery.key or "", NAME),
        digest=digest,
        queue=short(delivery.queue, NAME),
        blocker=said.shown,
        name=said.name,
        identity=said.identity,
        parked=parked,
        since=server.now(using),
    )
    # Without a look first: on MariaDB two that look where there is nothing yet would wait for each other.
    BlockedKey.objects.using(using).bulk_create([made], ignore_conflicts=True)
    known = locked(digest)
    if known is None:
        raise RuntimeError(f"The key {made} was unblocked meanwhile; the message stays unacked.")
    if goes_first(known, delivery):
        BlockedKey.objects.using(using).filter(pk=known.pk).update(parked=parked, name=said.name, blocker=said.shown)


def goes_first(known: BlockedKey, delivery: Delivery) -> bool:
    """Whether it is the message for which the others wait, by its name or as the requeued copy of its record."""
    if known.name == Said.of(delivery).name:
        return True
    ticket = ticket_of(delivery)
    if ticket is None:
        return False
    rows = ParkedMessage.objects.using(router.db_for_write(ParkedMessage)).filter(pk=ticket.record)
    record = rows.only("identity", "message_id", "sha256", "queue").first()
    return record is not None and record.queue == known.queue and known.identity in identities(record)


def add_waiting(known: BlockedKey, delivery: Delivery, *, even_if_full: bool = False) -> None:
    """Keep a message behind the one that goes first; once, however often it is delivered. Full above the limits.

    What could not be sent when its turn has come raises HeadersTooLarge or ValueError.
    """
    using, digest = database(), once(delivery)
    waiting = BlockedMessage.objects.using(using).filter(block=known)
    if waiting.filter(digest=digest).exists():
        return
    copy = copy_of(delivery, delivery.queue)
    check_writable(copy)
    if not even_if_full:
        _check_room(known)
    said = Said.of(delivery)
    BlockedMessage.objects.using(using).create(
        block=known,
        shown=said.shown,
        name=said.name,
        identity=said.identity,
        digest=digest,
        exchange=short(delivery.exchange, NAME),
        routing_key=short(delivery.routing_key, NAME),
        body=delivery.body,
        properties=encode_properties(copy.properties),
        waiting_since=server.now(using),
    )
    BlockedKey.objects.using(using).filter(pk=known.pk).update(waiting=F("waiting") + 1)


def pass_on(known: BlockedKey, *, now: datetime | None = None) -> BlockedMessage | None:
    """The message that went first is resolved: the next one goes first and back to its queue; else the key is free."""
    using = database()
    following = BlockedMessage.objects.using(using).filter(block=known).order_by("pk").first()
    rows = BlockedKey.objects.using(using).filter(pk=known.pk)
    if following is None:
        rows.delete()
        return None
    rows.update(
        blocker=following.shown,
        name=following.name,
        identity=following.identity,
        parked=False,
        since=now or server.now(using),
        waiting=BlockedMessage.objects.using(using).filter(block=known).count() - 1,
    )
    keep(sent(following, known.queue), using=using)
    following.delete(using=using)
    return following


def sent(held: BlockedMessage, queue: str) -> Message:
    """The copy that goes back to the queue."""
    properties = decode_properties(bytes(held.properties))
    return Message(body=bytes(held.body), properties=properties, exchange="", routing_key=queue)


def _check_room(known: BlockedKey) -> None:
    now = settings()
    if known.waiting >= now.blocked_per_key:
        raise Full(known, limit=now.blocked_per_key, of="BLOCKED_PER_KEY")
    total = BlockedKey.objects.using(database()).aggregate(total=Sum("waiting"))["total"] or 0
    if total >= now.blocked_total:
        raise Full(known, limit=now.blocked_total, of="BLOCKED_TOTAL")


log = logging.getLogger("django_rmq_retry")

EVERY = 3.0
"""Seconds between two looks for what was resolved elsewhere."""
AT_ONCE = 100


def settle() -> bool:
    """Let those keys go on whose first message was resolved by a person or elsewhere; whether there may be more."""
    if not BlockedKey.objects.using(database()).exists():
        return False
    found = list(_settled()[:AT_ONCE])
    left = list(_left()[:AT_ONCE])
    failed = [*_each(unblock, found), *_each(_disband, left)]
    if failed:
        raise failed[0]
    return AT_ONCE in (len(found), len(left))


def _each(act: Callable[[BlockedKey], object], keys: Sequence[BlockedKey]) -> Iterator[Exception]:
    """What went wrong: a key that cannot go on keeps no other from it."""
    for known in keys:
        try:
            act(known)
        except Exception as error:  # noqa: BLE001 - whatever a driver of a database says
            yield error


def resolved(messages: Collection[int]) -> None:
    """The same at once, for records that have just been resolved."""
    if not BlockedKey.objects.using(database()).exists():
        return
    rows = ParkedMessage.objects.using(router.db_for_write(ParkedMessage)).filter(state__in=RESOLVED)
    ids = sorted(messages)
    for start in range(0, len(ids), AT_ONCE):
        records = rows.filter(pk__in=ids[start : start + AT_ONCE]).only("identity", "message_id", "sha256", "queue")
        queues = {name: record.queue for record in records for name in identities(record)}
        for known in BlockedKey.objects.using(database()).filter(identity__in=queues):
            if known.queue == queues[known.identity]:
                unblock(known)


def never_sent(rows: Collection[OutboxMessage]) -> None:
    """Let those keys go on whose first message was on its way back to its queue, and is discarded there."""
    queues = {row.routing_key for row in rows if not row.exchange}
    blocked = set(BlockedKey.objects.using(database()).filter(queue__in=queues).values_list("queue", flat=True))
    for row in rows:
        if row.exchange or row.routing_key not in blocked or MARK not in bytes(row.properties):
            continue
        came = Delivery(
            queue=row.routing_key, routing_key=row.routing_key, body=bytes(row.body), raw=bytes(row.properties)
        )
        gone = at_origin(came, came_by=came)
        for known in BlockedKey.objects.using(database()).filter(queue=gone.queue, identity=Said.of(gone).identity):
            if not known.parked:
                unblock(known)


def unblock(known: BlockedKey) -> bool:
    """Let the next message of a key go first, if it is still this one that does; whether that came about."""
    with transaction.atomic(using=database()):
        now = locked(known.digest)
        if now is None or (now.name, now.since) != (known.name, known.since):
            return False
        pass_on(now)
    return True


def blocked_by(record: ParkedMessage) -> QuerySet[BlockedKey]:
    """The keys on which the message of a record goes first: one, unless other bytes were put under its name."""
    rows = BlockedKey.objects.using(database())
    return rows.filter(identity__in=identities(record), queue=record.queue)


def record_of(known: BlockedKey) -> ParkedMessage | None:
    """The newest record of the message that goes first, if it is parked and was stored."""
    return _records(known).order_by("-pk").first()


def records_of(rows: Sequence[BlockedKey]) -> dict[int, ParkedMessage]:
    """The same for many keys, by theirs, in one query; those without an id take one more each."""
    named = {row.identity: row for row in rows if row.parked and not row.identity.startswith(BODY)}
    records = ParkedMessage.objects.using(router.db_for_write(ParkedMessage)).filter(identity__in=named)
    slim = records.defer("body", "properties")
    found = {named[one.identity].pk: one for one in slim if one.queue == named[one.identity].queue}
    nameless = ((row.pk, record_of(row)) for row in rows if row.parked and row.identity.startswith(BODY))
    return found | {pk: one for pk, one in nameless if one is not None}


def _records(known: BlockedKey) -> QuerySet[ParkedMessage]:
    rows = ParkedMessage.objects.using(router.db_for_write(ParkedMessage)).filter(queue=known.queue)
    if known.identity.startswith(BODY):
        return rows.filter(message_id="", sha256=known.identity.removeprefix(BODY))
    return rows.filter(identity=known.identity)


def _left() -> QuerySet[BlockedKey]:
    """Keys of queues of which no handler asks for an order any more: nobody would tell them how a message ends."""
    plain = [intake.queue.name for intake in registry.intakes() if not intake.keyed]
    return BlockedKey.objects.using(database()).filter(queue__in=plain).order_by("pk")


def _disband(known: BlockedKey) -> None:
    """All that waits goes back to its queue, in its order."""
    with transaction.atomic(using=database()):
        now = locked(known.digest)
        while now is not None and pass_on(now) is not None:
            continue
    said = "Key %r of %s is kept in order no longer: what waited for it goes back to queue %r"
    names = (known.key, known.handler, known.queue)
    log.warning(said, *names, extra={"event": "disbanded", "queue": known.queue, "handler": known.handler})


def _settled() -> QuerySet[BlockedKey]:
    """Those whose first message has a record that was resolved after it had failed, and none that is open."""
    records = ParkedMessage.objects.using(database()).filter(queue=OuterRef("queue"))
    named = records.filter(identity=OuterRef("identity"))
    ended = named.filter(state__in=RESOLVED, resolved_at__gte=OuterRef("since"))
    rows = BlockedKey.objects.using(database()).exclude(identity__startswith=BODY).filter(Exists(ended))
    nameless = [known.pk for known in _nameless() if _ended(known)]
    if not nameless:
        return rows.order_by("pk")
    return BlockedKey.objects.using(database()).filter(Q(pk__in=rows.values("pk")) | Q(pk__in=nameless)).order_by("pk")


def _nameless() -> QuerySet[BlockedKey]:
    """Each is a question of its own: only some, and others each time, or the first would hide those behind them."""
    return BlockedKey.objects.using(database()).filter(identity__startswith=BODY, parked=True).order_by("?")[:AT_ONCE]


def _ended(known: BlockedKey) -> bool:
    newest = record_of(known)
    return newest is not None and newest.state in RESOLVED and (newest.resolved_at or known.since) >= known.since


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """All blocked keys in figures."""

    keys: int
    waiting: int
    """Messages that wait, of all keys."""
    most: int
    """Of the key with the most."""
    parked: int
    """Keys on which a person has to decide."""
    oldest: datetime | None
    full: bool
    """Whether messages of a blocked key are slowed down, and with them their queue."""


def standing() -> Standing:
    """How it is now; one query over the blocked keys."""
    figures = {"keys": Count("pk"), "parked": Count("pk", filter=Q(parked=True)), "oldest": Min("since")}
    found = BlockedKey.objects.using(database()).aggregate(total=Sum("waiting"), most=Max("waiting"), **figures)
    waiting, most, now = found["total"] or 0, found["most"] or 0, settings()
    return Standing(
        keys=found["keys"],
        waiting=waiting,
        most=most,
        parked=found["parked"],
        oldest=found["oldest"],
        full=most >= now.blocked_per_key or waiting >= now.blocked_total,
    )

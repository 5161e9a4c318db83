"""The rows of blocked keys: made when a message fails, passed on when it is resolved, always under their lock."""

from datetime import datetime

from django.db import connections, router
from django.db.models import F, Sum
from django.utils import timezone

from django_rmq_retry.conf import settings
from django_rmq_retry.core.message import Delivery, Message
from django_rmq_retry.core.properties import decode_properties, encode_properties
from django_rmq_retry.core.verdict import short
from django_rmq_retry.models import BlockedKey, HeldMessage, ParkedMessage
from django_rmq_retry.ordering.telling import NAME, Said, copy_of, identities, once
from django_rmq_retry.outbox.keeping import keep
from django_rmq_retry.publishing import check_writable
from django_rmq_retry.records.rows import ticket_of


class Full(Exception):
    """More messages wait than should: of one key, or of all."""

    def __init__(self, block: BlockedKey, *, limit: int, of: str) -> None:
        self.block = block
        self.limit = limit
        self.of = of
        super().__init__(f"{limit} messages wait already {'behind one message' if of == 'HELD_PER_KEY' else 'in all'}")


def database() -> str:
    """Where it is kept; the outbox of that database sends what is released."""
    return router.db_for_write(BlockedKey)


def locked(digest: str) -> BlockedKey | None:
    """A blocked key, as nobody else can change it until the transaction ends."""
    using = database()
    rows = BlockedKey.objects.using(using).filter(digest=digest)
    if not connections[using].features.has_select_for_update:
        # SQLite refuses a transaction that has read when another one has written since: it writes first.
        rows.update(held=F("held"))
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
        since=timezone.now(),
    )
    # Without a look first: on MariaDB two that look where there is nothing yet would wait for each other.
    BlockedKey.objects.using(using).bulk_create([made], ignore_conflicts=True)
    known = locked(digest)
    if known is None:
        raise RuntimeError(f"The key {made} was released while it was blocked; the message stays in hand.")
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


def hold(known: BlockedKey, delivery: Delivery, *, even_if_full: bool = False) -> None:
    """Keep a message behind the one that goes first; once, however often it is delivered. Full above the limits.

    What could not be sent when its turn has come raises HeadersTooLarge or ValueError.
    """
    using, digest = database(), once(delivery)
    waiting = HeldMessage.objects.using(using).filter(block=known)
    if waiting.filter(digest=digest).exists():
        return
    copy = copy_of(delivery, delivery.queue)
    check_writable(copy)
    if not even_if_full:
        _check_room(known)
    said = Said.of(delivery)
    HeldMessage.objects.using(using).create(
        block=known,
        shown=said.shown,
        name=said.name,
        identity=said.identity,
        digest=digest,
        exchange=short(delivery.exchange, NAME),
        routing_key=short(delivery.routing_key, NAME),
        body=delivery.body,
        properties=encode_properties(copy.properties),
        held_at=timezone.now(),
    )
    BlockedKey.objects.using(using).filter(pk=known.pk).update(held=F("held") + 1)


def pass_on(known: BlockedKey, *, now: datetime | None = None) -> HeldMessage | None:
    """The message that went first is resolved: the next one goes first and back to its queue; else the key is free."""
    using = database()
    following = HeldMessage.objects.using(using).filter(block=known).order_by("pk").first()
    rows = BlockedKey.objects.using(using).filter(pk=known.pk)
    if following is None:
        rows.delete()
        return None
    rows.update(
        blocker=following.shown,
        name=following.name,
        identity=following.identity,
        parked=False,
        since=now or timezone.now(),
        held=HeldMessage.objects.using(using).filter(block=known).count() - 1,
    )
    keep(sent(following, known.queue), using=using)
    following.delete(using=using)
    return following


def sent(held: HeldMessage, queue: str) -> Message:
    """The copy that goes back to the queue."""
    properties = decode_properties(bytes(held.properties))
    return Message(body=bytes(held.body), properties=properties, exchange="", routing_key=queue)


def _check_room(known: BlockedKey) -> None:
    now = settings()
    if known.held >= now.held_per_key:
        raise Full(known, limit=now.held_per_key, of="HELD_PER_KEY")
    total = BlockedKey.objects.using(database()).aggregate(total=Sum("held"))["total"] or 0
    if total >= now.held_in_all:
        raise Full(known, limit=now.held_in_all, of="HELD_IN_ALL")

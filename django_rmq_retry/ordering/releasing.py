"""Keys that go on without a word of their consumer: a person has decided, or said that the first one will not come."""

import logging
from collections.abc import Callable, Collection, Iterator, Sequence

from django.db import router, transaction
from django.db.models import Exists, OuterRef, Q, QuerySet

from django_rmq_retry import registry
from django_rmq_retry.core.message import Delivery
from django_rmq_retry.core.stamps import MARK
from django_rmq_retry.models import BlockedKey, OutboxMessage, ParkedMessage
from django_rmq_retry.models.messages import RESOLVED
from django_rmq_retry.ordering.blocking import database, locked, pass_on
from django_rmq_retry.ordering.telling import BODY, Said, identities
from django_rmq_retry.runtime.preparing import restore_origin

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
    failed = [*_each(release, found), *_each(_disband, left)]
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
                release(known)


def never_sent(rows: Collection[OutboxMessage]) -> None:
    """Let those keys go on whose first message was on its way back to its queue, and is discarded there."""
    queues = {row.routing_key for row in rows if not row.exchange}
    blocked = set(BlockedKey.objects.using(database()).filter(queue__in=queues).values_list("queue", flat=True))
    for row in rows:
        if row.exchange or row.routing_key not in blocked or MARK not in bytes(row.properties):
            continue
        gone = Delivery(
            queue=row.routing_key, routing_key=row.routing_key, body=bytes(row.body), raw=bytes(row.properties)
        )
        restore_origin(gone, row.routing_key)
        for known in BlockedKey.objects.using(database()).filter(queue=gone.queue, identity=Said.of(gone).identity):
            if not known.parked:
                release(known)


def release(known: BlockedKey) -> bool:
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

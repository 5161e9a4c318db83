"""Stores parked messages, a batch in a transaction."""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from operator import attrgetter
from types import SimpleNamespace
from typing import Any, Protocol, cast
from uuid import uuid4

from django.db import connections, router
from django.db.models import F

from django_rmq_retry import database_clock, signals
from django_rmq_retry.handlers.layout import waiting_queues_of
from django_rmq_retry.handlers.subscription import WorkQueue
from django_rmq_retry.handlers.ticket import Ticket
from django_rmq_retry.messages.message import Delivery
from django_rmq_retry.messages.parked_copy import By, ParkedCopy
from django_rmq_retry.messages.reasons import MAY_HAVE_RUN
from django_rmq_retry.messages.tracebacks import GROUPING_RULE
from django_rmq_retry.models import BusinessKey, ErrorGroup, ItemState, ParkedMessage, RequeueItem, RequeueRun
from django_rmq_retry.models.parked import OriginKey, reduced
from django_rmq_retry.models.runs import MAY_BE_DELIVERED
from django_rmq_retry.parked import early_outcomes
from django_rmq_retry.parked.arrivals import Arrival, BusinessKeyReader, Step, apply_step, step_for
from django_rmq_retry.parked.database import outage
from django_rmq_retry.parked.groups import GroupTally
from django_rmq_retry.parked.may_have_run import queues_with_once
from django_rmq_retry.parked.outcomes import note_earlier_handlings
from django_rmq_retry.parked.siblings import content_of, mark
from django_rmq_retry.statements import BulkInsert, lock, locking, writing

log = logging.getLogger("django_rmq_retry")

FIELDS = ParkedMessage._meta.concrete_fields  # noqa: SLF001 - Django's own name for it
LATER = {"held_until", "claimed_until", "requeued_at", "discarded_at", "resolved_at", "reopened_at"}
"""Columns that have no value in a new record."""
COLUMNS = tuple(field.attname for field in FIELDS if not field.primary_key and field.name not in LATER)
DEFAULTS = {field.attname: field.get_default() for field in FIELDS}
insert = BulkInsert(ParkedMessage, COLUMNS)
values_of = attrgetter(*COLUMNS)
"""The values of a record in the order of the columns, read in one call."""

CHANGED = (
    *("state", "group_id", "parked_in", "handler", "by", "reason", "detail", "error", "error_text", "summary"),
    *("attempts", "traceparent", "failed_at", "parked_at", "copies", "copy", "unconfirmed", "unacked"),
    *("claimed_until", "resolved_at", "resolution", "restored", "published_again", "succeeded_at"),
)
READ = ("pk", "identity", "revision", "cycle", "requeued_at", "queue", "type", *CHANGED)
STORE_TRIES = 3
"""Attempts to store a single message while the database accepts others: another transaction may hold a lock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    problem: str = ""
    """The reason why it cannot be stored, although others can; empty if it is stored."""


class StoreUnavailable(Exception):
    """Nothing can be stored now; ``done`` has the results of the deliveries that were already processed."""

    def __init__(self, reason: str, done: Mapping[Delivery, Stored] | None = None) -> None:
        self.reason = reason
        self.done = done or {}
        super().__init__(reason)


class RecordStorage(Protocol):
    """Stores parked messages; called only on the drainer's thread."""

    def outage(self) -> str:
        """Return why nothing can be stored now, as a sentence; empty if messages can be stored."""
        ...

    def store(self, batch: Sequence[Delivery]) -> Sequence[Stored]:
        """Store a batch; the stored messages are committed when this returns."""
        ...

    def close(self) -> None:
        """Release resources; this thread stores nothing more."""


class NewRecord(SimpleNamespace):
    """A record that is not stored yet, by its columns: a model instance takes five times as long to create."""


def new_record(columns: Mapping[str, Any]) -> ParkedMessage:
    """Return a record that is not stored yet, with these columns and the defaults of the others."""
    return cast(ParkedMessage, NewRecord(**{**DEFAULTS, "pk": None, **columns}))


def set_primary_keys(records: Sequence[ParkedMessage], *, using: str) -> None:
    """Set the primary keys of records that do not have them yet."""
    unknown = {record.identity: record for record in records if not record.pk}
    if unknown:
        rows = ParkedMessage.objects.using(using).filter(identity__in=unknown)
        for identity, pk in rows.values_list("identity", "pk"):
            unknown[identity].pk = pk


def groups_of(arrivals: Iterable[Arrival], *, using: str) -> dict[str, int]:
    """Return the groups of these failures by fingerprint; missing groups are created with counters at 0."""
    newest = {arrival.group.fingerprint: arrival for arrival in arrivals}
    known = _groups_by_fingerprint(newest, using=using)
    missing = sorted(newest.keys() - known.keys())
    if not missing:
        return known
    # Sorted, because two drainers that create the same groups must not deadlock.
    new_groups = [_new_group(newest[fingerprint]) for fingerprint in missing]
    ErrorGroup.objects.using(using).bulk_create(new_groups, ignore_conflicts=True)
    return known | _groups_by_fingerprint(missing, using=using)


def _groups_by_fingerprint(fingerprints: Collection[str], *, using: str) -> dict[str, int]:
    groups = ErrorGroup.objects.using(using).filter(fingerprint__in=fingerprints)
    return dict(groups.values_list("fingerprint", "pk"))


def _new_group(arrival: Arrival) -> ErrorGroup:
    return ErrorGroup(
        fingerprint=arrival.group.fingerprint,
        rule=GROUPING_RULE,
        title=arrival.title,
        culprit=arrival.group.culprit,
        reason=arrival.failure()["reason"],
        first_seen=arrival.at,
        last_seen=arrival.at,
    )


class BatchWriter:
    """Stores one batch, whose groups exist. Call ``write`` inside the transaction, then ``records``."""

    def __init__(
        self,
        arrivals: Sequence[Arrival],
        groups: Mapping[str, int],
        *,
        alias: str,
        keys: Callable[[ParkedCopy], list[str]],
        now: datetime,
    ) -> None:
        self._arrivals = arrivals
        self._groups = groups
        self._alias = alias
        self._keys = keys
        self._now = now
        self._tally = GroupTally()
        self._messages = ParkedMessage.objects.using(alias)
        self._by_identity: dict[str, ParkedMessage] = {}
        self._by_pk: dict[int, ParkedMessage] = {}
        self._batch_identities: set[str] = set()
        """Identities of this batch's messages without an ID. Equal ones are two messages: none is unacked twice."""
        self._new: list[tuple[ParkedMessage, list[str]]] = []
        self._changed: dict[int, ParkedMessage] = {}
        self._failed: dict[tuple[int, int], bool] = {}
        """Records that failed again, each with the cycle that failed, and whether its worker may have done its work."""

    def write(self) -> None:
        self._look_up()
        for arrival in self._arrivals:
            self._store_arrival(arrival)
        if connections[self._alias].vendor == "mysql":
            # In one order: on MariaDB an INSERT share-locks its group, so counting might deadlock.
            lock(ErrorGroup.objects.using(self._alias).filter(pk__in=list(self._tally.changes)))
        self._add()
        for record in sorted(self._changed.values(), key=lambda one: one.pk):
            changes = {name: getattr(record, name) for name in CHANGED}
            self._messages.filter(pk=record.pk).update(revision=F("revision") + 1, **changes)
        self._tally.write(using=self._alias, now=self._now)
        if self._failed:
            self._end_items()

    def records(self) -> Iterable[ParkedMessage]:
        """Return the added and changed records, with their primary keys."""
        set_primary_keys([record for record, _ in self._new], using=self._alias)
        return [*(record for record, _ in self._new), *self._changed.values()]

    def mark_siblings(self) -> None:
        """Mark the new records that have siblings, and those. Call it after the commit."""
        mark((record.content for record, _keys in self._new), using=self._alias)

    def note_handlings(self) -> None:
        """Note of which stored messages a copy was handled before, or was sent early. Call it after the commit."""
        named = [record for record, _keys in self._new if record.message_id]
        stored = (*named, *self._changed.values())
        note_earlier_handlings({record.identity for record in stored})
        # Of others an attempt tells it.
        if doubtful := {record.identity for record in stored if record.reason in MAY_HAVE_RUN or record.unacked}:
            early_outcomes.note(doubtful)

    def _look_up(self) -> None:
        """Load the records that these arrivals may belong to, locked in one order."""
        identities = {arrival.identity for arrival in self._arrivals}
        ticketed = {arrival.ticket.record for arrival in self._arrivals if arrival.ticket}
        numbers = {*self._messages.filter(identity__in=identities).values_list("pk", flat=True), *ticketed}
        if not numbers:
            return
        # An erased record has nothing left that an operator could send: a copy that comes later is another message.
        known = self._messages.filter(pk__in=numbers, erased_at__isnull=True)
        for record in locking(known.only(*READ).order_by("pk")):
            self._by_pk[record.pk] = self._by_identity[record.identity] = record

    def _store_arrival(self, arrival: Arrival) -> None:
        record, ticket = self._found(arrival)
        if record is None:
            self._open(arrival)
            return
        step = step_for(record, arrival, ticket=ticket, now=self._now)
        if step is Step.SAME:
            return
        before, group, origin, unacked = record.state, record.group_id, OriginKey.of(record), record.unacked
        if apply_step(record, arrival, step):
            record.group_id = self._groups[arrival.group.fingerprint]
            self._tally.moved(origin, before, None)
            self._tally.moved(OriginKey.of(record), None, record.state)
            seen = self._tally.copied if step is Step.NEWER else self._tally.arrived
            seen(record.group_id, arrival.at)
        if step is Step.AGAIN:
            self._tally.failed_again(group)
        if ticket is not None and ticket.cycle == record.cycle:
            # What a consumer did not acknowledge before the requeue has been decided on.
            doubtful = arrival.parked.reason in MAY_HAVE_RUN or (arrival.unacked and not unacked)
            self._failed[record.pk, record.cycle] = doubtful and record.queue not in queues_with_once()
        if record.pk:
            self._changed[record.pk] = record

    def _found(self, arrival: Arrival) -> tuple[ParkedMessage | None, Ticket | None]:
        """Return an arrival's record, found by a requeue's ticket or by identity; and the ticket, if it was used."""
        ticket = arrival.ticket
        record = self._by_pk.get(ticket.record) if ticket else None
        if ticket and record:
            return record, ticket
        record = self._by_identity.get(arrival.identity)
        if arrival.named or record is None:
            return record, None
        # Equal messages without an ID may be two payments, unless this one is marked as redelivered.
        ours = arrival.redelivered and arrival.parked.by is By.CONSUMER
        again = ours and arrival.identity not in self._batch_identities
        self._batch_identities.add(arrival.identity)
        return (record if again else None), None

    def _open(self, arrival: Arrival) -> None:
        identity = arrival.identity
        if identity in self._by_identity:
            identity = f"{identity}:{uuid4().hex}"
        keys, contents = self._keys(arrival.parked), arrival.contents()
        name = keys[0] if keys else ""
        record = new_record(
            {
                "identity": identity,
                "group_id": self._groups[arrival.group.fingerprint],
                "business_key": name,
                "content": content_of(contents["queue"], contents["type"], name, contents["sha256"]),
                "copy": arrival.parked.copy_digest,
                "unacked": arrival.unacked,
                "recorded_at": self._now,
                **contents,
                **arrival.failure(),
            }
        )
        self._by_identity[identity] = record
        self._batch_identities.add(identity)
        self._new.append((record, keys))
        self._tally.moved(OriginKey.of(record), None, record.state)
        self._tally.arrived(record.group_id, arrival.at, new=True)

    def _add(self) -> None:
        if not self._new:
            return
        insert([values_of(record) for record, _ in self._new], using=self._alias)
        named = [record for record, keys in self._new if keys]
        if named:
            set_primary_keys(named, using=self._alias)
            keys = [BusinessKey(message_id=record.pk, value=key) for record, keys in self._new for key in keys]
            # Some databases treat keys as equal that differ in case or accents.
            BusinessKey.objects.using(self._alias).bulk_create(keys, ignore_conflicts=True)

    def _end_items(self) -> None:
        """End and count the items of runs whose messages failed again; the runs are locked before their items."""
        records = {pk for pk, _cycle in self._failed}
        items = RequeueItem.objects.using(self._alias).filter(message__in=records, state__in=MAY_BE_DELIVERED)
        runs = RequeueRun.objects.using(self._alias)
        numbers = sorted(set(items.values_list("run", flat=True)))
        lock(runs.filter(pk__in=numbers))
        ended = [item for item in items.filter(run__in=numbers) if (item.message_id, item.cycle) in self._failed]
        begun = [item for item in ended if self._failed[item.message_id, item.cycle]]
        items.filter(pk__in=[item.pk for item in begun]).update(redelivered=True)
        items.filter(pk__in=[item.pk for item in ended]).update(state=ItemState.FAILED, ended_at=self._now)
        failed = Counter(item.run_id for item in ended)
        doubtful = Counter(item.run_id for item in ended if item.state == ItemState.UNCONFIRMED)
        perhaps = Counter(item.run_id for item in begun if item.handled <= 1 and not item.redelivered)
        for run in sorted(failed):
            counters: dict[str, Any] = {"failed": F("failed") + failed[run]}
            if doubtful[run]:
                counters |= {"unconfirmed": reduced("unconfirmed", doubtful[run]), "sent": F("sent") + doubtful[run]}
            if perhaps[run]:
                counters["perhaps_twice"] = F("perhaps_twice") + perhaps[run]
            runs.filter(pk=run).update(**counters)


class RecordStore:
    """Stores parked messages. Used by one thread.

    ``homes`` has the work queue of each parked queue; the handlers of ``work_queues`` name the business keys.
    """

    def __init__(self, homes: Mapping[str, str], work_queues: Sequence[WorkQueue]) -> None:
        self._homes = homes
        self._waiting = frozenset[str]().union(*map(waiting_queues_of, work_queues))
        self._keys = BusinessKeyReader(work_queues)
        self._committing = False
        """True if the last transaction reached its COMMIT: if that then failed, it may be committed all the same."""

    @property
    def alias(self) -> str:
        return router.db_for_write(ParkedMessage)

    def outage(self) -> str:
        return outage(self.alias)

    def store(self, batch: Sequence[Delivery]) -> Sequence[Stored]:
        done: dict[Delivery, Stored] = {}
        try:
            self._store_halves(self._read(batch, done), done)
        except StoreUnavailable as error:
            raise StoreUnavailable(error.reason, done) from error
        return [done[delivery] for delivery in batch]

    def close(self) -> None:
        connections.close_all()

    def _read(self, batch: Sequence[Delivery], done: dict[Delivery, Stored]) -> list[Arrival]:
        # An outage of the database is detected later, when the batch is stored.
        now = database_clock.reckoned(self.alias)
        arrivals = []
        for delivery in batch:
            try:
                arrivals.append(Arrival.read(delivery, self._homes, self._waiting, now))
            except Exception as error:
                log.exception("A parked message of %r cannot be read", delivery.queue)
                done[delivery] = Stored(problem=f"It cannot be read: {type(error).__name__}: {error}")
        return arrivals

    def _store_halves(self, arrivals: list[Arrival], done: dict[Delivery, Stored], tries: int = 1) -> None:
        """Store all in one transaction; if that fails, store each half separately, down to the failing message."""
        if not arrivals:
            return
        try:
            self._commit(arrivals)
        except Exception as error:
            why = self.outage()
            if why:
                raise StoreUnavailable(why) from error
            if self._committing:
                arrivals = _marked_as_redelivered(arrivals)
            if len(arrivals) > 1:
                middle = len(arrivals) // 2
                self._store_halves(arrivals[:middle], done)
                self._store_halves(arrivals[middle:], done)
            elif tries < STORE_TRIES:
                self._store_halves(arrivals, done, tries + 1)
            else:
                log.exception("A parked message of %r cannot be stored", arrivals[0].delivery.queue)
                done[arrivals[0].delivery] = Stored(problem=f"{type(error).__name__}: {error}")
        else:
            done |= {arrival.delivery: Stored() for arrival in arrivals}

    def _commit(self, arrivals: Sequence[Arrival]) -> None:
        self._committing = False
        alias = self.alias
        # If the batch then fails, empty groups remain, which is harmless.
        groups = groups_of(arrivals, using=alias)
        batch = BatchWriter(arrivals, groups, alias=alias, keys=self._keys.of, now=database_clock.now(alias))
        with writing(ParkedMessage, using=alias):
            batch.write()
            self._committing = True
        batch.mark_siblings()
        batch.note_handlings()
        if signals.recorded.receivers:
            _announce(batch)


def _marked_as_redelivered(arrivals: Sequence[Arrival]) -> list[Arrival]:
    """Mark the arrivals whose batch may be committed already, so that they find their records.

    Equal messages without an ID stay as they are: in separate halves they would get one record, and one would be lost.
    """
    counts = Counter(arrival.identity for arrival in arrivals)
    return [
        replace(arrival, redelivered=True) if arrival.named or counts[arrival.identity] == 1 else arrival
        for arrival in arrivals
    ]


def _announce(batch: BatchWriter) -> None:
    """Send the signal for a committed batch. No error may leave this function: the batch would be stored again."""
    try:
        known = {record.pk: record.group_id for record in batch.records()}
    except Exception:
        log.exception(
            "The signal `recorded` was not sent, because its records cannot be read. The messages are stored."
        )
        return
    try:
        signals.recorded.send_robust(ParkedMessage, messages=sorted(known), groups=sorted(set(known.values())))
    except BaseException:
        # send_robust does not catch SystemExit and the like. The messages are stored in any case.
        log.exception("A receiver of the signal `recorded` raised an error. The messages are stored.")

"""Files one batch of arrivals: finds the records they belong to, changes those, and adds the rest, in few queries."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any
from uuid import uuid4

from django.db import connections
from django.db.models import F, QuerySet

from django_rmq_retry.core.parking import By, Parked
from django_rmq_retry.models import BusinessKey, ErrorGroup, Item, ItemState, ParkedMessage, RequeueRun
from django_rmq_retry.records.arriving import Arrival, Step, apply, step
from django_rmq_retry.records.counting import less
from django_rmq_retry.records.grouping import Tally, groups_of
from django_rmq_retry.records.inserting import insert, known, made
from django_rmq_retry.records.outcomes import SENT
from django_rmq_retry.records.tickets import Ticket

CHANGED = (
    *("state", "group_id", "parked_in", "handler", "by", "reason", "detail", "error", "error_text", "summary"),
    *("attempts", "failed_at", "parked_at", "copies", "copy", "unconfirmed", "claimed_until", "resolved_at"),
    "resolution",
)
READ = ("pk", "identity", "revision", "cycle", "requeued_at", *CHANGED)


class Filing:
    """One batch; ``write`` is called in its transaction, after ``group`` and before ``records`` is asked for."""

    def __init__(
        self, arrivals: Sequence[Arrival], *, alias: str, keys: Callable[[Parked], list[str]], now: datetime
    ) -> None:
        self._arrivals = arrivals
        self._alias = alias
        self._keys = keys
        self._now = now
        self._groups: dict[str, int] = {}
        self._tally = Tally()
        self._by_identity: dict[str, ParkedMessage] = {}
        self._by_pk: dict[int, ParkedMessage] = {}
        self._met: set[str] = set()
        """Identities of this batch's messages without an id: nobody holds one message twice at a time."""
        self._new: list[tuple[ParkedMessage, list[str]]] = []
        self._changed: dict[int, ParkedMessage] = {}
        self._failed: set[tuple[int, int]] = set()
        """Records that failed again, each with the cycle that did."""

    def group(self) -> None:
        """Find the groups, and make what is missing; they may stay behind without messages and do no harm."""
        self._groups = groups_of(self._arrivals, using=self._alias)

    def write(self) -> None:
        """Do all of it."""
        self._look_up()
        for arrival in self._arrivals:
            self._file(arrival)
        self._lock_groups()
        self._add()
        for record in sorted(self._changed.values(), key=lambda one: one.pk):
            changes = {name: getattr(record, name) for name in CHANGED}
            self._messages().filter(pk=record.pk).update(revision=F("revision") + 1, **changes)
        self._tally.write(using=self._alias, now=self._now)
        self._end_items()

    def records(self) -> Iterable[ParkedMessage]:
        """What was added or changed."""
        known([record for record, _ in self._new], using=self._alias)
        return [*(record for record, _ in self._new), *self._changed.values()]

    def _messages(self) -> QuerySet[ParkedMessage]:
        return ParkedMessage.objects.using(self._alias)

    def _look_up(self) -> None:
        """The records that these arrivals may belong to, locked in one order."""
        identities = {arrival.identity for arrival in self._arrivals}
        ticketed = {arrival.ticket.record for arrival in self._arrivals if arrival.ticket}
        numbers = {*self._messages().filter(identity__in=identities).values_list("pk", flat=True), *ticketed}
        if not numbers:
            return
        for record in self._messages().filter(pk__in=numbers).only(*READ).order_by("pk").select_for_update():
            self._by_pk[record.pk] = self._by_identity[record.identity] = record

    def _file(self, arrival: Arrival) -> None:
        record, ticket = self._found(arrival)
        if record is None:
            self._open(arrival)
            return
        found = step(record, arrival, ticket=ticket, now=self._now)
        if found is Step.SAME:
            return
        before, group = record.state, record.group_id
        if apply(record, arrival, found):
            record.group_id = self._groups[arrival.group.fingerprint]
            self._tally.moved(group, before, None)
            self._tally.moved(record.group_id, None, record.state)
            self._tally.arrived(record.group_id, arrival.at)
        if found is Step.AGAIN:
            self._tally.failed_again(group)
            self._failed.add((record.pk, record.cycle))
        if record.pk:
            self._changed[record.pk] = record

    def _found(self, arrival: Arrival) -> tuple[ParkedMessage | None, Ticket | None]:
        """Its record, by the ticket of a requeue or by what it is."""
        ticket = arrival.ticket
        record = self._by_pk.get(ticket.record) if ticket else None
        if ticket and record:
            return record, ticket
        record = self._by_identity.get(arrival.identity)
        if arrival.named or record is None:
            return record, None
        # Two without an id and with the same bytes may be two payments, unless the broker says it is one.
        again = arrival.delivery.redelivered and arrival.parked.by is By.CONSUMER and arrival.identity not in self._met
        self._met.add(arrival.identity)
        return (record if again else None), None

    def _open(self, arrival: Arrival) -> None:
        """A record more."""
        identity = arrival.identity
        if identity in self._by_identity:
            identity = f"{identity}:{uuid4().hex}"
        keys = self._keys(arrival.parked)
        record = made(
            {
                "identity": identity,
                "group_id": self._groups[arrival.group.fingerprint],
                "business_key": keys[0] if keys else "",
                "copy": arrival.parked.copy,
                "recorded_at": self._now,
                **arrival.contents(),
                **arrival.failure(),
            }
        )
        self._by_identity[identity] = record
        self._met.add(identity)
        self._new.append((record, keys))
        self._tally.moved(record.group_id, None, record.state)
        self._tally.arrived(record.group_id, arrival.at)

    def _lock_groups(self) -> None:
        """MariaDB locks the group of each row that is added, to be read: who then counts would wait for each other."""
        if connections[self._alias].vendor == "mysql":
            groups = ErrorGroup.objects.using(self._alias).filter(pk__in=list(self._tally.changes))
            list(groups.order_by("pk").select_for_update().values_list("pk"))

    def _add(self) -> None:
        if not self._new:
            return
        insert([record for record, _ in self._new], using=self._alias)
        known([record for record, keys in self._new if keys], using=self._alias)
        keys = [BusinessKey(message_id=record.pk, value=key) for record, keys in self._new for key in keys]
        if keys:
            # Some databases take two for one that differ in case or accents.
            BusinessKey.objects.using(self._alias).bulk_create(keys, ignore_conflicts=True)

    def _end_items(self) -> None:
        """What was requeued by a run, and has failed again, is counted there. Whoever changes items holds their run."""
        if not self._failed:
            return
        items = Item.objects.using(self._alias).filter(message__in={pk for pk, _ in self._failed}, state__in=SENT)
        runs = RequeueRun.objects.using(self._alias)
        numbers = sorted(set(items.values_list("run", flat=True)))
        list(runs.filter(pk__in=numbers).order_by("pk").select_for_update().values_list("pk"))
        ended = [item for item in items.filter(run__in=numbers) if (item.message_id, item.cycle) in self._failed]
        items.filter(pk__in=[item.pk for item in ended]).update(state=ItemState.FAILED, ended_at=self._now)
        failed = Counter(item.run_id for item in ended)
        doubtful = Counter(item.run_id for item in ended if item.state == ItemState.UNCONFIRMED)
        for run in sorted(failed):
            counters: dict[str, Any] = {"failed": F("failed") + failed[run]}
            if doubtful[run]:
                counters |= {"unconfirmed": less("unconfirmed", doubtful[run]), "sent": F("sent") + doubtful[run]}
            runs.filter(pk=run).update(**counters)

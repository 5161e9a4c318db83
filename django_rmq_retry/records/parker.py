"""Takes parked messages into the database: a batch in one transaction, each message once however often it arrives."""

import logging
from collections.abc import Iterable, Mapping, Sequence

from django.db import connections, router, transaction
from django.db.models import F
from django.utils import timezone

from django_rmq_retry import signals
from django_rmq_retry.core.message import Delivery
from django_rmq_retry.models import ParkedMessage
from django_rmq_retry.records.arriving import Arrival
from django_rmq_retry.records.filing import Filing
from django_rmq_retry.records.keys import Keys
from django_rmq_retry.records.probing import absent
from django_rmq_retry.runtime.parking import Absent, Stored

log = logging.getLogger("django_rmq_retry")

TRIES = 3
"""So often one message alone is tried while the database takes others: it may have met somebody who had a lock."""


class Parker:
    """Knows the work queue of each parked one. Used by one thread."""

    def __init__(self, homes: Mapping[str, str]) -> None:
        self._homes = homes
        self._keys = Keys()

    @property
    def alias(self) -> str:
        """The database, by its name in the settings."""
        return router.db_for_write(ParkedMessage)

    def absent(self) -> str:
        """Why nothing can be stored now, as a sentence; empty where it can."""
        return absent(self.alias)

    def store(self, batch: Sequence[Delivery]) -> Sequence[Stored]:
        """Store a batch; when this returns, what is stored is committed."""
        done: dict[Delivery, Stored] = {}
        try:
            self._keep(self._read(batch, done), done)
        except Absent as error:
            raise Absent(error.why, done) from error
        return [done[delivery] for delivery in batch]

    def close(self) -> None:
        """Close this thread's connections."""
        connections.close_all()

    def _read(self, batch: Sequence[Delivery], done: dict[Delivery, Stored]) -> list[Arrival]:
        now = timezone.now()
        arrivals = []
        for delivery in batch:
            try:
                arrivals.append(Arrival.read(delivery, self._homes, now))
            except Exception as error:
                log.exception("A parked message of %r cannot be read", delivery.queue)
                done[delivery] = Stored(problem=f"It cannot be read: {type(error).__name__}: {error}")
        return arrivals

    def _keep(self, arrivals: list[Arrival], done: dict[Delivery, Stored], tries: int = 1) -> None:
        """All in one transaction; where that fails the halves by themselves, until it is known which one it is."""
        if not arrivals:
            return
        try:
            self._commit(arrivals)
        except Exception as error:
            why = self.absent()
            if why:
                raise Absent(why) from error
            if len(arrivals) > 1:
                middle = len(arrivals) // 2
                self._keep(arrivals[:middle], done)
                self._keep(arrivals[middle:], done)
            elif tries < TRIES:
                self._keep(arrivals, done, tries + 1)
            else:
                log.exception("A parked message of %r cannot be stored", arrivals[0].delivery.queue)
                done[arrivals[0].delivery] = Stored(problem=f"{type(error).__name__}: {error}")
        else:
            done |= {arrival.delivery: Stored() for arrival in arrivals}

    def _commit(self, arrivals: Sequence[Arrival]) -> None:
        alias = self.alias
        filing = Filing(arrivals, alias=alias, keys=self._keys.of, now=timezone.now())
        filing.group()
        with transaction.atomic(using=alias):
            _write_first(alias)
            filing.write()
        if signals.recorded.receivers:
            _announce(filing.records())


def _write_first(alias: str) -> None:
    """SQLite refuses at once who has read and then wants to write while others do; who writes first waits its turn."""
    if connections[alias].vendor == "sqlite":
        ParkedMessage.objects.using(alias).filter(pk=0).update(revision=F("revision"))


def _announce(records: Iterable[ParkedMessage]) -> None:
    known = {record.pk: record.group_id for record in records}
    try:
        signals.recorded.send_robust(ParkedMessage, messages=sorted(known), groups=sorted(set(known.values())))
    except BaseException:
        # SystemExit and its like pass through send_robust; what is stored is stored.
        log.exception("A receiver of a signal raised what it should not")

"""Who had begun a message: lost consumers that had it in a handler when they were heard of last, and did not end it."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from django.utils.translation import gettext as _

from django_rmq_retry import database_clock
from django_rmq_retry.messages.reasons import MAY_HAVE_RUN
from django_rmq_retry.models import Attempt, ConsumerProcess, ParkedMessage
from django_rmq_retry.models.controls import SILENT_AFTER, has_vanished
from django_rmq_retry.parked.database import records_alias
from django_rmq_retry.policies.verdict import ACK
from django_rmq_retry.topology.declarations import work_queue
from django_rmq_retry.wording import second

PERHAPS_LOST_WITHIN = timedelta(hours=1)
"""The time before its parking in which a message without a time of publication may have killed its workers."""
MOST_LOST_SHOWN = 50


class Begun(NamedTuple):
    consumer: ConsumerProcess
    since: datetime | None
    attempt: int = 1

    def __str__(self) -> str:
        return str(self.consumer)

    @property
    def at(self) -> datetime:
        """When it had begun it; at the latest when it was heard of last."""
        return self.since or self.consumer.beat_at

    def ended_in(self, attempts: Iterable[Attempt]) -> bool:
        """Return True if it made one of these attempts.

        In a container a successor has its name: what began after its last heartbeat was that one's.
        """
        return any(one.process == str(self) and one.started_at <= self.consumer.beat_at for one in attempts)

    @property
    def sentence(self) -> str:
        if self.since is None:
            return _("%(process)s had begun it.") % {"process": self}
        return _("%(process)s had begun it at %(time)s.") % {"process": self, "time": second(self.since)}


BegunBy = Mapping[tuple[str, str], Sequence[Begun]]
"""The messages that some consumers had in their handlers, by queue and id, also if they were in quarantine."""


def begun_by(consumers: Iterable[ConsumerProcess]) -> BegunBy:
    """Return what these had in their handlers when they were heard of last."""
    found: dict[tuple[str, str], list[Begun]] = {}
    for consumer in consumers:
        for entry in consumer.in_flight:
            place = work_queue(str(entry.get("queue") or "")), str(entry.get("message_id") or "")
            if place[1]:
                found.setdefault(place, []).append(
                    Begun(consumer, time_in(entry.get("since")), int(entry.get("attempt") or 1))
                )
    return found


def begun_and_lost(since: datetime | None = None) -> BegunBy:
    """Return what consumers had begun that are not heard of any more, as far as it was since then; one query."""
    now = database_clock.reckoned(records_alias())
    rows = ConsumerProcess.objects.exclude(in_flight=[])
    if since is None:
        return begun_by(one for one in rows if one.silent(now) or one.vanished(now))
    known = begun_by(one for one in rows.filter(beat_at__gte=since) if one.silent(now) or one.vanished(now))
    return {place: [one for one in some if one.since is None or one.since >= since] for place, some in known.items()}


def all_begun(
    known: BegunBy, queues: Collection[str], message_id: str, attempts: Iterable[Attempt]
) -> tuple[Begun, ...]:
    """Return which of them had begun a message with these attempts, the first one first: each may have done its work.

    None that is known to have handled it to the end before it was lost.
    """
    done = [one for one in attempts if one.verdict == ACK.name]
    found = (one for queue in queues for one in known.get((queue, message_id), ()) if not one.ended_in(done))
    return tuple(sorted(found, key=lambda one: one.at))


def begun_of(message: ParkedMessage, attempts: Iterable[Attempt]) -> tuple[Begun, ...]:
    """Return the same of a message with all of its attempts; one query if another consumer had it before an attempt."""
    known = list(attempts)
    if not message.message_id or not any(one.redelivered for one in known):
        return ()
    queues = {message.queue, *(one.queue for one in known)}
    return all_begun(begun_and_lost(), queues, message.message_id, known)


def lost_with(message: ParkedMessage) -> list[ConsumerProcess]:
    """Return the consumers of its queue that were lost before a message was parked because its workers died.

    One query for such a message. It may have killed each of them: one that kills at once is in no heartbeat.
    """
    if message.reason not in MAY_HAVE_RUN:
        return []
    since = message.published_at - SILENT_AFTER if message.published_at else message.parked_at - PERHAPS_LOST_WITHIN
    now = database_clock.reckoned(records_alias())
    rows = ConsumerProcess.objects.filter(has_vanished(now), beat_at__range=(since, message.parked_at))
    known = rows.defer("in_flight").order_by("beat_at")[:MOST_LOST_SHOWN]
    return [one for one in known if message.queue in map(work_queue, one.queues)]


def in_words(begun: Iterable[Begun]) -> str:
    """Return who had begun a message, and when; empty if nobody is known to have."""
    return " ".join(one.sentence for one in begun)


def time_in(text: object) -> datetime | None:
    """Return a time in the report of a consumer."""
    try:
        return datetime.fromisoformat(str(text))
    except ValueError:
        return None

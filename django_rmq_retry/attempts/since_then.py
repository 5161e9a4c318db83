"""What became of messages that a process had in its handlers when it was heard of last: others may have got them."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from django_rmq_retry.models import Attempt, AttemptName
from django_rmq_retry.models.parked import folded
from django_rmq_retry.policies.verdict import ACK, DUPLICATE, Kind
from django_rmq_retry.topology.declarations import work_queue

ENDED = (ACK.name, DUPLICATE.name, Kind.DISCARD.value)
"""Verdicts after which a message is not handled any more."""
SAME_START = timedelta(seconds=1)
"""The most by which an attempt may have begun before the time that its process reported."""
MOST_ATTEMPTS = 2000
"""The latest attempts of such messages that are read."""
_COLUMNS = ("queue", "handler", "message_id", "started_at", "seconds", "verdict", "redelivered", "host", "pid")
Attempts = Mapping[tuple[str, str], list[Attempt]]
"""The attempts of messages by their queue and id, the latest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Later:
    """What was made of a message after its process was heard of last."""

    attempt: Attempt
    """The last one that ended it, else the last one."""
    twice: bool
    """True if its work may have been done twice: another process got it after this one had begun."""
    own: bool = False
    """True if it is the attempt that the process had begun: it ended it after its last heartbeat, and then died."""

    @property
    def ended(self) -> bool:
        """True if the message is not handled any more."""
        return self.attempt.verdict in ENDED

    @property
    def process(self) -> str:
        return self.attempt.process


def attempts_with(ids: Collection[str], since: datetime) -> Attempts:
    """Return the stored attempts of the messages with these ids that may have begun since then; one query.

    Most messages failed a few times before a process had them that is lost now: ``later`` asks for none of these.
    """
    if not ids:
        return {}
    names = AttemptName.objects.filter(folded__in={folded(one) for one in ids}).values("identity")
    rows = Attempt.objects.filter(identity__in=names, message_id__in=ids, started_at__gte=since - SAME_START)
    found: dict[tuple[str, str], list[Attempt]] = {}
    for row in rows.order_by("-started_at", "-pk").only(*_COLUMNS)[:MOST_ATTEMPTS]:
        found.setdefault((row.queue, row.message_id), []).append(row)
    return found


def later(
    attempts: Attempts, queue: str, message_id: str, beat: datetime, *, own: tuple[str, datetime | None] = ("", None)
) -> Later | None:
    """Return what was made of a message that a process had in its handler at its last heartbeat; None if it is unknown.

    Whatever began after that heartbeat was another attempt. ``own`` are the name of the process, and when it had begun
    the message, as it reported.
    """
    process, begun = own
    known = attempts.get((work_queue(queue), message_id), ())
    since = [one for one in known if one.started_at > beat]
    its = [one for one in known if begun and one.process == process and begun - SAME_START <= one.started_at <= beat][
        :1
    ]
    if not since and not its:
        return None
    last = next((one for one in (*since, *its) if one.verdict in ENDED), (since or its)[0])
    again = last.verdict == ACK.name and any(one.redelivered for one in since)
    failed = any(one.verdict not in ENDED for one in its)
    return Later(attempt=last, twice=again and not failed, own=last in its)

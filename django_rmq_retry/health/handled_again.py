"""Messages that were handled lately, outside of requeue runs, after another consumer may have handled them."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from django.db.models import QuerySet

from django_rmq_retry.attempts.history import first_keys
from django_rmq_retry.errors import ConfigurationError
from django_rmq_retry.handlers import registry
from django_rmq_retry.health.begun import Begun, BegunBy, all_begun, begun_by
from django_rmq_retry.models import Attempt, ConsumerProcess, EarlyRetry, ItemState
from django_rmq_retry.models.controls import SILENT_AFTER
from django_rmq_retry.parked.checked import mark
from django_rmq_retry.parked.may_have_run import handlers_with_once
from django_rmq_retry.policies.verdict import ACK
from django_rmq_retry.statements import with_one_of
from django_rmq_retry.topology.declarations import work_queue
from django_rmq_retry.wording import listed

TWICE_REPORTED_FOR = timedelta(days=1)
"""The time after the end of a run, or after the handling, for which it is reported that it was one too many."""
CLOCKS_DIFFER = timedelta(minutes=1)
"""The most by which the clock of a publisher may be ahead of the database's."""
MOST_HANDLED_AGAIN = 1000
"""The most of these attempts that are read."""
READ_APART = timedelta(seconds=1)
_COLUMNS = ("identity", "queue", "handler", "message_id", "published_at", "started_at", "seconds", "host", "pid")


@dataclass(frozen=True, slots=True, kw_only=True)
class HandledAgain:
    """One such message."""

    identity: str
    queue: str
    handler: str
    message_id: str
    times: tuple[tuple[datetime, str], ...]
    """When it was handled and by which process, the first one first."""
    begun_at: datetime
    """When the last of these handlings began."""
    suspects: tuple[ConsumerProcess, ...] = ()
    """The lost processes that may have had it."""
    begun_by: tuple[Begun, ...] = ()
    """Those of them that had it in a handler at their last heartbeat; if none, some may have had it waiting."""
    still: tuple[Begun, ...] = ()
    """The living processes that had begun it before the last handling, and have it in a handler yet."""
    beside: tuple[str, ...] = ()
    """The other processes that ran before, and still do: one that lost its connection may have handled it."""
    name: str = ""
    """Its first business key, else its id."""

    @property
    def certain(self) -> bool:
        """True if two processes have handled it to the end."""
        return len(self.times) > 1

    @property
    def perhaps(self) -> int:
        """How often it was handled at most, as far as it is known who had it."""
        return len(self.times) + (len(self.begun_by) + len(self.still) or int(not self.certain))

    @property
    def beside_listed(self) -> str:
        return listed(self.beside)

    @property
    def at(self) -> datetime:
        return self.times[-1][0]

    @property
    def mark(self) -> str:
        """The digest of the doubt."""
        return mark(
            "again", self.identity, self.at, len(self.times), bool(self.begun_by or self.still) and not self.certain
        )


def handled_again(now: datetime, processes: Iterable[ConsumerProcess]) -> tuple[HandledAgain, ...]:
    """Return them: first those that were handled twice for certain, then those that the lost process had begun.

    The broker gives back what a lost process had in the order in which it was published. So of the others those come
    first that were handled first: the process can have begun as many as it handled at once.

    Read an index: few messages are handled that a consumer had before; two queries more if there are some.

    A consumer that stops in good order gives back what it has not begun. So a message counts only if one of its queue
    vanished before, as long as its row is kept, and not before the message was published; or if two handled it; or if
    one that lives has it in a handler yet: it lost its connection, or was frozen.
    """
    known: dict[str, list[Attempt]] = {}
    for attempt in _handled_after_another(now):
        known.setdefault(attempt.identity, []).append(attempt)
    for attempt in _handled_before(known):
        known[attempt.identity].insert(0, attempt)
    every = list(processes)
    lost = {one.pk: one for one in every if one.vanished(now)}
    suspects = [
        (some, frozenset(pk for pk, one in lost.items() if _had_before(one, some[-1]))) for some in known.values()
    ]
    ran = {one.pk for one in every if any(_had_begun(one, some[-1]) for some in known.values())}
    held = _in_handlers({pk for _some, of in suspects for pk in of} | ran)
    # Most have the same suspects, and each of these may have a hundred messages.
    begun = {of: begun_by(one for pk, one in held.items() if pk in of) for _some, of in suspects}
    at_work = {of: begun_by(one for pk, one in held.items() if pk not in of) for of in begun}
    found = [(of, _told(some, begun[of], at_work[of], lost)) for some, of in suspects]
    told = [
        replace(one, suspects=tuple(lost[pk] for pk in of))
        for of, one in found
        if one.certain or of or one.still or one.begun_by
    ]
    counted = _sent_by_runs([one.identity for one in told if not one.certain])
    told = [one for one in told if one.certain or one.identity not in counted]
    return tuple(sorted(told, key=_place))


def _place(one: HandledAgain) -> tuple[object, ...]:
    lost = max((row.beat_at for row in one.suspects), default=one.at)
    latest = one.at if one.certain else lost
    return not one.certain, not (one.begun_by or one.still), -latest.timestamp(), one.at


def handled_at_once(known: Iterable[HandledAgain]) -> tuple[int, int | None]:
    """Return how many lost processes may have had these, and how many messages they handled at once at most.

    That is None if it is not known.
    """
    lost = {row.pk: row for one in known for row in one.suspects}
    each = [row.threads * _largest_batch(row) for row in lost.values()]
    return len(lost), sum(each) if all(each) else None


def _largest_batch(process: ConsumerProcess) -> int:
    """Return how many messages one call of a handler can take in a process; 0 if that is not known."""
    try:
        work_queues = registry.work_queues()
    except ConfigurationError:
        return 0
    batches = [one.batch for one in work_queues if reads(process, one.queue.name)]
    return max((one.size for one in batches if one is not None), default=1)


def _had_before(lost: ConsumerProcess, attempt: Attempt) -> bool:
    place = attempt.queue, attempt.message_id
    return may_have_had(lost, *place, published=attempt.published_at, begun=attempt.started_at)


def may_have_had(
    lost: ConsumerProcess, queue: str, message_id: str, *, published: datetime | None, begun: datetime
) -> bool:
    """Return True if a lost consumer may have had a message of a queue before another one began it.

    What was published after it had ended it never had; one whose end is not known may only miss its database. Its end
    may have been noticed late: it ended soon after its last heartbeat.
    """
    ended = lost.ended_at
    after = ended is not None and max(ended, lost.beat_at + SILENT_AFTER + CLOCKS_DIFFER)
    after_its_end = bool(published and after and published > after)
    if lost.beat_at >= begun or after_its_end or not reads(lost, queue):
        return False
    left = lost.left_of(queue)
    return left is None or message_id in left


def _had_begun(living: ConsumerProcess, attempt: Attempt) -> bool:
    """Return True if a living consumer may have begun a message before this attempt.

    It was heard of since: what was in a handler before says nothing of one that is frozen, or was killed just now.
    """
    return living.started_at < attempt.started_at < living.beat_at and reads(living, attempt.queue)


def _sent_by_runs(identities: Sequence[str]) -> frozenset[str]:
    """Return the retries that a run has sent: what is in doubt of them, or no longer is, the run tells itself."""
    rows = EarlyRetry.objects.exclude(state=ItemState.SKIPPED)
    return frozenset(
        one for some in with_one_of(rows, "identity", identities) for one in some.values_list("identity", flat=True)
    )


def _handled_after_another(now: datetime) -> Iterator[Attempt]:
    """Yield the attempts that did such work, the first one first."""
    rows = _again_since(now - TWICE_REPORTED_FOR).filter(verdict=ACK.name, cycle=1)
    yield from sorted(rows.only(*_COLUMNS)[:MOST_HANDLED_AGAIN], key=lambda one: one.ended_at)


def delivered_again(since: datetime) -> list[tuple[Attempt, str, datetime]]:
    """Return the attempts since then of messages that a consumer had before and did not acknowledge, the latest first.

    Each has the name of its message, and when it began. One query; one more if there are some.
    """
    columns = ("identity", "queue", "message_id", "started_at")
    rows = list(_again_since(since).only(*columns)[:MOST_HANDLED_AGAIN])
    names = _names({one.identity: one.message_id for one in rows})
    return [(one, names[one.identity], one.started_at) for one in rows]


def _handled_before(identities: Collection[str]) -> Iterator[Attempt]:
    """Yield the attempts that handled these messages at first, the last one first; one query if there are some.

    Of most of them there is none: such an attempt is noted only if its message was retried, or its ack may be lost.
    """
    rows = Attempt.objects.filter(redelivered=False, verdict=ACK.name, cycle=1).only(*_COLUMNS).order_by("-started_at")
    for some in with_one_of(rows, "identity", identities):
        yield from some


def _again_since(since: datetime) -> "QuerySet[Attempt]":
    rows = Attempt.objects.filter(redelivered=True, started_at__gt=since).order_by("-started_at")
    return rows.exclude(handler__in=handlers_that_repeat_nothing())


def handlers_that_repeat_nothing() -> list[str]:
    """Return the handlers with ``once``: what a lost consumer had begun of theirs does no harm."""
    try:
        return handlers_with_once()
    except ConfigurationError:
        # A check reports handlers that are invalid; the database is surveyed all the same.
        return []


def queues_in_hand(lost: ConsumerProcess) -> set[str]:
    """Return the work queues of which it may have had messages when it ended."""
    return {queue for queue in map(work_queue, lost.queues) if lost.left_of(queue) != []}


def reads(process: ConsumerProcess, queue: str) -> bool:
    return queue in map(work_queue, process.queues)


def _in_handlers(processes: Collection[int]) -> dict[int, ConsumerProcess]:
    """Return those of these processes that had messages in their handlers when they were heard of last."""
    rows = ConsumerProcess.objects.exclude(in_flight=[]).only("host", "pid", "beat_at", "in_flight")
    return {one.pk: one for some in with_one_of(rows, "pk", processes) for one in some}


def _told(some: Sequence[Attempt], begun: BegunBy, at_work: BegunBy, lost: Collection[int]) -> HandledAgain:
    last = some[-1]
    # Its own attempt began when it did, but for what clocks are read apart.
    before = last.started_at - READ_APART
    place = last.queue, last.message_id
    yet = [one for one in at_work.get(place, ()) if one.since is not None and one.since < before]
    gone = [one for one in yet if one.consumer.pk in lost]
    # Without an id, messages of one body have the same attempts: it is not known that one was handled twice.
    times = some if last.message_id else [last]
    return HandledAgain(
        identity=last.identity,
        queue=last.queue,
        handler=last.handler,
        message_id=last.message_id,
        times=tuple((one.ended_at, one.process) for one in times),
        begun_at=last.started_at,
        begun_by=all_begun({place: [*begun.get(place, ()), *gone]}, [last.queue], last.message_id, some),
        still=tuple(one for one in yet if one not in gone),
    )


def named(
    found: Sequence[HandledAgain], processes: Iterable[ConsumerProcess], now: datetime
) -> tuple[HandledAgain, ...]:
    """Return the same with their names, and with the living processes that may have had them, too; one query."""
    names = _names({one.identity: one.message_id for one in found})
    living = [one for one in processes if not one.vanished(now)]
    return tuple(replace(one, name=names[one.identity], beside=_beside(one, living)) for one in found)


def _beside(one: HandledAgain, living: Iterable[ConsumerProcess]) -> tuple[str, ...]:
    if one.certain or one.begun_by or one.still:
        return ()
    ran = [str(it) for it in living if it.started_at < one.begun_at and reads(it, one.queue)]
    if one.times[-1][1] in ran:
        # Of two with this name the other one may have had it.
        ran.remove(one.times[-1][1])
    return tuple(ran)


def _names(ids: Mapping[str, str]) -> dict[str, str]:
    """Return the first business key of each message, else its id; one query if there are some."""
    return {**ids, **first_keys(ids)}

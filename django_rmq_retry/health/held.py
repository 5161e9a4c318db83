"""What a process may have had and never settled: the broker gave it to another, so it was perhaps handled twice."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from django.db import router
from django.db.models import Q, QuerySet

from django_rmq_retry import database_clock
from django_rmq_retry.attempts.since_then import Attempts, attempts_with
from django_rmq_retry.health.begun import time_in
from django_rmq_retry.health.handled_again import READ_APART, queues_in_hand
from django_rmq_retry.health.processes import KEPT_EMPTY, MOST_SURVEYED_PROCESSES
from django_rmq_retry.models import ConsumerProcess, ItemState, RequeueRun
from django_rmq_retry.models.controls import VANISHED_AFTER
from django_rmq_retry.parked.database import records_alias
from django_rmq_retry.parked.early_outcomes import PERHAPS_TWICE
from django_rmq_retry.topology.declarations import work_queue

KNOWN_AFTER, TAKEN_BACK_WITHIN = 2 * VANISHED_AFTER, 5 * VANISHED_AFTER
"""The times after an outcome from which it is known that no consumer died before it, and until which its doubt is
taken back: consumers look once a minute."""
MOST_SPANS = 10
"""The most times that are told apart for one queue."""
MOST_BEGUN = 50
"""The most messages in handlers that are told apart: the longest there."""


class Span(NamedTuple):
    """A message that was under way at some time in it may have been in the hands of such a process."""

    since: datetime
    until: datetime


class Left(NamedTuple):
    """All that such a process had of a stopped queue, by ids: messages that it had begun."""

    ids: Sequence[str]
    span: Span


class InHand(NamedTuple):
    """A message in the handler of a process, which another one may have handled since."""

    queue: str
    message_id: str
    since: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldUnsettled:
    """What such processes had: of a lost one any messages of its queues from its last heartbeat to its end, but of a
    stopped queue those that it had not given back, and of each what it had in a handler. What was handled before a
    process was lost it had given back, or handled itself."""

    lost: Mapping[str, Sequence[Span]]
    left: Mapping[str, Sequence[Left]]
    in_hand: Sequence[InHand]
    known: bool
    """False if no process is known."""

    @classmethod
    def at(cls, now: datetime) -> "HeldUnsettled":
        """Read the processes of the last hour, by one query; one more for what became of what is in their handlers."""
        rows = ConsumerProcess.objects.using(router.db_for_read(ConsumerProcess)).order_by("-beat_at")
        known = list(rows.filter(beat_at__gte=now - KEPT_EMPTY)[:MOST_SURVEYED_PROCESSES])
        lost, left = defaultdict[str, list[Span]](list), defaultdict[str, list[Left]](list)
        for one in known:
            for queue in queues_in_hand(one) if one.silent(now) or one.vanished(now) else ():
                ids, span = one.left_of(queue), Span(one.beat_at, one.ended_at or now)
                if ids is None or len(left[queue]) == MOST_SPANS:
                    lost[queue].append(span)
                else:
                    left[queue].append(Left(ids, span))
        return cls(lost=lost, left=left, in_hand=_in_hand(known), known=bool(known))

    def unfounded(self, run: RequeueRun, now: datetime) -> "QuerySet[Any]":
        """Return the messages of a run that were processed, and that none of these processes can have begun before.

        None that was not heard of any more as the run began; and nothing that was sent when the rows of those that
        died then may be gone.
        """
        begun = run.started_at or run.created_at
        done = run.parts.using(records_alias()).filter(PERHAPS_TWICE, state=ItemState.PROCESSED)
        done = done.filter(sent_at__gte=now - KEPT_EMPTY)
        for queue, known in self.lost.items():
            mine = _among(run, queue)
            spans = [one for one in known if one.since >= begun] if mine is not None else []
            for since, until in _united(spans):
                done = done.exclude(mine, sent_at__lte=until, ended_at__gte=since)
        for queue, some in self.left.items():
            mine = _among(run, queue)
            for ids, (since, until) in some if mine is not None else ():
                if since >= begun:
                    same = Q() if run.retries_of else _with_one_of(ids)
                    done = done.exclude(mine, same, sent_at__lte=until, ended_at__gte=since)
        for one in self.in_hand:
            mine = _among(run, one.queue)
            if mine is not None:
                same = Q() if run.retries_of else Q(message__message_id=one.message_id)
                done = done.exclude(mine, same, sent_at__lte=one.since, ended_at__gte=one.since)
        return done


NOTHING_HELD = HeldUnsettled(lost={}, left={}, in_hand=(), known=False)


def awaits_end_of_doubts(run: RequeueRun, now: datetime) -> bool:
    """Return True if what was perhaps handled twice in this run may be taken back soon."""
    return bool(run.perhaps_twice and run.finished_at and run.finished_at > now - TAKEN_BACK_WITHIN)


def lost_a_consumer(run: RequeueRun, processes: Iterable[ConsumerProcess], now: datetime) -> bool:
    """Return True if messages of a run were delivered again, and a consumer vanished since the run began.

    Of a consumer that stops in good order they are delivered again, too, but it had not begun them.
    """
    since, queue = run.started_at or run.created_at, run.retries_of or run.target
    if not run.perhaps_twice:
        return False
    lost = (queues_in_hand(one) for one in processes if one.beat_at > since and one.vanished(now))
    return any(work_queue(queue) in queues if queue else queues for queues in lost)


def leave_out_unfounded(runs: Iterable[RequeueRun]) -> None:
    """Change what is shown of these runs: count no message as perhaps handled twice that only was delivered again.

    A pause or a stop gives messages back, too. Unless a lost consumer can have had them, this is taken back in a
    minute. Two queries and one for each such run, if there are some.
    """
    now = database_clock.reckoned(records_alias())
    doubtful = [run for run in runs if run.perhaps_twice and (run.active or awaits_end_of_doubts(run, now))]
    held = HeldUnsettled.at(now) if doubtful else NOTHING_HELD
    for run in doubtful:
        lately = held.unfounded(run, now).filter(ended_at__gte=now - TAKEN_BACK_WITHIN)
        run.perhaps_twice -= min(lately.count(), run.perhaps_twice)


def _in_hand(processes: Iterable[ConsumerProcess]) -> list[InHand]:
    """Return what these have in their handlers and did not end themselves, the longest there first."""
    found = []
    for one in processes:
        for entry in one.in_flight:
            name, begun = str(entry.get("message_id") or ""), time_in(entry.get("since"))
            if name and begun:
                found.append((InHand(work_queue(str(entry.get("queue") or "")), name, begun), str(one)))
    first = sorted(found, key=lambda one: one[0].since)[:MOST_BEGUN]
    if not first:
        return []
    attempts = attempts_with({one.message_id for one, _process in first}, first[0][0].since)
    return [one for one, process in first if not _ended_by(process, one, attempts)]


def _ended_by(process: str, one: InHand, attempts: Attempts) -> bool:
    tried = attempts.get((one.queue, one.message_id), ())
    return any(it.process == process and abs(it.started_at - one.since) < READ_APART for it in tried)


def _with_one_of(ids: Sequence[str]) -> Q:
    """Match the parts of a run whose copy may have one of these ids: an edit may have given it another one."""
    return Q(message__message_id__in=[*ids, ""]) | Q(message__version__gt=1)


def _among(run: RequeueRun, queue: str) -> Q | None:
    """Match the parts of a run that went to a queue; None if none did."""
    if one := run.retries_of or run.target:
        return Q() if work_queue(one) == queue else None
    return Q(message__queue=queue)


def _united(spans: Sequence[Span]) -> list[Span]:
    """Return them without overlaps; of too many, one that has all of them."""
    found = list(_merged(sorted(spans))) if spans else []
    return [Span(found[0].since, found[-1].until)] if len(found) > MOST_SPANS else found


def _merged(spans: Sequence[Span]) -> Iterator[Span]:
    since, until = spans[0]
    for one in spans[1:]:
        if one.since > until:
            yield Span(since, until)
            since = one.since
        until = max(until, one.until)
    yield Span(since, until)

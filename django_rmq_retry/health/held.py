"""What a process may have had and never settled: the broker gave it to another, so it was perhaps handled twice."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from django_rmq_retry.health.begun import time_in
from django_rmq_retry.models import ConsumerProcess
from django_rmq_retry.topology.declarations import work_queue

MOST_SPANS = 10
"""The most times that are told apart for one queue."""


class Span(NamedTuple):
    """A message that was under way at some time in it may have been in the hands of such a process."""

    since: datetime
    until: datetime


def held_unsettled(processes: Iterable[ConsumerProcess], now: datetime) -> Mapping[str, Sequence[Span]]:
    """Return for each work queue the times in which these processes had such messages.

    A handler that runs may be one of a message that another has handled since: it counts from its begin. A process that
    was lost had any messages from its last heartbeat to its end. What was handled before it had given back, or handled
    itself.
    """
    found = defaultdict[str, list[Span]](list)
    for one in processes:
        for entry in one.in_flight:
            if begun := time_in(entry.get("since")):
                found[work_queue(str(entry.get("queue") or ""))].append(Span(begun, begun))
        if one.vanished(now):
            for queue in map(work_queue, one.queues):
                if not one.had_none_of(queue):
                    found[queue].append(Span(one.beat_at, one.ended_at or now))
    return {queue: _united(spans) for queue, spans in found.items()}


def _united(spans: Iterable[Span]) -> list[Span]:
    """Return them without overlaps; of too many, one that has all of them."""
    found = list(_merged(sorted(spans)))
    return [Span(found[0].since, found[-1].until)] if len(found) > MOST_SPANS else found


def _merged(spans: Sequence[Span]) -> Iterator[Span]:
    since, until = spans[0]
    for one in spans[1:]:
        if one.since > until:
            yield Span(since, until)
            since = one.since
        until = max(until, one.until)
    yield Span(since, until)

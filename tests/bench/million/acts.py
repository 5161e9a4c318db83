"""Bulk actions on very many messages: an export, the start of a requeue run, and purging old rows."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from unittest import mock

from django.utils import timezone

from django_rmq_retry.models import ParkedMessage, RequeueRun
from django_rmq_retry.models.parked import RESOLVED, State
from django_rmq_retry.parked import listing, retention
from django_rmq_retry.parked.findings import report
from django_rmq_retry.parked.operators import Actor
from django_rmq_retry.parked.selection import Selection
from django_rmq_retry.parked.transfer import export
from tests.bench import processes
from tests.bench.million.timing import Watch
from tests.bench.report import Finding, table
from tests.operators.made import requeue_run

ME = Actor.of_code("bench")
MOST_GROWN, LONGEST_START, LONGEST_LOCK = 50.0, 2.0, 1000.0
CHOSEN, RESOLVED_ONES = 300_000, 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """One action: seconds, additional megabytes of memory, and a limit of its own."""

    name: str
    count: int
    seconds: float
    grown: float
    said: str
    limit: tuple[str, float, float] | None = None
    """The limit: its subject, the measured value and the highest allowed value."""

    def findings(self) -> Iterator[Finding]:
        yield Finding(what=f"{self.name}: +{self.grown:.0f} MB of {MOST_GROWN:g}", met=self.grown <= MOST_GROWN)
        if self.limit is not None:
            what, was, most = self.limit
            yield Finding(what=f"{self.name}: {what} {was:.1f} of {most:g}", met=was <= most)


def measure(share: float) -> list[Finding]:
    """Run the actions once and print; return the findings. For fewer messages the limits are scaled down."""
    watch = Watch.mine()
    selection = _oldest(int(CHOSEN * share))
    done = (_export(watch, selection), *_run(watch, selection), _purge(watch, int(RESOLVED_ONES * share)))
    rows: list[Sequence[str]] = [("act", "messages", "seconds", "memory", "what else")]
    rows += [(one.name, f"{one.count:,}", f"{one.seconds:.1f}", f"+{one.grown:.0f} MB", one.said) for one in done]
    table(rows)
    return [finding for one in done for finding in one.findings()]


def _export(watch: Watch, selection: Selection) -> Done:
    def act() -> tuple[float, int]:
        began = time.perf_counter()
        lines = export(selection, ME, reason="bench")
        size = len(next(lines)) + len(next(lines))
        return time.perf_counter() - began, size + sum(map(len, lines))

    seconds, grown, (first, size) = _costs(watch, act)
    said = f"{size / 2**20:.0f} MB, the first row after {first:.1f} s"
    return Done(name="export as CSV", count=selection.count, seconds=seconds, grown=grown, said=said)


def _run(watch: Watch, selection: Selection) -> tuple[Done, Done]:
    looked, _grown, found = _costs(watch, lambda: report(selection))
    seconds, grown, run = _costs(watch, lambda: requeue_run(selection, ME, reason="bench", include=["duplicates"]))
    said = f"{looked:.1f} s for the preview of {found.total:,}"
    limit = ("seconds", seconds, LONGEST_START)
    started = Done(name="start a requeue run", count=run.total, seconds=seconds, grown=grown, said=said, limit=limit)
    seconds, grown, parts = _costs(watch, lambda: list(_listed(run)))
    run.refresh_from_db()
    said = f"{len(parts)} transactions, the longest {max(parts):.0f} ms; {run.skipped:,} left out"
    limit = ("the longest transaction, milliseconds,", max(parts), LONGEST_LOCK)
    return started, Done(name="list it", count=run.total, seconds=seconds, grown=grown, said=said, limit=limit)


def _listed(run: RequeueRun) -> Iterator[float]:
    """Write the items of a requeue run like its driver; return the milliseconds of each transaction."""
    RequeueRun.objects.filter(pk=run.pk).update(driver="bench")
    while RequeueRun.objects.get(pk=run.pk).listing:
        began = time.perf_counter()
        listing.list_part(run.pk, "bench")
        yield (time.perf_counter() - began) * 1000


def _purge(watch: Watch, count: int) -> Done:
    rows = ParkedMessage.objects.filter(state__in=RESOLVED, resolved_at__isnull=False).order_by("resolved_at")
    age = timezone.now() - _moment(rows, "resolved_at", count)
    took: list[float] = []
    batch: Callable[..., object] = retention._batch

    def timed(*given: object) -> object:
        one = watch.time(lambda: batch(*given))
        took.append(one.served)
        return one.result

    with mock.patch.object(retention, "_batch", timed):
        seconds, grown, done = _costs(watch, lambda: retention.purge(ME, older_than=age, dry=False, rest=0))
    said = f"{len(took)} batches, the longest {max(took):.0f} ms"
    limit = ("the longest transaction, milliseconds,", max(took), LONGEST_LOCK)
    return Done(name="purge", count=done.total, seconds=seconds, grown=grown, said=said, limit=limit)


def _oldest(count: int) -> Selection:
    """Return a filter that selects this number of parked messages."""
    before = _moment(ParkedMessage.objects.filter(state=State.PARKED).order_by("parked_at"), "parked_at", count)
    return Selection.of_filter({"state": [State.PARKED.value], "parked_before": before.isoformat()})


def _moment(rows: Any, column: str, place: int) -> datetime:
    found: datetime = rows.values_list(column, flat=True)[place]
    return found


def _costs(watch: Watch, act: Callable[[], Any]) -> tuple[float, float, Any]:
    """Return seconds, megabytes and result; the kernel keeps the peak memory since its last reset."""
    own = os.getpid()
    Path("/proc/self/clear_refs").write_text("5")
    before = processes.resident(own)
    took = watch.time(act)
    return took.served / 1000, max(0.0, processes.most_resident(own) - before), took.result

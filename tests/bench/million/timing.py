"""Measure a page on the server, with its queries; Django's own queries are counted separately.

Time in which this process or PostgreSQL waited for a core is subtracted. A slow core is not: many hosts give a virtual
machine less of one without telling it. So the CPU time of a fixed calculation is measured before each request, and
targets are those of a core on which it takes ``USUAL_PACE``.
"""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from django.db import connection

from tests.bench import processes

DJANGOS = ("django_session", "auth_user", "auth_permission", "auth_group")
"""Tables of the session and the permissions, which every admin page queries."""
WARM, TIMES = 2, 7
SUMMED = 100_000
"""The numbers that the fixed calculation sums up."""
USUAL_PACE = 7.0
"""The milliseconds that it takes on the core for which the targets were set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Took:
    """The milliseconds of one request."""

    served: float
    by_the_clock: float
    cpu: float
    """The CPU time of this process and of its PostgreSQL backend."""
    result: Any


@dataclass(frozen=True, slots=True)
class Watch:
    """A stopwatch that stops while this process or PostgreSQL waits for a core."""

    backend: int

    @classmethod
    def mine(cls) -> "Watch":
        """Return a stopwatch for this process and its PostgreSQL backend, both on this machine."""
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            return cls(int(cursor.fetchone()[0]))

    def time(self, act: Callable[[], Any]) -> Took:
        waited, worked, began = self._waited(), self._worked(), time.perf_counter()
        result = act()
        clock = (time.perf_counter() - began) * 1000
        cpu = self._worked() - worked
        # While both wait at once, as for rows that are fetched in parts, the difference leaves out too much.
        served = max(cpu, clock - self._waited() + waited)
        return Took(served=served, by_the_clock=clock, cpu=cpu, result=result)

    def _waited(self) -> float:
        return processes.delayed(os.getpid()) + processes.delayed(self.backend)

    def _worked(self) -> float:
        return time.process_time() * 1000 + processes.cpu(self.backend)


@dataclass(slots=True)
class Queries:
    """The database queries, with the milliseconds of each."""

    watch: Watch
    asked: list[tuple[float, str]] = field(default_factory=list)

    def __call__(self, execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        took = self.watch.time(lambda: execute(sql, params, many, context))
        self.asked.append((took.served, sql))
        return took.result

    @property
    def own(self) -> list[tuple[float, str]]:
        return [one for one in self.asked if not any(name in one[1] for name in DJANGOS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """One page for one user: milliseconds, and the queries of the last round."""

    served: float
    """Milliseconds without waiting for a core."""
    by_the_clock: float
    cpu: float
    pace: float
    """Milliseconds of the fixed calculation before each request."""
    all: int
    own: int
    slowest: float
    """Milliseconds of the slowest query, as the median of all rounds."""
    sql: str

    @property
    def usually(self) -> float:
        """The milliseconds that this takes on the core for which the targets were set."""
        return self.served * USUAL_PACE / self.pace

    @property
    def slowest_usually(self) -> float:
        return self.slowest * USUAL_PACE / self.pace


def timed(asks: Sequence[Callable[[], Any]]) -> list[Timed]:
    """Return the medians of several rounds. Each round has each page once, so a slow minute affects all pages."""
    for ask in [*asks] * WARM:
        ask()
    watch = Watch.mine()
    rounds = [[_once(watch, ask) for ask in asks] for _ in range(TIMES)]
    return [_median(times) for times in zip(*rounds, strict=True)]


def _once(watch: Watch, ask: Callable[[], Any]) -> tuple[Took, Queries, float]:
    queries, pace = Queries(watch), _pace()
    with connection.execute_wrapper(queries):
        return watch.time(ask), queries, pace


def _pace() -> float:
    """Return the CPU milliseconds that a fixed calculation takes on this core now."""
    began = time.thread_time()
    sum(number * number for number in range(SUMMED))
    return (time.thread_time() - began) * 1000


def _median(times: Sequence[tuple[Took, Queries, float]]) -> Timed:
    queries = times[-1][1]
    slowest = [max(one.own, default=(0.0, "")) for _took, one, _pace in times]
    return Timed(
        served=median(took.served for took, _queries, _pace in times),
        by_the_clock=median(took.by_the_clock for took, _queries, _pace in times),
        cpu=median(took.cpu for took, _queries, _pace in times),
        pace=median(pace for _took, _queries, pace in times),
        all=len(queries.asked),
        own=len(queries.own),
        slowest=median(milliseconds for milliseconds, _sql in slowest),
        sql=slowest[-1][1],
    )

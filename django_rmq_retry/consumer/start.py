"""The options of one start of ``rmq_consume``, and the banner that shows them."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.db import connections

from django_rmq_retry import __version__, conf
from django_rmq_retry.arguments import plural
from django_rmq_retry.consumer.consumer import sizes_of
from django_rmq_retry.handlers import registry
from django_rmq_retry.handlers.subscription import WorkQueue
from django_rmq_retry.telemetry.http import Address


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The options of rmq_consume; an option that is not given is taken from the settings."""

    work_queues: Sequence[WorkQueue]
    threads: int
    async_handlers: int
    processes: int
    prefetch: int
    shutdown: float
    burst: bool
    messages: int | None
    seconds: float | None
    memory: int | None
    fail_fast: bool
    liveness_file: Path | None
    verbosity: int
    http: Address | None = None
    """The address of the HTTP server for metrics and health."""
    drains: bool = False
    """True if this process moves parked messages into the database."""

    @classmethod
    def of(cls, work_queues: Sequence[WorkQueue], options: Mapping[str, Any]) -> "Start":
        settings = conf.settings()
        return cls(
            work_queues=work_queues,
            threads=options["threads"] or settings.threads,
            async_handlers=options["async_handlers"] or settings.async_handlers,
            processes=options["processes"],
            prefetch=options["prefetch"] or settings.prefetch,
            shutdown=settings.shutdown_timeout if options["shutdown_timeout"] is None else options["shutdown_timeout"],
            burst=options["burst"],
            messages=options["max_messages"],
            seconds=options["max_runtime"],
            memory=options["max_memory"],
            fail_fast=options["fail_fast"],
            liveness_file=options["liveness_file"],
            verbosity=options["verbosity"],
            http=options["http"],
            drains=bool(settings.records and not options["no_park"] and parked_queues()),
        )

    def lines(self, *, without_signs: bool) -> Iterator[str]:
        """Return the lines of the banner: sizes, queues, broker and databases."""
        dot = ", " if without_signs else " · "
        threads, side_by_side = sizes_of(self.work_queues, threads=self.threads, asynchronous=self.async_handlers)
        sizes = [f"pid {os.getpid()}", *([plural(threads, "thread")] if threads else [])]
        sizes += [f"{side_by_side} async"] if side_by_side else []
        sizes.append(f"prefetch {self.prefetch}")
        if self.processes > 1:
            sizes.insert(1, plural(self.processes, "process", "es"))
        yield dot.join([f"django-rmq-retry {__version__}", *sizes])
        width = max((len(work_queue.queue.name) for work_queue in self.work_queues), default=0)
        for work_queue in self.work_queues:
            names = ", ".join(one.name for one in work_queue.subscriptions)
            ordered = "  (in order, one at a time)" if work_queue.ordered else ""
            yield f"  queue     {work_queue.queue.name.ljust(width)}  {names}{ordered}"
        if self.drains:
            yield f"  parked    {', '.join(parked_queues())}"
        yield f"  broker    {conf.settings().address().shown}"
        for database in databases():
            yield f"  database  {database}"
        yield "Ctrl-C: finish and stop"

    def facts(self) -> dict[str, object]:
        """Return the content of the banner as the fields of a log line."""
        from_all = [one.name for work_queue in self.work_queues for one in work_queue.subscriptions]
        return {
            "queues": ",".join(work_queue.queue.name for work_queue in self.work_queues),
            "handlers": ",".join(from_all),
            "parked": ",".join(parked_queues()) if self.drains else "",
            "broker": conf.settings().address().shown,
            "databases": ",".join(databases()),
            "version": __version__,
            "processes": self.processes,
            "threads": self.threads,
            "async_handlers": self.async_handlers,
            "prefetch": self.prefetch,
        }


def parked_queues() -> tuple[str, ...]:
    """Return the parked queues of the handlers and of the setting PARKED_QUEUES, without queues that handlers read."""
    work_queues = registry.work_queues()
    work = {work_queue.queue.name for work_queue in work_queues}
    named = dict.fromkeys((*(work_queue.park for work_queue in work_queues), *conf.settings().parked_queues))
    return tuple(name for name in named if name not in work)


def databases() -> Iterator[str]:
    """Return each database as ``default postgresql bank@db``, without connecting to it."""
    for alias in connections:
        connection = connections[alias]
        host = connection.settings_dict.get("HOST")
        name = connection.settings_dict.get("NAME")
        yield f"{alias} {connection.vendor} {name}{f'@{host}' if host else ''}"

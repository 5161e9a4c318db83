"""What a consumer starts with, as people and programs are told; never the password."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from django.db import connections

from django_rmq_retry import __version__
from django_rmq_retry.conf import settings
from django_rmq_retry.core.subscription import Intake
from django_rmq_retry.draining import parked_queues
from django_rmq_retry.management.base import Options


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The options of rmq_consume, with the settings where they say nothing."""

    intakes: Sequence[Intake]
    threads: int
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
    parks: bool = False
    """Whether parked messages are taken into the database."""

    @classmethod
    def of(cls, intakes: Sequence[Intake], options: Options) -> "Start":
        now = settings()
        return cls(
            intakes=intakes,
            threads=options["threads"] or now.threads,
            processes=options["processes"],
            prefetch=options["prefetch"] or now.prefetch,
            shutdown=now.shutdown_timeout if options["shutdown_timeout"] is None else options["shutdown_timeout"],
            burst=options["burst"],
            messages=options["max_messages"],
            seconds=options["max_runtime"],
            memory=options["max_memory"],
            fail_fast=options["fail_fast"],
            liveness_file=options["liveness_file"],
            verbosity=options["verbosity"],
            parks=bool(now.records and not options["no_park"] and parked_queues()),
        )

    def lines(self, *, plain: bool) -> Iterator[str]:
        """The banner: a line for each thing to know."""
        dot = ", " if plain else " · "
        sizes = [f"pid {os.getpid()}", counted(self.threads, "thread"), f"prefetch {self.prefetch}"]
        if self.processes > 1:
            sizes.insert(1, counted(self.processes, "process", "es"))
        yield dot.join([f"django-rmq-retry {__version__}", *sizes])
        width = max((len(intake.queue.name) for intake in self.intakes), default=0)
        for intake in self.intakes:
            names = ", ".join(one.name for one in intake.subscriptions)
            ordered = "  (in order, one at a time)" if intake.ordered else ""
            yield f"  queue     {intake.queue.name.ljust(width)}  {names}{ordered}"
        if self.parks:
            yield f"  parked    {', '.join(parked_queues())}"
        yield f"  broker    {settings().address().shown}"
        for database in databases():
            yield f"  database  {database}"
        yield "Ctrl-C: finish and stop"

    def facts(self) -> dict[str, object]:
        """The same for a log line."""
        from_all = [one.name for intake in self.intakes for one in intake.subscriptions]
        return {
            "queues": ",".join(intake.queue.name for intake in self.intakes),
            "handlers": ",".join(from_all),
            "parked": ",".join(parked_queues()) if self.parks else "",
            "broker": settings().address().shown,
            "databases": ",".join(databases()),
            "version": __version__,
            "processes": self.processes,
            "threads": self.threads,
            "prefetch": self.prefetch,
        }


def databases() -> Iterator[str]:
    """``default postgresql bank@db``; nothing is connected to."""
    for alias in connections:
        connection = connections[alias]
        host = connection.settings_dict.get("HOST")
        name = connection.settings_dict.get("NAME")
        yield f"{alias} {connection.vendor} {name}{f'@{host}' if host else ''}"


def counted(number: int, noun: str, plural: str = "s") -> str:
    return f"{number} {noun}{'' if number == 1 else plural}"

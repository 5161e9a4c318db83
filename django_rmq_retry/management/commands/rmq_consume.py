"""``manage.py rmq_consume``: run the handlers until the process is stopped."""

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from django.conf import settings as project
from django.core.management.base import CommandError, CommandParser
from django.utils import autoreload

from django_rmq_retry.conf import MOST_ASYNC_HANDLERS, settings
from django_rmq_retry.consumer.process import ConsumingProcess, supervised
from django_rmq_retry.consumer.start import Start
from django_rmq_retry.consumer.status_line import Above, LastRow
from django_rmq_retry.declared import save
from django_rmq_retry.embedded.wire import server
from django_rmq_retry.exit_codes import Exit
from django_rmq_retry.handlers import registry
from django_rmq_retry.handlers.subscription import WorkQueue
from django_rmq_retry.management import terminal
from django_rmq_retry.management.arguments import http_address, positive, seconds
from django_rmq_retry.management.command import Options, RmqCommand, check_known, open_declarer, usage_error
from django_rmq_retry.management.databases import check_without_database, look_without_lock
from django_rmq_retry.telemetry.http import AddressUnusable
from django_rmq_retry.topology.plan import Plan, PlanState

log = logging.getLogger("django_rmq_retry")


MOST_PREFETCH = 65_535


class Command(RmqCommand):
    help = "Consume the project's queues and run their handlers until the process is stopped."
    examples = (
        "rmq_consume",
        "rmq_consume payments.charge ledger.post --threads 8 --processes 2 --http 127.0.0.1:9464",
        "rmq_consume --burst --json-logs",
    )
    requires_system_checks = "__all__"  # type: ignore[assignment]  # Django's own word for all
    common = ("using",)

    def add_arguments(self, parser: CommandParser) -> None:
        add = parser.add_argument
        add("queues", nargs="*", metavar="QUEUE", help="the queues to consume; by default all that have a handler")
        add("--threads", type=positive, metavar="N", help="handlers that run at the same time in one process")
        add(
            "--async",
            dest="async_handlers",
            type=at_once,
            metavar="N",
            help="messages that async def handlers handle at the same time in one process, which share its event loop",
        )
        add("--processes", type=positive, metavar="N", default=1, help="number of processes; each has its own threads")
        add(
            "--prefetch",
            type=prefetch,
            metavar="N",
            help="unacked messages of one queue per process; for async def handlers at least --async",
        )
        add("--burst", action="store_true", help="exit when all queues are empty")
        add("--max-messages", type=positive, metavar="N", help="end a process after N attempts")
        add("--max-runtime", type=seconds, metavar="S", help="end a process after S seconds")
        add(
            "--max-memory",
            type=positive,
            metavar="MB",
            help="end a process gracefully when it uses more than MB megabytes",
        )
        add("--reload", action="store_true", help="restart when code changes (for development)")
        add(
            "--liveness-file",
            type=Path,
            metavar="FILE",
            help="write this file each second while the consumer is healthy",
        )
        add(
            "--http",
            type=http_address,
            metavar="HOST:PORT",
            help="serve /metrics, /livez and /readyz there; a bare port listens on 127.0.0.1",
        )
        add(
            "--shutdown-timeout", type=seconds, metavar="S", help="seconds that handlers may take to finish at shutdown"
        )
        add("--json-logs", action="store_true", help="write log lines as JSON")
        beside = parser.add_mutually_exclusive_group().add_argument
        beside("--park-only", action="store_true", help="record parked messages in the database; run no handlers")
        beside("--no-park", action="store_true", help="leave parked messages in their queues")
        add("--fail-fast", action="store_true", help="exit if the broker is unreachable, instead of waiting for it")

    def check(self, *args: Any, **options: Any) -> None:
        look_without_lock()
        check = super().check
        check_without_database(lambda **changed: check(*args, **{**options, **changed}), self.say)

    def run(self, options: Options) -> Exit | None:
        if options["reload"] and options["processes"] > 1:
            raise usage_error("--reload supports one process only. Omit --processes.")
        check_folder(options["liveness_file"])
        start = Start.of(self._chosen(options["queues"]) if not options["park_only"] else (), options)
        if options["async_handlers"]:
            check_async(start)
        if options["park_only"]:
            check_park_only(start, options["queues"])
        # Invalid settings are reported here, in one sentence, before anything is started.
        plan = bring_broker() if settings().access().embedded else None
        many = start.processes > 1
        verbosity, json_logs = options["verbosity"], options["json_logs"]
        row = None if many or json_logs else self._last_row(options)
        stream = self.stdout if row is None else Above(self.stdout, row)
        shown = terminal.install(stream, self.style, verbosity=verbosity, json_logs=json_logs, with_pid=many)
        row = row if shown else None
        if plan is not None:
            warn_of_drift(plan)
            if not project.DEBUG:
                log.warning(
                    "This is the embedded broker, which is for development, and DEBUG is off. Set RMQ_RETRY['URL'].",
                    extra={"event": "embedded"},
                )
        lines = shown and self.stdout.isatty() and not json_logs
        if options["reload"]:
            autoreload.run_with_reloader(self._reloadable, start, row, lines=lines)
            return None
        self._greet(start, lines=lines)
        try:
            process = None if many else ConsumingProcess(start, row=row)
            code = process.run() if process else supervised(start)
        except AddressUnusable as error:
            raise usage_error(str(error)) from error
        if code and process and not shown:
            # The project's own logging may hide the reason, and an operator must see why the process ended.
            raise CommandError(process.why, returncode=code)
        if code:
            sys.exit(code)
        return None

    def _chosen(self, queues: Sequence[str]) -> Sequence[WorkQueue]:
        known = {work_queue.queue.name: work_queue for work_queue in registry.work_queues()}
        if not known:
            raise CommandError(
                "There is no queue to consume: no installed app has a handlers.py with an @handler function.",
                returncode=Exit.NOTHING,
            )
        check_known("queue", queues, known)
        return [known[name] for name in dict.fromkeys(queues)] or list(known.values())

    def _greet(self, start: Start, *, lines: bool) -> None:
        """Write a line for each fact about the start on a terminal, one log line elsewhere."""
        if not lines:
            queues = ", ".join(work_queue.queue.name for work_queue in start.work_queues)
            log.info("Consuming %s", queues or "parked messages", extra={"event": "started", **start.facts()})
        elif start.verbosity:
            for text in start.lines(without_signs=not terminal.shows_signs(self.stdout)):
                self.line(text)

    def _last_row(self, options: Options) -> LastRow | None:
        """Return the status row below the log lines, if stdout is a terminal that can show it."""
        if not (self.stdout.isatty() and sys.stdout.isatty()) or os.environ.get("TERM") == "dumb":
            return None
        return LastRow(sys.stdout, escapes=not options["no_color"], without_signs=not terminal.shows_signs(sys.stdout))

    def _reloadable(self, start: Start, row: LastRow | None, *, lines: bool) -> None:
        self._greet(start, lines=lines)
        try:
            process = ConsumingProcess(start, row=row)
        except AddressUnusable as error:
            self.say(str(error))
            self.stderr.flush()
            # No change of code corrects it, and only this ends the reloader from its thread.
            os._exit(Exit.USAGE)
        code = process.run_reloadable()
        if code:
            self.say(f"The consumer ended with exit code {code}. It restarts when code changes.")


def bring_broker() -> Plan:
    """Start the embedded broker if it does not run, and declare the queues; a differing queue stays as it is."""
    server.ensure(settings().folder())
    topology = registry.topology()
    with open_declarer() as declarer:
        plan = declarer.declare(topology)
        why = save(declarer, topology, plan)
    if why:
        log.warning("The declared objects are not recorded in the database: %s", why, extra={"event": "forgetful"})
    return plan


def warn_of_drift(plan: Plan) -> None:
    """Log the queues and exchanges that the embedded broker keeps with an earlier definition."""
    for item in plan.of(PlanState.DIFFERS):
        log.warning(
            "The embedded broker has %s %s with an earlier definition (%s). To recreate a queue with its messages: "
            "manage.py rmq_declare --recreate %s",
            *(item.kind, item.name, item.text, item.name),
            extra={"event": "drift", item.kind: item.name},
        )


def check_park_only(start: Start, queues: Sequence[str]) -> None:
    if queues:
        raise usage_error("--park-only runs no handlers. Omit the queues.")
    if not start.drains:
        why = "no handler or setting names a parked queue" if settings().records else "RMQ_RETRY['RECORDS'] is False"
        raise CommandError(f"There is no parked queue to record: {why}.", returncode=Exit.NOTHING)


def check_async(start: Start) -> None:
    if not any(work_queue.asynchronous for work_queue in start.work_queues):
        raise usage_error(
            "--async is for queues whose handlers are all async def, and there is none here. Omit it, or use --threads."
        )


def at_once(text: str) -> int:
    number = positive(text)
    if number > MOST_ASYNC_HANDLERS:
        raise argparse.ArgumentTypeError(f"takes 1 to {MOST_ASYNC_HANDLERS}, not {number}")
    return number


def prefetch(text: str) -> int:
    """Parse an argument: a prefetch that AMQP can express."""
    number = positive(text)
    if number > MOST_PREFETCH:
        raise argparse.ArgumentTypeError(f"takes 1 to {MOST_PREFETCH}, not {number}")
    return number


def check_folder(path: Path | None) -> None:
    if path is not None and not (path.parent.is_dir() and os.access(path.parent, os.W_OK)):
        raise usage_error(f"--liveness-file cannot be written: {path.parent} is not a writable folder.")

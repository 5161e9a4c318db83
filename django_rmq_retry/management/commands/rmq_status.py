"""``manage.py rmq_status``: show what is wrong, the queues and the consumers, for operators and for probes."""

import argparse
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from itertools import compress

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandParser

from django_rmq_retry.arguments import plural
from django_rmq_retry.conf import settings
from django_rmq_retry.database_connections import renew_connections
from django_rmq_retry.declared import gauged
from django_rmq_retry.errors import RmqRetryError
from django_rmq_retry.exit_codes import Exit
from django_rmq_retry.health.look import look
from django_rmq_retry.health.problems import Limits, blind
from django_rmq_retry.health.process_list import ProcessList, ProcessRow, Seen
from django_rmq_retry.health.processes import MOST_LISTED_PROCESSES, Process, processes
from django_rmq_retry.health.rules import Problem, Severity
from django_rmq_retry.management import consumer_status, findings
from django_rmq_retry.management.arguments import MOST_LISTED, age, positive, whole
from django_rmq_retry.management.broker_status import (
    BrokerStatus,
    as_data,
    cells,
    heads,
    is_beside,
    is_quiet,
    state,
    totals,
)
from django_rmq_retry.management.command import Options, RmqCommand, add_json, open_declarer, usage_error
from django_rmq_retry.management.databases import DatabaseAway, named_errors
from django_rmq_retry.management.findings import Finding

LEAST_SECONDS, MOST_SECONDS = 0.1, 86_400.0
FAILING = {"warning": Severity.WARNING, "error": Severity.ERROR}
CLEARED = "\x1b[H\x1b[2J"
_HEAD = ("QUEUE", "ROLE", "READY", "UNACKED", "CONS", "IN/S", "OUT/S", "STATE")


class Command(RmqCommand):
    help = "Show what needs somebody, then the project's queues with their messages and consumers."
    examples = (
        "rmq_status",
        "rmq_status --check --max-parked 100 --max-oldest 10m --min-consumers 1",
        "rmq_status --watch 2",
        "rmq_status --consumers",
    )
    common = ("timeout", "using")
    patience = 3.0

    def add_arguments(self, parser: CommandParser) -> None:
        add = parser.add_argument
        add("--check", action="store_true", help="write one line, OK or FAIL; exit code 8 if there is a problem")
        add(
            "--fail-on",
            choices=("warning", "error"),
            default="error",
            help="with --check: fail from this level on; error by default",
        )
        add("--max-parked", type=whole, metavar="N", help="report a problem if more messages are parked")
        add(
            "--max-oldest",
            type=age,
            metavar="AGE",
            help="report a problem if a message is parked or in the outbox, or a queue is halted, for longer; "
            "by default 4h, 5m and 10m",
        )
        add(
            "--min-consumers",
            type=whole,
            default=0,
            metavar="N",
            help="report a problem if a work queue has fewer consumers",
        )
        add(
            "--all",
            action="store_true",
            help="show empty queues without a problem too; with --consumers, those that are over",
        )
        add("--consumers", action="store_true", help="show the consuming processes and their messages in flight")
        add(
            "--limit",
            type=positive,
            default=MOST_LISTED,
            metavar="N",
            help="with --consumers: at most N processes and messages in flight, problems first; "
            f"{MOST_LISTED} by default",
        )
        add("--watch", type=period, metavar="SECONDS", help="refresh every SECONDS until Ctrl-C")
        add_json(parser)

    def run(self, options: Options) -> Exit | None:
        if options["consumers"] and options["check"]:
            raise usage_error("--consumers cannot be combined with --check. Omit one.")
        # Settings that are not valid are reported before anything is printed.
        settings()
        if options["watch"] is not None:
            return self._watch(options)
        if options["consumers"]:
            return self._consumers(options)
        seen = self._look(options)
        failed = seen.health.failing(FAILING[options["fail_on"]])
        if options["json"]:
            self.document("status/1", **as_data(seen))
        elif options["check"]:
            self._probe(seen, failed)
        else:
            self._show(seen, every=options["all"])
        if seen.health.broker is None:
            return Exit.UNREACHABLE
        if options["check"]:
            return Exit.UNHEALTHY if failed else Exit.DONE
        # What the queues show alone is no status.
        return Exit.ERROR if seen.health.trouble else Exit.DONE

    def _look(self, options: Options) -> BrokerStatus:
        timeout = options["timeout"]
        return BrokerStatus.of(
            look(partial(open_declarer, timeout=timeout), timeout=timeout, limits=limits_of(options), plan=True)
        )

    def _consumers(self, options: Options) -> Exit:
        found = self._found(options)
        if options["json"]:
            rows = ProcessList.of(found, lambda: self._seen(options)).rows
            self.document("consumers/1", items=[consumer_status.as_data(one.process) for one in rows])
        else:
            self._show_consumers(found, options)
        return Exit.DONE if found else Exit.NOTHING

    def _probe(self, seen: BrokerStatus, failed: Sequence[Problem]) -> None:
        """Write one line, even if a text of the broker or the database has several."""
        named = failed or seen.health.failing(Severity.WARNING)
        why = " ".join("; ".join(problem.line for problem in named).split())
        if failed:
            self.line(f"FAIL {why}", "ERROR")
        else:
            self.line(f"OK with {plural(len(named), 'warning')}: {why}" if named else "OK", "SUCCESS")

    def _watch(self, options: Options) -> Exit:
        if options["check"] or options["json"]:
            raise usage_error("--watch cannot be combined with --check or --json. Omit them.")
        # Ctrl-C ends a watch.
        with suppress(KeyboardInterrupt):
            while True:
                self._look_again(options)
                time.sleep(options["watch"])
        return Exit.DONE

    def _look_again(self, options: Options) -> None:
        """Show the status: on a terminal in place of the last, elsewhere below it."""
        problem, seen, found = "", None, list[Process]()
        try:
            if options["consumers"]:
                renew_connections()
                with named_errors():
                    found = self._found(options)
            else:
                seen = self._look(options)
        except DatabaseAway as error:
            problem = str(error)
        terminal = self.stdout.isatty()
        now = datetime.now().astimezone() if terminal else datetime.now(UTC)
        self.stdout.write(CLEARED if terminal else "", ending="")
        self.line(now.isoformat(sep=" ", timespec="seconds"))
        if problem:
            self.line(problem, "ERROR")
        elif seen is None:
            self._show_consumers(found, options)
        else:
            self._show(seen, every=options["all"])
        self.stdout.write("" if terminal else "\n", ending="")
        self.stdout.flush()

    def _found(self, options: Options) -> list[Process]:
        """Return the processes; one more than the limit, if there are, to know that some are left out."""
        return processes(most=max(MOST_LISTED_PROCESSES, options["limit"] + 1))

    def _show_consumers(self, known: Sequence[Process], options: Options) -> None:
        """Show what is wrong, then the processes and messages with problems first, at most ``--limit`` of each."""
        terminal, limit = self.stdout.isatty(), options["limit"]
        listed = ProcessList.of(known, lambda: self._seen(options))
        found = self._found_rows(listed, options)
        if found:
            self.table(*consumer_status.process_rows(found[:limit], terminal=terminal))
        rows, styles = consumer_status.in_flight_rows(found, terminal=terminal)
        if len(rows) > 1:
            self.line()
            self.table(rows[: limit + 1], styles[: limit + 1])
        if over := len(known) - len(found):
            are, them = ("is", "it") if over == 1 else ("are", "them")
            self.say(f"{over} that ended or vanished {are} over: --all shows {them}.")
        left = {"process": len(found) - limit, "message in flight": len(rows) - 1 - limit}
        for noun, count in left.items():
            if count > 0:
                several = {"process": "processes", "message in flight": "messages in flight"}[noun]
                self.say(f"{count} more {noun if count == 1 else several}. Raise --limit to see them.")
        if unlisted := sum(one.process.row.unlisted for one in found):
            self.say(f"{unlisted} more in flight are not listed: a heartbeat has the oldest of its process.")
        if not settings().records:
            self.say("Consumers write no heartbeat while the setting RECORDS is False.")
        elif not (known or listed.none_runs):
            self.say("No consumer is running: none writes heartbeats. Start one: manage.py rmq_consume")

    def _seen(self, options: Options) -> Seen:
        """Ask the broker which queues nobody reads; if it does not answer, the heartbeats tell all that is known."""
        try:
            with open_declarer(timeout=options["timeout"]) as declarer:
                return Seen(levels=gauged(declarer, ()).levels)
        except (RmqRetryError, OSError, ImproperlyConfigured):
            return Seen(current=False)

    def _found_rows(self, listed: ProcessList, options: Options) -> Sequence[ProcessRow]:
        """Say what is wrong, and how many there are; return those that are shown, and those that are over if wanted."""
        for problem in (*listed.problems, *(loop.problem for loop in listed.loops)):
            sign = "✕" if problem.severity is Severity.ERROR else "!"
            self.line(f"{sign} {problem.text} {problem.why}", problem.severity.name)
        if line := "manage.py rmq_consume" if listed.none_runs else listed.summary:
            self.line(line)
        # What is said of a crash loop is its head: its dead stand below those that live.
        tables = sorted(listed.tables, key=lambda table: (table.over, table.loop is not None))
        return [row for table in tables if options["all"] or not table.over for row in table.rows]

    def _show(self, seen: BrokerStatus, *, every: bool) -> None:
        """Show what needs somebody first, then the state of all."""
        following = seen.health.following
        causes = [Finding.of(one) for one in seen.health.needs if one not in following]
        more = f" {plural(len(following), 'more finding')} only {'follow' if len(following) > 1 else 'follows'}."
        self.line(*findings.conclusion(causes, more if following else ""))
        findings.write(self, [*causes, *map(Finding.of, following)], by_area=False)
        terminal = self.stdout.isatty()
        if terminal:
            self.line()
        self.table(heads(seen, terminal=terminal))
        self._show_queues(seen, every=every)
        for line in totals(seen, terminal=terminal):
            self.line(line)
        if seen.health.broker and seen.health.gauged.blind:
            self.say(str(blind(seen.health.gauged)))

    def _show_queues(self, seen: BrokerStatus, *, every: bool) -> None:
        shown = [row for row in seen.rows if every or not is_quiet(seen, row)]
        if shown:
            rows = [_HEAD, *(cells(seen, row, terminal=self.stdout.isatty()) for row in shown)]
            # Leave out columns that need the management API if it does not answer.
            known = [not seen.health.gauged.blind or name not in ("UNACKED", "IN/S", "OUT/S") for name in _HEAD]
            self.table([[*compress(row, known)] for row in rows], ["", *(state(seen, row)[1] for row in shown)])
        if left := len(seen.rows) - len(shown):
            beside = sum(is_beside(seen, row) for row in seen.rows)
            which = f", {beside} of them beside an abandoned queue" if beside else ""
            them = "it" if left == 1 else "them"
            # Its messages may all be in handlers.
            self.line(f"Nothing waits in {plural(left, 'queue')}{which}: --all shows {them}.")


def limits_of(options: Options) -> Limits:
    limits = Limits(max_parked=options["max_parked"], min_consumers=options["min_consumers"])
    oldest = options["max_oldest"]
    return limits if oldest is None else replace(limits, parked_age=oldest, halted_age=oldest, outbox_age=oldest)


def period(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not LEAST_SECONDS <= number <= MOST_SECONDS:
        raise argparse.ArgumentTypeError(f"takes seconds from {LEAST_SECONDS:g} to {MOST_SECONDS:g}, not {text!r}")
    return number

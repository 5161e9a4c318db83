"""``manage.py rmq_status``: show the state of the queues and of the consumers, for operators and for probes."""

import argparse
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import compress

from django.core.management.base import CommandParser

from django_rmq_retry.arguments import plural
from django_rmq_retry.conf import settings
from django_rmq_retry.database_connections import renew_connections
from django_rmq_retry.embedded.place import NotRunning
from django_rmq_retry.errors import BrokerRefused, BrokerUnreachable
from django_rmq_retry.health.problems import Limits, blind
from django_rmq_retry.health.processes import MOST_PROCESSES, Process, processes
from django_rmq_retry.health.rules import OUTBOX_OVERDUE
from django_rmq_retry.management import consumer_status
from django_rmq_retry.management.arguments import age, positive, whole
from django_rmq_retry.management.broker_status import BrokerStatus, as_data, cells, heads, look, state, totals
from django_rmq_retry.management.command import Exit, Options, RmqCommand, add_json, usage_error
from django_rmq_retry.management.databases import DatabaseAway, named_errors

LEAST_SECONDS, MOST_SECONDS = 0.1, 86_400.0
MOST_ROWS = 50
CLEARED = "\x1b[H\x1b[2J"
_HEAD = ("QUEUE", "ROLE", "READY", "UNACKED", "CONS", "IN/S", "OUT/S", "STATE")


class Command(RmqCommand):
    help = "Show the project's queues with their messages, consumers and problems."
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
        add("--max-parked", type=whole, metavar="N", help="report a problem if more messages are parked")
        add(
            "--max-oldest",
            type=age,
            metavar="AGE",
            help="report a problem if a message is parked or in the outbox, or a queue is halted, for longer",
        )
        add(
            "--min-consumers",
            type=whole,
            default=0,
            metavar="N",
            help="report a problem if a work queue has fewer consumers",
        )
        add("--consumers", action="store_true", help="show the consuming processes and their messages in flight")
        add(
            "--limit",
            type=positive,
            default=MOST_ROWS,
            metavar="N",
            help="with --consumers: at most N processes and messages in flight, problems first; "
            f"{MOST_ROWS} by default",
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
        try:
            seen = look(limits_of(options), options["timeout"])
        except (BrokerUnreachable, BrokerRefused, NotRunning) as error:
            if not options["check"] or options["json"]:
                raise
            self._fail(str(error))
            return Exit.UNREACHABLE
        if options["json"]:
            self.document("status/1", **as_data(seen))
        elif options["check"]:
            if seen.problems:
                self._fail("; ".join(seen.problems))
            else:
                self.line("OK", "SUCCESS")
        else:
            self._show(seen)
        return Exit.UNHEALTHY if seen.problems and options["check"] else Exit.DONE

    def _consumers(self, options: Options) -> Exit:
        found = self._found(options)
        if options["json"]:
            self.document("consumers/1", items=[consumer_status.as_data(one) for one in found])
        else:
            self._show_consumers(found, options["limit"])
        return Exit.DONE if found else Exit.NOTHING

    def _fail(self, why: str) -> None:
        """Write the failure as one line, even if the broker's or database's text has several."""
        self.line(f"FAIL {' '.join(why.split())}", "ERROR")

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
        """Show the status: on a terminal in place of the last, elsewhere below it. An unreachable broker may return."""
        problem, seen, found = "", None, list[Process]()
        try:
            if options["consumers"]:
                renew_connections()
                with named_errors():
                    found = self._found(options)
            else:
                seen = look(limits_of(options), options["timeout"])
        except (BrokerUnreachable, BrokerRefused, NotRunning, DatabaseAway) as error:
            problem = str(error)
        terminal = self.stdout.isatty()
        now = datetime.now().astimezone() if terminal else datetime.now(UTC)
        self.stdout.write(CLEARED if terminal else "", ending="")
        self.line(now.isoformat(sep=" ", timespec="seconds"))
        if problem:
            self.line(problem, "ERROR")
        elif seen is None:
            self._show_consumers(found, options["limit"])
        else:
            self._show(seen)
        self.stdout.write("" if terminal else "\n", ending="")
        self.stdout.flush()

    def _found(self, options: Options) -> list[Process]:
        """Return the processes; one more than the limit, if there are, to know that some are left out."""
        return processes(most=max(MOST_PROCESSES, options["limit"] + 1))

    def _show_consumers(self, found: Sequence[Process], limit: int) -> None:
        """Show the processes and messages with problems first, at most ``limit`` of each."""
        terminal = self.stdout.isatty()
        if found:
            self.table(*consumer_status.process_rows(found[:limit], terminal=terminal))
        rows, styles = consumer_status.in_flight_rows(found, terminal=terminal)
        if len(rows) > 1:
            self.line()
            self.table(rows[: limit + 1], styles[: limit + 1])
        left = {"process": len(found) - limit, "message in flight": len(rows) - 1 - limit}
        for noun, count in left.items():
            if count > 0:
                several = {"process": "processes", "message in flight": "messages in flight"}[noun]
                self.say(f"{count} more {noun if count == 1 else several}. Raise --limit to see them.")
        if not settings().records:
            self.say("Consumers write no heartbeat while the setting RECORDS is False.")
        elif not found:
            self.say("No consumer has written a heartbeat to the database. Start one: manage.py rmq_consume")

    def _show(self, seen: BrokerStatus) -> None:
        self.table(heads(seen))
        rows = [_HEAD, *(cells(seen, row) for row in seen.rows)]
        # Leave out columns that need the management API if it does not answer.
        shown = [not seen.gauged.blind or name not in ("UNACKED", "IN/S", "OUT/S") for name in _HEAD]
        self.table([[*compress(row, shown)] for row in rows], ["", *(state(seen, row)[1] for row in seen.rows)])
        for line in totals(seen, terminal=self.stdout.isatty()):
            self.line(line)
        self.line(*_conclusion(seen))
        for problem in seen.others:
            self.line(f"✕ {problem.line}", "ERROR")
        if seen.gauged.blind:
            self.say(str(blind(seen.gauged)))


def _conclusion(seen: BrokerStatus) -> tuple[str, str]:
    """Return the last sentence with its colour. Parked messages are no problem of a queue, but need an operator."""
    if seen.problems:
        return f"{plural(len(seen.problems), 'problem')}.", "ERROR"
    parked = seen.survey.parked.count if seen.survey else 0
    if not parked:
        return "No problems.", "SUCCESS"
    are = "is" if parked == 1 else "are"
    text = f"No problems with queues. {plural(parked, 'message')} {are} parked: manage.py rmq_parked groups"
    return text, "WARNING"


def limits_of(options: Options) -> Limits:
    oldest = options["max_oldest"]
    return Limits(
        max_parked=options["max_parked"],
        min_consumers=options["min_consumers"],
        parked_age=oldest,
        halted_age=oldest,
        outbox_age=OUTBOX_OVERDUE if oldest is None else oldest,
    )


def period(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not LEAST_SECONDS <= number <= MOST_SECONDS:
        raise argparse.ArgumentTypeError(f"takes seconds from {LEAST_SECONDS:g} to {MOST_SECONDS:g}, not {text!r}")
    return number

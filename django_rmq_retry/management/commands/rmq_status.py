"""``manage.py rmq_status``: how the queues are doing, for people and for probes."""

import argparse
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import compress

from django.core.management.base import CommandError, CommandParser

from django_rmq_retry import registry
from django_rmq_retry.broker.gauging import Bounds, Gauged, Level, gauge
from django_rmq_retry.broker.refusing import BrokerUnreachable
from django_rmq_retry.core.errors import BrokerRefused
from django_rmq_retry.embedded.locating import NotRunning
from django_rmq_retry.management.base import Exit, Options, RmqCommand, add_json
from django_rmq_retry.management.reaching import declarer

LEAST, MOST = 0.1, 86_400.0
CLEARED = "\x1b[H\x1b[2J"
_HEAD = ("QUEUE", "ROLE", "READY", "UNACKED", "CONS", "IN/S", "OUT/S", "STATE")


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One look at all queues."""

    gauged: Gauged
    broker: str
    each: float
    """Seconds for one queue."""


class Command(RmqCommand):
    help = "Show the project's queues with their messages and consumers, and what is wrong with them."
    examples = ("rmq_status", "rmq_status --check --max-parked 100 --min-consumers 1", "rmq_status --json")

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--check", action="store_true", help="one line, OK or FAIL; exit code 8 if not healthy")
        parser.add_argument("--max-parked", type=int, metavar="N", help="more parked messages are a problem")
        parser.add_argument("--min-consumers", type=int, default=0, metavar="N", help="fewer on a work queue are too")
        parser.add_argument(
            "--timeout", type=float, default=3.0, metavar="SECONDS", help="for each answer; 3 by default"
        )
        parser.add_argument("--watch", type=period, metavar="SECONDS", help="look again and again; Ctrl-C ends it")
        add_json(parser)

    def run(self, options: Options) -> Exit | None:
        if options["watch"] is not None:
            return self._watch(options)
        try:
            seen = _look(options)
        except (BrokerUnreachable, BrokerRefused) as error:
            if not options["check"]:
                raise
            self.line(f"FAIL {error}", "ERROR")
            return Exit.UNREACHABLE
        gauged = seen.gauged
        if options["json"]:
            queues = [_data(level) for level in gauged.levels]
            self.document("status/1", broker=seen.broker, queues=queues, problems=gauged.problems, blind=gauged.blind)
        elif options["check"]:
            failed = "; ".join(gauged.problems)
            self.line(f"FAIL {failed}" if failed else "OK", "ERROR" if failed else "SUCCESS")
        else:
            self._show(seen)
        return Exit.UNHEALTHY if gauged.problems and options["check"] else Exit.DONE

    def _watch(self, options: Options) -> Exit:
        if options["check"] or options["json"]:
            raise CommandError("--watch is for people: leave --check and --json out.", returncode=Exit.USAGE)
        # Ctrl-C is how a watch ends.
        with suppress(KeyboardInterrupt):
            while True:
                self._look_again(options)
                time.sleep(options["watch"])
        return Exit.DONE

    def _look_again(self, options: Options) -> None:
        """On a terminal in the place of the last, elsewhere a block below it. A broker that is away may come back."""
        problem = ""
        try:
            seen = _look(options)
        except (BrokerUnreachable, BrokerRefused, NotRunning) as error:
            problem = str(error)
        terminal = self.stdout.isatty()
        now = datetime.now().astimezone() if terminal else datetime.now(UTC)
        self.stdout.write(CLEARED if terminal else "", ending="")
        self.line(now.isoformat(sep=" ", timespec="seconds"))
        if problem:
            self.line(problem, "ERROR")
        else:
            self._show(seen)
        self.stdout.write("" if terminal else "\n", ending="")
        self.stdout.flush()

    def _show(self, seen: Seen) -> None:
        gauged = seen.gauged
        self.line(f"Broker {seen.broker}, {seen.each * 1000:.0f} ms for a queue")
        rows = [_HEAD, *map(_row, gauged.levels)]
        styles = ["", *("ERROR" if level.problems else "" for level in gauged.levels)]
        # Columns that only the management API can fill are left out where it cannot be asked.
        shown = [not gauged.blind or name not in ("UNACKED", "IN/S", "OUT/S") for name in _HEAD]
        self.table([[*compress(row, shown)] for row in rows], styles)
        count = len(gauged.problems)
        said = "No problem." if not count else "1 problem." if count == 1 else f"{count} problems."
        self.line(said, "ERROR" if count else "SUCCESS")
        if gauged.blind:
            self.say(gauged.blind)


def _look(options: Options) -> Seen:
    bounds = Bounds(max_parked=options["max_parked"], min_consumers=options["min_consumers"])
    with declarer(timeout=options["timeout"]) as it:
        begun = time.monotonic()
        gauged = gauge(it, registry.topology(), bounds)
        each = (time.monotonic() - begun) / max(len(gauged.levels), 1)
        return Seen(gauged=gauged, broker=f"{it.session.access.shown} ({it.session.server})", each=each)


def period(text: str) -> float:
    """An argument: seconds between two looks."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not LEAST <= number <= MOST:
        raise argparse.ArgumentTypeError(f"takes seconds from {LEAST:g} to {MOST:g}, not {text!r}")
    return number


def _row(level: Level) -> tuple[str, ...]:
    return (
        level.queue,
        level.role.value,
        *(("-" if value is None else str(value)) for value in (level.ready, level.unacked, level.consumers)),
        *(("-" if value is None else f"{value:.1f}") for value in (level.arriving, level.leaving)),
        f"✕ {'; '.join(level.problems)}" if level.problems else "ok",
    )


def _data(level: Level) -> dict[str, object]:
    return {
        "name": level.queue,
        "role": level.role.value,
        "ready": level.ready,
        "unacked": level.unacked,
        "consumers": level.consumers,
        "in_per_second": level.arriving,
        "out_per_second": level.leaving,
        "problems": list(level.problems),
    }

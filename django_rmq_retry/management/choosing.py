"""How commands choose messages: by number, by a filter, by a token, or all; and in words what was chosen."""

import argparse
import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.utils import timezone
from django.utils.dateparse import parse_datetime

from django_rmq_retry.management.base import Exit, Options
from django_rmq_retry.models import State
from django_rmq_retry.operating.refusals import NotAllowed, NothingChosen, Outdated, Refused
from django_rmq_retry.operating.selecting import Selection

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
MOST = 10**9
OLDEST = 100 * 365 * 86_400
_AGE = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")
FILTERS: Mapping[str, tuple[str, str]] = {
    "group": ("N", "of this error group"),
    "queue": ("QUEUE", "that failed in this queue"),
    "type": ("TYPE", "of this message type"),
    "handler": ("NAME", "that this handler gave up"),
    "parked_reason": ("REASON", 'parked for this reason, such as "permanent error"'),
    "error": ("CLASS", "with this error"),
    "key": ("KEY", "with this business key"),
    "message_id": ("ID", "with this message id"),
    "correlation_id": ("ID", "with this correlation id"),
    "search": ("TEXT", "with this business key, message id or correlation id"),
    "failed_of_run": ("RUN", "that failed again in this run"),
    "cycle_min": ("N", "sent to their queue at least so often"),
}
NAMED = {"parked_reason": "reason"}
CODES = {NothingChosen: Exit.NOTHING, Outdated: Exit.DRIFT, NotAllowed: Exit.UNCONFIRMED}


def add_choice(parser: CommandParser, *, states: bool = True) -> None:
    """The arguments by which messages are chosen."""
    parser.add_argument("ids", nargs="*", metavar="ID", help="numbers of records; - reads them from stdin")
    chosen = parser.add_argument_group("messages")
    for name, (metavar, words) in FILTERS.items():
        chosen.add_argument(f"--{name.replace('_', '-')}", metavar=metavar, help=words)
    chosen.add_argument("--since", type=moment, metavar="AGE", help="parked since: 90s, 10m, 1h, 7d, or a time")
    chosen.add_argument("--until", type=moment, metavar="AGE", help="parked before then")
    if states:
        known = ", ".join(State.values)
        chosen.add_argument("--state", metavar="STATES", help=f"of {known}; several with commas between them")
    chosen.add_argument("--all", action="store_true", help="every one; it has to be written out")
    chosen.add_argument("--selection", metavar="TOKEN", help="exactly what --dry-run or a page of the admin has shown")


def selection_of(options: Options, *, states: str, narrow: bool = True) -> Selection:
    """What the arguments mean; ``states`` where they name none. ``narrow``: without any filter --all is needed."""
    try:
        if options["selection"]:
            return Selection.read(options["selection"])
        ids = _ids(options["ids"])
        given = _filter(options)
        if ids is not None and (given or options["all"]):
            raise CommandError("Name messages by number or by a filter, not by both.", returncode=Exit.USAGE)
        if ids is not None:
            return Selection.of_ids(ids)
        if not given and not options["all"] and narrow:
            raise CommandError("Say which messages: numbers, a filter, or --all.", returncode=Exit.USAGE)
        return Selection.of_filter({"state": (options.get("state") or states).split(","), **given})
    except Refused as error:
        raise refused(error) from error


def refused(error: Refused) -> CommandError:
    """A refusal as the end of a command."""
    return CommandError(str(error), returncode=CODES.get(type(error), Exit.USAGE))


def _filter(options: Options) -> dict[str, Any]:
    found = {NAMED.get(name, name): options[name] for name in FILTERS if options[name] is not None}
    for name, word in (("since", "parked_after"), ("until", "parked_before")):
        if options[name] is not None:
            found[word] = options[name].isoformat()
    return found


def _ids(given: list[str]) -> list[int] | None:
    if not given:
        return None
    words: list[str] = []
    for one in given:
        words += sys.stdin.read().split() if one == "-" else [one]
    try:
        return [int(word.removeprefix("#")) for word in words]
    except ValueError:
        said = "The messages are named by the numbers of their records, as rmq_parked list shows them."
        raise CommandError(said, returncode=Exit.USAGE) from None


def age(text: str) -> timedelta:
    """An argument: ``90s``, ``10m``, ``1h``, ``7d``."""
    found = _AGE.fullmatch(text)
    if not found:
        raise argparse.ArgumentTypeError(f"takes an age such as 90s, 10m, 1h or 7d, not {text!r}")
    seconds = float(found[1]) * UNITS[found[2]]
    if seconds > OLDEST:
        raise argparse.ArgumentTypeError(f"takes an age of at most 100 years, not {text!r}")
    return timedelta(seconds=seconds)


def _moment(text: str, *, ahead: bool) -> datetime:
    if _AGE.fullmatch(text):
        return timezone.now() + age(text) if ahead else timezone.now() - age(text)
    at = parse_datetime(text)
    if at is None:
        raise argparse.ArgumentTypeError(f"takes 90s, 10m, 1h, 7d or a time such as 2026-11-21T03:00Z, not {text!r}")
    return at if at.tzinfo else timezone.make_aware(at)


def moment(text: str) -> datetime:
    """An argument: a time, or how long ago."""
    return _moment(text, ahead=False)


def later(text: str) -> datetime:
    """An argument: a time, or in how long."""
    return _moment(text, ahead=True)


def positive(text: str) -> int:
    """An argument: how many, at least 1."""
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < MOST:
        raise argparse.ArgumentTypeError(f"takes a number from 1 on, not {text!r}")
    return int(text)


def whole(text: str) -> int:
    """An argument: how many, and none is a number too."""
    if not text.isascii() or not text.isdigit() or int(text) >= MOST:
        raise argparse.ArgumentTypeError(f"takes a number from 0 on, not {text!r}")
    return int(text)


def clock(at: datetime | None, *, terminal: bool) -> str:
    """A time for people: how long ago on a terminal, in full elsewhere."""
    if at is None:
        return "-"
    if not terminal:
        return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    seconds = (timezone.now() - at).total_seconds()
    for unit, size in reversed(UNITS.items()):
        if abs(seconds) >= size and unit != "w":
            return f"{abs(seconds) / size:.0f} {unit}{' ago' if seconds > 0 else ' ahead'}"
    return "now"

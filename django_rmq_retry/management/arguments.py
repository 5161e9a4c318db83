"""Arguments of several commands: numbers, times and addresses."""

import argparse
import re
from datetime import datetime, timedelta

from django.core.management.base import CommandParser
from django.utils import timezone
from django.utils.dateparse import parse_datetime

from django_rmq_retry.conf import LOOPBACK
from django_rmq_retry.management.terminal import AGE_UNITS
from django_rmq_retry.messages.texts import short

HIGHEST_NUMBER = 10**9
HIGHEST_PORT = 65_535
HOST_AND_PORT = re.compile(r"(?:(?P<host>\[[^][]+\]|[^][]*):)?(?P<port>[0-9]{1,5})")
MOST_LISTED = 50
"""Rows of a list for which no --limit is given."""
LONGEST_AGE_SECONDS = 100 * 365 * 86_400
_AGE = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")


def http_address(text: str) -> tuple[str, int]:
    """Parse an argument: host and port; a port alone stands for this host only."""
    address = HOST_AND_PORT.fullmatch(text)
    if address is None or int(address["port"]) > HIGHEST_PORT:
        raise argparse.ArgumentTypeError(f"takes HOST:PORT or PORT, such as 127.0.0.1:9464, not {short(text, 100)!r}")
    return (address["host"] or "").strip("[]") or LOOPBACK, int(address["port"])


def age(text: str) -> timedelta:
    """Parse an argument: ``90s``, ``10m``, ``1h``, ``7d``."""
    match = _AGE.fullmatch(text)
    if not match:
        raise argparse.ArgumentTypeError(f"takes an age such as 90s, 10m, 1h or 7d, not {text!r}")
    seconds = float(match[1]) * AGE_UNITS[match[2]]
    if seconds > LONGEST_AGE_SECONDS:
        raise argparse.ArgumentTypeError(f"takes an age of at most 100 years, not {text!r}")
    return timedelta(seconds=seconds)


def moment(text: str, *, ahead: bool = False) -> datetime:
    if _AGE.fullmatch(text):
        return timezone.now() + age(text) if ahead else timezone.now() - age(text)
    at = parse_datetime(text)
    if at is None:
        raise argparse.ArgumentTypeError(f"takes 90s, 10m, 1h, 7d or a time such as 2026-11-21T03:00Z, not {text!r}")
    return at if at.tzinfo else timezone.make_aware(at)


def later(text: str) -> datetime:
    return moment(text, ahead=True)


def whole(text: str, *, least: int = 0) -> int:
    if not text.isascii() or not text.isdigit() or not least <= int(text) < HIGHEST_NUMBER:
        raise argparse.ArgumentTypeError(f"takes a whole number of at least {least}, not {text!r}")
    return int(text)


def positive(text: str) -> int:
    return whole(text, least=1)


def add_limit(parser: CommandParser, what: str) -> None:
    parser.add_argument(
        "--limit", type=positive, default=MOST_LISTED, metavar="N", help=f"at most N {what}; {MOST_LISTED} by default"
    )


def seconds(text: str) -> float:
    number = float(text)
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"takes seconds of at least 0, not {text}")
    return number

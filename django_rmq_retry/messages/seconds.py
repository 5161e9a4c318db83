"""Durations and rates: parsing, limits and milliseconds."""

import math
import re

from django_rmq_retry.errors import ConfigurationError

LONGEST = 10 * 365 * 86400.0
"""Ten years, in seconds: the longest TTL that the broker accepts."""


def check_seconds(what: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= LONGEST:
        raise ConfigurationError(f"{what} takes seconds above 0 and up to ten years, not {value!r}.")


def milliseconds(seconds: float) -> int:
    """Convert seconds to whole milliseconds, rounded up, so that a wait is never shorter than requested."""
    return math.ceil(round(seconds * 1000, 6))


UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
FASTEST = 100_000.0
SLOWEST = 1 / 86400
_SAID = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)\s*/\s*([smhd])")


def per_second(rate: object) -> float:
    """Parse a rate: ``20`` and ``"20/s"`` are twenty per second, ``"20/m"`` is twenty per minute."""
    found: object = rate
    if isinstance(rate, str):
        said = _SAID.fullmatch(rate.strip())
        found = float(said[1]) / UNITS[said[2]] if said else rate
    if isinstance(found, bool) or not isinstance(found, (int, float)) or not SLOWEST <= found <= FASTEST:
        raise ConfigurationError(
            'A handler\'s rate is a number of runs per second, such as 20 or 0.5, or a text such as "20/m", from one '
            f"a day to {FASTEST:g} a second; not {rate!r}."
        )
    return float(found)


def spelled(rate: float) -> str:
    """Format a rate for display: ``20 per second``, ``20 per minute``."""
    for unit, seconds in (("second", 1.0), ("minute", 60.0), ("hour", 3600.0)):
        if rate * seconds >= 1:
            return f"{rate * seconds:.4g} per {unit}"
    return f"{rate * UNITS['d']:.4g} per day"

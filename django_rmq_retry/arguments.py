"""Arguments of policies, queues and handlers: checks that raise one sentence, and how numbers are spelled in one."""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import NamedTuple

from django_rmq_retry.errors import ConfigurationError

LONGEST_WAIT_SECONDS = 10 * 365 * 86400.0
"""Ten years, in seconds: the longest TTL that the broker accepts."""

UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
FASTEST_RATE = 100_000.0
SLOWEST_RATE = 1 / 86400
_RATE = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)\s*/\s*([smhd])")


class Argument(NamedTuple):
    """The values that an argument accepts, and their description."""

    form: str
    fits: Callable[[object], bool]

    @property
    def optional(self) -> "Argument":
        return Argument(f"{self.form}, or None", lambda value: value is None or self.fits(value))


def one_of(kinds: type | tuple[type, ...], form: str) -> Argument:
    """Accept instances of these classes."""
    return Argument(form, lambda value: isinstance(value, kinds))


def many(kinds: type | tuple[type, ...], form: str) -> Argument:
    """Accept a list or tuple of instances of these classes."""
    return Argument(
        form, lambda value: isinstance(value, (list, tuple)) and all(isinstance(each, kinds) for each in value)
    )


def whole(least: int) -> Argument:
    return Argument(f"a whole number from {least}", lambda value: type(value) is int and value >= least)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


NUMBER = Argument("a number", _is_number)
NUMBERS = Argument(
    "a list of seconds, such as [10, 60, 600]",
    lambda value: isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping)),
)

WHOLE = Argument("a whole number", lambda value: type(value) is int)
TEXT = one_of(str, "a string")
FLAG = one_of(bool, "True or False")
FUNCTION = Argument("a function, such as lambda error: …", callable)
TABLE = Argument(
    "a dict with string keys, such as {'x-max-length': 1000}",
    lambda value: isinstance(value, Mapping) and all(isinstance(key, str) for key in value),
)


def check(owner: object, **kinds: Argument) -> None:
    """Raise for the first attribute of ``owner`` with a wrong value."""
    for name, kind in kinds.items():
        check_value(type(owner).__name__, name, getattr(owner, name), kind)


def check_value(owner: str, name: str, value: object, kind: Argument) -> None:
    if not kind.fits(value):
        raise ConfigurationError(f"{owner}({name}=…) takes {kind.form}, not {value!r:.80}.")


def check_seconds(what: str, value: object) -> None:
    if isinstance(value, timedelta):
        raise ConfigurationError(f"{what} takes seconds, not a timedelta. Pass its .total_seconds().")
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= LONGEST_WAIT_SECONDS:
        raise ConfigurationError(f"{what} takes seconds above 0 and up to ten years, not {value!r}.")


def check_wait(span_option: str, span: object, moment_option: str, moment: object) -> None:
    """Raise for a wait that is neither a span of time nor a moment, or both. None stands for what is not given."""
    if span is not None and moment is not None:
        raise ConfigurationError(f"Pass {span_option} or {moment_option}, not both.")
    if moment is not None and not (isinstance(moment, datetime) and moment.tzinfo is not None):
        raise ConfigurationError(
            f"{moment_option} takes a datetime with a time zone, such as timezone.now() + timedelta(hours=1), "
            f"not {moment!r:.60}. For a span of time use {span_option}."
        )
    seconds = span.total_seconds() if isinstance(span, timedelta) else span
    if seconds is not None and not (_is_number(seconds) and 0 <= seconds <= LONGEST_WAIT_SECONDS):  # type: ignore[operator]
        raise ConfigurationError(
            f"{span_option} takes seconds from 0 to ten years, or a timedelta such as timedelta(minutes=10), "
            f"not {span!r:.60}."
        )


def seconds_of_wait(span: float | timedelta | None, moment: datetime | None, now: float) -> float:
    """Return the seconds of a wait from ``now``, in seconds since 1970; 0 for a moment that is past."""
    if moment is not None:
        return max(moment.timestamp() - now, 0.0)
    return span.total_seconds() if isinstance(span, timedelta) else span or 0.0


def per_second(rate: object) -> float:
    """Parse a rate: ``20`` and ``"20/s"`` are twenty per second, ``"20/m"`` is twenty per minute."""
    found: object = rate
    if isinstance(rate, str):
        match = _RATE.fullmatch(rate.strip())
        found = float(match[1]) / UNITS[match[2]] if match else rate
    if isinstance(found, bool) or not isinstance(found, (int, float)) or not SLOWEST_RATE <= found <= FASTEST_RATE:
        raise ConfigurationError(
            'A handler\'s rate is a number of runs per second, such as 20 or 0.5, or a text such as "20/m", from one '
            f"a day to {FASTEST_RATE:g} a second; not {rate!r}."
        )
    return float(found)


def plural(number: int, noun: str, ending: str = "s") -> str:
    """Return a count with its noun: ``1 message``, ``2 messages``."""
    return f"{number} {noun}{'' if number == 1 else ending}"


def spelled(rate: float) -> str:
    """Format a rate for display: ``20 per second``, ``20 per minute``."""
    for unit, seconds in (("second", 1.0), ("minute", 60.0), ("hour", 3600.0)):
        if rate * seconds >= 1:
            return f"{rate * seconds:.4g} per {unit}"
    return f"{rate * UNITS['d']:.4g} per day"

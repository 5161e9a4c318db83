"""Type checks for policies, queues and handlers: a wrong type raises one sentence at import."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from django_rmq_retry.errors import ConfigurationError


class Kind(NamedTuple):
    """The values that an argument accepts, and their description."""

    form: str
    fits: Callable[[object], bool]

    @property
    def optional(self) -> "Kind":
        return Kind(f"{self.form}, or None", lambda value: value is None or self.fits(value))


def one_of(kinds: type | tuple[type, ...], form: str) -> Kind:
    """Accept instances of these classes."""
    return Kind(form, lambda value: isinstance(value, kinds))


def many(kinds: type | tuple[type, ...], form: str) -> Kind:
    """Accept a list or tuple of instances of these classes."""
    return Kind(form, lambda value: isinstance(value, (list, tuple)) and all(isinstance(each, kinds) for each in value))


def whole(least: int) -> Kind:
    return Kind(f"a whole number from {least}", lambda value: type(value) is int and value >= least)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


NUMBER = Kind("a number", _is_number)
NUMBERS = Kind(
    "a list of seconds, such as [10, 60, 600]",
    lambda value: isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping)),
)
WHOLE = Kind("a whole number", lambda value: type(value) is int)
TEXT = one_of(str, "a string")
FLAG = one_of(bool, "True or False")
FUNCTION = Kind("a function, such as lambda error: …", callable)
TABLE = Kind(
    "a dict with string keys, such as {'x-max-length': 1000}",
    lambda value: isinstance(value, Mapping) and all(isinstance(key, str) for key in value),
)


def check(owner: object, **kinds: Kind) -> None:
    """Raise for the first attribute of ``owner`` with a wrong value."""
    for name, kind in kinds.items():
        check_value(type(owner).__name__, name, getattr(owner, name), kind)


def check_value(owner: str, name: str, value: object, kind: Kind) -> None:
    if not kind.fits(value):
        raise ConfigurationError(f"{owner}({name}=…) takes {kind.form}, not {value!r:.80}.")

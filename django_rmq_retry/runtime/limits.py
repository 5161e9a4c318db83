"""When a consumer ends by itself."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When a consumer ends by itself; None is never."""

    burst: bool = False
    messages: int | None = None
    seconds: float | None = None
    fail_fast: bool = False
    shutdown: float = 30.0
    also: Sequence[Callable[[], str | None]] = ()
    """Further reasons to stop, asked for at every tick."""

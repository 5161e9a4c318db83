"""Planted bugs that no option of a handler can cause."""

from django.utils import timezone

from django_rmq_retry import database_clock
from django_rmq_retry.breakers.table import BreakerTable


def deafen() -> None:
    """Make consumers ignore pauses and breakers of other processes."""
    BreakerTable.read = lambda *_: {}  # type: ignore[method-assign]


def misdate() -> None:
    """Make database times use the clock of the host that writes or deletes."""
    for name in ("now", "trusted", "reckoned"):
        setattr(database_clock, name, lambda _using: timezone.now())

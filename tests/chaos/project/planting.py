"""Bugs of the product that no option of a handler makes."""

from django.utils import timezone

from django_rmq_retry import server
from django_rmq_retry.breakers.table import Table


def deafen() -> None:
    """A consumer that never learns what is switched."""
    Table.look = lambda *_: {}  # type: ignore[method-assign]


def misdate() -> None:
    """Times in the database that go by the clock of whichever host writes or deletes."""
    for name in ("now", "trusted", "reckoned"):
        setattr(server, name, lambda _using: timezone.now())

"""Bugs of the product that no option of a handler makes."""

from django_rmq_retry.switching.table import Table


def deafen() -> None:
    """A consumer that never learns what is switched."""
    Table.look = lambda *_: {}  # type: ignore[method-assign]

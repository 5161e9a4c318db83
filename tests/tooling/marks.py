"""Marks that depend on the run."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from tests.tooling.databases import SQLITE, chosen

NIGHTLY_ON_SQLITE = [pytest.mark.nightly] if chosen() == SQLITE else []
"""For what takes long on each database, such as races and kills: a push runs it on PostgreSQL alone."""

NIGHTLY_BUT_ON_SQLITE = [pytest.mark.nightly] if chosen() != SQLITE else []
"""For pages that take long, whose queries other tests run on each database: a push runs them on SQLite alone."""


def nightly_but(kept: Iterable[Any], values: Iterable[Any]) -> list[Any]:
    """Return parameters of which a push runs those that are kept, and each night all."""
    each_push = list(kept)
    return [
        one
        if one in each_push
        else pytest.param(*(one if isinstance(one, tuple) else (one,)), marks=pytest.mark.nightly)
        for one in values
    ]


def nightly_on_sqlite(test: Callable[..., None]) -> Callable[..., None]:
    """Mark one test by NIGHTLY_ON_SQLITE."""
    for mark in NIGHTLY_ON_SQLITE:
        test = mark(test)
    return test

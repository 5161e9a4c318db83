"""Marks that depend on the run."""

import pytest

from tests.tooling.databases import SQLITE, chosen

NIGHTLY_ON_SQLITE = [pytest.mark.nightly] if chosen() == SQLITE else []
"""For what takes long on each database, such as races and kills: a push runs it on PostgreSQL alone."""

NIGHTLY_BUT_ON_SQLITE = [pytest.mark.nightly] if chosen() != SQLITE else []
"""For pages that take long, whose queries other tests run on each database: a push runs them on SQLite alone."""

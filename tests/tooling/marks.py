"""Marks that depend on the run."""

import pytest

from tests.tooling.databases import SQLITE, chosen

NIGHTLY_ON_SQLITE = [pytest.mark.nightly] if chosen() == SQLITE else []
"""For races and kills that take long on each database: a push runs them on PostgreSQL alone."""

"""All migrations after the first, while somebody writes; beside it a statement that writes each row anew."""

from collections.abc import Sequence

from django.db import DEFAULT_DB_ALIAS

from tests.bench.report import Finding, table
from tests.upgrading.migrating import migrating, rewriting

LONGEST_SHARE = 0.1
"""Of what a write waits for a table that is written anew."""


def measure() -> list[Finding]:
    """Once, print, and tell what came of the limit."""
    migrated, rewritten = migrating(DEFAULT_DB_ALIAS), rewriting(DEFAULT_DB_ALIAS)
    rows: list[Sequence[str]] = [("while", "the longest wait of a write")]
    rows += [("migrate", f"{migrated * 1000:.0f} ms"), ("the table is written anew", f"{rewritten * 1000:.0f} ms")]
    table(rows)
    what = f"migrate: a write waits {migrated:.2f} s of {rewritten * LONGEST_SHARE:.2f}"
    return [Finding(what=what, met=migrated <= rewritten * LONGEST_SHARE)]

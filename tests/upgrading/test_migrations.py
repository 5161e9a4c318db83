"""Existing tables stay usable while a migration after the first runs: it takes no lasting lock."""

import re
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path

import pytest
from django.db import connection
from django.db.migrations.loader import MigrationLoader

from tests.tooling import databases

pytestmark = [pytest.mark.database, pytest.mark.django_db]

FOLDER = Path(import_module("django_rmq_retry.migrations").__path__[0])
NAMES = sorted(path.stem for path in FOLDER.glob("0*.py"))
NAME = r'["`]?(\w+)["`]?'
MADE = re.compile(rf"CREATE TABLE {NAME}", re.IGNORECASE)
INDEXED = re.compile(rf"CREATE (?:UNIQUE )?INDEX (CONCURRENTLY )?{NAME} ON {NAME}", re.IGNORECASE)
ALTERED = re.compile(rf"ALTER TABLE {NAME} (.*)", re.IGNORECASE | re.DOTALL)
POINTED = re.compile(rf"REFERENCES {NAME}", re.IGNORECASE)
ADDED = re.compile(r"ADD COLUMN .*", re.IGNORECASE | re.DOTALL)
CONSTANT = re.compile(r"DEFAULT ('[^']*'|-?[\d.]+|true|false|NULL)( |$)", re.IGNORECASE)
CATALOGUE = re.compile(r"ALTER COLUMN \S+ DROP DEFAULT", re.IGNORECASE)


def lasting(statements: Iterable[str]) -> list[str]:
    """Those that would hold up who uses a table that was there before."""
    new: set[str] = set()
    return [one for one in statements if not _quick(one.strip().rstrip(";"), new)]


def _quick(statement: str, new: set[str]) -> bool:
    if not statement or statement.startswith("--"):
        return True
    if made := MADE.match(statement):
        new.add(made[1].lower())
    if {found.lower() for found in POINTED.findall(statement)} - new:
        # A foreign key locks the table that it points to, against writers.
        return False
    if indexed := INDEXED.match(statement):
        return bool(indexed[1]) or indexed[3].lower() in new
    if altered := ALTERED.match(statement):
        return altered[1].lower() in new or _light(altered[2])
    return made is not None


def _light(change: str) -> bool:
    """The operations that change only the catalogue, whatever the number of rows."""
    if CATALOGUE.fullmatch(change):
        return True
    return bool(ADDED.fullmatch(change)) and ("NOT NULL" not in change.upper() or bool(CONSTANT.search(change)))


def statements_of(name: str) -> list[str]:
    loader = MigrationLoader(connection)
    return loader.collect_sql([(loader.get_migration("rmq_retry", name), False)])


@pytest.mark.skipif(databases.chosen() == databases.SQLITE, reason="SQLite has one writer at a time in any case")
def test_no_migration_takes_a_lock_that_lasts() -> None:
    first, *later = NAMES
    made = [found[1] for one in statements_of(first) if (found := MADE.match(one))]

    assert "rmq_retry_parkedmessage" in made
    assert {name: lasting(statements_of(name)) for name in later} == {name: [] for name in later}


OLD = '"rmq_retry_parkedmessage"'


@pytest.mark.parametrize(
    "statement",
    [
        f'ALTER TABLE {OLD} ADD COLUMN "note" varchar(9) NOT NULL',
        f'ALTER TABLE {OLD} ADD COLUMN "at" timestamp DEFAULT now() NOT NULL',
        f'ALTER TABLE {OLD} ALTER COLUMN "queue" TYPE varchar(300)',
        f'ALTER TABLE {OLD} ADD CONSTRAINT "c" UNIQUE ("queue")',
        f'ALTER TABLE {OLD} DROP COLUMN "queue"',
        f'CREATE INDEX "i" ON {OLD} ("queue")',
        f'CREATE UNIQUE INDEX "i" ON {OLD} ("queue")',
        "UPDATE rmq_retry_parkedmessage SET queue = 'x'",
        f'DROP TABLE {OLD}',
        f'CREATE TABLE "rmq_retry_new" ("id" bigint, "m" bigint REFERENCES {OLD} ("id"))',
        "ALTER TABLE `rmq_retry_parkedmessage` MODIFY `queue` varchar(300)",
    ],
)  # fmt: skip
def test_a_statement_that_locks_a_large_table_is_found(statement: str) -> None:
    assert lasting([statement]) == [statement]


@pytest.mark.parametrize(
    "statement",
    [
        f'ALTER TABLE {OLD} ADD COLUMN "note" varchar(9) NULL',
        f"ALTER TABLE {OLD} ADD COLUMN \"note\" varchar(9) DEFAULT '' NOT NULL;",
        f'ALTER TABLE {OLD} ALTER COLUMN "note" DROP DEFAULT',
        f'CREATE INDEX CONCURRENTLY "i" ON {OLD} ("queue")',
        "--\n-- Create model\n--",
    ],
)
def test_a_statement_with_a_short_lock_is_allowed(statement: str) -> None:
    assert lasting([statement]) == []

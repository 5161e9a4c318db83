"""A bank for each test: a copy of one migrated database, and the topology declared in the test's virtual host."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bank.bank import Bank, bank_in, environment, manage


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with the bank's tables, without rows."""
    database = tmp_path_factory.mktemp("bank") / "empty.sqlite3"
    manage(environment(database), "migrate", "--verbosity", "0")
    return database


@pytest.fixture
def bank(broker_url: str, migrated: Path, tmp_path: Path) -> Iterator[Bank]:
    database = tmp_path / "bank.sqlite3"
    shutil.copy(migrated, database)
    with bank_in(tmp_path, environment(database, broker_url)) as opened:
        opened.play("declare")
        yield opened

"""The bank as a project: its checks pass on every Django, without a broker."""

from pathlib import Path

import pytest

from tests.bank.bank import environment, manage


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return environment(tmp_path / "bank.sqlite3")


def test_the_bank_has_all_its_migrations(env: dict[str, str]) -> None:
    assert "No changes detected" in manage(env, "makemigrations", "--check", "--dry-run")


def test_the_bank_passes_every_check(env: dict[str, str]) -> None:
    assert "no issues" in manage(env, "check", "--fail-level", "WARNING")

"""The bank as a project: sound on every Django, without a broker."""

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


def test_the_demo_says_what_it_needs_where_there_is_no_broker(env: dict[str, str]) -> None:
    with pytest.raises(AssertionError, match="could not make one by the management API"):
        manage(env | {"BANK_MANAGEMENT_URL": "http://127.0.0.1:1"}, "demo", "--once")

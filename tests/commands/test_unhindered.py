"""System checks at the start of a consumer, while one of several databases is away."""

from pathlib import Path
from typing import Any

import pytest
from django.core.management.base import CommandError
from django.db import OperationalError
from django.db.utils import ConnectionHandler

from django_rmq_retry.management import databases
from django_rmq_retry.management.databases import check_without_database

pytestmark = pytest.mark.django_db


@pytest.fixture
def _one_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lite(name: Path) -> dict[str, Any]:
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": str(name)}

    here, away = lite(tmp_path / "here.sqlite3"), lite(tmp_path / "nowhere" / "away.sqlite3")
    monkeypatch.setattr(databases, "connections", ConnectionHandler({"default": here, "replica": away}))


@pytest.fixture
def _one_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / "here.sqlite3")}
    monkeypatch.setattr(databases, "connections", ConnectionHandler({"default": here}))


@pytest.mark.usefixtures("_one_away")
def test_checks_without_one_database_still_query_the_others() -> None:
    asked: list[list[str] | None] = []
    said: list[str] = []

    def check(databases: list[str] | None = None) -> None:
        asked.append(databases)
        if databases is None:
            raise OperationalError("no such host")

    check_without_database(check, said.append)

    assert asked == [None, ["default"]]
    left = "The checks skip the types of model fields, because a database does not answer: "
    assert said == [f"{left}'replica' (unable to open database file)."]


@pytest.mark.usefixtures("_one_away")
def test_a_check_that_fails_without_a_database_names_it() -> None:
    def check(**_: object) -> None:
        raise OperationalError("no such table: shop_limit")

    with pytest.raises(CommandError) as ended:
        check_without_database(check, pytest.fail)

    assert str(ended.value) == (
        "A system check queries a database while 'replica' does not answer: no such table: shop_limit. "
        "Start the database, or pass --skip-checks."
    )


@pytest.mark.usefixtures("_one_here")
@pytest.mark.parametrize("text", ["no such table: shop_limit", "database is locked"])
def test_an_error_of_a_check_on_a_healthy_database_is_not_blamed_on_it(text: str) -> None:
    asked = []

    def check(**changed: object) -> None:
        asked.append(changed)
        raise OperationalError(text)

    with pytest.raises(OperationalError, match=text):
        check_without_database(check, pytest.fail)
    assert asked == [{}]

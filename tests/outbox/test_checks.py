"""The system checks about the outbox."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from django.core.checks import run_checks
from django.db import connections
from django.db.models import Model

from django_rmq_retry import Delivery, handler
from django_rmq_retry.checks.settings import check_outbox
from django_rmq_retry.testing import isolated_handlers
from tests.commands.running import run
from tests.outbox.routers import Refuse

ROUTER = f"{Refuse.__module__}.{Refuse.__qualname__}"


def found(settings: Any, outbox: Any) -> list[str]:
    settings.RMQ_RETRY = {"URL": "amqp://guest:guest@127.0.0.1:1/", "OUTBOX": outbox}
    return [str(one.id) for one in check_outbox(app_configs=None)]


@pytest.mark.parametrize("outbox", [True, False, ["default"]])
def test_a_sound_configuration_has_no_findings(settings: Any, outbox: Any) -> None:
    assert found(settings, outbox) == []


def test_an_unknown_database_is_an_error(settings: Any) -> None:
    assert found(settings, ["default", "ledger"]) == ["rmq_retry.E040"]


class OnlyDefault:
    """A router that allows tables of the package in the default database only."""

    def allow_migrate(self, db: str, app_label: str, **_hints: object) -> bool | None:
        return db == "default" if app_label == "rmq_retry" else None


class ToLedger:
    """A router that writes the users to a second database."""

    def db_for_write(self, model: type[Model], **_hints: object) -> str | None:
        if model is get_user_model():
            return "ledger"
        if model is Group:
            raise RuntimeError("it needs a request")
        return None


@pytest.fixture
def ledger(settings: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, django_db_blocker: Any) -> Iterator[None]:
    empty = {**connections.settings["default"], "ENGINE": "django.db.backends.sqlite3", "NAME": tmp_path / "ledger"}
    monkeypatch.setitem(connections.settings, "ledger", empty)
    settings.DATABASE_ROUTERS = [ToLedger()]
    with django_db_blocker.unblock():
        yield
    connections["ledger"].close()
    del connections["ledger"]


@pytest.mark.usefixtures("ledger")
def test_a_database_that_is_written_to_without_an_outbox_is_a_warning(settings: Any) -> None:
    assert found(settings, True) == []
    settings.DATABASE_ROUTERS = [ToLedger(), OnlyDefault()]

    assert found(settings, True) == ["rmq_retry.W041"]
    assert found(settings, ["default"]) == []
    assert found(settings, False) == []


@pytest.mark.usefixtures("ledger")
def test_a_database_of_once_without_an_outbox_is_a_warning(settings: Any) -> None:
    settings.DATABASE_ROUTERS = [OnlyDefault()]
    assert found(settings, True) == []
    with isolated_handlers():

        @handler("payments", once=True, using="ledger")
        def charge(message: Delivery) -> None: ...

        assert found(settings, True) == ["rmq_retry.W041"]


@pytest.mark.usefixtures("ledger")
def test_a_database_that_is_written_to_and_not_migrated_is_a_warning_of_check_and_doctor(settings: Any) -> None:
    def said(outbox: Any) -> list[tuple[str | None, str | None]]:
        found(settings, outbox)
        return [(one.id, one.hint) for one in run_checks(tags=["database"], databases=["ledger"])]

    fix = (
        "Run `manage.py migrate --database ledger`. If nothing is published inside its transactions, list the others: "
        "'OUTBOX': ['default']."
    )

    assert said(True) == [("rmq_retry.W041", fix)]
    findings = run("rmq_doctor", "--json").data["findings"]
    assert [one["level"] for one in findings if one["fix"] == f"{fix} (rmq_retry.W041)"] == ["warning"]
    assert said(["default"]) == []


def test_a_database_router_that_excludes_the_outbox_is_a_warning(settings: Any) -> None:
    settings.DATABASE_ROUTERS = [ROUTER]

    assert found(settings, True) == ["rmq_retry.W040"]
    assert found(settings, False) == []

"""The system checks about the outbox."""

from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from django.db import connections
from django.db.models import Model

from django_rmq_retry import Delivery, handler
from django_rmq_retry.checks.settings import check_outbox
from django_rmq_retry.testing import isolated_handlers
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


class ToLedger:
    """A router that writes the users to a second database."""

    def db_for_write(self, model: type[Model], **_hints: object) -> str | None:
        if model is get_user_model():
            return "ledger"
        if model is Group:
            raise RuntimeError("it needs a request")
        return None


@pytest.fixture
def ledger(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connections.settings, "ledger", connections.settings["default"])
    settings.DATABASE_ROUTERS = [ToLedger()]


@pytest.mark.usefixtures("ledger")
def test_a_database_that_is_written_to_and_has_no_outbox_is_a_warning(settings: Any) -> None:
    assert found(settings, True) == ["rmq_retry.W041"]
    assert found(settings, ["default", "ledger"]) == []
    assert found(settings, ["default"]) == []
    assert found(settings, False) == []


@pytest.mark.usefixtures("ledger")
def test_a_database_of_once_without_outbox_is_a_warning(settings: Any) -> None:
    settings.DATABASE_ROUTERS = []
    assert found(settings, True) == []
    with isolated_handlers():

        @handler("payments", once=True, using="ledger")
        def charge(message: Delivery) -> None: ...

        assert found(settings, True) == ["rmq_retry.W041"]


def test_a_database_router_that_excludes_the_outbox_is_a_warning(settings: Any) -> None:
    settings.DATABASE_ROUTERS = [ROUTER]

    assert found(settings, True) == ["rmq_retry.W040"]
    assert found(settings, False) == []

"""The system checks about the outbox."""

from typing import Any

import pytest

from django_rmq_retry.checks.settings import check_outbox
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


def test_a_database_router_that_excludes_the_outbox_is_a_warning(settings: Any) -> None:
    settings.DATABASE_ROUTERS = [ROUTER]

    assert found(settings, True) == ["rmq_retry.W040"]
    assert found(settings, False) == []

"""pika's lines about our connections are left out unless they are enabled; lines of other connections stay."""

import logging
from collections.abc import Iterator

import pika
import pytest
from pika.exceptions import AMQPConnectionError

from django_rmq_retry.amqp import link
from django_rmq_retry.amqp.pika_logs import LOGGERS
from django_rmq_retry.errors import BrokerUnreachable
from tests.amqp.declared import session_on
from tests.amqp.linked import gone, linked
from tests.tooling.waiting import wait_until


@pytest.fixture(autouse=True)
def as_it_comes(monkeypatch: pytest.MonkeyPatch) -> Iterator[logging.Logger]:
    """pika's logger as Django leaves it, and again after the test."""
    logger = logging.getLogger("pika")
    monkeypatch.setattr(link, "FIRST_RECONNECT_SECONDS", 0.01)
    monkeypatch.setattr(link, "LONGEST_RECONNECT_SECONDS", 0.05)
    before = logger.level
    logger.setLevel(logging.NOTSET)
    yield logger
    logger.setLevel(before)


def pikas(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.name for record in caplog.records if record.name.startswith("pika")]


def fail_to_connect() -> None:
    with linked(gone()) as told:
        wait_until(lambda: len(told.lost) > 2)


def test_a_failed_connect_is_not_logged_by_pika(caplog: pytest.LogCaptureFixture) -> None:
    fail_to_connect()
    with pytest.raises(BrokerUnreachable), session_on(gone()):
        pass

    assert pikas(caplog) == []


def test_a_project_that_sets_pikas_level_gets_all_its_lines(
    caplog: pytest.LogCaptureFixture, as_it_comes: logging.Logger
) -> None:
    as_it_comes.setLevel(logging.WARNING)
    fail_to_connect()

    assert pikas(caplog) != []
    assert set(pikas(caplog)) <= set(LOGGERS)


def test_a_project_that_adds_a_handler_to_pikas_logger_gets_its_lines(
    caplog: pytest.LogCaptureFixture, as_it_comes: logging.Logger
) -> None:
    handler = logging.StreamHandler()
    as_it_comes.addHandler(handler)
    try:
        fail_to_connect()
    finally:
        as_it_comes.removeHandler(handler)

    assert pikas(caplog) != []


def test_pika_logs_connections_of_other_code_as_before(caplog: pytest.LogCaptureFixture) -> None:
    with linked(gone()) as told:
        wait_until(lambda: told.lost)
        with pytest.raises(AMQPConnectionError):
            pika.BlockingConnection(pika.URLParameters(gone()))

    assert "pika.adapters.utils.connection_workflow" in pikas(caplog)

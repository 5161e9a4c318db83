"""A publisher controlled by the test, and a fresh state of the outbox for each test."""

from collections.abc import Iterator

import pytest

from django_rmq_retry.publishing import broker_connections, late_results
from django_rmq_retry.publishing.broker_connections import Reach
from tests.outbox.made import Post
from tests.tooling.connections import Given


@pytest.fixture(autouse=True)
def reach(monkeypatch: pytest.MonkeyPatch) -> Reach:
    """Give each test its own state of the broker's reachability."""
    made = Reach()
    monkeypatch.setattr(broker_connections.connections, "reach", made)
    return made


@pytest.fixture(autouse=True)
def result_writer(monkeypatch: pytest.MonkeyPatch) -> late_results.ResultWriter:
    """Give each test its own writer, whose thread uses only the databases of this test."""
    made = late_results.ResultWriter()
    monkeypatch.setattr(late_results, "result_writer", made)
    monkeypatch.setattr(late_results, "IDLE_SECONDS", 0.1)
    return made


@pytest.fixture
def post(monkeypatch: pytest.MonkeyPatch, reach: Reach) -> Iterator[Post]:
    made = Post()
    monkeypatch.setattr(broker_connections, "connections", Given(made, reach=reach))
    yield made
    made.close()

"""A publisher controlled by the test, and a fresh state of the outbox for each test."""

from collections.abc import Iterator

import pytest

from django_rmq_retry.publishing import broker_connections, outbox
from django_rmq_retry.publishing.broker_connections import Reach
from tests.outbox.made import Post
from tests.tooling.connections import Given


@pytest.fixture(autouse=True)
def reach(monkeypatch: pytest.MonkeyPatch) -> Reach:
    """Give each test its own state of the broker's reachability."""
    made = Reach()
    for module in (outbox, broker_connections):
        monkeypatch.setattr(module, "reach", made)
    return made


@pytest.fixture(autouse=True)
def result_writer(monkeypatch: pytest.MonkeyPatch) -> outbox.ResultWriter:
    """Give each test its own writer, whose thread uses only the databases of this test."""
    made = outbox.ResultWriter()
    monkeypatch.setattr(outbox, "result_writer", made)
    monkeypatch.setattr(outbox, "IDLE", 0.1)
    return made


@pytest.fixture
def post(monkeypatch: pytest.MonkeyPatch) -> Iterator[Post]:
    made = Post()
    monkeypatch.setattr(broker_connections, "current", Given(made))
    yield made
    made.close()

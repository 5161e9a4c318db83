"""A publisher controlled by the test, and a fresh state of the outbox for each test."""

import threading
from collections.abc import Iterator

import pytest

from django_rmq_retry.publishing import broker_connections, outbox, sender
from django_rmq_retry.publishing.broker_connections import Reach
from tests.outbox.made import Post
from tests.tooling.connections import Given
from tests.tooling.waiting import longer


@pytest.fixture(autouse=True)
def reach(monkeypatch: pytest.MonkeyPatch) -> Reach:
    """Give each test its own state of the broker's reachability."""
    made = Reach()
    monkeypatch.setattr(broker_connections.connections, "reach", made)
    return made


@pytest.fixture(autouse=True)
def own_sender(monkeypatch: pytest.MonkeyPatch) -> Iterator[sender.Sender]:
    """Give each test its own sender, whose thread uses only the databases of this test."""
    made = sender.Sender()
    monkeypatch.setattr(sender, "sender", made)
    monkeypatch.setattr(sender, "IDLE_SECONDS", 0.1)
    yield made
    made.end()
    # A thread that has ended for want of work may still close the connections of this test's database.
    for thread in threading.enumerate():
        if thread.name == "rmq-sender":
            thread.join(longer(30))


@pytest.fixture
def threaded(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the sender's thread send, as it does outside of tests; also on SQLite. It ends before the database does."""
    monkeypatch.setattr(outbox.OutboxWriter, "sends_here", lambda _writer, _connection: False)
    yield
    sender.sender.end()


@pytest.fixture
def post(monkeypatch: pytest.MonkeyPatch, reach: Reach) -> Iterator[Post]:
    made = Post()
    monkeypatch.setattr(broker_connections, "connections", Given(made, reach=reach))
    yield made
    made.close()

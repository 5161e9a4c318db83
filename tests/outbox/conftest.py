"""A publisher that does as a test says, and what the outbox remembers of the broker, fresh for each test."""

from collections.abc import Iterator

import pytest

from django_rmq_retry.publishing import broker_connections, faults, outbox
from django_rmq_retry.publishing.broker_connections import Reach
from tests.outbox.made import Post
from tests.tooling.connections import Given


@pytest.fixture(autouse=True)
def reach(monkeypatch: pytest.MonkeyPatch) -> Reach:
    """No test learns from another one that the broker is away."""
    made = Reach()
    for module in (outbox, faults, broker_connections):
        monkeypatch.setattr(module, "reach", made)
    return made


@pytest.fixture(autouse=True)
def clerk(monkeypatch: pytest.MonkeyPatch) -> faults.Clerk:
    """Its thread knows the databases of this test, and of no other."""
    made = faults.Clerk()
    monkeypatch.setattr(faults, "clerk", made)
    return made


@pytest.fixture
def post(monkeypatch: pytest.MonkeyPatch) -> Iterator[Post]:
    made = Post()
    monkeypatch.setattr(broker_connections, "current", Given(made))
    yield made
    made.close()

"""A publisher that does as a test says, and what the outbox remembers of the broker, fresh for each test."""

from collections.abc import Callable, Iterator

import pytest

from django_rmq_retry import wiring
from django_rmq_retry.outbox import keeping, late, leaving
from django_rmq_retry.outbox import reach as reaching
from django_rmq_retry.outbox.reach import Reach
from tests.outbox.made import Post


@pytest.fixture(autouse=True)
def reach(monkeypatch: pytest.MonkeyPatch) -> Reach:
    """No test learns from another one that the broker is away."""
    made = Reach()
    for module in (keeping, late, leaving, reaching):
        monkeypatch.setattr(module, "reach", made)
    return made


@pytest.fixture(autouse=True)
def clerk(monkeypatch: pytest.MonkeyPatch) -> late.Clerk:
    """Its thread knows the databases of this test, and of no other."""
    made = late.Clerk()
    monkeypatch.setattr(late, "clerk", made)
    return made


@pytest.fixture
def post(monkeypatch: pytest.MonkeyPatch) -> Iterator[Post]:
    made = Post()
    found: Callable[[], Post] = lambda: made  # noqa: E731 - as wiring has it
    monkeypatch.setattr(wiring, "publisher", found)
    yield made
    made.close()

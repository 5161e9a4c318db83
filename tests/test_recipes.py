"""The recipes for tests: each test that the page shows passes, in a project as its readers may have one."""

import sys
from collections.abc import Iterator
from inspect import signature
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest

from django_rmq_retry import Delivery, Exponential, OneShot, RetryThenPark, StopTheLine, handler
from django_rmq_retry.testing import isolated_handlers
from tests.tooling.pages import Block, blocks, page

PAGE = page("testing.md")
ON_A_REAL_BROKER, OF_A_SNAPSHOT = "test_on_rabbitmq", "test_the_topology_is_known"


class BankDown(Exception):
    """The bank does not answer."""


class UnknownPair(Exception):
    """Nobody quotes it."""


class Account:
    """What may be paid; more than its limit is refused."""

    limited = False

    def raise_limit(self) -> None:
        self.limited = False


class Payment:
    """As it is read from the database: what its handler has changed is seen after ``refresh_from_db``."""

    pk = 7

    def __init__(self) -> None:
        self.stored: dict[str, Any] = {"state": "new", "charges": 0}
        self.refresh_from_db()

    def refresh_from_db(self) -> None:
        self.__dict__.update(self.stored)

    def charge(self) -> None:
        """Once, however often its message comes."""
        if self.stored["state"] == "new":
            self.stored.update(state="charged", charges=1)


class Bank:
    """The reader's project."""

    def __init__(self) -> None:
        self.dead = False
        self.account, self.payment = Account(), Payment()

    def charge(self, message: Delivery) -> None:
        assert message.data == {"payment": self.payment.pk}
        if self.dead or self.account.limited:
            raise BankDown("timeout")
        self.payment.charge()

    def quote(self, message: Delivery) -> object:
        raise UnknownPair(message.data["pair"])

    def post(self, message: Delivery) -> None:
        """Into the ledger."""


@pytest.fixture
def bank(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bank]:
    made = Bank()
    with isolated_handlers():
        handlers, failures = ModuleType("payments.handlers"), ModuleType("payments.errors")
        policy = RetryThenPark(attempts=5, backoff=Exponential(10, factor=3))
        handlers.__dict__["charge"] = handler("payments.charge", policy=policy, name="charge")(made.charge)
        handlers.__dict__["quote"] = handler("rates.quote", policy=OneShot(), name="quote")(made.quote)
        handlers.__dict__["post"] = handler("ledger.post", policy=StopTheLine(), name="post")(made.post)
        failures.__dict__["BankDown"] = BankDown
        for module in (ModuleType("payments"), handlers, failures):
            monkeypatch.setitem(sys.modules, module.__name__, module)
        yield made


@pytest.fixture
def account(bank: Bank) -> Account:
    bank.account.limited = True
    return bank.account


@pytest.fixture
def payment(bank: Bank) -> Payment:
    return bank.payment


@pytest.fixture
def dead_bank(bank: Bank) -> Bank:
    bank.dead = True
    return bank


def recipes() -> list[Block]:
    return [block for block in blocks(PAGE) if block.kind == "python" and "\ndef test_" in f"\n{block.text}"]


def test_the_recipes_page_has_recipes() -> None:
    assert len(recipes()) > 8


@pytest.mark.django_db
@pytest.mark.usefixtures("bank")
@pytest.mark.parametrize("block", recipes(), ids=lambda block: f"line {block.line}")
def test_every_recipe_passes(
    block: Block, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    namespace: dict[str, Any] = {"__name__": "tests.recipe", "__file__": str(tmp_path / "test_recipe.py")}
    exec(compile("\n" * block.line + block.text, str(PAGE), "exec"), namespace)  # noqa: S102 - our own page
    tests = [one for name, one in namespace.items() if name.startswith("test_") and isinstance(one, FunctionType)]
    assert tests
    for test in tests:
        given = [request.getfixturevalue(name) for name in signature(test).parameters]
        if test.__name__ == OF_A_SNAPSHOT:
            monkeypatch.setenv("RMQ_UPDATE_SNAPSHOTS", "1")
            test()
            monkeypatch.delenv("RMQ_UPDATE_SNAPSHOTS")
        if test.__name__ != ON_A_REAL_BROKER:
            test(*given)

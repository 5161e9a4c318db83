"""The same statement on the engine, in each version that it knows, and on RabbitMQ."""

import os
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.embedded.engine_rig import EngineRig
from tests.embedded.rabbit_rig import RabbitRig
from tests.embedded.rig import BOTH, Rig
from tests.embedded.served import MakeServer, served


@pytest.fixture
def make_server() -> Iterator[MakeServer]:
    """Start embedded brokers on a socket: make_server("4.3"); ended with the test."""
    with ExitStack() as stack:
        yield lambda version="4.0": stack.enter_context(served(version))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests without RabbitMQ run once, however many versions of it the contract names."""
    again = {item for item in items if _runs_again(item)}
    if again:
        config.hook.pytest_deselected(items=list(again))
        items[:] = [item for item in items if item not in again]


def _runs_again(item: pytest.Item) -> bool:
    told = getattr(item, "callspec", None)
    rig, version = (told.params.get("rig"), told.params.get("broker_version")) if told else (None, None)
    named = os.environ.get("RMQ_TEST_BROKERS", "").split(",")
    return bool(rig and rig != "rabbitmq" and version and version != named[0])


AT_NIGHT = tuple(pytest.param(kind, marks=pytest.mark.nightly) for kind in ("wire-4.0", "rabbitmq"))


@pytest.fixture(params=["engine-4.0", "engine-4.3", *AT_NIGHT])
def rig(request: pytest.FixtureRequest, broker_version: str | None) -> Iterator[Rig]:  # noqa: ARG001 - see plugin
    """A broker to make statements about; `broker_version` is asked for so that `contract` can name versions.

    The engine behind its socket is the same engine: a push leaves it to the tests of `wire`. No push changes RabbitMQ:
    `make contract` and each night find whether a statement is true of it.
    """
    kind, _, version = str(request.param).partition("-")
    found: Rig
    if kind == "engine":
        found = EngineRig(version)
    elif kind == "wire":
        found = RabbitRig(request.getfixturevalue("make_server")(version).url, version)
    else:
        vhost = request.getfixturevalue("vhost")
        found = RabbitRig(vhost.url, vhost.version)
    yield found
    found.close()


@pytest.fixture(params=sorted(BOTH))
def kind(request: pytest.FixtureRequest) -> str:
    """A type of queue."""
    return str(request.param)

"""The fixtures of every test: a broker of its own version, a virtual host of the test's own."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pika
import pytest
from django.db import DEFAULT_DB_ALIAS, connections
from django.test import TransactionTestCase
from pika.adapters.blocking_connection import BlockingChannel
from pytest_django import DjangoDbBlocker

from django_rmq_retry.admin import broker_look
from django_rmq_retry.management.terminal import Console
from django_rmq_retry.publishing import broker_connections, outbox_rows
from django_rmq_retry.testing import isolated_handlers
from tests.embedded.served import served, vhost_of
from tests.tooling import emptying
from tests.tooling.filled import Own, to_copy
from tests.tooling.filled import own_database as own_database_in
from tests.tooling.node import Node
from tests.tooling.services import SERVICES, Broker, Services, Unavailable, go_without
from tests.tooling.vhosts import Vhost, vhost_on
from tests.tooling.waiting import longer

pytest_plugins = ["tests.tooling.plugin", "django_rmq_retry.testing.plugin"]

MakeNode = Callable[..., Node]
LASTING = {"rmq-http", "rmq-io", "rmq-loop", "rmq-publish", "rmq-test"}
"""The product's threads that last as long as their process and have no connection to a database."""


@pytest.fixture(autouse=True)
def loggers_as_before() -> Iterator[None]:
    """A command that ran in this process has set up its log, and another test would not hear what it waits for."""
    loggers = [logging.getLogger(name) for name in ("django_rmq_retry", "pika")]
    before = [(logger, logger.level, logger.propagate, logger.disabled, list(logger.handlers)) for logger in loggers]
    yield
    root = logging.getLogger()
    root.handlers[:] = [one for one in root.handlers if not isinstance(one, Console)]
    for logger, level, propagate, disabled, handlers in before:
        logger.setLevel(level)
        logger.propagate, logger.disabled, logger.handlers[:] = propagate, disabled, handlers


@pytest.fixture(autouse=True)
def no_broker_of_another_test() -> Iterator[None]:
    """A process keeps its connections and what it saw last: another test would ask a broker that is gone.

    It was told that none is reachable, or that nobody reads the queues of the test before.
    """
    yield
    broker_connections.close()
    broker_look.forget()


@pytest.fixture(scope="session")
def django_db_setup(
    django_db_setup: None,  # noqa: ARG001 - pytest-django's own, and then ours
    django_db_blocker: DjangoDbBlocker,
) -> Iterator[None]:
    """Drop the databases only after threads that ask one, or send from it, have closed their connections.

    Between two tests that commit their tables are emptied in our own way.

    A process looks once for the outbox's table: here, so that the number of a test's queries does not depend on order.
    """
    with django_db_blocker.unblock():
        outbox_rows.table_exists(DEFAULT_DB_ALIAS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TransactionTestCase, "_fixture_teardown", emptying.after_test)
        yield
    until = time.monotonic() + longer(10)
    for thread in threading.enumerate():
        if thread.name.startswith("rmq-") and thread.name not in LASTING:
            thread.join(max(0.0, until - time.monotonic()))
    # A page whose database hung has left its connection and made another one, which pytest-django does not know.
    connections.close_all()


@pytest.fixture
def no_handlers() -> Iterator[None]:
    """The test's own handlers are the only ones."""
    with isolated_handlers():
        yield


@pytest.fixture(scope="session")
def services(pytestconfig: pytest.Config) -> Services:
    """The services of this run."""
    return pytestconfig.stash[SERVICES]


@pytest.fixture
def broker_version() -> str | None:
    """The version asked for; None means whichever is found. Parametrised in `contract` tests."""
    return None


@pytest.fixture
def broker_kind() -> str:
    """Whose virtual host a test gets: "rabbitmq" or "embedded". Parametrised in `on_both` tests."""
    return "rabbitmq"


@pytest.fixture
def broker(services: Services, broker_version: str | None) -> Broker:
    """A RabbitMQ shared by the whole run: never stop it, never change it."""
    try:
        return services.broker(broker_version)
    except Unavailable as lack:
        go_without(lack)


@pytest.fixture
def vhost(
    broker_kind: str, broker_version: str | None, services: Services, request: pytest.FixtureRequest
) -> Iterator[Vhost]:
    """A fresh virtual host for this test alone, with what is in it."""
    if broker_kind == "embedded":
        with served(broker_version or "4.0") as server:
            yield vhost_of(server)
        return
    broker: Broker = request.getfixturevalue("broker")
    name = services.unique()
    with vhost_on(broker.management, name=name, url=broker.url(name), version=broker.version) as made:
        yield made


@pytest.fixture
def broker_url(vhost: Vhost) -> str:
    """The AMQP URL of a fresh virtual host for this test alone."""
    return vhost.url


@pytest.fixture
def amqp(broker_url: str) -> Iterator[BlockingChannel]:
    """A plain channel to that virtual host, for the test's own looking; it answers no heartbeat between two calls."""
    parameters = pika.URLParameters(broker_url)
    parameters.heartbeat = 0
    connection = pika.BlockingConnection(parameters)
    yield connection.channel()
    if connection.is_open:
        connection.close()


@pytest.fixture
def make_node(services: Services, broker_version: str | None) -> Iterator[MakeNode]:
    """Start private nodes: make_node(version="4.0", conf=["consumer_timeout = 4000"]); ended with the test."""
    with ExitStack() as nodes:

        def make(*, version: str | None = broker_version, conf: tuple[str, ...] = ()) -> Node:
            try:
                node = services.private(version, conf)
            except Unavailable as lack:
                go_without(lack)
            nodes.callback(node.remove)
            return node

        yield make


@pytest.fixture(scope="session")
def lasting_nodes() -> Iterator[dict[str | None, Node]]:
    """The private nodes of this worker by version, ended with the session."""
    nodes: dict[str | None, Node] = {}
    yield nodes
    for node in nodes.values():
        node.remove()


@pytest.fixture
def private_node(
    lasting_nodes: dict[str | None, Node], services: Services, broker_version: str | None
) -> Iterator[Node]:
    """A node of this worker's own, to kill, pause and restart; healed after the test."""
    try:
        node = lasting_nodes.get(broker_version) or services.private(broker_version)
    except Unavailable as lack:
        go_without(lack)
    lasting_nodes[broker_version] = node
    yield node
    node.heal()


@pytest.fixture
def impatient(private_node: Node) -> Iterator[Node]:
    """`private_node` with a consumer timeout of 4 s instead of 30 minutes, checked every second."""
    limits = {"consumer_timeout": (4000, 1_800_000), "channel_tick_interval": (1000, 60_000)}
    for name, (short, _) in limits.items():
        private_node.ctl("eval", f"application:set_env(rabbit, {name}, {short}).")
    yield private_node
    for name, (_, usual) in limits.items():
        private_node.ctl("eval", f"application:set_env(rabbit, {name}, {usual}).")


@pytest.fixture
def private_broker(private_node: Node, services: Services) -> Iterator[Vhost]:
    """A fresh virtual host on `private_node`, for tests that do harm to the node."""
    name = services.unique()
    management = private_node.management
    with vhost_on(management, name=name, url=private_node.url(name), version=private_node.version) as made:
        yield made
        private_node.heal()


@pytest.fixture(scope="session")
def copied_database(tmp_path_factory: pytest.TempPathFactory, django_db_blocker: DjangoDbBlocker) -> Iterator[str]:
    """A database with tables, of which each `own_database` of this worker is a copy."""
    with ExitStack() as stack:
        with django_db_blocker.unblock():
            name = stack.enter_context(to_copy(tmp_path_factory.mktemp("database")))
        yield name
        with django_db_blocker.unblock():
            stack.close()


@pytest.fixture
def own_database(tmp_path: Path, copied_database: str, django_db_blocker: DjangoDbBlocker) -> Iterator[Own]:
    """A database with tables for processes that the test starts; to the test itself it is the alias "own"."""
    with django_db_blocker.unblock(), own_database_in(tmp_path, copied_database) as own:
        yield own

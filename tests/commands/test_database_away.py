"""A command whose database is away says so, and what to do, in one sentence."""

import io
from pathlib import Path

import pytest
from django.core.management import CommandError
from django.db import DatabaseError, connection, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from pytest_django import DjangoDbBlocker

from django_rmq_retry.management.command import Options, RmqCommand
from tests.commands.running import Exit
from tests.shop.running import Shop
from tests.tooling import databases
from tests.tooling.filled import Own, registered

COMMANDS = ("rmq_parked list", "rmq_relay list", "rmq_relay --burst", "rmq_queue list", "rmq_blocked list", "rmq_roles")


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    """One that needs no broker."""
    return Shop(url="amqp://app:sesame@127.0.0.1:1/", notes=tmp_path / "notes")


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("kind", databases.KINDS)
def test_a_command_names_the_unavailable_database(shop: Shop, kind: str, command: str) -> None:
    if why := databases.KINDS[kind].undriven():
        pytest.skip(why)
    closed = {**databases.KINDS[kind].settings(), "HOST": "127.0.0.1", "PORT": "1"}
    told = shop.run(*command.split(), given="ACC-1\n", **Own(settings=closed).environment)

    assert (told.returncode, told.stdout) == (1, "")
    assert told.stderr.startswith("CommandError: The database 'default' does not answer (")
    assert told.stderr.endswith("). Start it, or correct DATABASES['default'] in the settings.\n")
    assert told.stderr.count("\n") == 1


class Asking(RmqCommand):
    """Asks a database."""

    def __init__(self, connection: BaseDatabaseWrapper, sql: str = "SELECT 1") -> None:
        super().__init__(stdout=io.StringIO(), stderr=io.StringIO())
        self._connection, self._sql = connection, sql

    def run(self, _options: Options) -> None:
        with self._connection.cursor() as cursor:
            cursor.execute(self._sql)


def test_the_unavailable_one_of_several_databases_is_named(django_db_blocker: DjangoDbBlocker) -> None:
    kind = databases.KINDS[databases.POSTGRESQL]
    if why := kind.undriven():
        pytest.skip(why)
    closed = {**kind.settings(), "HOST": "127.0.0.1", "PORT": "1"}

    with django_db_blocker.unblock(), registered(closed), pytest.raises(CommandError) as raised:
        Asking(connections["own"]).handle()

    assert str(raised.value).startswith("The database 'own' does not answer")
    assert raised.value.returncode == Exit.ERROR


@pytest.mark.database
@pytest.mark.usefixtures("own_database")
def test_a_connection_closed_by_the_database_is_a_one_sentence_error() -> None:
    kill = {"postgresql": "SELECT pg_terminate_backend(pg_backend_pid())", "mysql": "KILL CONNECTION_ID()"}
    asked = connections["own"]
    if asked.vendor not in kill:
        pytest.skip("no server is between a process and its file")

    with pytest.raises(CommandError, match=r"^The database 'own' does not answer"):
        Asking(asked, kill[asked.vendor]).handle()


@pytest.mark.django_db
@pytest.mark.database
def test_other_database_errors_keep_their_traceback() -> None:
    with pytest.raises(DatabaseError, match="nowhere"), transaction.atomic():
        Asking(connection, "SELECT * FROM nowhere").handle()

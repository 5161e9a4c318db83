"""A MariaDB server for one run, which a nemesis kills and starts again with its data."""

import signal
from contextlib import closing, suppress
from importlib import import_module
from typing import Any

from tests.chaos.postgres import CONNECT, NAME, Postgres
from tests.tooling.databases import MARIADB
from tests.tooling.servers import SERVERS

DURABLE = "--innodb-flush-log-at-trx-commit=2"
"""Committed data are in the page cache of the kernel, so they survive a SIGKILL of the server."""


class Mariadb(Postgres):
    """The methods of ``Postgres``, for MariaDB."""

    server = SERVERS[MARIADB]
    own = (DURABLE,)
    stopped_by = signal.SIGKILL
    first = "mysql"

    def execute(self, statement: str, *, database: str = NAME) -> None:
        with closing(self._connected(database)) as connection, closing(connection.cursor()) as cursor:
            cursor.execute(statement)

    def terminate_backends(self) -> None:
        with closing(self._connected("mysql")) as connection, closing(connection.cursor()) as cursor:
            cursor.execute(
                "SELECT id FROM information_schema.processlist WHERE user = 'root' AND id <> connection_id()"
            )
            for (number,) in cursor.fetchall():
                # A connection that has ended meanwhile has no thread any more.
                with suppress(self._driver().OperationalError):
                    cursor.execute(f"KILL CONNECTION {int(number)}")

    def settings(self, port: int | None = None) -> dict[str, Any]:
        inherited = super().settings(port)
        options = {"charset": "utf8mb4", "connect_timeout": CONNECT}
        return {**inherited, "ENGINE": "django.db.backends.mysql", "USER": "root", "OPTIONS": options}

    def _driver(self) -> Any:
        return import_module("pymysql")

    def _connected(self, database: str) -> Any:
        where: dict[str, Any] = {"host": "127.0.0.1", "port": self.port, "user": "root", "database": database}
        return self._driver().connect(**where, autocommit=True, connect_timeout=CONNECT)

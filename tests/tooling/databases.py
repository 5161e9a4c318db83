"""The databases of the tests: always SQLite, and PostgreSQL and MariaDB where they are found.

RMQ_TEST_DATABASE selects the one of this run; RMQ_TEST_POSTGRES and RMQ_TEST_MARIADB are their addresses.
"""

import getpass
import os
import socket
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any
from urllib.parse import unquote, urlsplit

Settings = dict[str, Any]
SQLITE, POSTGRESQL, MARIADB = "sqlite", "postgresql", "mariadb"
UTF8 = {"CHARSET": "utf8mb4", "COLLATION": "utf8mb4_unicode_ci"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One database other than SQLite."""

    engine: str
    variable: str
    default: str
    driver: str
    package: str
    options: Settings
    test: Settings

    @property
    def url(self) -> str:
        """The address, from the environment or by default."""
        return os.environ.get(self.variable) or self.default

    def settings(self) -> Settings:
        """The entry of Django's DATABASES."""
        parts = urlsplit(self.url)
        return {
            "ENGINE": self.engine,
            "NAME": parts.path.strip("/") or "rmq_retry",
            "USER": unquote(parts.username or ""),
            "PASSWORD": unquote(parts.password or ""),
            "HOST": parts.hostname or "127.0.0.1",
            "PORT": str(parts.port or ""),
            "OPTIONS": dict(self.options),
            # Two concurrent runs must not drop each other's database.
            "TEST": {"NAME": f"test_rmq_retry_{os.getpid()}", **self.test},
        }

    def undriven(self) -> str:
        """Return the reason why no Python driver is available, or ""."""
        if find_spec(self.driver) is None:
            return f"{self.package} is not installed. Run `pip install --group databases`."
        return ""

    def answers(self) -> bool:
        """Return True where something listens, whether or not it lets the tests in."""
        return not self._silence()

    def lack(self) -> str:
        """Return the reason why the database cannot be used, or ""."""
        return self.undriven() or self._silence() or self._refusal()

    def _silence(self) -> str:
        parts = urlsplit(self.url)
        address = (parts.hostname or "127.0.0.1", parts.port or PORTS[self.engine])
        try:
            socket.create_connection(address, timeout=2).close()
        except OSError as error:
            return f"nothing answers at {address[0]}:{address[1]} ({error.strerror or error}). Set {self.variable}."
        return ""

    def _refusal(self) -> str:
        why = refusal(self.url, self.driver)
        place, user = urlsplit(self.url).hostname, self.settings()["USER"]
        told = f"the server on {place} answers, but the tests cannot make databases there as {user!r} ({why})"
        return f"{told}. Set {self.variable}." if why else ""


PORTS = {"django.db.backends.postgresql": 5432, "django.db.backends.mysql": 3306}
KINDS = {
    POSTGRESQL: Kind(
        engine="django.db.backends.postgresql",
        variable="RMQ_TEST_POSTGRES",
        default=f"postgresql://{getpass.getuser()}@127.0.0.1/rmq_retry",
        driver="psycopg",
        package="psycopg",
        options={},
        test={},
    ),
    MARIADB: Kind(
        engine="django.db.backends.mysql",
        variable="RMQ_TEST_MARIADB",
        default="mysql://root@127.0.0.1/rmq_retry",
        driver="pymysql",
        package="PyMySQL",
        options={"charset": "utf8mb4"},
        test=UTF8,
    ),
}


@cache
def refusal(url: str, driver: str) -> str:
    """Return the server's error on login or on CREATE DATABASE, or ""."""
    parts, module = urlsplit(url), import_module(driver)
    login: Settings = {"host": parts.hostname, "user": unquote(parts.username or ""), "connect_timeout": 5}
    login |= {"password": unquote(parts.password)} if parts.password else {}
    login |= {"port": parts.port} if parts.port else {}
    login |= {"dbname": "postgres"} if driver == KINDS[POSTGRESQL].driver else {}
    name = f"test_rmq_retry_login_{os.getpid()}"
    try:
        with closing(module.connect(**login, autocommit=True)) as connection, closing(connection.cursor()) as cursor:
            cursor.execute(f"CREATE DATABASE {name}")
            cursor.execute(f"DROP DATABASE {name}")
    except module.Error as error:
        return " ".join(str(error.args[-1]).split())
    return ""


def chosen() -> str:
    """The kind of database of this run."""
    return os.environ.get("RMQ_TEST_DATABASE") or SQLITE


def settings(kind: str = "", *, name: str = ":memory:") -> Settings:
    """Return the settings of a database; without a name, of the one made for the tests."""
    kind = kind or chosen()
    if kind == SQLITE:
        # Threads and processes write concurrently: each one waits for its turn.
        own = {"timeout": 30, "transaction_mode": "IMMEDIATE"}
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": name, "OPTIONS": own if name != ":memory:" else {}}
    if kind == MARIADB:
        play_mysqlclient()
    made = KINDS[kind].settings()
    return made if name == ":memory:" else {**made, "NAME": name}


def play_mysqlclient() -> None:
    """Let PyMySQL replace mysqlclient, which would have to be compiled."""
    driver = import_module("pymysql")
    driver.version_info = (2, 2, 7, "final", 0)  # type: ignore[attr-defined]  # it has no stubs here
    driver.install_as_MySQLdb()

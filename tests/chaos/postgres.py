"""A PostgreSQL server for one run, which can be killed and started again with its data."""

import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.tooling.databases import KINDS, POSTGRESQL
from tests.tooling.node import free_ports
from tests.tooling.servers import BOOT, SERVERS, Broken, end, folder_for
from tests.tooling.waiting import wait_until

NAME = "chaos"
CONNECT = 3


def lack(kind: str = POSTGRESQL) -> str:
    """Return the reason that no server can be started; empty if one can."""
    server = SERVERS[kind]
    if not server.programs:
        return f"{server.title} is not on this machine. Install {server.package}; no system service is needed."
    return KINDS[kind].undriven()


class Postgres:
    """One server. The kernel ends it with the thread that started it, so that thread must outlive its use."""

    server = SERVERS[POSTGRESQL]
    own: Sequence[str] = ()
    """Server options of the run, in addition to those of every test."""
    stopped_by = signal.SIGQUIT
    first = "postgres"
    """The database that exists from the start."""

    def __init__(self) -> None:
        self.port = free_ports(1)[0]
        self._made = folder_for(self.server)
        self._folder = Path(self._made.name)
        self._running: subprocess.Popen[bytes] | None = None

    def create(self) -> None:
        """Create the files, start the server and create a database."""
        words = self.server.words(self.server.made_by, self._folder, self.port)
        making = subprocess.run(words, cwd=self._folder, capture_output=True, text=True, check=False)
        if making.returncode:
            raise Broken(f"{self.server.title} could not make its files: {(making.stdout + making.stderr)[-1000:]}")
        self.start()
        self.execute(f"CREATE DATABASE {NAME}", database=self.first)

    def start(self) -> None:
        """Wait until the server accepts connections."""
        log = self._folder / "log"
        with log.open("w") as said:
            words = [*self.server.words(self.server.run_by, self._folder, self.port), *self.own]
            self._running = running = subprocess.Popen(
                words, cwd=self._folder, stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True
            )
        wait_until(
            lambda: running.poll() is not None or self.server.ready in log.read_text(errors="replace"),
            BOOT,
            what=f"{self.server.title} starts",
            step=0.05,
        )
        if running.poll() is not None:
            raise Broken(f"{self.server.title} did not start: {log.read_text(errors='replace')[-1000:]}")

    def stop_at_once(self) -> None:
        """Stop like ``pg_ctl stop -m immediate`` or a kill: no checkpoint, every connection closed."""
        if self._running is not None:
            self._running.send_signal(self.stopped_by)
            self._running.wait(30)

    def heal(self) -> None:
        """Make the server run again, whatever its state."""
        if self._running is None or self._running.poll() is not None:
            self.start()

    def terminate_backends(self) -> None:
        """Terminate every connection except this one."""
        self.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )

    def execute(self, statement: str, *, database: str = NAME) -> None:
        """Connect in autocommit mode."""
        import psycopg  # noqa: PLC0415 - a missing driver is reported before this

        address = f"host=127.0.0.1 port={self.port} user=rmq_retry dbname={database} connect_timeout={CONNECT}"
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute(statement.encode())

    def settings(self, port: int | None = None) -> dict[str, Any]:
        """Return an entry for Django's DATABASES; another port is that of a proxy."""
        return {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": NAME,
            "USER": "rmq_retry",
            "HOST": "127.0.0.1",
            "PORT": str(port or self.port),
            # Half of the consumers keep their connections; the other half opens one for each message.
            "CONN_MAX_AGE": 0 if port else None,
            "CONN_HEALTH_CHECKS": not port,
            "OPTIONS": {"connect_timeout": CONNECT},
        }

    def close(self) -> None:
        """Stop the server and delete its data."""
        if self._running is not None and self._running.poll() is None:
            end(self._running, self.server)
        self._made.cleanup()

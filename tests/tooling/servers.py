"""Private database servers: on loopback, as an unprivileged user, ended with the process that started them.

Servers of the machine are not touched. RMQ_TEST_DATABASES=private starts private ones in any case.
"""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.tooling import apt
from tests.tooling.databases import KINDS, MARIADB, POSTGRESQL
from tests.tooling.guard import alive
from tests.tooling.node import free_ports
from tests.tooling.waiting import wait_until

BOOT = 60.0
GRACE = 20.0
SOMEWHERE = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Broken(Exception):
    """A server did not start; the text has its last output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """The commands of one kind of server, filled with its folder, port and programs."""

    title: str
    package: str
    user: str
    """The user of a server when the tests run as root, which PostgreSQL refuses."""
    made_by: Sequence[str]
    run_by: Sequence[str]
    url: str
    ready: str
    ends_by: signal.Signals

    @property
    def programs(self) -> dict[str, str]:
        """Return the programs' paths; empty if one is missing, or no user could run them."""
        versions = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=_newest_first)
        path = os.pathsep.join([*map(str, versions), os.environ.get("PATH", ""), SOMEWHERE])
        found = {name: shutil.which(name, path=path) for name in (self.made_by[0], self.run_by[0], "setpriv")}
        known = {one.pw_name for one in pwd.getpwall()}
        able = all(found.values()) and (os.geteuid() != 0 or self.user in known)
        return {name: where for name, where in found.items() if where} if able else {}

    def words(self, pattern: Sequence[str], folder: Path, port: int) -> list[str]:
        """Return a command as the server's user, which ends with its caller."""
        told = [self.programs["setpriv"], "--pdeathsig", self.ends_by.name.removeprefix("SIG")]
        if os.geteuid() == 0:
            told += ["--reuid", self.user, "--regid", self.user, "--init-groups"]
        return [*told, self.programs[pattern[0]], *(word.format(folder=folder, port=port) for word in pattern[1:])]


def _newest_first(programs: Path) -> int:
    major = programs.parent.name.partition(".")[0]
    return -int(major) if major.isdecimal() else 0


SERVERS = {
    POSTGRESQL: Server(
        title="PostgreSQL",
        package="postgresql",
        user="postgres",
        made_by=(
            "initdb", "--pgdata={folder}/data", "--username=rmq_retry", "--auth=trust", "--encoding=UTF8",
            "--locale=C.UTF-8", "--no-sync",
        ),
        run_by=(
            "postgres", "-D", "{folder}/data", "-h", "127.0.0.1", "-p", "{port}", "-c", "unix_socket_directories=",
            "-c", "fsync=off", "-c", "full_page_writes=off", "-c", "max_connections=300",
        ),
        url="postgresql://rmq_retry@127.0.0.1:{port}/rmq_retry",
        ready="ready to accept connections",
        ends_by=signal.SIGINT,
    ),
    MARIADB: Server(
        title="MariaDB",
        package="mariadb-server",
        user="mysql",
        made_by=(
            # A starting server clears its folder for temporary files, and /tmp is shared.
            "mariadb-install-db", "--no-defaults", "--datadir={folder}/data", "--tmpdir={folder}", "--skip-test-db",
            "--auth-root-authentication-method=normal",
        ),
        run_by=(
            "mariadbd", "--no-defaults", "--datadir={folder}/data", "--tmpdir={folder}", "--bind-address=127.0.0.1",
            "--port={port}",
            "--socket={folder}/socket", "--pid-file={folder}/pid", "--innodb-flush-log-at-trx-commit=0",
            "--max-connections=300", "--character-set-server=utf8mb4",
        ),
        url="mysql://root@127.0.0.1:{port}/rmq_retry",
        ready="ready for connections",
        ends_by=signal.SIGTERM,
    ),
}  # fmt: skip


def wanted(kind: str) -> bool:
    """True if the tests need a private server and can start one."""
    known = KINDS[kind]
    if os.environ.get(known.variable) or known.undriven():
        return False
    forced = os.environ.get("RMQ_TEST_DATABASES") == "private"
    return (forced or bool(known.lack())) and bool(SERVERS[kind].programs)


@contextmanager
def private(kind: str) -> Iterator[str]:
    """Start a private server and yield its address; remove it with its data."""
    server, port = SERVERS[kind], free_ports(1)[0]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(folder_for(server)))
        log = folder / "log"
        making = subprocess.run(
            server.words(server.made_by, folder, port), cwd=folder, capture_output=True, text=True, check=False
        )
        if making.returncode:
            raise Broken(f"{server.title} could not make its files: {(making.stdout + making.stderr)[-1000:]}")
        with log.open("w") as said:
            running = subprocess.Popen(
                server.words(server.run_by, folder, port),
                cwd=folder, stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True,
            )  # fmt: skip
        stack.callback(end, running, server)
        wait_until(
            lambda: running.poll() is not None or server.ready in log.read_text(errors="replace"),
            BOOT, what=f"{server.title} starts", step=0.1,
        )  # fmt: skip
        if running.poll() is not None:
            raise Broken(f"{server.title} did not start: {log.read_text(errors='replace')[-1000:]}")
        yield server.url.format(port=port)


def folder_for(server: Server) -> "tempfile.TemporaryDirectory[str]":
    """Create a folder for the server's user, and remove those that killed processes left behind."""
    for left in Path(tempfile.gettempdir()).glob("rmqdb-*-*"):
        if not alive(int(left.name.split("-")[1])):
            shutil.rmtree(left, ignore_errors=True)
    made = tempfile.TemporaryDirectory(prefix=f"rmqdb-{os.getpid()}-", ignore_cleanup_errors=True)
    if os.geteuid() == 0:
        known = pwd.getpwnam(server.user)
        os.chown(made.name, known.pw_uid, known.pw_gid)
    return made


def end(running: "subprocess.Popen[bytes]", server: Server) -> None:
    """Stop the server cleanly, or kill it."""
    running.send_signal(server.ends_by)
    try:
        running.wait(GRACE)
    except subprocess.TimeoutExpired:
        running.kill()
        running.wait()


def provide_databases() -> str:
    """Return a sentence for each database of the tests; root on Debian installs missing ones."""
    return "\n".join(_provide(kind) for kind in SERVERS)


def _provide(kind: str) -> str:
    server, known = SERVERS[kind], KINDS[kind]
    if os.environ.get(known.variable):
        return f"{server.title}: the one that {known.variable} names."
    if os.environ.get("RMQ_TEST_DATABASES") != "private" and known.answers():
        refused = "" if known.undriven() else known.lack()
        if not refused:
            return f"{server.title}: the one on 127.0.0.1."
        print(f"{server.title}: {refused}", flush=True)
    if not server.programs and apt.may_install():
        print(f"{server.title}: installing {server.package} by apt-get, its service stays off", flush=True)
        apt.install_stopped(server.package)
    if server.programs:
        return f"{server.title}: a private server of the tests' own."
    return (
        f"{server.title}: none. Install {server.package} or set {known.variable}; without it nothing is tested on it."
    )

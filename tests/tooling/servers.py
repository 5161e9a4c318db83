"""Database servers of the tests' own: on loopback, as an unprivileged user, gone with whoever started them.

Nothing is done to those that run on the machine already. RMQ_TEST_DATABASES=private starts own ones whatever answers.
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
    """A server that did not start, with its last words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """How one of them is made: its words are filled with folder, port and where its programs are."""

    title: str
    package: str
    user: str
    """Who runs it where the tests run as root: PostgreSQL refuses that, and nobody needs it."""
    made_by: Sequence[str]
    run_by: Sequence[str]
    url: str
    ready: str
    ends_by: signal.Signals

    @property
    def programs(self) -> dict[str, str]:
        """Where its programs are; empty where they are not all there, or nobody is who could run them."""
        versions = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=_newest_first)
        path = os.pathsep.join([*map(str, versions), os.environ.get("PATH", ""), SOMEWHERE])
        found = {name: shutil.which(name, path=path) for name in (self.made_by[0], self.run_by[0], "setpriv")}
        known = {one.pw_name for one in pwd.getpwall()}
        able = all(found.values()) and (os.geteuid() != 0 or self.user in known)
        return {name: where for name, where in found.items() if where} if able else {}

    def words(self, pattern: Sequence[str], folder: Path, port: int) -> list[str]:
        """A command as the user of this server, who does not outlive the one who calls it."""
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
            # One that starts clears its folder for temporary files: in /tmp that would be everybody's.
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
    """Whether the tests need a server of their own, and can start one."""
    known = KINDS[kind]
    if os.environ.get(known.variable) or known.undriven():
        return False
    forced = os.environ.get("RMQ_TEST_DATABASES") == "private"
    return (forced or bool(known.lack())) and bool(SERVERS[kind].programs)


@contextmanager
def private(kind: str) -> Iterator[str]:
    """The address of a server that nobody else uses; it ends with its data."""
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
    """Where its files are, and nobody else's; what a killed process left behind is removed on the way."""
    for left in Path(tempfile.gettempdir()).glob("rmqdb-*-*"):
        if not alive(int(left.name.split("-")[1])):
            shutil.rmtree(left, ignore_errors=True)
    made = tempfile.TemporaryDirectory(prefix=f"rmqdb-{os.getpid()}-", ignore_cleanup_errors=True)
    if os.geteuid() == 0:
        known = pwd.getpwnam(server.user)
        os.chown(made.name, known.pw_uid, known.pw_gid)
    return made


def end(running: "subprocess.Popen[bytes]", server: Server) -> None:
    """In good order, or else by force."""
    running.send_signal(server.ends_by)
    try:
        running.wait(GRACE)
    except subprocess.TimeoutExpired:
        running.kill()
        running.wait()


def provide_databases() -> str:
    """What the tests will find, a sentence for each; root on a Debian gets what is missing."""
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

"""A private RabbitMQ node on loopback, with its own ports, epmd, cookie and data."""

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tests.tooling import guard
from tests.tooling.installs import Install
from tests.tooling.management import Management
from tests.tooling.nodefiles import Family, Ports, environment, write_files
from tests.tooling.waiting import wait_until

BOOT = 120.0
# below the ephemeral range, so that no client socket takes a port while its node is down
PORTS = range(20000, 32000)


class NodeDied(RuntimeError):
    """A node ended during its boot; `log` is the end of its output."""

    def __init__(self, version: str, log: str) -> None:
        self.version = version
        self.log = log
        super().__init__(f"RabbitMQ {version} ended while booting. Its last words:\n{log}")


class Node:
    """One node; `folder` holds its whole state, so that another process can use it too."""

    def __init__(self, folder: Path) -> None:
        told = json.loads((folder / "node.json").read_text())
        install = told["install"]
        self.folder = folder
        self.install = Install(version=install["version"], root=Path(install["root"]), home=Path(install["home"]))
        self.ports = Ports(**told["ports"])
        self.owner: int = told["owner"]
        self._alarmed = False
        self.management = Management(url=f"http://guest:guest@127.0.0.1:{self.ports.http}")

    @classmethod
    def create(
        cls, folder: Path, install: Install, *, owner: int, conf: Sequence[str] = (), family: Family | None = None
    ) -> "Node":
        """Write a new node's files; `owner` is the process whose end ends it, `family` its future cluster."""
        amqp, http, dist, epmd = free_ports(4)
        ports = Ports(amqp=amqp, http=http, dist=dist, epmd=family.epmd if family else epmd)
        write_files(folder, install, ports, owner=owner, conf=conf, family=family)
        return cls(folder)

    @property
    def version(self) -> str:
        """The version, such as 3.10.8."""
        return self.install.version

    @property
    def name(self) -> str:
        """The name in a cluster."""
        return f"test{self.ports.amqp}@localhost"

    @property
    def pid(self) -> int | None:
        """The pid of the Erlang machine; None while it is down."""
        return self._living("server.pid")

    def url(self, vhost: str = "%2F") -> str:
        """Return the AMQP address."""
        return f"amqp://guest:guest@127.0.0.1:{self.ports.amqp}/{vhost}"

    def start(self) -> None:
        """Boot, and wait until AMQP and the management API answer."""
        (self.folder / "server.pid").unlink(missing_ok=True)
        keeper = spawn_guard(self.folder, self.owner)
        wait_until(
            lambda: not guard.alive(keeper) or self.answers(), BOOT, what=f"RabbitMQ {self.version} boots", step=0.1
        )
        if not guard.alive(keeper):
            raise NodeDied(self.version, (self.folder / "node.log").read_text()[-2000:])

    def stop(self) -> None:
        """Stop cleanly; the data stays."""
        self._end("guard.pid", signal.SIGTERM)

    def kill(self) -> None:
        """Crash with kill -9. The data stays, except for the last declarations: see `flush`."""
        self._end("server.pid", signal.SIGKILL)
        self.stop()

    def flush(self) -> None:
        """Make declarations survive `kill`: Mnesia (RabbitMQ 3) writes its log some time after declare-ok."""
        self.ctl("eval", "mnesia:sync_log().")

    def restart(self) -> None:
        """Restart on the same ports with the same data."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """Send SIGSTOP: sockets stay open without an answer."""
        self._signal("server.pid", signal.SIGSTOP)
        wait_until(lambda: self.pid is None or guard.state(self.pid) == "T", what="the node stands still")

    def resume(self) -> None:
        """Continue after `pause`."""
        self._signal("server.pid", signal.SIGCONT)

    def ctl(self, *words: str) -> str:
        """Run rabbitmqctl on the node and return its output."""
        command = self.install.command(self.folder, f"{self.install.home}/sbin/rabbitmqctl", *words)
        env = environment(self.install.inner(self.folder), self.ports)
        done = subprocess.run(command, env=env, cwd="/", capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"rabbitmqctl {' '.join(words)}: {done.stdout}{done.stderr}")
        return done.stdout

    def raise_alarm(self) -> None:
        """Raise the memory alarm: publishing connections are blocked."""
        self._alarmed = True
        self.ctl("set_vm_memory_high_watermark", "absolute", "1")

    def clear_alarm(self) -> None:
        """Clear the memory alarm."""
        self.ctl("set_vm_memory_high_watermark", "0.6")
        self._alarmed = False

    def heal(self) -> None:
        """Make the node run and answer, whatever a test did to it."""
        self.resume()
        if self.pid is None:
            self.restart()
        if self._alarmed:
            self.clear_alarm()

    def remove(self) -> None:
        """End the node at once and delete its data."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def answers(self) -> bool:
        """True if AMQP and the management API answer."""
        return shakes_hands(self.ports.amqp) and self.management.version() is not None

    def _living(self, name: str) -> int | None:
        with suppress(FileNotFoundError, ValueError):
            pid = int((self.folder / name).read_text())
            return pid if guard.alive(pid) else None
        return None

    def _signal(self, name: str, sign: signal.Signals) -> None:
        pid = self._living(name)
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, sign)

    def _end(self, name: str, sign: signal.Signals) -> None:
        self._signal(name, sign)
        wait_until(lambda: self._living(name) is None, guard.GRACE * 2, what=f"{name} of {self.version} ends")


def spawn_guard(folder: Path, owner: int) -> int:
    """Start the guard of the node in `folder`; its pid is stored there."""
    log = str(folder / "node.log")
    append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    pid = os.posix_spawn(
        sys.executable,
        [sys.executable, guard.__file__, str(folder), str(owner)],
        os.environ,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, log, append, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
    )
    (folder / "guard.pid").write_text(str(pid))
    return pid


def free_ports(count: int) -> list[int]:
    """Return free loopback ports."""
    free: list[int] = []
    for port in random.sample(PORTS, len(PORTS)):
        with socket.socket() as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            free.append(port)
        if len(free) == count:
            return free
    raise OSError("No free port between 20000 and 32000 on 127.0.0.1")


def shakes_hands(port: int, host: str = "127.0.0.1") -> bool:
    """True if an AMQP 0-9-1 broker answers."""
    with suppress(OSError), socket.create_connection((host, port), 2) as sock:
        sock.sendall(b"AMQP\x00\x00\x09\x01")
        return sock.recv(1) == b"\x01"
    return False

"""The environment of a run: broker, database, their proxies, a folder and the processes."""

import io
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import django
import pika
from django.core.management import call_command
from pika.exceptions import AMQPError

from tests.chaos.ledger import HARM, Ledger, now
from tests.chaos.postgres import Postgres
from tests.chaos.processes import Actor, Fleet, Role
from tests.chaos.sweeping import CALM
from tests.tooling import clocks
from tests.tooling.cluster import SOON
from tests.tooling.node import Node
from tests.tooling.proxy import Mode, Proxy, proxy_to
from tests.tooling.services import Services

SWEPT = ("consumer", "relay", "producer")


@dataclass(slots=True, kw_only=True)
class Stage:
    """The environment of one run, on one node or a cluster."""

    folder: Path
    seed: int
    nodes: Sequence[Node]
    database: Postgres
    amqp: Proxy
    sql: Proxy
    rate: float
    plant: str = ""
    sweep: bool = False
    """True if each process kills itself in a function that the seed chooses."""
    fleet: Fleet = field(default_factory=Fleet)

    @property
    def node(self) -> Node:
        return self.nodes[0]

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.folder, "stage")

    def environment(self, role: Role | None = None) -> Mapping[str, str]:
        """Return the environment variables of a role, or of the run itself."""
        proxied = role is not None and role.proxied
        urls = [node.url() for node in self.nodes]
        if proxied:
            urls[0] = urls[0].replace(f":{self.node.ports.amqp}/", f":{self.amqp.port}/")
        return {
            "CHAOS_FOLDER": str(self.folder),
            "CHAOS_URL": json.dumps(urls),
            "CHAOS_LOOK": self.node.url(),
            "CHAOS_DATABASE": json.dumps(self.database.settings(self.sql.port if proxied else None)),
            "CHAOS_SEED": str(self.seed),
            "CHAOS_RATE": str(self.rate),
            "CHAOS_PLANT": self.plant,
            "CHAOS_SWEEP": "yes" if self.sweep and role is not None and role.kind in SWEPT else "",
            clocks.VARIABLE: str(self._clock(role)) if role is not None else "",
            "DJANGO_SETTINGS_MODULE": "tests.chaos.project.settings",
        }

    def turn_clock(self, role: Role, seconds: float) -> None:
        """Set the clock of a role wrong by `seconds`, for all its processes from now on; 0 makes it right."""
        # Replace the file atomically, because a process that reads a half-written one would get another time.
        fresh = self._clock(role).with_suffix(".new")
        fresh.write_text(str(seconds))
        fresh.replace(self._clock(role))

    def _clock(self, role: Role) -> Path:
        return self.folder / "clocks" / role.name

    def prepare(self) -> None:
        """Set up Django in this process, and create the tables and queues."""
        os.environ.update({**self.environment(), "CHAOS_NAME": "stage", "CHAOS_LIFE": "0"})
        django.setup()
        call_command("migrate", run_syncdb=True, verbosity=0)
        self.declare()
        for node in self.nodes:
            node.flush()

    def declare(self) -> None:
        """Declare the topology like a deployment."""
        call_command("rmq_declare", stdout=io.StringIO())

    def man(self, roles: Sequence[Role]) -> None:
        """Start a process for each role."""
        for role in roles:
            actor = Actor(role, self.folder, self.environment)
            self.fleet.actors.append(actor)
            actor.start()

    def rest(self, seconds: float) -> None:
        self.fleet.rest(seconds)

    def wait(self, fact: Callable[[], bool], seconds: float) -> bool:
        """Wait until a fact is true, restarting processes meanwhile; return True if it was in time."""
        deadline = now() + seconds * 1000
        while not fact():
            if now() >= deadline:
                return False
            self.rest(0.3)
        return True

    def heal(self) -> None:
        """End all faults."""
        for proxy in (self.amqp, self.sql):
            proxy.accept()
            proxy.set(Mode.PASS)
        for node in self.nodes:
            node.heal()
        self.database.heal()
        (self.folder / CALM).touch()
        for clock in (self.folder / "clocks").iterdir():
            clock.unlink()

    def harmed(self, name: str, began: int) -> None:
        """Write the end of a nemesis to the ledger."""
        self.ledger.note(HARM, name, began, now())

    def depths(self) -> dict[str, int]:
        """Return the messages in each queue, without the empty queues.

        Unacked messages are from statistics, which for quorum queues are up to five seconds old; ready ones are exact.
        """
        rows: list[dict[str, Any]] = self.node.management.call("GET", "queues?columns=name,messages")
        depths = {row["name"]: row.get("messages", 1) for row in rows}
        try:
            with pika.BlockingConnection(pika.URLParameters(self.node.url())) as connection:
                channel = connection.channel()
                for name, depth in list(depths.items()):
                    ready = channel.queue_declare(name, passive=True).method.message_count
                    depths[name] = max(depth, ready)
        except AMQPError as error:
            raise OSError(f"The queue depths could not be read from the broker: {error!r}") from error
        return {name: depth for name, depth in depths.items() if depth}


@contextmanager
def staged(
    make: Callable[[Services, ExitStack], Sequence[Node]], *, server: type[Postgres] = Postgres, **options: Any
) -> Iterator[Stage]:
    """Create a stage with the nodes that `make` starts; everything is removed at the end."""
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="rmq-chaos-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        for name in ("logs", "ledger", "repaired", "nodes", "clocks", "census"):
            (folder / name).mkdir()
        database = server()
        stack.callback(database.close)
        database.create()
        nodes = make(Services(folder=folder / "nodes", owner=os.getpid()), stack)
        stage = Stage(
            folder=folder,
            nodes=nodes,
            database=database,
            amqp=stack.enter_context(proxy_to(nodes[0].ports.amqp)),
            sql=stack.enter_context(proxy_to(database.port)),
            **options,
        )
        stack.callback(stage.fleet.kill)
        stage.prepare()
        yield stage


def one_node(version: str | None) -> Callable[[Services, ExitStack], Sequence[Node]]:
    """Return a function that starts a broker of one node."""

    def make(services: Services, stack: ExitStack) -> Sequence[Node]:
        node = services.private(version, advanced=SOON)
        stack.callback(node.remove)
        return [node]

    return make

"""Finds or starts the RabbitMQ of the tests; all workers of a run share one node per version."""

import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlsplit

import pika
import pytest
from pika.exceptions import AMQPError

from tests.tooling.installs import Install, install_for
from tests.tooling.management import Management
from tests.tooling.node import Node, shakes_hands

DEFAULT = "amqp://guest:guest@127.0.0.1:5672/%2F"
MARK = "Missing here: "
HOW = "Run `make services`, or install rabbitmq-server (no system service is needed), or set RMQ_TEST_URL"


class Unavailable(Exception):
    """RabbitMQ of this version is not available; `version` is None if any would do."""

    def __init__(self, version: str | None, reason: str) -> None:
        self.version = version
        super().__init__(reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """A RabbitMQ where tests may create virtual hosts."""

    version: str
    base: str
    management: Management

    def url(self, vhost: str) -> str:
        """Return the address of a virtual host."""
        return f"{self.base}/{vhost}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The services of one test run: its workers share `folder`, and `owner` is the process that outlives them."""

    folder: Path
    owner: int

    @property
    def run(self) -> str:
        """The prefix of every virtual host of this run."""
        return f"test-{self.folder.name}"

    def unique(self) -> str:
        """Return a name that no other test, worker or run uses."""
        return f"{self.run}-{secrets.token_hex(6)}"

    def broker(self, version: str | None = None) -> Broker:
        """Return the broker of `version`, or the default one; the first worker that needs it starts it."""
        url = None if version else os.environ.get("RMQ_TEST_URL")
        install = None if url else install_for(version)
        if install is not None:
            return self._shared(install)
        if url is None and (version or not shakes_hands(5672)):
            raise missing(version)
        url = url or DEFAULT
        broker = named_broker(url)
        (self.folder / "external").write_text(url)
        return broker

    def private(self, version: str | None = None, conf: Sequence[str] = (), advanced: str = "") -> Node:
        """Start a private node, to be removed by the caller. ``advanced`` is for options that rabbitmq.conf lacks."""
        install = install_for(version)
        if install is None:
            raise missing(version)
        node = Node.create(self.folder / f"private-{secrets.token_hex(4)}", install, owner=self.owner, conf=conf)
        if advanced:
            (node.folder / "advanced.config").write_text(advanced)
        node.start()
        return node

    def close(self) -> list[str]:
        """End every node; return sentences about what tests left behind."""
        left = []
        for told in sorted(self.folder.glob("*/node.json")):
            node = Node(told.parent)
            if told.parent.name.startswith("private-"):
                left.append(f"the private node {told.parent.name} was never removed")
            elif node.pid:
                left += self._forgotten(node.management)
            node.remove()
        if (self.folder / "external").exists():
            left += self._forgotten(named_broker((self.folder / "external").read_text()).management)
        shutil.rmtree(self.folder, ignore_errors=True)
        return left

    def _shared(self, install: Install) -> Broker:
        folder = self.folder / f"shared-{install.version}"
        with self._alone():
            node = Node(folder) if (folder / "node.json").exists() else None
            if node is None or node.pid is None:
                shutil.rmtree(folder, ignore_errors=True)
                node = Node.create(folder, install, owner=self.owner)
                node.start()
        return Broker(version=node.version, base=node.url("").rstrip("/"), management=node.management)

    def _forgotten(self, management: Management) -> list[str]:
        names = [name for name in management.vhosts() if name.startswith(self.run)]
        for name in names:
            management.delete_vhost(name)
        return [f"the virtual host {name} was never deleted" for name in names]

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with (self.folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


SERVICES = pytest.StashKey[Services]()


def named_broker(url: str) -> Broker:
    """Return the RabbitMQ at `url`, which must let us create virtual hosts through its management API."""
    parts = urlsplit(url)
    login = parts.netloc.rpartition("@")[0] or "guest:guest"
    api = os.environ.get("RMQ_TEST_MANAGEMENT") or f"http://{login}@{parts.hostname}:15672"
    management = Management(url=api)
    version = management.version()
    place = f"{parts.hostname}:{parts.port or 5672}"
    if version is None:
        why = f"no management API answers at {management.place}, and the tests make their virtual hosts through it"
        how = "Enable rabbitmq_management there, or set RMQ_TEST_MANAGEMENT, or install rabbitmq-server here"
        raise Unavailable(None, f"RabbitMQ at {place} cannot be used: {why}. {how}.")
    broker = Broker(version=version, base=f"{parts.scheme}://{parts.netloc}", management=management)
    error = of_another_broker(broker)
    if error:
        what = f"The management API at {management.place} belongs to another broker than the one at {place}"
        why = f"a virtual host made there cannot be opened here ({error})"
        raise Unavailable(None, f"{what}: {why}. Set RMQ_TEST_URL and RMQ_TEST_MANAGEMENT to the same one.")
    return broker


@cache
def of_another_broker(broker: Broker) -> str:
    """Return the error on opening a virtual host that the management API has made; empty if it is the broker's own."""
    name = f"check-{secrets.token_hex(6)}"
    try:
        broker.management.create_vhost(name)
        pika.BlockingConnection(pika.URLParameters(broker.url(name))).close()
    except (AMQPError, OSError) as error:
        # Without the random name, the sentence is the same for each worker.
        return " ".join(str(error).split()).replace(name, "…") or type(error).__name__
    finally:
        with suppress(OSError):
            broker.management.delete_vhost(name)
    return ""


def missing(version: str | None) -> Unavailable:
    """Return the error for a missing installation."""
    if version is None:
        return Unavailable(None, f"RabbitMQ is not on this machine. {HOW}.")
    return Unavailable(version, f"RabbitMQ {version} is not on this machine. Run `make brokers` to get it.")


def go_without(lack: Unavailable) -> NoReturn:
    """Skip the current test, or fail it with RMQ_TEST_REQUIRE=all."""
    if os.environ.get("RMQ_TEST_REQUIRE") == "all":
        pytest.fail(f"{MARK}{lack} (RMQ_TEST_REQUIRE=all)", pytrace=False)
    pytest.skip(f"{MARK}{lack}")

"""A RabbitMQ to play with: a virtual host of our own where one runs, or a node of our own where one is installed."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError
from urllib.parse import quote, urlsplit

from django.core.management.base import CommandError

from tests.tooling.installs import install_for
from tests.tooling.management import Management
from tests.tooling.node import Node, shakes_hands

USUAL = "amqp://guest:guest@127.0.0.1:5672"
HOW = (
    "The demo needs a RabbitMQ, and found none on 127.0.0.1:5672 and no rabbitmq-server installed. Either install it "
    "(Debian: `apt-get install rabbitmq-server`; it need not run, the demo starts a node of its own), or say where "
    "one runs with its management API: RMQ_URL=amqp://user:password@host:5672 make demo."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the demo plays; all in it is gone afterwards."""

    url: str
    management: str
    said: str


@contextmanager
def place(folder: Path) -> Iterator[Place]:
    """The RabbitMQ that RMQ_URL names, or the one that runs here, or one that is started in the folder."""
    named = os.environ.get("RMQ_URL")
    if named or reachable(USUAL):
        with _vhost(named or USUAL) as found:
            yield found
        return
    install = install_for(None)
    if install is None:
        raise CommandError(HOW)
    node = Node.create(folder / "node", install, owner=os.getpid())
    try:
        node.start()
        said = f"a RabbitMQ {node.version} of its own, on port {node.ports.amqp}"
        yield Place(url=node.url(), management=node.management.url, said=said)
    finally:
        node.remove()


def reachable(url: str) -> bool:
    """Whether a broker answers there, and lets us make virtual hosts."""
    port = urlsplit(url).port
    return port is not None and shakes_hands(port) and management_of(url).version() is not None


def management_of(url: str) -> Management:
    """The management API beside a broker: where BANK_MANAGEMENT_URL says, or on its usual port."""
    parts = urlsplit(url)
    login = parts.netloc.rpartition("@")[0] or "guest:guest"
    return Management(url=os.environ.get("BANK_MANAGEMENT_URL") or f"http://{login}@{parts.hostname}:15672")


@contextmanager
def _vhost(url: str) -> Iterator[Place]:
    management = management_of(url)
    name = f"bank-demo-{secrets.token_hex(4)}"
    try:
        management.create_vhost(name)
    except URLError as error:
        raise CommandError(
            f"The demo plays in a virtual host of its own, and could not make one by the management API at "
            f"{management.place}: {error.reason}. Enable rabbitmq_management there, give the user the tag "
            "administrator, or name the API with BANK_MANAGEMENT_URL=http://user:password@host:15672."
        ) from error
    try:
        parts = urlsplit(url)._replace(path=f"/{quote(name, safe='')}")
        yield Place(
            url=parts.geturl(),
            management=management.url,
            said=f"the virtual host {name} of RabbitMQ {management.version()} on {parts.hostname}",
        )
    finally:
        management.delete_vhost(name)

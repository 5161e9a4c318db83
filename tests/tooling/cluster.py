"""Private RabbitMQ nodes in one cluster, on loopback."""

import random
import secrets
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from tests.tooling.guard import end
from tests.tooling.installs import install_for
from tests.tooling.node import Node, free_ports
from tests.tooling.nodefiles import Family, epmd
from tests.tooling.services import Services, missing
from tests.tooling.waiting import wait_until

SIZE = 3
CONF = ("cluster_partition_handling = pause_minority",)
"""A node that sees fewer than half of the nodes stops serving, as RabbitMQ advises for safety."""
SOON = "[{rabbit, [{dead_letter_worker_publisher_confirm_timeout, 5000}]}].\n"
"""In advanced.config: a dead letter whose hand-over met a node's death is retried after 5 seconds, not 180."""


@contextmanager
def cluster(services: Services, version: str | None = None, size: int = SIZE) -> Iterator[Sequence[Node]]:
    """Start and join the nodes; remove them at the end."""
    install = install_for(version)
    if install is None:
        raise missing(version)
    family = Family(epmd=free_ports(1)[0], cookie=f"{random.getrandbits(128):032x}")
    with ExitStack() as stack:
        nodes: list[Node] = []
        for _ in range(size):
            folder = services.folder / f"private-{secrets.token_hex(4)}"
            node = Node.create(folder, install, owner=services.owner, conf=CONF, family=family)
            (folder / "advanced.config").write_text(SOON)
            if not nodes:
                words = ["setpriv", "--pdeathsig", "KILL", *epmd(install, folder, family.epmd)]
                mapper = subprocess.Popen(words, cwd="/", stdin=subprocess.DEVNULL)
                stack.callback(end, mapper)
            stack.callback(node.remove)
            node.start()
            nodes.append(node)
        for node in nodes[1:]:
            for command in (("stop_app",), ("join_cluster", nodes[0].name), ("start_app",)):
                node.ctl(*command)
        wait_until(lambda: running(nodes[0]) == size, 60, what=f"{size} nodes are one cluster", step=0.5)
        yield nodes


def cut_off(node: Node, others: Sequence[Node]) -> None:
    """Cut the network between one node and the others until `rejoin`: neither side accepts the other's cookie."""
    names = ", ".join(f"'{other.name}'" for other in others)
    node.ctl("eval", f"[begin erlang:set_cookie(Other, cut), erlang:disconnect_node(Other) end || Other <- [{names}]].")


def rejoin(node: Node, others: Sequence[Node]) -> None:
    """Reconnect the nodes."""
    names = ", ".join(f"'{other.name}'" for other in others)
    node.ctl("eval", f"[erlang:set_cookie(Other, erlang:get_cookie()) || Other <- [{names}]].")


def running(node: Node) -> int:
    """Return the number of running nodes in a node's cluster."""
    return sum(row["running"] for row in node.management.call("GET", "nodes?columns=running"))


def whole(node: Node, size: int = SIZE) -> bool:
    """True if every quorum queue has all its replicas running."""
    rows = node.management.call("GET", "queues?columns=type,online,members")
    return all(len(row.get("online", ())) == size for row in rows if row["type"] == "quorum")

"""Compares the project's topology with one that was stored."""

import json
import os
from difflib import unified_diff
from pathlib import Path

from django_rmq_retry import registry
from django_rmq_retry.core.drawing.definitions import definitions

UPDATE = "RMQ_UPDATE_SNAPSHOTS"


def assert_topology(snapshot: str | os.PathLike[str]) -> None:
    """Fail unless every exchange, queue and binding of the project is as the file says.

    The file is made where ``RMQ_UPDATE_SNAPSHOTS=1`` stands in the environment. It is what
    ``rabbitmqctl import_definitions`` takes.
    """
    registry.autodiscover()
    path = Path(snapshot)
    now = json.dumps(definitions(registry.topology()), indent=2, sort_keys=True) + "\n"
    if os.environ.get(UPDATE, "0") not in {"", "0"}:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(now)
        return
    how = f"If that is meant, run this test once with {UPDATE}=1 and commit the file."
    if not path.exists():
        raise AssertionError(f"There is no snapshot of the topology at {path} yet. {how}")
    stored = path.read_text()
    if json.loads(stored) != json.loads(now):
        told = unified_diff(stored.splitlines(), now.splitlines(), str(path), "the project now", lineterm="", n=2)
        raise AssertionError("\n".join([f"The topology is not what {path} says. {how}", *told]))

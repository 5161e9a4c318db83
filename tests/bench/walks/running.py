"""Count each walk in its own process, on a fresh queue and database, and print it."""

import json
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.bench.report import Finding, table
from tests.bench.suites import remembering
from tests.bench.task import Task
from tests.bench.walks.counting import Part
from tests.tooling.filled import Own, own_database
from tests.tooling.node import Node

NAME = "walks"
ROOT = Path(__file__).parents[3]
PATIENCE = 180.0
LAST_WORDS = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """A walk of one message, and the highest allowed numbers of modules and functions."""

    name: str
    title: str
    modules: int
    functions: int


WALKS = (
    Walk(name="publish", title="publish in a transaction, to the confirm", modules=9, functions=60),
    Walk(name="arrival", title="arrival, handler, ack", modules=8, functions=25),
    Walk(name="retry", title="failure, retry, success", modules=18, functions=110),
    Walk(name="parked", title="failure, parked, recorded in the database", modules=24, functions=150),
)


def walks(node: Node) -> list[Finding]:
    """Count and print; return the findings for the targets."""
    kind = remembering()
    print(f"\nmodules and functions of the package that run for one more message, {kind}")
    return [finding for one in WALKS for finding in _told(one, *_counted(node, one, kind))]


def _told(one: Walk, parts: Sequence[Part], error: str) -> list[Finding]:
    if error:
        print(f"\n{one.title}: failed: {error}")
        return [Finding(what=f"{one.title}: failed", met=False)]
    modules, functions = len(parts), sum(len(part.functions) for part in parts)
    counts = f"{modules} modules of {one.modules}, {functions} functions of {one.functions}"
    print(f"\n{one.title}: {counts}\n")
    rows: list[Sequence[str]] = [("module", "functions")]
    table([*rows, *((part.module, str(len(part.functions))) for part in parts)])
    return [Finding(what=f"{one.title}: {counts}", met=modules <= one.modules and functions <= one.functions)]


def _counted(node: Node, one: Walk, kind: str) -> tuple[list[Part], str]:
    """Count a walk on a database of its own."""
    with (
        tempfile.TemporaryDirectory(prefix="rmq-bench-") as place,
        own_database(Path(place), Path(place), kind) as own,
    ):
        return counted(node.url(), one, own)


def counted(url: str, one: Walk, own: Own) -> tuple[list[Part], str]:
    """Return the walk's modules in the order of their first calls, or the reason of a failure."""
    with tempfile.TemporaryDirectory(prefix="rmq-bench-") as place:
        queue = f"bench.{secrets.token_hex(4)}"
        task = Task(url=url, queue=queue, database=json.dumps(own.settings), does=one.name)
        told = Path(place) / "walk.json"
        error = _run(task, told)
        return ([], error) if error else ([Part(**part) for part in json.loads(told.read_text())], "")


def _run(task: Task, told: Path) -> str:
    """Return the reason that the process failed; empty on success."""
    environment = {**task.environment(-1), "DJANGO_SETTINGS_MODULE": "tests.bench.walks.settings"}
    environment.pop("RMQ_TEST_OWN_DATABASE", None)
    line = [sys.executable, "-m", "tests.bench.walks", str(told)]
    try:
        done = subprocess.run(
            line, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE
        )
    except subprocess.TimeoutExpired:
        return f"not finished within {PATIENCE:g} s"
    if told.exists():
        return ""
    return (done.stderr + done.stdout).strip()[-LAST_WORDS:] or f"exit code {done.returncode}"

"""Counts the names that tests import from the product's internals, and names the public seams beside them."""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import django_rmq_retry

PACKAGE = "django_rmq_retry"
PUBLIC = frozenset({"conf", "env", "errors", "models", "signals", "testing", "testing.plugin"})
"""Modules whose names are all public, without the package's name."""
FRONTS = frozenset({"amqp", "handlers", "messages", "policies", "topology"})
FUNCTIONS = frozenset({
    *(("policies", name) for name in ("discard", "halt", "park", "retry")),
    *(("messages", name) for name in ("decode_properties", "encode_properties")),
    ("handlers", "work_queues"),
})  # fmt: skip
"""Functions at a front. Its other lower-case names are modules."""
OPERATING = frozenset({
    *(("parked.attempts", name) for name in ("attempts_of", "waiting")),
    *(("parked.controls", name) for name in ("pause", "resume")),
    *(("parked.operators", name) for name in ("Actor", "NothingChosen", "Outdated", "Refused")),
    ("parked.requeue", "requeue"),
    ("parked.selection", "Selection"),
})  # fmt: skip
"""The public names of `parked`, listed on docs/architecture.md."""


def is_public(module: str, name: str) -> bool:
    """Return whether a test may import this name without being counted."""
    if not module:
        return name in {*django_rmq_retry.__all__, *PUBLIC, *FRONTS, "*"}
    if module in PUBLIC or module.startswith("models.") or (module, name) in OPERATING | FUNCTIONS:
        return True
    return module in FRONTS and not name[0].islower()


def imported(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield module and name of each import from the package; a whole module has the name "*"."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not node.level:
            pairs = [(node.module or "", alias.name) for alias in node.names]
        elif isinstance(node, ast.Import):
            pairs = [(alias.name, "*") for alias in node.names]
        else:
            continue
        for module, name in pairs:
            if module == PACKAGE or module.startswith(f"{PACKAGE}."):
                yield module.removeprefix(PACKAGE).removeprefix("."), name


def internals(source: str) -> set[tuple[str, str]]:
    """Return the internal (module, name) pairs that one file imports, each counted once."""
    return {pair for pair in imported(ast.parse(source)) if not is_public(*pair)}


def count(folder: Path) -> Counter[str]:
    """Return how many internal names the files of a folder import, by module."""
    return Counter(
        module or PACKAGE
        for path in sorted(folder.rglob("*.py"))
        for module, _name in internals(path.read_text(encoding="utf-8"))
    )

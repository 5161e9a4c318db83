"""Counts what tests import from the product's internals, by name and by statement, and lists the public seams."""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import django_rmq_retry

PACKAGE = "django_rmq_retry"
PUBLIC = frozenset({"conf", "env", "errors", "hooks", "models", "signals", "testing", "testing.plugin"}) | {
    f"telemetry.{name}" for name in ("log_fields", "opentelemetry", "prometheus", "sentry")
}
"""Modules whose names are all public, without the package's name."""
FRONTS = frozenset({"amqp", "handlers", "messages", "policies", "topology"})
FUNCTIONS = frozenset({
    *(("policies", name) for name in ("discard", "halt", "park", "retry")),
    *(("messages", name) for name in ("decode_properties", "encode_properties")),
    ("handlers", "work_queues_of"),
})  # fmt: skip
"""Functions at a front. Its other lower-case names are modules."""
OPERATING = frozenset({
    *(("parked.attempts", name) for name in ("attempts_of", "waiting")),
    *(("parked.controls", name) for name in ("pause", "resume")),
    *(("parked.operators", name) for name in ("Actor", "NothingChosen", "Outdated", "Refused")),
    ("parked.requeue", "requeue"),
    ("parked.selection", "Selection"),
})  # fmt: skip
"""The public names of `parked`, listed on docs/concepts/architecture.md."""


def is_public(module: str, name: str) -> bool:
    """Return whether a test may import this name without being counted."""
    if not module:
        return name in {*django_rmq_retry.__all__, *PUBLIC, *FRONTS, "*"}
    if module in PUBLIC or module.startswith("models.") or (module, name) in OPERATING | FUNCTIONS:
        return True
    return module in FRONTS and not name[0].islower()


def pairs_of(node: ast.AST) -> list[tuple[str, str]]:
    """Return module and name of each import from the package in one node; a whole module has the name "*"."""
    if isinstance(node, ast.ImportFrom) and not node.level:
        pairs = [(node.module or "", alias.name) for alias in node.names]
    elif isinstance(node, ast.Import):
        pairs = [(alias.name, "*") for alias in node.names]
    else:
        return []
    return [
        (module.removeprefix(PACKAGE).removeprefix("."), name)
        for module, name in pairs
        if module == PACKAGE or module.startswith(f"{PACKAGE}.")
    ]


def statements(source: str) -> Iterator[list[tuple[str, str]]]:
    """Yield the internal (module, name) pairs of each import statement that has any."""
    for node in ast.walk(ast.parse(source)):
        if pairs := [pair for pair in pairs_of(node) if not is_public(*pair)]:
            yield pairs


def internals(source: str) -> set[tuple[str, str]]:
    """Return the internal (module, name) pairs that one file imports, each counted once."""
    return {pair for pairs in statements(source) for pair in pairs}


def count(folder: Path) -> Counter[str]:
    """Return how many internal names the files of a folder import, by module."""
    return Counter(
        module or PACKAGE
        for path in sorted(folder.rglob("*.py"))
        for module, _name in internals(path.read_text(encoding="utf-8"))
    )


def count_statements(folder: Path) -> Counter[str]:
    """Return how many import statements of a folder's files name internals, by module."""
    return Counter(
        pairs[0][0] or PACKAGE
        for path in sorted(folder.rglob("*.py"))
        for pairs in statements(path.read_text(encoding="utf-8"))
    )

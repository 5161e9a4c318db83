"""Reads a package's imports and reports each one that breaks the order of the layers."""

import ast
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

WILD = ".*"
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """One import of a module; modules of the package are written from its root: "core.errors"."""

    source: str
    place: str
    target: str
    own: bool
    late: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """The layers, bottom first, and the foreign imports of each folder; the first folder that fits a module counts."""

    layers: Sequence[str]
    foreign: Mapping[str, frozenset[str]]
    forbidden: Mapping[str, frozenset[str]]
    narrow: Mapping[str, Sequence[str]]

    def broken(self, package: Path) -> list[str]:
        """Return a sentence for each import that breaks the order."""
        modules = {name_of(path, package): path for path in sorted(package.rglob("*.py"))}
        homeless = [
            f"{path.relative_to(package)} has no layer: add {name!r} to LAYERS where it belongs."
            for name, path in modules.items()
            if self.layer(name) is None
        ]
        found = [one for path in modules.values() for one in imports(path, package, frozenset(modules))]
        sentences = (self.judge(one) for one in found)
        return homeless + [sentence for sentence in sentences if sentence] + list(self.circles(found))

    def layer(self, module: str) -> int | None:
        """Return the layer of a module; its own name wins over `folder.*`."""
        if module in self.layers:
            return self.layers.index(module)
        for height, layer in enumerate(self.layers):
            if layer.endswith(WILD) and inside(module, layer.removesuffix(WILD)):
                return height
        return None

    def judge(self, one: Import) -> str | None:
        """Return the problem of an import, or None."""
        if one.late:
            return f"{one.place} imports {one.target} inside a function: imports stand at the top of a module."
        return self.judge_own(one) if one.own else self.judge_foreign(one)

    def judge_own(self, one: Import) -> str | None:
        """Check that an import inside the package goes down."""
        low, high = self.layer(one.source), self.layer(one.target)
        if low is None or high is None:
            return None
        if high > low:
            return (
                f"{one.place} imports {one.target}: imports only go down, but {one.target} is in"
                f" layer {high} ({self.layers[high]}), above {one.source} in layer {low} ({self.layers[low]})."
            )
        room = first_room(one.source, self.narrow)
        if room is not None and not any(inside(one.target, name) for name in self.narrow[room]):
            allowed = ", ".join(self.narrow[room])
            return f"{one.place} imports {one.target}: {room} knows only {allowed} of the project."
        return None

    def judge_foreign(self, one: Import) -> str | None:
        """Check an import from outside the package against the module's folder."""
        room = first_room(one.source, self.forbidden)
        if room is not None and one.target in self.forbidden[room]:
            return f"{one.place} imports {one.target}: {room} gets such things handed in."
        room = first_room(one.source, self.foreign)
        allowed = self.foreign[room] if room is not None else frozenset[str]()
        if one.target in sys.stdlib_module_names or one.target in allowed:
            return None
        others = " and ".join(["the standard library", *sorted(allowed)])
        return f"{one.place} imports {one.target}: {room or 'the package root'} may import {others} only."

    def circles(self, found: Sequence[Import]) -> Iterator[str]:
        """Yield modules of one layer that import each other in a circle."""
        below: dict[str, set[str]] = {}
        for one in found:
            if one.own and one.source != one.target and self.layer(one.source) == self.layer(one.target):
                below.setdefault(one.source, set()).add(one.target)
        for module in sorted(below):
            if module in reachable(module, below):
                yield f"{module} imports itself in a circle through {', '.join(sorted(below[module]))}."


def inside(module: str, room: str) -> bool:
    """True if the module is in the folder; the folder "" holds every module."""
    return not room or f"{module}.".startswith(f"{room}.")


def first_room(module: str, rooms: Mapping[str, object]) -> str | None:
    """Return the first folder that holds the module."""
    return next((room for room in rooms if inside(module, room)), None)


def reachable(start: str, below: Mapping[str, set[str]]) -> set[str]:
    """Return every module that `start` imports, directly or not."""
    seen: set[str] = set()
    todo = list(below.get(start, ()))
    while todo:
        module = todo.pop()
        if module not in seen:
            seen.add(module)
            todo += below.get(module, ())
    return seen


def name_of(path: Path, package: Path) -> str:
    """Return a module's name from the package's root; the root itself is `__init__`."""
    parts = path.relative_to(package).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


def imports(path: Path, package: Path, modules: frozenset[str]) -> Iterator[Import]:
    """Yield all imports of a file, including those under TYPE_CHECKING."""
    source = name_of(path, package)
    tree = ast.parse(path.read_text())
    functions = (node for node in ast.walk(tree) if isinstance(node, FUNCTIONS))
    late = {id(inner) for function in functions for inner in ast.walk(function)}
    for node in ast.walk(tree):
        for name in imported(node, path, package, modules):
            own = name == package.name or name.startswith(f"{package.name}.")
            target = name.removeprefix(package.name).strip(".") or "__init__" if own else name.partition(".")[0]
            place = f"{path.relative_to(package)}:{getattr(node, 'lineno', 0)}"
            yield Import(source=source, place=place, target=target, own=own, late=id(node) in late)


def imported(node: ast.AST, path: Path, package: Path, modules: frozenset[str]) -> list[str]:
    """Return the full names of the modules that one statement imports."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    base = node.module or ""
    if node.level:
        folder = path.parents[node.level - 1].relative_to(package.parent)
        base = ".".join(part for part in (*folder.parts, base) if part)
    full = [f"{base}.{alias.name}" for alias in node.names]
    found = [name if name.removeprefix(f"{package.name}.") in modules else base for name in full]
    return list(dict.fromkeys(found))

"""Prints figures of how readable the product is.

python -m tests.tooling.house
"""

import ast
from collections import Counter
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tests.tooling import seams
from tests.tooling.layers import imports, name_of

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "django_rmq_retry"
SMALL = 60
"""Lines from which a module may have only one importer."""
FOUND_BY_NAME = frozenset({"__init__", "apps", "errors", "signals"})
"""Modules that Django or a reader finds by their name."""
FIELD_WORDS = frozenset({"masking", "ordering", "publishing", "routing", "testing"})
"""Nouns in -ing that the field uses."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure, and what counts."""

    name: str
    value: float
    details: tuple[str, ...] = ()

    def __str__(self) -> str:
        names = f"  {', '.join(self.details)}" if self.details else ""
        return f"{self.name:48}{self.value:8g}{names}"


@dataclass(frozen=True)
class House:
    """A package's modules, read from their source."""

    package: Path

    @cached_property
    def paths(self) -> Mapping[str, Path]:
        """Every module but migrations, by its name from the package's root."""
        found = sorted(self.package.rglob("*.py"))
        return {name_of(path, self.package): path for path in found if "migrations" not in path.parts}

    @cached_property
    def below(self) -> Mapping[str, AbstractSet[str]]:
        """The modules that each module imports."""
        known = frozenset(self.paths)
        return {
            module: {one.target for one in imports(path, self.package, known) if one.own} & known - {module}
            for module, path in self.paths.items()
        }

    @cached_property
    def above(self) -> Mapping[str, AbstractSet[str]]:
        """The modules that import each module."""
        return {low: {high for high in self.paths if low in self.below[high]} for low in self.paths}

    def modules(self) -> Figure:
        """Count the modules."""
        return Figure("modules", len(self.paths))

    def chain(self) -> Figure:
        """Find the longest chain of modules of which each imports the next."""
        longest: dict[str, tuple[str, ...]] = {}

        def chain_from(module: str) -> tuple[str, ...]:
            if module not in longest:
                further = (chain_from(low) for low in sorted(self.below[module]))
                longest[module] = (module, *max(further, key=len, default=()))
            return longest[module]

        found = max(map(chain_from, self.paths), key=len)
        return Figure("longest chain of imports", len(found), found)

    def import_share(self) -> Figure:
        """Measure how many of all lines are imports, in percent."""
        texts = [path.read_text() for path in self.paths.values()]
        lines = sum(len(text.splitlines()) for text in texts)
        imported = sum(
            (node.end_lineno or node.lineno) - node.lineno + 1
            for text in texts
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.Import | ast.ImportFrom)
        )
        return Figure("imports, percent of lines", round(100 * imported / lines, 2))

    def shared_names(self) -> Figure:
        """Find names that modules of three packages have."""
        names = Counter(module.rpartition(".")[2] for module in self.paths)
        found = tuple(sorted(name for name, count in names.items() if count > 2 and name != "__init__"))
        return Figure("module names in three packages", len(found), found)

    def gerunds(self) -> Figure:
        """Find modules that are named by a gerund, but for words of the field."""
        found = tuple(
            module
            for module in self.paths
            if (name := module.rpartition(".")[2]).endswith("ing") and name not in FIELD_WORDS
        )
        return Figure("modules named by a gerund", len(found), found)

    def slips(self) -> Figure:
        """Find small modules that only one other module imports."""
        found = tuple(module for module in self.paths if self.is_slip(module))
        return Figure(f"modules below {SMALL} lines with one importer", len(found), found)

    def is_slip(self, module: str) -> bool:
        """Return whether a module is small and has one importer; packages and commands do not count."""
        path = self.paths[module]
        if path.stem in FOUND_BY_NAME or "commands" in path.parts:
            return False
        return len(self.above[module]) == 1 and len(path.read_text().splitlines()) < SMALL

    def figures(self) -> Iterator[Figure]:
        """Yield all figures of the package."""
        yield from (self.modules(), self.chain(), self.import_share())
        yield from (self.shared_names(), self.gerunds(), self.slips())


def main() -> None:
    """Print the figures of the product, and how many internals the tests import."""
    for figure in House(PACKAGE).figures():
        print(figure)
    print(Figure("import statements of internals in tests", seams.count_statements(ROOT / "tests").total()))
    print(Figure("internal names that tests import", seams.count(ROOT / "tests").total()))


if __name__ == "__main__":
    main()

"""The pages of the documentation, their examples, and stand-ins for the reader's own project."""

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from textwrap import dedent
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import django_rmq_retry.telemetry.sentry  # noqa: F401 - with the real modules, before a stand-in takes their names

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = (ROOT / "README.md", *sorted(path for path in DOCS.rglob("*.md") if "_build" not in path.parts))
FENCE = re.compile(r"^(?P<indent> *)```(?P<kind>[\w{}-]*)\n(?P<text>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL)
READERS_OWN = (
    *("payments", "bank", "shop"),
    *("celery", "cryptography", "django_tasks_db", "httpx", "structlog", "sentry_sdk", "prometheus_client"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One fenced block of a page."""

    page: str
    line: int
    kind: str
    text: str


def page(name: str) -> Path:
    """Return the page with this file name, in whatever folder of the documentation it is."""
    [found] = [path for path in PAGES if path.name == name]
    return found


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page, in order."""
    text = page.read_text()
    return [
        Block(
            page=page.name,
            line=text[: found.start()].count("\n") + 1,
            kind=found["kind"],
            text=dedent(found["text"]),
        )
        for found in FENCE.finditer(text)
    ]


class Thing(MagicMock):
    """A stand-in for any object of the reader's project; its primary key is 7."""

    pk = 7
    seconds = 30.0
    amount = 5


class _Named(type):
    """A stand-in for the reader's classes: it can be raised and caught, and has every attribute."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Thing()


class _Readers(MetaPathFinder, Loader):
    """Finds every module of the reader's project, and makes its content on access."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] not in READERS_OWN:
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["__getattr__"] = _made


def _made(name: str) -> object:
    if name.startswith("__"):
        raise AttributeError(name)
    return _Named(name, (Exception,), {}) if name[0].isupper() else Thing()


@contextmanager
def readers_project() -> Iterator[None]:
    """Make the modules of the reader's project importable inside the block, in place of installed ones."""
    finder = _Readers()
    installed = _take_modules()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        _take_modules()
        sys.modules.update(installed)


def _take_modules() -> dict[str, ModuleType]:
    """Remove the imported modules with the names of the reader's project, and return them."""
    names = [name for name in sys.modules if name.partition(".")[0] in READERS_OWN]
    return {name: sys.modules.pop(name) for name in names}

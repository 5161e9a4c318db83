"""The pages of the documentation, their examples, and what stands in for the reader's own project in them."""

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

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
FENCE = re.compile(r"^(?P<indent> *)```(?P<kind>[\w{}-]*)\n(?P<text>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL)
READERS_OWN = ("payments", "bank", "shop", "structlog", "sentry_sdk", "prometheus_client")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One fenced block of a page."""

    page: str
    line: int
    kind: str
    text: str


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in their order."""
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
    """Whatever the reader's project has under a name; its primary key is 7."""

    pk = 7
    seconds = 30.0
    amount = 5


class _Named(type):
    """The reader's classes: they can be raised and caught, and have whatever is asked of them."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Thing()


class _Readers(MetaPathFinder, Loader):
    """Finds every module of the reader's project; what is in it is made when asked for."""

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
    """Importable meanwhile: payments.models and its like, and what the examples themselves have made."""
    finder = _Readers()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name.partition(".")[0] in READERS_OWN]:
            del sys.modules[name]

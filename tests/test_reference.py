"""The reference is complete: its pages list what the code has, and nothing else."""

import ast
import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
from django.dispatch import Signal

import django_rmq_retry
from django_rmq_retry import conf, signals, testing
from django_rmq_retry.messages import header_names, stamp
from tests.commands.running import run
from tests.tooling import commands
from tests.tooling.pages import page

PACKAGE = Path(django_rmq_retry.__file__).parent
SETTINGS = page("settings.md").read_text()
NAME = re.compile(r"`([a-z_]+)`")
SIGNALS = PACKAGE / "signals.py"
SIGNAL = re.compile(r'^(\w+) = Signal\(\)\n"""(.+?)"""$', re.MULTILINE | re.DOTALL)
ARGUMENT = re.compile(r"``([a-z]+)``")
ALL_OF_AN_ATTEMPT = {"handler", "delivery", "verdict"}
"""The arguments that the consumer passes to each signal of an attempt, as one mapping."""


def rows(name: str, head: str) -> list[list[str]]:
    """The rows of the page's tables whose head begins like this, as lists of cells."""
    tables = re.findall(rf"^\| {re.escape(head)} \|.*\n\|[-| ]+\n((?:\|.*\n)+)", page(name).read_text(), re.MULTILINE)
    return [[cell.strip() for cell in row.split("|")[1:-1]] for table in tables for row in table.splitlines()]


def sent() -> dict[str, set[str]]:
    """The signals that the package sends, each with the names of its arguments."""
    found: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            called, named = ast.unparse(node.func), {one.arg for one in node.keywords}
            arguments = {one for one in named if one} | (ALL_OF_AN_ATTEMPT if None in named else set())
            if called.startswith("signals.") and called.endswith(".send_robust"):
                found[called.split(".")[1]] = arguments
            elif called == "signal.send_robust":
                breakers = arguments
            elif called == "_send" and ast.unparse(node.args[0]).startswith("signals."):
                found[ast.unparse(node.args[0]).split(".")[1]] = set()
    return {name: arguments or breakers for name, arguments in found.items()}


def described() -> dict[str, set[str]]:
    """The signals with their arguments, as their docstrings describe them, which the page shows."""
    texts = {name: set(ARGUMENT.findall(text)) - {"once"} for name, text in SIGNAL.findall(SIGNALS.read_text())}
    return {name: names | ALL_OF_AN_ATTEMPT if "verdict" in names else names for name, names in texts.items()}


def test_every_signal_is_documented_with_its_arguments() -> None:
    written = described()
    explained = {name for cells in rows("signals.md", "Argument") for name in NAME.findall(cells[0])}

    assert written == sent()
    assert set(written) == {name for name, one in vars(signals).items() if isinstance(one, Signal)}
    assert explained == set().union(*written.values())


@pytest.mark.django_db
def test_the_page_of_permissions_has_each_permission_with_its_roles() -> None:
    granted: dict[str, Any] = run("rmq_roles", "--dry-run", "--json").data["roles"]
    roles = {role.removeprefix("rmq "): set(codes) for role, codes in granted.items()}
    listed = re.findall(r"^- `(\w+)` \((.+?)\): ", page("permissions.md").read_text(), re.MULTILINE)
    written: dict[str, set[str]] = {role: set() for role in roles}
    for code, names in listed:
        for role in roles if names == "all" else names.split(", "):
            written[role].add(code)

    assert written == roles


def test_every_header_is_documented() -> None:
    text = page("headers.md").read_text()
    cells = [row[0] for row in rows("headers.md", "Header")]
    written = {name for cell in cells for name in re.findall(r"`([\w-]+)`", cell)}
    sources = "".join(path.read_text() for path in PACKAGE.rglob("*.py"))
    named = {f"rmq-retry-{name}" for name in re.findall(r'PREFIX \+ "([a-z-]+)"', sources)}
    named |= stamp.OURS | header_names.BROKERS_OWN

    assert len(named) > 30
    assert written == named
    assert set(re.findall(r"`(rmq-retry-[\w-]+)`", text)) - named == set()


def test_every_command_argument_has_help_text() -> None:
    options = re.findall(r"^- `.*`:.*$", commands.page(), re.MULTILINE)

    assert len(options) > 100
    assert [line for line in options if re.search(r"`:\s*$", line)] == []


def test_every_public_name_is_in_the_api_reference() -> None:
    written = re.findall(r"^\.\. auto\w+:: django_rmq_retry\.([\w.]+)", page("api.md").read_text(), re.MULTILINE)
    public = {name for name in django_rmq_retry.__all__ if not name.startswith("__")} - {"errors"}
    kit = {f"testing.{name}" for name in testing.__all__}

    assert (public | kit) - set(written) == set(), "docs/reference/api.md: add these names"
    assert [name for name in written if not found(name)] == []


def found(name: str) -> bool:
    """True if the package has this name."""
    module, _, last = f"django_rmq_retry.{name}".rpartition(".")
    return hasattr(importlib.import_module(module), last)


@pytest.mark.parametrize("name", ["handler", "RetryThenPark", "StopTheLine", "Queue"])
def test_the_documented_handler_options_equal_the_code(name: str) -> None:
    written = dict(re.findall(r"^- `(\w+)` \(`?(.+?)`?\): ", options_of(f"`{name}`"), re.MULTILINE))
    parameters = inspect.signature(getattr(django_rmq_retry, name)).parameters
    plain = (str, int, float, bool, tuple, type(None))
    defaults = {one: it.default for one, it in parameters.items() if isinstance(it.default, plain)}

    assert list(written) == list(parameters)
    assert {one: written[one] for one in defaults} == {
        one: repr(default).replace("<class 'Exception'>", "Exception") for one, default in defaults.items()
    }


def options_of(what: str) -> str:
    """The list of options on the page of the API."""
    found = re.search(
        rf"^Options of {re.escape(what)}:\n\n(?P<list>(?:[- ] .*\n)+)", page("api.md").read_text(), re.MULTILINE
    )
    assert found, what
    return found["list"]


def test_the_documented_publish_options_equal_the_code() -> None:
    written = re.findall(r"^- `(\w+)`: ", options_of("a publish"), re.MULTILINE)

    with pytest.raises(TypeError, match=re.escape(f", outbox, {', '.join(written)}.")):
        django_rmq_retry.publish({}, routing_key="anywhere", wrong=1)


def test_each_documented_setting_has_its_default() -> None:
    keys = re.findall(r"^- `([A-Z_]+)`(?: \((.+?)\))?: ", SETTINGS.partition("## The URL")[0], re.MULTILINE)
    written = {key: default.strip("`") for key, default in keys}
    known = {**vars_of(conf.Settings()), **vars_of(conf.Settings().operators)}
    plain = {name: value for name, value in known.items() if type(value) in (int, float, bool)}

    assert len(written) == len(conf.KEYS) + len(conf.OPERATOR_KEYS)
    assert {name: written[name] for name in plain} == {name: str(value) for name, value in plain.items()}


def vars_of(value: Any) -> dict[str, object]:
    """The fields of a dataclass, by the names of the keys in the settings."""
    return {name.upper(): getattr(value, name) for name in value.__dataclass_fields__}

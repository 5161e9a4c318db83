"""docs/concepts/architecture.md names what is there: packages in their order, threads, verdicts and states."""

import re
import tomllib
from pathlib import Path

import pytest

from django_rmq_retry.models.parked import State
from django_rmq_retry.policies import Kind
from tests.tooling.pages import page

OPERATING = frozenset({
    *(("attempts.history", name) for name in ("attempts_of", "waiting")),
    *(("parked.queue_pauses", name) for name in ("pause_queue", "resume_queue")),
    *(("parked.operators", name) for name in ("Actor", "NothingChosen", "Outdated", "Refused")),
    ("parked.requeue", "requeue"),
    ("parked.requeue_options", "RequeueOptions"),
    ("parked.selection", "Selection"),
})  # fmt: skip
"""The public names of packages without a front."""
ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "django_rmq_retry"
PAGE = page("architecture.md").read_text()
LAYERS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]["layers"][::-1]
MODULES = {".".join(path.relative_to(PACKAGE).with_suffix("").parts) for path in PACKAGE.rglob("*.py")}


def picture(name: str) -> list[str]:
    """The lines of a drawing."""
    found = re.search(rf":name: {name}\n\n(.*?)\n```", PAGE, re.DOTALL)
    assert found, f"no picture {name}"
    return found[1].splitlines()


def packages() -> list[list[str]]:
    """The packages of the picture, line by line; what is explained stands behind them."""
    known = {module.split(".")[0] for module in MODULES}
    return [[word for word in line[:38].split() if word in known] for line in picture("packages")]


def heights(package: str) -> list[int]:
    """The layers of a package."""
    return [height for height, layer in enumerate(LAYERS) if layer == package]


def listed(heading: str) -> list[str]:
    """The names that begin the rows of the list below that heading."""
    section = re.search(rf"^##+ {heading}\n(.*?)(?:^#|\Z)", PAGE, re.DOTALL | re.MULTILINE)
    assert section, f"no heading {heading}"
    return re.findall(r"^- `([^`]+)`", section[1], re.MULTILINE)


def defined_in(module: str) -> set[str]:
    """The classes, functions and methods of a module."""
    code = (PACKAGE / Path(*module.split("."))).with_suffix(".py").read_text()
    return set(re.findall(r"^ *(?:async )?(?:def|class) (\w+)", code, re.MULTILINE))


def pairs(text: str = PAGE) -> list[tuple[str, str]]:
    """Each name that stands in brackets behind a module, with that module: `links` (`LinkTemplate`)."""
    found = re.findall(r"`([a-z_]+(?:\.[a-z_]+)*)` \((`[^()]+`)\)", text)
    return sorted({(module, name) for module, names in found for name in re.findall(r"`([\w.]+)`", names)})


def test_the_picture_shows_every_package_once() -> None:
    shown = [name for line in packages() for name in line]
    there = {module.split(".")[0] for module in MODULES} - {"__init__", "locale"}

    assert sorted(shown) == sorted(there)


def test_the_picture_shows_packages_in_their_import_order() -> None:
    order = [heights(name)[0] for line in packages() for name in line]

    assert order == sorted(order, reverse=True)


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`([a-z_]+(?:\.[a-z_]+)+)`", PAGE))))
def test_every_module_on_the_page_exists(name: str) -> None:
    assert name in MODULES


@pytest.mark.parametrize(("module", "name"), pairs())
def test_a_name_in_brackets_behind_a_module_is_defined_in_that_module(module: str, name: str) -> None:
    assert set(name.split(".")) <= defined_in(module)


def test_every_function_class_and_module_on_the_page_is_defined() -> None:
    code = "\n".join(path.read_text() for path in PACKAGE.rglob("*.py"))
    defined = set(re.findall(r"\b(?:def|class) (\w+)", code))
    named = {name.split(".")[-1] for name in re.findall(r"`([A-Z]\w+(?:\.\w+)?|[a-z_]+)`", PAGE)}
    constraints = re.findall(r'UniqueConstraint\(.*?name="(\w+)"', code)
    values = {*Kind, *State.values, *constraints, *(part for module in MODULES for part in module.split("."))}

    assert sorted(named - values - defined) == []


@pytest.mark.parametrize("module", sorted(one for one in MODULES if not one.startswith("migrations.")))
def test_the_first_line_of_each_module_says_what_it_is_for(module: str) -> None:
    first = (PACKAGE / Path(*module.split("."))).with_suffix(".py").read_text().partition("\n")[0]

    assert re.fullmatch(r'""".{12,}\.(""")?', first), first


def test_contributing_names_the_theme_of_each_folder_of_tests_that_is_no_package() -> None:
    told = (ROOT / "CONTRIBUTING.md").read_text()
    themes = re.search(r"^\| Folder of `tests` \|.*?\n\n", told, re.DOTALL | re.MULTILINE)
    assert themes
    folders = {path.parent.name for path in (ROOT / "tests").glob("*/*.py")}
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}

    assert re.findall(r"^\| `(\w+)` \|", themes[0], re.MULTILINE) == sorted(folders - packages)


def test_the_page_lists_the_public_names_of_packages_without_a_front() -> None:
    public = re.search(r"^no such front\. Public for .*?\n\n", PAGE, re.DOTALL | re.MULTILINE)
    assert public

    assert set(pairs(public[0])) == OPERATING


@pytest.mark.parametrize(("module", "name"), sorted(OPERATING))
def test_each_public_name_of_such_a_package_is_defined_in_its_module(module: str, name: str) -> None:
    code = (PACKAGE / Path(*module.split("."))).with_suffix(".py").read_text()

    assert re.search(rf"^(?:def|class) {name}\b", code, re.MULTILINE)


def test_the_page_lists_the_steps_of_an_attempt_in_order() -> None:
    steps = re.findall(r"\*\*(identify, .+?)\*\*", PAGE)
    heading = (PACKAGE / "consumer" / "attempt.py").read_text().splitlines()[0]

    assert len(steps) == 1
    assert f": {steps[0]}." in heading


def test_the_states_on_the_page_equal_those_of_the_code() -> None:
    assert listed("States of a record") == State.values

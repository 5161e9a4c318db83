"""The files that other services read: each target, script and path that they name exists."""

import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.tooling.lanes import LANES
from tests.tooling.services import Unavailable, go_without

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
FILES = [
    *WORKFLOWS,
    *sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml")),
    *(ROOT / ".pre-commit-config.yaml", ROOT / ".readthedocs.yaml"),
]
TARGETS = frozenset(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
GROUPS = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
PINNED = re.compile(r"[\w-]+/[\w.-]+@v\d+\.\d+\.\d+")


def read(path: Path) -> Any:
    """Read a YAML file; `on:` of a workflow is the key True there."""
    if find_spec("yaml") is None:
        go_without(Unavailable(None, "PyYAML to read the workflows. Run `pip install --group package`."))
    return import_module("yaml").safe_load(path.read_text())


def commands(node: Any) -> Iterator[str]:
    """Yield the shell lines of a file: steps of jobs, hooks, and the jobs of Read the Docs."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key in ("run", "entry") and isinstance(value, str):
                yield from value.splitlines()
            elif key == "install" and isinstance(value, list):
                yield from value
            else:
                yield from commands(value)
    elif isinstance(node, list):
        for value in node:
            yield from commands(value)


def wrong(line: str) -> Iterator[str]:
    """Yield sentences about what a command names and the repository lacks."""
    words = shlex.split(line)
    if words[:1] == ["make"] and words[1] not in TARGETS:
        yield f"no target {words[1]} in the Makefile"
    for before, word in zip(["", *words], words, strict=False):
        if before == "--group" and word not in GROUPS:
            yield f"no dependency group {word}"
        if word.startswith(".venv/bin/"):
            if not (Path(sys.executable).parent / Path(word).name).exists():
                yield f"no program {word}"
        elif re.match(r"(\.|tests/|docs/)", word) and not (ROOT / word).exists():
            yield f"no path {word}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_each_command_in_a_workflow_exists(path: Path) -> None:
    assert [sentence for line in commands(read(path)) for sentence in wrong(line)] == []


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("make lnit", "no target lnit in the Makefile"),
        ("pip install --group dosc", "no dependency group dosc"),
        ("sh tests/tooling/nowhere.sh", "no path tests/tooling/nowhere.sh"),
        (".ci/nowhere", "no path .ci/nowhere"),
        (".venv/bin/nothing check", "no program .venv/bin/nothing"),
    ],
)
def test_a_missing_command_name_is_detected(line: str, sentence: str) -> None:
    assert list(wrong(line)) == [sentence]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_each_workflow_runs_targets_of_the_project(path: Path) -> None:
    assert any(line.startswith(("make ", ".ci/")) for line in commands(read(path)))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_each_action_is_pinned_by_its_full_version(path: Path) -> None:
    used = [step["uses"] for job in read(path)["jobs"].values() for step in job["steps"] if "uses" in step]

    assert [action for action in used if not PINNED.fullmatch(action)] == []


def test_only_the_publishing_job_has_write_permission() -> None:
    rights: dict[str, Any] = {}
    for path in WORKFLOWS:
        workflow = read(path)
        rights[path.stem] = workflow["permissions"]
        rights |= {
            f"{path.stem}.{name}": job["permissions"] for name, job in workflow["jobs"].items() if "permissions" in job
        }

    assert rights == {
        "nightly": {"contents": "read"},
        "release": {},
        "release.build": {"contents": "read"},
        "release.publish": {"id-token": "write"},
        "tests": {"contents": "read"},
    }


def test_the_matrix_holds_each_supported_django_and_python() -> None:
    matrix = read(ROOT / ".github/workflows/tests.yml")["jobs"]["suite"]["strategy"]["matrix"]
    left_out = {(pair["django"], pair["python"]) for pair in matrix["exclude"]}
    pairs = {(django, python) for django in matrix["django"] for python in matrix["python"]} - left_out

    assert pairs == {(django, python) for django, pythons in LANES.items() for python in pythons}


def test_the_security_page_names_each_supported_version() -> None:
    rows = dict(re.findall(r"^\| (\w+) \| (.+?) \|$", (ROOT / "SECURITY.md").read_text(), re.MULTILINE))

    assert rows["Django"].split(", ") == list(LANES)
    assert rows["Python"].split(", ") == sorted({python for pythons in LANES.values() for python in pythons})


def test_newer_versions_are_looked_for_wherever_one_is_named() -> None:
    named = {
        "docker": "Dockerfile",
        "docker-compose": "compose.yaml",
        "github-actions": ".github/workflows/*.yml",
        "pip": "pyproject.toml",
    }
    updates = read(ROOT / ".github/dependabot.yml")["updates"]
    folders = {one["package-ecosystem"]: one["directory"].lstrip("/") for one in updates}

    assert folders.keys() == named.keys()
    assert [kind for kind, files in named.items() if not list((ROOT / folders[kind]).glob(files))] == []


def test_each_path_in_codeowners_exists() -> None:
    lines = (ROOT / ".github/CODEOWNERS").read_text().splitlines()
    patterns = [line.split()[0] for line in lines if line and not line.startswith("#")]

    assert patterns
    assert [pattern for pattern in patterns if not list(ROOT.glob(pattern.lstrip("/")))] == []

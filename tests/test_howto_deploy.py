"""The command lines of the page on deployment and of compose.yaml: each command exists, and takes its options."""

import json
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from django.core.management import get_commands, load_command_class

from tests.tooling.pages import ROOT, Block, blocks, page


def lists(node: Any) -> Iterator[list[str]]:
    """The lists of a YAML document that contain no other list or table."""
    if isinstance(node, dict):
        for value in node.values():
            yield from lists(value)
    elif isinstance(node, list):
        if all(isinstance(value, str) for value in node):
            yield node
        else:
            for value in node:
                yield from lists(value)


def shells(words: list[str]) -> list[list[str]]:
    """The command line, or those that it gives to a shell."""
    if words[:2] != ["sh", "-c"]:
        return [words]
    return [shlex.split(line) for line in words[2].split("&&")]


def lines(block: Block) -> Iterator[list[str]]:
    """The command lines of a block for systemd, Docker, Compose or Kubernetes."""
    if block.kind == "yaml":
        yield from lists(yaml.safe_load(block.text))
    for line in block.text.splitlines():
        if line.startswith("ExecStart="):
            yield shlex.split(line.partition("=")[2])
        if block.kind == "dockerfile" and line.startswith("CMD "):
            yield json.loads(line.removeprefix("CMD "))


def found() -> list[list[str]]:
    of_page = [words for block in blocks(page("deploy.md")) for words in lines(block)]
    of_compose = list(lists(yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]))
    parts = [part for words in (*of_page, *of_compose) for part in shells(words)]
    return [part[2:] for part in parts if len(part) > 2 and part[1].endswith("manage.py")]


def test_the_page_and_the_file_have_command_lines() -> None:
    assert {words[0] for words in found()} == {"migrate", "rmq_declare", "rmq_consume", "runserver"}
    assert len(found()) > 6


@pytest.mark.parametrize("words", found(), ids=" ".join)
def test_each_command_exists_and_takes_its_options(words: list[str]) -> None:
    parser = load_command_class(get_commands()[words[0]], words[0]).create_parser("manage.py", words[0])

    assert parser.parse_known_args(words[1:])[1] == []

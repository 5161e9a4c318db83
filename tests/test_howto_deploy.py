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
    assert len(found()) > 5


@pytest.mark.parametrize("words", found(), ids=" ".join)
def test_each_command_exists_and_takes_its_options(words: list[str]) -> None:
    parser = load_command_class(get_commands()[words[0]], words[0]).create_parser("manage.py", words[0])

    assert parser.parse_known_args(words[1:])[1] == []


def test_the_files_of_the_page_name_each_other() -> None:
    files = {block.text.partition("\n")[0].removeprefix("# "): block.text for block in blocks(page("deploy.md"))}
    settings, nginx = files["bank/settings.py"], files["/etc/nginx/sites-enabled/bank"]
    units = [text for name, text in files.items() if name.startswith("/etc/systemd/system/")]

    assert "alias /srv/bank/static/;" in nginx
    assert 'STATIC_ROOT = "/srv/bank/static"' in settings
    assert "server_name bank.example.com;" in nginx
    assert 'ALLOWED_HOSTS = ["bank.example.com"]' in settings
    assert 'CSRF_TRUSTED_ORIGINS = ["https://bank.example.com"]' in settings
    assert "proxy_pass http://127.0.0.1:8000;" in nginx
    # gunicorn believes it of 127.0.0.1; without it SECURE_SSL_REDIRECT, as in Django's checklist, never ends.
    assert "proxy_set_header X-Forwarded-Proto $scheme;" in nginx
    assert [text.count("\nEnvironmentFile=/etc/bank/env\n") for text in units] == [1, 1]
    assert sum("--bind 127.0.0.1:8000 " in text for text in units) == 1

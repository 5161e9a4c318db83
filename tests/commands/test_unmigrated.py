"""Every command that reads the package's tables says, before they exist, how to create them."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.db import connections
from django.db.utils import ConnectionHandler
from pytest_django import DjangoDbBlocker

from tests.commands.running import Exit, run
from tests.tooling import databases

COMMANDS = (
    *("rmq_parked list", "rmq_parked groups", "rmq_parked show 1"),
    *("rmq_parked requeue-runs", "rmq_parked requeue 1 --yes", "rmq_parked requeue-run 1"),
    *(
        "rmq_parked discard 1 --category test --yes --reason no",
        "rmq_parked restore 1 --yes",
        "rmq_parked hold 1 --for 1h --yes",
    ),
    *(
        "rmq_parked unhold 1 --yes",
        "rmq_parked edit 1 --body-file {body}",
        "rmq_parked export --all",
        "rmq_parked keys {body}",
    ),
    *("rmq_parked import {exported} --reason test", "rmq_parked purge --older-than 90d"),
    *("rmq_audit list", "rmq_audit verify", "rmq_audit export", "rmq_audit purge"),
    *("rmq_blocked list", "rmq_blocked unblock payments.charge ACC-7 --yes"),
    *("rmq_queue list", "rmq_queue pause payments.charge --reason r", "rmq_queue resume payments.charge"),
    *("rmq_relay list", "rmq_relay retry --all", "rmq_relay discard 1 --reason no --yes"),
    *("rmq_roles", "rmq_status --consumers"),
)


@pytest.fixture
def empty(tmp_path: Path, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """A database without any table stands in the default one's place."""
    before = connections["default"]
    fresh = databases.settings(databases.SQLITE, name=str(tmp_path / "empty.sqlite3"))
    made = ConnectionHandler({"default": fresh})["default"]
    with django_db_blocker.unblock():
        connections["default"] = made
        try:
            yield
        finally:
            made.close()
            connections["default"] = before


@pytest.mark.usefixtures("empty", "charge")
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_names_migrate(command: str, tmp_path: Path) -> None:
    body, exported = tmp_path / "body", tmp_path / "exported.jsonl"
    body.write_text("ACC-7")
    exported.write_text(json.dumps({"body": "e30=", "queue": "payments.charge"}) + "\n")

    told = run(*command.format(body=body, exported=exported).split())

    assert (told.code, told.out) == (Exit.ERROR, "")
    assert told.err.removesuffix("\n") == "Database: the tables are missing in 'default': manage.py migrate"

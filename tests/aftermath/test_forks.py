"""A child that a handler or hook forks, and a pool that was opened before the fork, cost no message."""

import os
import warnings

import pytest
from django.db import connections, transaction

from django_rmq_retry import forks
from tests.aftermath.conftest import Project, Send, parked, rows
from tests.tooling.marks import NIGHTLY_ON_SQLITE, nightly_but

pytestmark = [pytest.mark.database, *NIGHTLY_ON_SQLITE]
COUNT = 41


@pytest.mark.parametrize(("how", "code"), nightly_but([("exits", 3)], [("returns", 0), ("raises", 1), ("exits", 3)]))
@pytest.mark.parametrize("to", [pytest.param("plain", marks=pytest.mark.nightly), "once"])
def test_a_forked_child_that_falls_through_doubles_nothing(
    project: Project, send: Send, to: str, how: str, code: int
) -> None:
    send(1, to=to, do="fork", how=how)
    for number in range(2, COUNT):
        send(number, to=to)
    ended = project.run("rmq_consume", "--burst", "--threads", "2")

    assert ended.returncode == 0, ended.stderr
    assert rows() == sorted([*map(str, range(1, COUNT)), f"child ended with {code}"])
    assert parked() == []
    assert ended.stderr.count("which code of the project forked") == 1


def test_a_child_that_an_async_handler_forks_ends_in_its_place(project: Project, send: Send) -> None:
    send(1, to="async", do="fork")
    send(2, to="async")
    ended = project.run("rmq_consume", "--burst")

    assert (ended.returncode, rows(), parked()) == (0, ["1", "2"], []), ended.stderr


def test_a_child_that_a_hook_forks_ends_in_its_place(project: Project, send: Send) -> None:
    for number in range(1, COUNT):
        send(number, to="once")
    ended = project.run("rmq_consume", "--burst", AFTERMATH_HOOK="fork")

    assert (ended.returncode, parked()) == (0, []), ended.stderr
    assert rows() == sorted(map(str, range(1, COUNT)))


@pytest.mark.usefixtures("own_database")
def test_a_child_that_leaves_the_block_of_its_parent_does_not_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "_disowns", True)
    done, told = os.pipe()
    with transaction.atomic(using="own"):
        with transaction.atomic(using="own"), warnings.catch_warnings(action="ignore"):
            child = os.fork()
        if not child:
            os.write(told, b"inner ")
    if not child:
        os.write(told, b"closed" if connections["own"].connection is None else b"connected")
        os._exit(0)
    os.close(told)
    os.waitpid(child, 0)

    assert os.read(done, 100) == b"inner closed"
    os.close(done)


@pytest.mark.parametrize(
    ("place", "to"),
    nightly_but(
        [("once", "failing")],
        [("order_by", "keyed"), ("once", "failing"), ("fingerprint", "failing"), ("keys", "failing")],
    ),
)
def test_a_child_that_a_function_around_the_handler_forks_ends_in_its_place(
    project: Project, send: Send, place: str, to: str
) -> None:
    send(1, to=to, do="fork", around=place)
    for number in range(2, 10):
        send(number, to=to, do="fork")
    ended = project.run("rmq_consume", "--burst", "--threads", "1")

    first, failed = (["1"], []) if to == "keyed" else ([], ["first"])
    assert (ended.returncode, rows(), parked()) == (0, [*first, *map(str, range(2, 10))], failed), ended.stderr
    assert "forked, raised RuntimeError and was ended" in ended.stderr
    assert "forked, returned" not in ended.stderr


def test_processes_share_no_socket_of_a_pool_that_was_used_before_the_fork(project: Project, send: Send) -> None:
    if connections["own"].vendor != "postgresql":
        pytest.skip("only psycopg has pools")
    count = 100
    for number in range(count):
        send(number, to="token")
    ended = project.run("rmq_consume", "--burst", "--processes", "2", AFTERMATH_POOL="1")

    found = [row.split() for row in rows()]
    assert (ended.returncode, len(found), parked()) == (0, count, []), ended.stderr
    assert [row for row in found if row[0] != row[1]] == []
    owners = {backend: {row[2] for row in found if row[3] == backend} for backend in {row[3] for row in found}}
    assert [pids for pids in owners.values() if len(pids) > 1] == []

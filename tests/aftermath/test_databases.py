"""A transaction that a handler leaves open costs no other message, and is not called a success."""

import pytest
from django.db import connections

from tests.aftermath.conftest import Project, Send, parked, rows
from tests.tooling.marks import NIGHTLY_ON_SQLITE, nightly_but

pytestmark = [pytest.mark.database, *NIGHTLY_ON_SQLITE]
ALONE = ("rmq_consume", "--burst", "--threads", "1")


@pytest.mark.parametrize("to", nightly_but(["plain"], ["plain", "async"]))
@pytest.mark.parametrize(
    ("mistake", "says"),
    [
        ("begin", "BEGIN"),
        pytest.param("autocommit", "set_autocommit(False)", marks=pytest.mark.nightly),
        ("atomic", "atomic()"),
        pytest.param("close", "atomic()", marks=pytest.mark.nightly),
    ],
)
def test_a_transaction_left_open_fails_its_own_attempt_only(
    project: Project, send: Send, mistake: str, says: str, to: str
) -> None:
    send(1, to=to, do=mistake)
    send(2, to=to)
    send(3, to=to)
    ended = project.run(*ALONE)

    assert (ended.returncode, rows()) == (0, ["2", "3"]), ended.stderr
    (error,) = parked()
    assert says in error
    assert "with transaction.atomic():" in error


@pytest.mark.nightly
def test_autocommit_left_off_by_sql_costs_no_later_message(project: Project, send: Send) -> None:
    if connections["own"].vendor != "mysql":
        pytest.skip("only MariaDB has this statement")
    send(1, to="plain", do="autocommit by SQL")
    send(2, to="plain")
    send(3, to="plain")
    ended = project.run(*ALONE)

    assert (ended.returncode, rows(), parked()) == (0, ["1", "2", "3"], []), ended.stderr


def test_a_failed_handler_keeps_its_own_error_and_its_transaction_is_rolled_back(project: Project, send: Send) -> None:
    send(1, to="plain", do="begin and fail")
    send(2, to="plain")
    ended = project.run(*ALONE)

    assert (ended.returncode, rows()) == (0, ["2"]), ended.stderr
    assert parked() == ["after BEGIN"]
    assert "is rolled back" in ended.stdout + ended.stderr


def test_autocommit_left_off_after_a_commit_loses_nothing(project: Project, send: Send) -> None:
    send(1, to="plain", do="commit")
    send(2, to="plain")
    ended = project.run(*ALONE)

    assert (ended.returncode, rows(), parked()) == (0, ["1", "2", "committed by hand"], []), ended.stderr


@pytest.mark.parametrize("hook", nightly_but(["begin_after"], ["begin_before", "begin_after"]))
def test_a_transaction_that_a_hook_leaves_open_costs_no_message(project: Project, send: Send, hook: str) -> None:
    for number in (1, 2, 3):
        send(number, to="plain")
    ended = project.run(*ALONE, AFTERMATH_HOOK=hook)

    assert (ended.returncode, rows(), parked()) == (0, ["1", "2", "3"], []), ended.stderr
    assert f"{hook} of RMQ_RETRY['AROUND'] failed" in ended.stdout + ended.stderr


@pytest.mark.nightly
def test_each_hook_answers_for_its_own_transaction_and_harms_no_other_hook(project: Project, send: Send) -> None:
    for number in (1, 2):
        send(number, to="plain")
    ended = project.run(*ALONE, AFTERMATH_HOOK="begin_before write")

    assert (ended.returncode, rows(), parked()) == (
        0,
        ["1", "2", *(f"hook of aftermath.plain {number}" for number in (1, 2))],
        [],
    ), ended.stderr
    assert "Hook tests.aftermath.project.hooks.begin_before of RMQ_RETRY['AROUND'] failed" in ended.stdout
    assert "hooks.write" not in ended.stdout


def test_a_transaction_that_an_order_by_leaves_open_costs_not_even_its_own_message(
    project: Project, send: Send
) -> None:
    send(1, to="keyed", do="begin", around="order_by")
    send(2, to="keyed")
    ended = project.run(*ALONE)

    assert (ended.returncode, rows(), parked()) == (0, ["1", "2"], []), ended.stderr
    assert "order_by of handler keyed: Database 'default' was left with a transaction" in ended.stdout


@pytest.mark.parametrize("place", nightly_but(["fingerprint"], ["keys", "fingerprint"]))
def test_a_transaction_that_a_function_around_a_failure_leaves_open_costs_no_message(
    project: Project, send: Send, place: str
) -> None:
    send(1, to="failing", do="begin", around=place)
    send(2, to="failing", do="begin")
    ended = project.run(*ALONE)

    assert (ended.returncode, rows(), parked()) == (0, ["2"], ["first"]), ended.stderr
    assert "was left with a transaction that was begun" in ended.stdout


@pytest.mark.parametrize(
    ("to", "mistake"), [("once", "atomic"), ("once", "begin in other"), ("plain", "begin in other")]
)
def test_a_transaction_left_open_beside_or_inside_another_fails_the_attempt(
    project: Project, send: Send, to: str, mistake: str
) -> None:
    send(1, to=to, do=mistake)
    send(2, to=to)
    ended = project.run(*ALONE)

    # Without once, what was committed before the mistake is found stays: its own database was left in order.
    kept = ["1", "2"] if to == "plain" else ["2"]
    assert (ended.returncode, rows()) == (0, kept), ended.stderr
    (error,) = parked()
    assert "with transaction.atomic():" in error

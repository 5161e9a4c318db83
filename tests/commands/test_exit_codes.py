"""Each documented exit code, by a command that ends with it."""

import re
import signal
from typing import Any

import pytest
from django.db import connection

from django_rmq_retry.exit_codes import Exit
from django_rmq_retry.models import State
from tests.commands import running
from tests.commands.running import run
from tests.operators.made import discard_messages, record, requeue_run
from tests.tooling.pages import page

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("charge")]
PAGE = page("exit-codes.md")
COMMANDS = {
    Exit.DONE: "rmq_parked list",
    Exit.ERROR: "rmq_audit verify",
    Exit.USAGE: "rmq_parked requeue",
    Exit.UNREACHABLE: "rmq_status",
    Exit.DRIFT: "rmq_parked requeue --selection forged",
    Exit.PARTLY: "rmq_parked discard {gone} --category test",
    Exit.NOTHING: "rmq_parked list --key absent",
    Exit.UNCONFIRMED: "rmq_parked discard --all --category test",
}
ELSEWHERE = {
    Exit.ASKED: "test_an_act_that_needs_a_second_person_is_asked_for",
    Exit.UNHEALTHY: "test_a_broker_without_our_queues_is_unhealthy",
    Exit.INTERRUPTED: "test_ctrl_c_while_following_a_run_exits_with_130",
}
"""These need more than words."""


@pytest.fixture
def records(settings: Any) -> dict[str, int]:
    """Two messages, one of them no longer open, and an audit log that was changed by hand."""
    settings.RMQ_RETRY = {"URL": "amqp://guest:guest@127.0.0.1:1/", "CONNECT_TIMEOUT": 1}
    record()
    gone = record(state=State.REQUEUED)
    discard_messages([record().pk])
    with connection.cursor() as cursor:
        cursor.execute("UPDATE rmq_retry_operatoraction SET reason = 'made up'")
    return {"gone": gone.pk}


@pytest.mark.parametrize("code", COMMANDS)
def test_each_command_returns_its_documented_exit_code(code: Exit, records: dict[str, int]) -> None:
    assert run(*COMMANDS[code].format(**records).split()).code == code


def test_an_act_that_needs_a_second_person_is_asked_for(settings: Any) -> None:
    settings.RMQ_RETRY = {**settings.RMQ_RETRY, "FOUR_EYES": {"DISCARD": 1}}

    assert run("rmq_parked", "discard", str(record().pk), "--category", "test").code == Exit.ASKED


@pytest.mark.usefixtures("project")
def test_a_broker_without_our_queues_is_unhealthy() -> None:
    assert run("rmq_status", "--check").code == Exit.UNHEALTHY


def test_ctrl_c_while_following_a_run_exits_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    made = requeue_run([record().pk])

    def interrupted(_drive: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("django_rmq_retry.management.parked_runs.RunSteps.step", interrupted)

    assert run("rmq_parked", "requeue-run", str(made.pk)).code == Exit.INTERRUPTED


@pytest.mark.parametrize(("times", "noted"), [(1, ["noted"]), (2, [])])
def test_only_a_second_ctrl_c_aborts_messages_in_flight(
    times: int, noted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = requeue_run([record().pk])
    done: list[str] = []

    def step(_drive: object) -> None:
        for _ in range(times):
            signal.raise_signal(signal.SIGINT)
        done.append("noted")

    monkeypatch.setattr("django_rmq_retry.management.parked_runs.RunSteps.step", step)
    told = run("rmq_parked", "requeue-run", str(made.pk))

    assert (told.code, done) == (Exit.INTERRUPTED, noted)
    assert told.err.startswith("Stopping after the messages in flight. Press Ctrl-C again to stop at once.\n")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def codes_in(text: str) -> set[int]:
    """The codes at the beginning of the items and rows."""
    return {int(found) for found in re.findall(r"^(?:\| |- \*\*)(\d+)(?: \||\*\*:)", text, re.MULTILINE)}


def test_every_code_is_documented_and_tested() -> None:
    common, _, consumer = PAGE.read_text().partition("\n## rmq_consume")

    assert codes_in(common) == {code.value for code in Exit}
    assert codes_in(consumer) == {*range(5), 6, 130}
    assert set(COMMANDS) | set(ELSEWHERE) == set(Exit)
    assert all(name in globals() for name in ELSEWHERE.values())


def test_the_exit_codes_of_the_test_helpers_equal_the_codes_of_the_commands() -> None:
    assert {one.name: one.value for one in running.Exit} == {one.name: one.value for one in Exit}

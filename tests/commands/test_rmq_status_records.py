"""rmq_status beyond queues: database, topology, parked messages, blocked keys, stopped queues, outbox."""

import re
import threading
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.utils import timezone
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry.health import facts, time_limit
from django_rmq_retry.models import BlockedKey, BlockedMessage, ErrorGroup, OutboxMessage, QueueControl, State
from tests.commands.running import Exit, Ran, Terminal, run
from tests.operators.made import group, record, requeue_run
from tests.tooling.waiting import wait_until

pytestmark = [
    pytest.mark.contract,
    pytest.mark.on_both(embedded=pytest.mark.nightly),
    pytest.mark.django_db,
    pytest.mark.usefixtures("project", "declared"),
]

IDLE = "OK with 1 warning: payments.charge: no consumer reads this queue\n"
"""The probe's line if nothing is wrong but that no consumer is started."""
FAILED = "1 message in the outbox failed: manage.py rmq_relay list --failed"


def ago(**span: float) -> Any:
    return timezone.now() - timedelta(**span)


def outbox(**told: Any) -> OutboxMessage:
    now = timezone.now()
    return OutboxMessage.objects.create(body=b"{}", properties=b"", **{"created_at": now, "due_at": now, **told})


def blocked(key: str, waiting: int, **told: Any) -> BlockedKey:
    common = {"handler": "h", "queue": "payments.charge", "since": ago(hours=1)}
    made = BlockedKey.objects.create(key=key, digest=key, waiting=waiting, **common)
    for number in range(waiting):
        BlockedMessage.objects.create(
            block=made, digest=str(number), body=b"", properties=b"", waiting_since=ago(**told)
        )
    return made


def lines(ran: Ran) -> list[str]:
    """Those behind the table of the queues."""
    at = next(number for number, line in enumerate(ran.out.splitlines()) if line.startswith("Consumers "))
    return ran.out.splitlines()[at:]


def test_parked_and_waiting_messages_are_counted() -> None:
    cause = group()
    for minutes in (1, 5, 30):
        record(group=cause, parked_at=ago(minutes=minutes))
    record(group=cause, state=State.ON_HOLD, parked_at=ago(days=1))
    requeue_run([record(parked_at=ago(hours=2)).pk], planned=True)
    ran = run("rmq_status", out=Terminal())

    assert lines(ran)[0] == "Consumers 0 · parked 4 (+2 in 10 min), oldest 2 h ago · requeue runs 1 active"
    assert ran.code == Exit.DONE


def test_the_only_cause_is_requeued_unless_its_error_is_permanent() -> None:
    cause = group(reason="permanent")
    record(group=cause, reason="permanent")
    lasting = run("rmq_status").out
    ErrorGroup.objects.update(reason="retries_exhausted")

    assert f"manage.py rmq_parked list --group {cause.pk}" in lasting
    assert f"manage.py rmq_parked requeue --group {cause.pk} --dry-run" in run("rmq_status").out


def test_what_may_have_been_done_is_listed_before_it_is_requeued() -> None:
    """The advice for a payment that had killed its workers was to preview its requeue."""
    cause = group(reason="worker_stopped", title="worker_stopped")
    record(group=cause, reason="worker_stopped")

    assert f"manage.py rmq_parked list --group {cause.pk}\n" in run("rmq_status").out


def test_parked_messages_are_a_warning_and_after_four_hours_a_problem() -> None:
    record(state=State.ON_HOLD, parked_at=ago(hours=9))
    assert run("rmq_status", "--check").out == IDLE

    record(parked_at=ago(hours=3))
    record()
    told, probed = run("rmq_status"), run("rmq_status", "--check")
    assert told.lines[0] == ["0 problems, 2 warnings."]
    assert told.lines[1][:2] == ["parked", "warning"]
    assert told.lines[1][2].startswith("2 messages parked: BankDown, ")
    assert (probed.code, probed.out.startswith("OK with 2 warnings: 2 messages parked")) == (Exit.DONE, True)

    record(parked_at=ago(hours=5))
    late = run("rmq_status", "--check")
    assert late.code == Exit.UNHEALTHY
    assert re.match(r"FAIL the oldest parked message has waited 1800\d s, longer than 14400 s\n", late.out)
    assert run("rmq_status", "--check", "--max-oldest", "6h").code == Exit.DONE


@pytest.mark.parametrize(("most", "code"), [("2", Exit.DONE), ("1", Exit.UNHEALTHY)])
def test_recorded_and_queued_parked_messages_are_added_up(most: str, code: Exit, amqp: BlockingChannel) -> None:
    record()
    amqp.confirm_delivery()
    amqp.basic_publish("", "payments.charge.parked", b"{}")
    ran = run("rmq_status", "--check", "--max-parked", most)

    assert (ran.code, "2 messages parked, more than 1" in ran.out) == (code, code is Exit.UNHEALTHY)


@pytest.mark.parametrize("made", [lambda at: record(parked_at=at), lambda at: outbox(created_at=at)])
def test_a_retry_that_waits_too_long_is_a_problem(made: Any) -> None:
    made(ago(minutes=11))
    told = run("rmq_status", "--check", "--max-oldest", "10m")

    assert told.code == Exit.UNHEALTHY
    # Whole seconds: a slow machine may be one further.
    assert re.search(r"has waited 66\d s, longer than 600 s", told.out)
    assert run("rmq_status", "--check", "--max-oldest", "12m").code == Exit.DONE


def test_a_message_in_the_outbox_for_five_minutes_is_a_problem() -> None:
    outbox(created_at=ago(minutes=6))

    assert run("rmq_status", "--check").out.startswith("FAIL the oldest message in the outbox has waited 36")
    assert run("rmq_status", "--check", "--max-oldest", "7m").out == IDLE


def test_messages_on_hold_or_given_up_do_not_count_as_waiting() -> None:
    record(state=State.ON_HOLD, parked_at=ago(minutes=11))
    record(state=State.PROCESSED, parked_at=ago(minutes=11))
    outbox(created_at=ago(minutes=11), failed_at=timezone.now())

    assert run("rmq_status", "--check", "--max-oldest", "10m").out == f"FAIL {FAILED}\n"


def test_a_non_empty_outbox_and_blocked_keys_are_reported() -> None:
    outbox(created_at=ago(minutes=3))
    outbox(failed_at=timezone.now(), created_at=ago(hours=5))
    blocked("A-1", 2, minutes=2)
    blocked("A-2", 1, minutes=1)
    ran = run("rmq_status", out=Terminal())

    assert lines(ran)[1:] == [
        "Outbox 1 waiting, oldest 3 m ago · 1 failed",
        "Blocked 2 keys, oldest 2 m ago · 3 waiting, at most 2 behind one key",
    ]
    assert ran.out.splitlines()[0] == "1 problem, 1 warning."
    assert "✕ 1 message in the outbox failed." in ran.out


@pytest.mark.parametrize(("limit", "said"), [("BLOCKED_PER_KEY", "2 messages wait behind one key"),
                                             ("BLOCKED_TOTAL", "3 messages wait behind blocked keys")])  # fmt: skip
def test_reaching_the_limit_of_waiting_messages_is_a_problem(limit: str, said: str, project: Any) -> None:
    project.RMQ_RETRY = {**project.RMQ_RETRY, limit: 3 if limit == "BLOCKED_TOTAL" else 2}
    blocked("A-1", 2, minutes=2)
    blocked("A-2", 1, minutes=1)

    assert run("rmq_status", "--check").out == f"FAIL {said}, which reaches the limit {limit}\n"


def test_a_paused_queue_needs_no_consumer(amqp: BlockingChannel) -> None:
    QueueControl.objects.create(
        queue="payments.charge", paused=True, by="ann", reason="bank closed", since=ago(minutes=1)
    )
    amqp.confirm_delivery()
    amqp.basic_publish("", "payments.charge", b"{}")
    ran = run("rmq_status")

    assert ["payments.charge", "work", "1", "0", "‖ paused by ann: bank closed"] in ran.lines
    assert run("rmq_status", "--check", "--min-consumers", "1").code == Exit.DONE


def test_an_open_breaker_is_one_problem() -> None:
    QueueControl.objects.create(
        queue="payments.charge", opened=True, cause="BankDown (5 times)", opened_at=ago(minutes=1)
    )
    ran = run("rmq_status", "--check")

    assert (ran.code, ran.out) == (Exit.UNHEALTHY, "FAIL payments.charge: its breaker is open: BankDown (5 times)\n")
    told = run("rmq_status")
    assert ["payments.charge", "work", "0", "0", "✕ its breaker is open: BankDown (5 times)"] in told.lines
    assert told.lines[0] == ["1 problem, 1 warning."]


def test_a_pause_that_has_ended_is_not_reported_beside_an_open_breaker() -> None:
    ended = {"paused": True, "by": "ann", "reason": "bank closed", "since": ago(hours=2), "until": ago(hours=1)}
    QueueControl.objects.create(
        queue="payments.charge", opened=True, cause="BankDown", opened_at=ago(minutes=1), **ended
    )
    [stopped] = run("rmq_status", "--json").data["stopped"]

    assert (stopped["paused"], stopped["breaker_open"]) == (False, True)
    assert [stopped[name] for name in ("by", "reason", "since", "until")] == ["", "", None, None]


def test_a_queue_that_differs_from_its_declaration_is_a_problem(amqp: BlockingChannel) -> None:
    amqp.queue_delete("payments.charge.retry.10s")
    amqp.queue_declare("payments.charge.retry.10s", durable=True)
    amqp.exchange_delete("payments")
    ran = run("rmq_status", "--check")

    assert ran.code == Exit.UNHEALTHY
    lacking = "exchange payments, binding payments → payments.charge by 'charge.#'"
    assert f"the broker lacks {lacking}: manage.py rmq_declare" in ran.out
    assert "queue payments.charge.retry.10s: differs, " in ran.out
    assert [line[1:] for line in run("rmq_status").lines if line[0] == "Topology"] == [["✕", "4/7"]]


class TestDatabase:
    def test_a_failing_database_is_a_problem_and_the_rest_is_reported(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def away() -> None:
            raise OperationalError("connection to server failed:\n  Connection refused\n")

        monkeypatch.setattr(facts, "survey", away)
        ran = run("rmq_status")

        assert ran.code == Exit.ERROR
        assert ran.lines[1][:2] == ["database", "error"]
        assert ["Database", "✕", "cannot be used"] in ran.lines
        assert ["payments.charge", "work", "0", "0", "! no consumer reads this queue"] in ran.lines
        assert lines(ran)[0] == "Consumers unknown"
        assert "It may be paused, or its breaker open" in ran.out
        assert run("rmq_status", "--json").data["queues"][0]["stopped"] is None
        checked = run("rmq_status", "--check")
        assert (checked.code, checked.out) == (
            Exit.UNHEALTHY,
            "FAIL database: connection to server failed: Connection refused\n",
        )

    def test_a_database_without_tables_is_reported_with_the_migrate_command(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(type(connection.introspection), "table_names", lambda *_: [])

        assert run("rmq_status", "--check").out == (
            "FAIL database: the tables are missing in 'default': manage.py migrate\n"
        )

    def test_no_database_is_needed_if_nothing_is_recorded(self, project: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        project.RMQ_RETRY = {**project.RMQ_RETRY, "RECORDS": False}
        monkeypatch.setattr(type(connection.introspection), "table_names", lambda *_: [])
        ran = run("rmq_status")

        assert (["Database", "-", "not used"] in ran.lines, lines(ran)) == (True, ["Consumers unknown"])
        assert run("rmq_status", "--json").data["parked"] is None


def test_an_unresponsive_database_is_given_up_after_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()
    monkeypatch.setattr(time_limit, "alone_sees_its_data", lambda _alias: False)
    monkeypatch.setattr(facts, "survey", lambda: over.wait(30))
    ran = run("rmq_status", "--check", "--timeout", "0.5")
    over.set()
    wait_until(lambda: "rmq-survey" not in [one.name for one in threading.enumerate()], what="its thread ends")

    assert (ran.code, ran.out) == (Exit.UNHEALTHY, "FAIL database: 'default' did not answer within 0.5 s\n")


@pytest.mark.database
@pytest.mark.django_db(transaction=True)
def test_outside_a_transaction_the_database_is_queried_in_a_thread() -> None:
    record()

    assert run("rmq_status", "--json").data["parked"]["count"] == 1

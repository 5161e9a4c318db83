"""rmq_status: depths and consumers, problems in words, one line for probes; it never takes a message."""

import signal
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry import Queue
from django_rmq_retry.amqp.levels import Gauged, Level
from django_rmq_retry.health.facts import survey
from django_rmq_retry.health.look import Health
from django_rmq_retry.management.broker_status import BrokerStatus, is_quiet, state
from django_rmq_retry.models import RequeueRun, RunState
from django_rmq_retry.models.controls import VANISHED_AFTER
from django_rmq_retry.topology import Role
from tests.admin.made import consumer, outgoing
from tests.commands.running import Exit, Ran, Terminal, run
from tests.operators.made import record, requeue_run
from tests.shop.running import Shop
from tests.tooling.vhosts import Vhost
from tests.tooling.waiting import wait_until

pytestmark = [pytest.mark.contract, pytest.mark.django_db, pytest.mark.usefixtures("project", "declared")]


IDLE = "OK with 1 warning: payments.charge: no consumer reads this queue\n"
"""The probe's line if nothing is wrong but that no consumer is started."""


def table(ran: Ran) -> list[list[str]]:
    """The queues, below their head."""
    return ran.lines[next(place for place, line in enumerate(ran.lines) if line[0] == "QUEUE") :]


def put(channel: BlockingChannel, queue: str) -> None:
    channel.basic_publish("", queue, b"{}")
    wait_until(lambda: channel.queue_declare(queue, passive=True).method.message_count > 0)


@pytest.mark.on_both
def test_a_probe_gets_one_line_and_an_exit_code(amqp: BlockingChannel) -> None:
    assert run("rmq_status", "--check").out == IDLE
    assert run("rmq_status", "--check", "--fail-on", "warning").code == Exit.UNHEALTHY

    put(amqp, "payments.charge")
    ran, shown = run("rmq_status", "--check"), run("rmq_status")

    assert (ran.code, ran.out) == (Exit.UNHEALTHY, "FAIL payments.charge: no consumer reads this queue\n")
    assert (shown.code, shown.lines[0]) == (Exit.DONE, ["1 problem, 0 warnings."])
    assert shown.lines[1][:3] == ["consumers", "error", "Queue 'payments.charge' has no consumer. 1 message waits."]
    assert ["payments.charge", "work", "1", "0", "✕ no consumer reads this queue"] in shown.lines


@pytest.mark.on_both
def test_what_only_follows_is_told_last_and_is_no_problem_of_its_own(amqp: BlockingChannel) -> None:
    """Live status said that one thing needs somebody, and the command "2 problems" of the same."""
    put(amqp, "payments.charge")
    consumer(seconds=64, queues=["payments.charge"])
    outgoing(created_at=timezone.now() - timedelta(hours=1), failed_at=None, error="")
    lines = run("rmq_status").lines

    assert lines[0] == ["1 problem, 0 warnings. 1 more finding only follows."]
    assert [line[0] for line in lines[1:3]] == ["consumers", "database"]


@pytest.mark.on_both
def test_parked_messages_that_a_run_sends_are_no_warning_and_fail_no_probe(amqp: BlockingChannel) -> None:
    """ "0 problems, 1 warning." stood here while Live status said "Nothing needs you now."."""
    amqp.basic_consume("payments.charge", lambda *_: None)
    run_of_all = requeue_run([record().pk], reason="r")
    RequeueRun.objects.update(state=RunState.RUNNING, beat_at=timezone.now())
    probe, shown = run("rmq_status", "--check", "--fail-on", "warning"), run("rmq_status", "--json").data
    told, seen = run("rmq_status").lines, run("rmq_status", out=Terminal()).out
    RequeueRun.objects.update(state=RunState.PAUSED)

    assert (probe.code, probe.out) == (Exit.DONE, "OK\n")
    assert told[0] == ["No problems found."]
    assert told[1][:2] == ["parked", "ok"]
    assert f"… 1 message parked: BankDown. Requeue run {run_of_all.pk} by " in seen
    assert [one["level"] for one in shown["findings"]] == ["ok"]
    assert run("rmq_status", "--check", "--fail-on", "warning").code == Exit.UNHEALTHY


@pytest.mark.on_both
@pytest.mark.parametrize("existing", [False, True])
def test_an_unread_queue_of_another_program_is_shown_and_no_problem(
    amqp: BlockingChannel, settings: Any, *, existing: bool
) -> None:
    amqp.queue_declare("replies", durable=True)
    theirs = Queue("replies", type="classic", existing=existing)
    settings.RMQ_RETRY = {**settings.RMQ_RETRY, "TOPOLOGY": [theirs]}
    put(amqp, "replies")
    ran = run("rmq_status", "--check")

    assert ["replies", "other", "1", "0", "! no consumer reads this queue"] in run("rmq_status").lines
    assert (ran.code, "replies: no consumer reads this queue" in ran.out) == (Exit.DONE, True)


@pytest.mark.on_both
def test_exceeded_limits_are_problems(amqp: BlockingChannel) -> None:
    put(amqp, "payments.charge.parked")

    ran = run("rmq_status", "--check", "--max-parked", "0", "--min-consumers", "1")

    assert ran.code == Exit.UNHEALTHY
    assert "payments.charge: 0 of at least 1 consumers" in ran.out
    assert "1 message parked, more than 0" in ran.out


@pytest.mark.on_both
def test_a_missing_queue_and_a_consumed_waiting_queue_are_problems(amqp: BlockingChannel) -> None:
    amqp.queue_delete("payments.charge.parked")
    amqp.basic_consume("payments.charge.retry.10s", lambda *_: None)

    out = run("rmq_status", "--check").out

    assert out.count("it does not exist") == 1
    assert "payments.charge.parked: it does not exist: manage.py rmq_declare" in out
    assert "payments.charge.retry.10s: a consumer reads it, so retries arrive too early" in out


@pytest.mark.on_both
def test_an_interrupted_recreation_is_a_problem(amqp: BlockingChannel) -> None:
    amqp.queue_declare("payments.charge.moving", durable=True)
    put(amqp, "payments.charge.moving")

    told = "payments.charge: a move of its messages was interrupted, 1 message waits"
    assert told in run("rmq_status", "--check").out
    assert run("rmq_declare", "--check").code == Exit.DRIFT
    assert run("rmq_declare", "--recreate", "payments.charge").code == Exit.DONE
    assert amqp.queue_declare("payments.charge", passive=True).method.message_count == 1


def test_the_management_api_adds_unacked_messages_and_rates(vhost: Vhost, project: Any) -> None:
    project.RMQ_RETRY = {"URL": vhost.url, "OPERATORS": {"MANAGEMENT_URL": vhost.management.url}}

    ran = run("rmq_status")

    assert table(ran)[0] == ["QUEUE", "ROLE", "READY", "UNACKED", "CONS", "IN/S", "OUT/S", "STATE"]
    assert ran.err == ""


def test_a_user_without_queue_permissions_uses_the_management_api(vhost: Vhost, project: Any) -> None:
    api, user = vhost.management, vhost.name
    api.call("PUT", f"users/{user}", {"password": "pw", "tags": "management"})
    api.call("PUT", f"permissions/{vhost.name}/{user}", {"configure": "^$", "write": "^$", "read": "^$"})
    with_user = f"{user}:pw@"
    urls = {"URL": vhost.url.replace("guest:guest@", with_user)}
    project.RMQ_RETRY = {**urls, "OPERATORS": {"MANAGEMENT_URL": api.url.replace("guest:guest@", with_user)}}

    ran = run("rmq_status", "--check")
    api.call("DELETE", f"users/{user}")

    assert (ran.code, ran.out) == (Exit.DONE, IDLE)


def test_an_unavailable_management_api_only_omits_its_columns(vhost: Vhost, project: Any) -> None:
    project.RMQ_RETRY = {"URL": vhost.url, "OPERATORS": {"MANAGEMENT_URL": "http://app:secret@127.0.0.1:1"}}

    ran = run("rmq_status")

    assert (ran.code, table(ran)[0]) == (Exit.DONE, ["QUEUE", "ROLE", "READY", "CONS", "STATE"])
    assert "http://app@127.0.0.1:1 cannot be reached" in ran.err
    assert "secret" not in ran.err


@pytest.mark.on_both
def test_the_status_redelivers_no_message(amqp: BlockingChannel) -> None:
    put(amqp, "payments.charge")
    for _ in range(25):
        run("rmq_status", "--json")

    method, _, _ = amqp.basic_get("payments.charge")
    assert method is not None
    assert method.redelivered is False


def test_an_unavailable_broker_fails_a_probe_with_code_3(project: Any) -> None:
    project.RMQ_RETRY = {"URL": "amqp://app:secret@127.0.0.1:1/pay"}

    ran = run("rmq_status", "--check")

    assert (ran.code, ran.out[:48]) == (Exit.UNREACHABLE, "FAIL The broker at amqp://app@127.0.0.1:1/pay ca")
    assert run("rmq_status").code == Exit.UNREACHABLE
    told = run("rmq_status", "--check", "--json")
    assert (told.code, told.data["broker"], told.data["queues"]) == (Exit.UNREACHABLE, None, [])
    assert told.data["findings"][0]["problem"].startswith("The broker at amqp://app@127.0.0.1:1/pay cannot be reached")


def test_while_the_broker_is_away_the_status_says_what_the_database_knows(project: Any) -> None:
    project.RMQ_RETRY = {"URL": "amqp://app:secret@127.0.0.1:1/pay"}
    record()
    ran, probed = run("rmq_status"), run("rmq_status", "--check", "--fail-on", "warning")

    assert (ran.code, ran.lines[0]) == (Exit.UNREACHABLE, ["1 problem, 1 warning."])
    assert [line[1] for line in ran.lines[1:3]] == ["error", "warning"]
    assert ran.lines[2][2].startswith("1 message parked: BankDown, ")
    assert ["Broker", "✕", "no connection"] in ran.lines
    assert ran.lines[-1][0].startswith("Consumers 0 · parked 1")
    assert (probed.code, "1 message parked" in probed.out, "secret" in ran.out) == (Exit.UNREACHABLE, True, False)


def test_a_status_begins_with_what_needs_somebody_and_folds_the_queues_that_are_fine(amqp: BlockingChannel) -> None:
    for pid in (18494, 18496):
        consumer(seconds=64, host="vm", pid=pid)
    put(amqp, "payments.charge.retry.30s")
    ran, every, probed = run("rmq_status"), run("rmq_status", "--all"), run("rmq_status", "--check")

    assert ran.lines[0] == ["1 problem, 0 warnings."]
    assert ran.lines[1] == [
        "consumers",
        "error",
        "No consumer is alive. Last heartbeat 1 min ago: vm:18496, vm:18494.",
        "1 queue stands still: payments.charge.",
        "Start manage.py rmq_consume",
    ]
    assert [line[0] for line in table(ran)[1:3]] == ["payments.charge", "payments.charge.retry.30s"]
    assert table(ran)[3] == ["Nothing waits in 3 queues: --all shows them."]
    assert len(table(every)) == 1 + 5 + 1
    assert (probed.code, probed.out[:27]) == (Exit.UNHEALTHY, "FAIL No consumer is alive. ")


def test_consumers_are_processes_and_not_the_queues_that_each_reads() -> None:
    consumer(pid=1)
    consumer(pid=2)
    ran = run("rmq_status")

    assert ran.lines[-1][0].startswith("Consumers 2 · ")
    assert run("rmq_status", "--json").data["consumers"] == 2


def test_consumers_that_are_not_heard_of_are_counted_as_such() -> None:
    """Beside the error "No consumer is running" stood "Consumers 2": both had been killed 26 s before."""
    consumer(pid=1, seconds=12)
    consumer(pid=2, seconds=26)
    gone = run("rmq_status").lines[-1][0]
    consumer(pid=3)

    assert gone.startswith("Consumers 2, not heard of for 12 s · ")
    assert run("rmq_status").lines[-1][0].startswith("Consumers 3, 2 of them not heard of for 12 s · ")


def test_a_process_that_is_stopping_takes_no_messages_and_is_not_counted() -> None:
    consumer(pid=1)
    consumer(pid=2, stopping=True)
    consumer(pid=3, beat_at=timezone.now() - VANISHED_AFTER * 2)

    assert run("rmq_status").lines[-1][0].startswith("Consumers 1 · ")


def test_a_queue_whose_messages_wait_until_they_are_due_is_neither_ok_nor_in_trouble() -> None:
    """A reminder that was published with a delay was shown as "! retrying"."""
    work = Level(queue="payments.charge", role=Role.WORK, ready=0, consumers=1)
    waits = Level(queue="payments.charge.retry.30s", role=Role.WAITING, ready=2, consumers=0)
    seen = BrokerStatus.of(Health(survey=None, gauged=Gauged(levels=(work, waits), api_set=False)))

    assert [state(seen, row) for row in seen.rows] == [("… waiting", ""), ("✓ OK", "")]


def test_without_the_database_no_queue_is_ok_that_may_be_halted() -> None:
    """A halted ledger with 19 messages behind its first one was "✓ OK", as long as the database was away."""
    halted = Level(queue="ledger.post", role=Role.WORK, ready=19, consumers=2)
    waits = Level(queue="ledger.post.retry.30s", role=Role.WAITING, ready=0, consumers=0)
    gauged = Gauged(levels=(halted, waits), api_set=False)
    seen = BrokerStatus.of(Health(survey=None, trouble="no answer", gauged=gauged))

    assert [state(seen, row)[0] for row in seen.rows] == ["unknown", "✓ OK"]
    assert [is_quiet(seen, row) for row in seen.rows] == [False, True]


def test_a_queue_with_parked_messages_is_not_folded_among_those_that_are_ok() -> None:
    """rmq_status said "22 queues are empty and OK" of queues with 2,006 parked messages each."""
    record()
    ran = run("rmq_status")

    assert ["payments.charge", "work", "0", "0", "! no consumer reads this queue; parked 1"] in ran.lines
    work = Level(queue="payments.charge", role=Role.WORK, ready=0, consumers=1)
    seen = BrokerStatus.of(Health(survey=survey(), gauged=Gauged(levels=(work,), api_set=False)))
    assert [(state(seen, row), is_quiet(seen, row)) for row in seen.rows] == [(("! parked 1", "WARNING"), False)]


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses of a watch, which Ctrl-C ends in the second of them."""
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("django_rmq_retry.management.commands.rmq_status.time.sleep", pause)
    return pauses


@pytest.mark.on_both
def test_a_watch_prints_a_block_per_interval_until_ctrl_c(looks: list[float]) -> None:
    ran = run("rmq_status", "--watch", "2.5")
    blocks = ran.out.split("\n\n")

    assert (ran.code, ran.err.count("MANAGEMENT_URL"), looks) == (Exit.DONE, 2, [2.5, 2.5])
    assert len(blocks) == 3
    for block in blocks[:2]:
        first, second, *others = block.splitlines()
        assert first.endswith("+00:00")
        assert second == "0 problems, 1 warning."
        assert [line for line in others if line.startswith("Broker\tOK\tamqp://")] != []


def test_on_a_terminal_each_block_of_a_watch_replaces_the_previous_one(looks: list[float]) -> None:
    ran = run("rmq_status", "--watch", "1", out=Terminal())

    assert (ran.code, ran.out.count("\x1b[H\x1b[2J"), len(looks)) == (Exit.DONE, 2, 2)
    assert ran.out.startswith("\x1b[H\x1b[2J")


def test_a_watch_continues_while_the_broker_is_unavailable(looks: list[float], settings: Any) -> None:
    settings.RMQ_RETRY = {"URL": "amqp://app:sesame@127.0.0.1:1/"}
    ran = run("rmq_status", "--watch", "1")

    assert (ran.code, ran.out.count("cannot be reached"), len(looks)) == (Exit.DONE, 2, 2)


def test_ctrl_c_ends_a_watch_quietly(broker_url: str, tmp_path: Path) -> None:
    with Shop(url=broker_url, notes=tmp_path / "notes").running("rmq_status", "--watch", "0.1") as watch:
        watch.says("Broker\tOK\tamqp://", times=2)
        watch.signal(signal.SIGINT)

        assert watch.code() == 0
        assert "Traceback" not in watch.errors


@pytest.mark.parametrize("words", [("--watch", "0"), ("--watch", "x"), ("--watch", "nan"), ("--watch", "1", "--json")])
def test_options_that_cannot_be_watched_are_refused(broker_url: str, tmp_path: Path, words: tuple[str, ...]) -> None:
    told = Shop(url=broker_url, notes=tmp_path / "notes").run("rmq_status", *words)

    assert (told.returncode, told.stdout) == (2, "")

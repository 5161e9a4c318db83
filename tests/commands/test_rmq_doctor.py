"""rmq_doctor: each area is broken on purpose; the report names the problem, its consequence and its repair."""

import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from typing import Any
from unittest import mock

import pytest
from django.db import OperationalError, connection
from django.db.migrations.recorder import MigrationRecorder
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry import Delivery, Exchange, NackRequeue, Native, Queue, RetryThenPark, handler
from django_rmq_retry.health.processes import MOST_LOOKED_UP, MOST_SURVEYED_PROCESSES
from django_rmq_retry.models import ConsumerProcess, OutboxMessage, ParkedMessage, QueueControl, RequeueRun, RunState
from django_rmq_retry.testing import isolated_handlers
from tests.amqp.line_between import between
from tests.commands.keeping import steady
from tests.commands.running import Exit, Ran, Terminal, run
from tests.operators.made import group, record, requeue_run
from tests.tooling.node import Node
from tests.tooling.pages import blocks, page
from tests.tooling.vhosts import Vhost
from tests.tooling.waiting import wait_until

pytestmark = [pytest.mark.contract, pytest.mark.django_db]
AREAS = ("settings", "broker", "policies", "permissions", "topology", "consumers", "database", "clocks", "parked")
NOTHING_THERE = "amqp://app:sesame@127.0.0.1:1/pay"
EXAMINATION = "django_rmq_retry.management.examination"


def ago(**span: float) -> Any:
    return timezone.now() - timedelta(**span)


def put(channel: BlockingChannel, queue: str, count: int = 1) -> None:
    for _ in range(count):
        channel.basic_publish("", queue, b"{}")
    wait_until(lambda: count_of(channel, queue) >= count)


def count_of(channel: BlockingChannel, queue: str) -> int:
    return int(channel.queue_declare(queue, passive=True).method.message_count)


def levels(ran: Ran) -> dict[str, set[str]]:
    """The levels of the findings of each area."""
    found: dict[str, set[str]] = {}
    for one in ran.data["findings"]:
        found.setdefault(one["area"], set()).add(one["level"])
    return found


def found(ran: Ran, level: str) -> list[tuple[str, str, str]]:
    """Area, problem and repair of each finding of this level."""
    return [(one["area"], one["problem"], one["fix"]) for one in ran.data["findings"] if one["level"] == level]


def examined(*words: str) -> Ran:
    return run("rmq_doctor", "--json", *words)


@pytest.fixture
def consumed(declared: None, amqp: BlockingChannel) -> BlockingChannel:  # noqa: ARG001 - first the queues
    """A consumer reads the work queue, one message at a time."""
    amqp.basic_qos(prefetch_count=1)
    amqp.basic_consume("payments.charge", lambda *_: None)
    return amqp


@pytest.fixture
def api(vhost: Vhost, project: Any) -> Vhost:
    """The project knows the management API."""
    project.RMQ_RETRY = {"URL": vhost.url, "OPERATORS": {"MANAGEMENT_URL": vhost.management.url}}
    return vhost


@pytest.mark.on_both
@pytest.mark.usefixtures("consumed")
def test_a_healthy_installation_has_a_fact_for_each_area() -> None:
    ran = run("rmq_doctor")

    assert [line[:2] for line in ran.lines if line[1:2] == ["ok"]] == [
        [area, "ok"] for area in AREAS if area != "policies" or "embedded" in ran.out
    ]
    assert ran.lines[-1][0].startswith("No problems found. Not fully examined: ")
    assert (ran.code, ran.err) == (Exit.DONE, "")


@pytest.mark.usefixtures("consumed", "api")
def test_with_the_management_api_every_area_is_examined_in_full() -> None:
    ran = examined()

    assert levels(ran) == {area: {"ok"} for area in AREAS}
    assert ran.data["not_looked_at"] == []
    assert run("rmq_doctor").lines[-1] == ["No problems found."]


@pytest.mark.on_both
@pytest.mark.usefixtures("declared")
def test_a_warning_fails_only_if_requested() -> None:
    ran = examined()

    assert (ran.data["problems"], ran.data["warnings"], ran.code) == (0, 1, Exit.DONE)
    start = "Start manage.py rmq_consume payments.charge"
    assert found(ran, "warning") == [("consumers", "Queue 'payments.charge' has no consumer.", start)]
    assert run("rmq_doctor", "--fail-on", "warning").code == Exit.UNHEALTHY


@pytest.mark.on_both
@pytest.mark.usefixtures("declared")
def test_on_a_terminal_findings_are_grouped_and_commands_are_not_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_rmq_retry.management.findings.columns", lambda _stream: 40)
    lines = run("rmq_doctor", out=Terminal()).out.splitlines()

    assert [line.lower() for line in lines if line[:1].isupper()] == list(AREAS)
    assert "  ! Queue 'payments.charge' has no" in lines
    assert lines[lines.index("  ! Queue 'payments.charge' has no") + 1] == "    consumer."
    assert "    → Start manage.py rmq_consume payments.charge" in lines
    assert lines[-1].startswith("0 problems, 1 warning.")


@pytest.mark.usefixtures("api", "declared")
def test_the_page_of_the_doctor_shows_what_it_prints(amqp: BlockingChannel, vhost: Vhost) -> None:
    arguments = {**vhost.queues()["payments.charge.retry.10s"]["arguments"], "x-message-ttl": 1000}
    amqp.queue_delete("payments.charge.retry.10s")
    amqp.queue_declare("payments.charge.retry.10s", durable=True, arguments=arguments)
    put(amqp, "payments.charge")
    parked_at = ago(minutes=5, seconds=20)
    record(parked_at=parked_at, group=group("f", last_seen=parked_at))
    [shown] = [block.text for block in blocks(page("doctor.md")) if block.kind == "console"]

    assert steady(run("rmq_doctor", out=Terminal()).out) == shown.partition("\n")[2]


class TestBroker:
    @pytest.mark.usefixtures("charge")
    def test_a_server_that_never_answers_is_named_in_words(self, settings: Any) -> None:
        with closing(socket.create_server(("127.0.0.1", 0))) as silent:
            port = silent.getsockname()[1]
            settings.RMQ_RETRY = {"URL": f"amqp://app:sesame@127.0.0.1:{port}/pay"}
            ran = examined("--timeout", "1")

        [(_, problem, _)] = found(ran, "error")
        assert problem.endswith(f"127.0.0.1:{port}: it accepts connections, but does not answer as RabbitMQ does.")

    @pytest.mark.usefixtures("charge")
    def test_an_unreachable_broker_is_a_problem_and_the_database_is_examined(self, settings: Any) -> None:
        settings.RMQ_RETRY = {"URL": NOTHING_THERE}
        ran = examined()

        assert (ran.code, ran.data["problems"]) == (Exit.UNREACHABLE, 1)
        [(area, problem, fix)] = found(ran, "error")
        assert (area, fix) == ("broker", "Start the broker, or correct RMQ_RETRY['URL'].")
        assert problem.startswith("The broker at amqp://app@127.0.0.1:1/pay cannot be reached: ")
        assert ran.data["not_looked_at"] == ["policies", "permissions", "topology", "consumers"]
        assert levels(ran)["database"] == levels(ran)["parked"] == {"ok"}
        assert "sesame" not in ran.out

    @pytest.mark.usefixtures("charge")
    def test_a_url_function_that_fails_is_a_problem(self, settings: Any) -> None:
        def sealed() -> str:
            raise ConnectionError("the vault is sealed")

        settings.RMQ_RETRY = {"URL": sealed}
        ran = examined()

        assert (ran.code, levels(ran)["broker"]) == (Exit.UNREACHABLE, {"error"})

    def test_a_refused_login_and_a_missing_embedded_broker_have_their_own_repair(
        self, vhost: Vhost, project: Any, tmp_path: Any
    ) -> None:
        project.RMQ_RETRY = {"URL": vhost.url.replace("guest:guest@", "stranger:pw@")}
        refused = examined()
        project.RMQ_RETRY = {"URL": f"embedded://{tmp_path}"}
        embedded = examined()

        assert found(refused, "error")[0][2] == (
            "Correct RMQ_RETRY['URL'], or the user and its permissions on the broker."
        )
        assert found(embedded, "error")[0][1:] == (
            "The embedded broker is not running.",
            "manage.py rmq_consume, which starts it too, or manage.py rmq_broker",
        )
        assert refused.code == embedded.code == Exit.UNREACHABLE

    @pytest.mark.usefixtures("charge")
    def test_a_broker_that_stops_answering_is_given_up_once(
        self, broker_url: str, settings: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with between(broker_url) as line:
            settings.RMQ_RETRY = {"URL": line.url}

            def last_answer(_session: object) -> float:
                line.swallow()
                return 0.0

            monkeypatch.setattr("django_rmq_retry.management.broker_examination.round_trip", last_answer)
            began = time.monotonic()
            ran = examined("--timeout", "0.5")

        assert time.monotonic() - began < 6
        assert (ran.code, levels(ran)["broker"]) == (Exit.UNREACHABLE, {"ok", "error"})
        assert {"topology", "consumers", "permissions"} <= set(ran.data["not_looked_at"])
        assert levels(ran)["parked"] == {"ok"}

    @pytest.mark.usefixtures("consumed")
    def test_a_broker_newer_than_the_tested_ones_is_a_fact(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("django_rmq_retry.management.broker_examination.NEWEST", (3, 9))
        ran = examined()

        assert levels(ran)["broker"] == {"ok"}
        assert any("is newer than 3.9, the newest version" in problem for _, problem, _ in found(ran, "ok"))

    def test_a_handler_that_needs_a_newer_broker_is_a_problem(self, vhost: Vhost, project: Any) -> None:
        if vhost.version.startswith("4.3"):
            pytest.skip("this broker has what the handler needs")

        @handler("cards.pay", policy=RetryThenPark(via=Native(10)), name="pay")
        def pay(message: Delivery) -> None:
            """Nothing."""

        ran = examined()

        assert any(problem.startswith("pay: via=Native needs RabbitMQ 4.3") for _, problem, _ in found(ran, "error"))

    @pytest.mark.nightly
    @pytest.mark.slow
    @pytest.mark.usefixtures("charge")
    def test_a_memory_alarm_is_a_problem(self, private_broker: Vhost, private_node: Node, settings: Any) -> None:
        settings.RMQ_RETRY = {"URL": private_broker.url}
        private_node.raise_alarm()
        repair = "Free memory or disk space on the broker: rabbitmq-diagnostics alarms"
        fixes = wait_until(
            lambda: [fix for area, _, fix in found(examined("--timeout", "2"), "error") if fix == repair]
        )
        private_node.clear_alarm()

        assert fixes == [repair]


class TestSettings:
    def test_invalid_settings_leave_everything_else_unexamined(self, settings: Any) -> None:
        settings.RMQ_RETRY = {"URL": "http://broker"}
        ran = examined()

        assert ran.code == Exit.UNHEALTHY
        assert ran.data["not_looked_at"] == list(AREAS[1:])
        assert found(ran, "error")[0][2] == "Correct RMQ_RETRY in the settings file. (rmq_retry.E001)"

    def test_contradicting_handlers_are_a_problem_and_the_broker_is_reached(self, project: Any) -> None:
        for kind in ("topic", "direct"):

            @handler(Queue(f"cards.{kind}", bindings=[Exchange("cards", kind).bind("a")]), name=kind)
            def take(message: Delivery) -> None:
                """Nothing."""

        ran = examined()

        assert [(area, fix[-16:]) for area, _, fix in found(ran, "error")] == [("settings", "(rmq_retry.E004)")]
        assert ("topology", "Not looked at, because the handlers are invalid.", "") in found(ran, "unknown")
        assert levels(ran)["broker"] == {"ok"}

    def test_a_handler_that_does_not_fit_leaves_broker_and_database_examined(self, project: Any) -> None:
        project.RMQ_RETRY = {**project.RMQ_RETRY, "POLICY": RetryThenPark(attempts=5, via=NackRequeue())}

        @handler("cards.pay", name="pay")
        def pay(message: Delivery) -> None:
            """Nothing."""

        ran = examined()

        assert [fix[-16:] for _, _, fix in found(ran, "error")] == ["(rmq_retry.E002)"]
        assert levels(ran)["broker"] == levels(ran)["database"] == {"ok"}

    @pytest.mark.usefixtures("declared")
    def test_warnings_of_the_checks_have_their_hint_and_may_be_silenced(self, project: Any) -> None:
        project.RMQ_RETRY = {**project.RMQ_RETRY, "REPLY_TO": ["*"]}
        warned = [fix for area, _, fix in found(examined(), "warning") if area == "settings"]
        project.SILENCED_SYSTEM_CHECKS = ["rmq_retry.W011"]

        assert len(warned) == 1
        assert warned[0].endswith("(rmq_retry.W011)")
        assert levels(examined())["settings"] == {"ok"}

    @pytest.mark.usefixtures("declared")
    def test_checks_for_deployment_run_only_with_deploy(self) -> None:
        fixes = [fix for area, _, fix in found(examined("--deploy"), "warning") if area == "settings"]

        assert any("rmq_retry.W020" in fix for fix in fixes)
        assert levels(examined())["settings"] == {"ok"}


@pytest.mark.usefixtures("declared")
class TestTopology:
    @pytest.mark.on_both
    def test_missing_objects_are_one_problem_with_the_command_that_creates_them(self, amqp: BlockingChannel) -> None:
        amqp.queue_delete("payments.charge.retry.10s")
        amqp.queue_delete("payments.charge.retry.30s")
        ran = examined()

        assert found(ran, "error") == [
            (
                "topology",
                "The broker lacks queue payments.charge.retry.10s, queue payments.charge.retry.30s.",
                "manage.py rmq_declare",
            )
        ]
        assert run("rmq_declare").code == Exit.DONE
        assert levels(examined())["topology"] == {"ok", "unknown"}

    @pytest.mark.on_both
    def test_a_differing_queue_has_the_command_that_recreates_it(self, amqp: BlockingChannel) -> None:
        amqp.queue_delete("payments.charge")
        amqp.queue_declare("payments.charge", durable=True, arguments={"x-queue-type": "classic"})
        [(area, problem, fix)] = found(examined(), "error")

        assert area == "topology"
        assert problem.startswith("Queue 'payments.charge' differs from the code: ")
        command = re.search(r"manage\.py (rmq_declare --recreate \S+)$", fix)
        assert command
        assert run(*command[1].split(), "--yes", "--publishers-stopped").code == Exit.DONE
        assert found(examined(), "error") == []

    @pytest.mark.on_both
    def test_a_queue_without_a_handler_has_the_command_that_moves_it(self, amqp: BlockingChannel, project: Any) -> None:
        put(amqp, "payments.charge")
        project.RMQ_RETRY = {**project.RMQ_RETRY}
        with isolated_handlers():

            @handler("payments.collect", name="collect")
            def collect(message: Delivery) -> None:
                """Nothing."""

            problems = {problem: fix for _, problem, fix in found(examined(), "error")}

        text = "No handler reads queue 'payments.charge' any more, which has 1 message."
        assert problems[text] == "manage.py rmq_declare --recreate payments.charge --move-to NEW"


@pytest.mark.slow
@pytest.mark.usefixtures("api")
class TestPolicies:
    def policy(self, vhost: Vhost, name: str, pattern: str, *, operator: bool = False, **definition: object) -> None:
        path = "operator-policies" if operator else "policies"
        body = {"pattern": pattern, "definition": {key.replace("_", "-"): it for key, it in definition.items()}}
        vhost.management.call("PUT", f"{path}/{vhost.name}/{name}", {**body, "apply-to": "queues"})

    def examined_with_policies(self, vhost: Vhost, count: int) -> Ran:
        """The management API shows a queue's policy seconds after it applies."""
        assert run("rmq_declare").code == Exit.DONE
        wait_until(
            lambda: sum(bool(row.get("effective_policy_definition")) for row in vhost.queues().values()) >= count
        )
        return examined()

    def test_policies_that_break_retries_are_problems(self, vhost: Vhost) -> None:
        self.policy(vhost, "hurry", r"retry\.10s$", message_ttl=1000, delivery_limit=20)
        self.policy(vhost, "four", r"^payments\.charge$", delivery_limit=4)
        self.policy(vhost, "short", r"retry\.30s$", max_length=10)
        self.policy(vhost, "%1B%5B2J", r"quarantine$", expires=60_000)
        self.policy(vhost, "cap", r"parked$", operator=True, message_ttl=5000)
        ran = self.examined_with_policies(vhost, 5)

        problems = {one["problem"]: one for one in ran.data["findings"] if one["area"] == "policies"}
        parked = "Operator policy 'cap' sets message-ttl to 5000 on 'payments.charge.parked'."
        looked_at = "Policy 'hurry' sets delivery-limit to 20 on 'payments.charge.retry.10s'."
        assert set(problems) == {
            "Policy 'hurry' sets message-ttl to 1000 on 'payments.charge.retry.10s'.",
            looked_at,
            "Policy 'four' sets delivery-limit to 4 on 'payments.charge'.",
            "Policy 'short' sets max-length to 10 on 'payments.charge.retry.30s'.",
            "Policy '\\x1b[2J' sets expires to 60000 on 'payments.charge.quarantine'.",
            parked,
        }
        assert all(f"rabbitmqctl list_policies -p {vhost.name}" in one["fix"] for one in problems.values())
        assert problems[parked]["why"] == "A parked message that no consumer has recorded within 5 s is deleted."
        assert problems[looked_at]["why"].startswith("A retry is sent before it is due after 20 returns")
        assert ran.code == Exit.UNHEALTHY
        assert "\x1b[2J" not in run("rmq_doctor", out=Terminal()).out

    def test_policies_that_leave_retries_alone_are_facts(self, vhost: Vhost) -> None:
        self.policy(vhost, "mild", r"retry", message_ttl=60_000, dead_letter_exchange="elsewhere")
        ran = self.examined_with_policies(vhost, 2)

        assert levels(ran)["policies"] == {"ok"}


@pytest.mark.parametrize("seen_by", ["the API", "the code"])
@pytest.mark.usefixtures("declared")
def test_many_queues_that_dead_letter_at_least_once_are_a_warning(
    vhost: Vhost, project: Any, amqp: BlockingChannel, monkeypatch: pytest.MonkeyPatch, seen_by: str
) -> None:
    careful = {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}
    amqp.queue_declare("theirs", durable=True, arguments={"x-queue-type": "quorum", **careful})
    amqp.queue_declare("plain", durable=True, arguments={"x-queue-type": "quorum"})
    if seen_by == "the API":
        project.RMQ_RETRY = {"URL": vhost.url, "OPERATORS": {"MANAGEMENT_URL": vhost.management.url}}
    rows = [row["arguments"] for name, row in vhost.queues().items() if seen_by == "the API" or name != "theirs"]
    count = sum(row.get("x-dead-letter-strategy") == "at-least-once" for row in rows)
    many = "django_rmq_retry.management.broker_examination.MANY_PROCESSES"
    monkeypatch.setattr(many, count + 1)
    few = [problem for area, problem, _ in found(examined(), "warning") if area == "topology"]
    monkeypatch.setattr(many, count)
    warned = [problem for area, problem, _ in found(examined(), "warning") if area == "topology"]

    assert few == []
    whose = "virtual host" if seen_by == "the API" else "project"
    assert warned == [f"{count} quorum queues of this {whose} dead-letter at least once."]


@pytest.mark.usefixtures("declared")
def test_a_management_api_that_does_not_answer_is_a_warning(vhost: Vhost, project: Any) -> None:
    project.RMQ_RETRY = {"URL": vhost.url, "OPERATORS": {"MANAGEMENT_URL": "http://app:sesame@127.0.0.1:1"}}
    ran = examined()

    [(_, problem, _)] = [one for one in found(ran, "warning") if one[0] == "policies"]
    assert problem.startswith("Not looked at: The broker at http://app@127.0.0.1:1 cannot be reached: ")
    assert (levels(ran)["topology"], ran.code) == ({"ok", "unknown"}, Exit.DONE)
    assert "sesame" not in ran.out


@pytest.mark.usefixtures("declared")
class TestPermissions:
    @pytest.fixture
    def granted(self, vhost: Vhost, project: Any) -> Iterator[Any]:
        """Let the project be a user with these permissions."""
        api, name = vhost.management, vhost.name
        api.call("PUT", f"users/{name}", {"password": "sesame", "tags": "management"})

        def grant(*, management: str = "", **rights: str) -> None:
            given = {"configure": "^$", "write": "^$", "read": "^$", **rights}
            api.call("PUT", f"permissions/{name}/{name}", given)
            operators = {"OPERATORS": {"MANAGEMENT_URL": management}} if management else {}
            project.RMQ_RETRY = {"URL": vhost.url.replace("guest:guest@", f"{name}:sesame@"), **operators}

        yield grant
        api.call("DELETE", f"users/{name}")

    def test_missing_rights_are_problems_without_the_management_api(self, granted: Any, vhost: Vhost) -> None:
        granted(read=r"^payments\.charge$", configure=".*")
        ran = examined()

        user = vhost.name
        problems = [problem for area, problem, _ in found(ran, "error") if area == "permissions"]
        assert problems == [
            f"The user {user!r} lacks the read right on 'payments.charge.quarantine', 'payments.charge.parked'.",
            f"The user {user!r} lacks the write right on 'amq.default'.",
        ]
        fix = next(fix for area, _, fix in found(ran, "error") if area == "permissions")
        assert fix.startswith(
            f"rabbitmqctl set_permissions -p {user} {user} CONFIGURE WRITE READ, with a READ pattern "
        )

    def test_a_user_that_only_consumes_is_healthy(self, granted: Any) -> None:
        granted(read=r"^payments\.charge", write=r"^amq\.default$")
        ran = examined()

        assert levels(ran)["permissions"] == {"ok"}
        assert (levels(ran)["topology"], found(ran, "error")) == ({"unknown"}, [])
        assert "lacks a right on them" in str(found(ran, "unknown"))

    def test_a_queue_of_others_that_was_not_compared_is_not_said_to_match(
        self, granted: Any, amqp: BlockingChannel, vhost: Vhost
    ) -> None:
        amqp.queue_declare("theirs", durable=True)

        @handler(Queue("theirs", type="quorum", existing=True), policy=RetryThenPark(attempts=1))
        def work(message: Delivery) -> None:
            """Nothing."""

        rights = {"configure": r"^(payments|theirs\.)", "write": ".*", "read": ".*"}
        granted(**rights)
        [unknown] = [what for _, what, _ in found(examined(), "unknown") if "lacks a right" in what]
        assert unknown.startswith("'theirs': not looked at")
        granted(**rights, management=vhost.management.url)
        differs = "Queue 'theirs' differs from the code: x-queue-type: here quorum, broker classic."
        assert differs in [what for _, what, _ in found(examined(), "error")]

    def test_the_management_api_adds_the_right_to_declare(self, granted: Any, vhost: Vhost) -> None:
        granted(read=r"^payments\.charge", write=r"^amq\.default$", management=vhost.management.url)
        [fact] = [problem for area, problem, _ in found(examined(), "ok") if area == "permissions"]

        assert fact.endswith(
            "; rmq_declare needs another user, because this one may not create 'payments', 'payments.charge', "
            "'payments.charge.retry.10s' and 3 more."
        )

    def test_the_examination_consumes_and_redelivers_nothing(self, amqp: BlockingChannel) -> None:
        put(amqp, "payments.charge")
        for _ in range(5):
            examined()

        method, _, _ = amqp.basic_get("payments.charge")
        assert method is not None
        assert method.redelivered is False


class TestConsumers:
    @pytest.mark.usefixtures("declared")
    def test_dead_consumers_are_one_problem_as_on_every_page(self, amqp: BlockingChannel) -> None:
        """Their heartbeats are in the database, and their queues on the broker."""
        put(amqp, "payments.charge", 2)
        ConsumerProcess.objects.create(
            name="p", host="web", pid=1, started_at=ago(hours=1), beat_at=ago(minutes=5), connected=True
        )
        told = examined().data["findings"]

        assert [one["problem"] for one in told if one["area"] == "consumers"] == [
            "No consumer is alive. 2 messages wait. Last heartbeat 5 min ago: web:1."
        ]

    @pytest.mark.on_both
    @pytest.mark.usefixtures("declared")
    def test_messages_without_a_consumer_are_a_problem_unless_paused(self, amqp: BlockingChannel) -> None:
        put(amqp, "payments.charge", 2)
        ran = examined()
        QueueControl.objects.create(queue="payments.charge", paused=True, by="ann", since=ago(minutes=1))
        paused = examined()

        problem = "Queue 'payments.charge' has no consumer. 2 messages wait."
        assert found(ran, "error") == [("consumers", problem, "Start manage.py rmq_consume payments.charge")]
        assert found(paused, "error") == []
        [(area, problem, _)] = found(paused, "warning")
        assert area == "parked"
        assert re.fullmatch(r"Queue 'payments\.charge' has been paused for 1 min by ann\.", problem)

    @pytest.mark.on_both
    def test_parked_queues_without_a_consumer_and_refused_messages_are_reported(
        self, consumed: BlockingChannel
    ) -> None:
        put(consumed, "payments.charge.parked")
        consumed.queue_declare("payments.charge.parked.unrecorded", durable=True)
        put(consumed, "payments.charge.parked.unrecorded")
        ran = examined()

        parked = "No consumer records the 1 message in the parked queue 'payments.charge.parked'."
        assert [problem for _, problem, _ in found(ran, "warning")] == [parked]
        refused = "The database refused 1 message, now in 'payments.charge.parked.unrecorded'."
        assert [(area, problem) for area, problem, _ in found(ran, "error")] == [("parked", refused)]

    @pytest.mark.usefixtures("consumed")
    def test_the_newest_thousand_consumers_are_read_and_messages_in_flight_of_a_few_that_vanished(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        facts: dict[str, Any] = {"host": "web", "started_at": ago(hours=24), "connected": True}
        ConsumerProcess.objects.bulk_create(
            ConsumerProcess(name=f"p{number}", pid=number, beat_at=ago(seconds=2 + 40 * number), **facts)
            for number in range(MOST_SURVEYED_PROCESSES + 5)
        )
        compared = mock.Mock(return_value=False)
        monkeypatch.setattr(ConsumerProcess, "__eq__", compared)
        with CaptureQueriesContext(connection) as queries:
            [(_, problem, _)] = found(examined(), "warning")

        vanished = f"{MOST_SURVEYED_PROCESSES - 1} of {MOST_SURVEYED_PROCESSES} consumers without a heartbeat for 30 s"
        assert re.match(rf"{vanished}: web:1 \((4[2-9]|5\d) s", problem)
        read = [one["sql"] for one in queries if "rmq_retry_consumerprocess" in one["sql"]]
        assert read
        [of_some] = [one for one in read if "in_flight" in one]
        assert of_some.count(",") < 2 * MOST_LOOKED_UP
        assert not compared.called


@pytest.mark.usefixtures("declared")
def test_without_the_database_no_consumer_is_to_be_started_for_a_queue_that_may_be_paused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def away(_alias: str) -> list[str]:
        raise OperationalError("connection to server failed")

    monkeypatch.setattr(f"{EXAMINATION}.unapplied", away)
    [(why, fix)] = [
        (one["why"], one["fix"]) for one in examined().data["findings"] if "has no consumer" in one["problem"]
    ]

    assert why.startswith("It may be paused, or its breaker open")
    assert fix.startswith("Repair the database first")


@pytest.mark.usefixtures("consumed")
class TestDatabase:
    @pytest.mark.database
    def test_an_unapplied_migration_is_a_problem(self) -> None:
        MigrationRecorder(connection).migration_qs.filter(app="rmq_retry").delete()
        ran = examined()

        problem = "Migrations of rmq_retry are not applied in 'default': 0001_initial."
        fix = "manage.py migrate rmq_retry --database default"
        assert (found(ran, "error"), ran.code) == ([("database", problem, fix)], Exit.UNHEALTHY)

    def test_an_unavailable_database_is_a_problem_and_the_broker_is_examined(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def away(_alias: str) -> list[str]:
            raise OperationalError("connection to server failed:\n  Connection refused\n")

        monkeypatch.setattr(f"{EXAMINATION}.unapplied", away)
        ran = examined()

        problem = "The database 'default' cannot be used: connection to server failed: Connection refused."
        fix = "Start it, or correct DATABASES['default'] in the settings."
        assert found(ran, "error") == [("database", problem, fix)]
        assert {"clocks", "parked"} <= set(ran.data["not_looked_at"])
        assert levels(ran)["broker"] == {"ok"}

    def test_an_unresponsive_database_is_given_up_after_the_timeout(self, monkeypatch: pytest.MonkeyPatch) -> None:
        over = threading.Event()
        monkeypatch.setattr("django_rmq_retry.health.time_limit.alone_sees_its_data", lambda _alias: False)
        monkeypatch.setattr(f"{EXAMINATION}.unapplied", lambda _alias: over.wait(30))
        ran = examined("--timeout", "0.5")
        over.set()
        wait_until(lambda: "rmq-survey" not in [one.name for one in threading.enumerate()], what="its thread ends")

        [(_, problem, _)] = found(ran, "error")
        assert problem == "The database 'default' cannot be used: 'default' did not answer within 0.5 s."

    def test_a_look_that_fails_is_a_problem_and_the_others_are_made(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def broken(_now: object) -> None:
            raise ZeroDivisionError("division by zero")

        monkeypatch.setattr(f"{EXAMINATION}.growing", broken)
        ran = examined()

        [(area, problem, _)] = found(ran, "error")
        assert (area, problem) == ("parked", "The examination failed: ZeroDivisionError: division by zero.")
        assert set(levels(ran)) == set(AREAS)

    @pytest.mark.django_db(transaction=True)
    @pytest.mark.database
    def test_outside_a_transaction_each_database_is_queried_in_a_thread(self) -> None:
        record()
        record()

        assert levels(examined())["parked"] == {"warning"}


@pytest.mark.usefixtures("consumed")
class TestParked:
    def test_survey_runs_and_heartbeats_are_judged_by_the_rules(self) -> None:
        now = timezone.now()
        record(parked_at=ago(hours=30), group=group("f", last_seen=ago(hours=30)))
        OutboxMessage.objects.create(created_at=now, failed_at=now, body=b"{}", properties=b"", due_at=now)
        QueueControl.objects.create(queue="open", opened=True, cause="BankDown", opened_at=ago(minutes=3))
        unsent = {"total": 5, "state": RunState.RUNNING, "created_at": ago(hours=3)}
        run = RequeueRun.objects.create(by="ann", selection={}, **unsent)
        ConsumerProcess.objects.create(name="p", host="web", pid=3, started_at=ago(hours=1), beat_at=ago(seconds=95))
        ran, patient = examined(), examined("--max-parked-age", "2d")

        errors = [
            ("consumers", "The breaker of queue 'open' has been open for 3 min: BankDown."),
            ("database", "1 message in the outbox failed."),
            ("parked", "1 message parked: BankDown, no new failure for 1 d."),
        ]
        assert [(area, problem) for area, problem, _ in found(ran, "error")] == errors
        assert [problem for _, problem, _ in found(patient, "error")] == [errors[0][1], errors[1][1]]
        assert errors[2][1] in [problem for _, problem, _ in found(patient, "warning")]
        warned = [problem for _, problem, _ in found(ran, "warning")]
        assert re.match(r"1 of 1 consumers without a heartbeat for 30 s: web:3 \(1 min ago\)", warned[0])
        assert warned[1] == f"Requeue run {run.pk} has had no driver for 3 h."

    def test_a_growing_group_is_a_warning(self) -> None:
        grown = group("f", title="BankDown\x1b[2J\nx")
        record(group=grown, parked_at=ago(minutes=2))
        record(group=grown, parked_at=ago(minutes=40))
        [(_, parked, _)] = found(examined(), "warning")
        record(group=grown, parked_at=ago(seconds=20))
        [(_, _, _), (_, problem, fix)] = found(examined(), "warning")

        assert parked.startswith("2 messages parked: BankDown")

        assert re.match(rf"Error group {grown.pk} grows: 2 messages since [\d:]+ \w+ \(BankDown", problem)
        assert fix.startswith(f"manage.py rmq_parked list --group {grown.pk};")
        for out in (None, Terminal()):
            assert "\x1b[2J" not in run("rmq_doctor", out=out).out
        requeue_run(list(ParkedMessage.objects.values_list("pk", flat=True)))
        assert " grows: " not in run("rmq_doctor").out

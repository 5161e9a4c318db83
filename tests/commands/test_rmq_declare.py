"""rmq_declare: plan first, create what is missing, report what differs, keep every message."""

from typing import Any

import pytest
from django.db import connection
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry import DeadLetter, Delivery, Queue, RetryThenPark, handler
from django_rmq_retry.amqp import inspection
from tests.amqp.recreated import bodies, publishing
from tests.commands.running import Exit, run
from tests.tooling.vhosts import Vhost
from tests.tooling.waiting import wait_until

pytestmark = [pytest.mark.contract, pytest.mark.usefixtures("project")]

QUORUM = {"x-queue-type": "quorum", "x-delivery-limit": 1_000_000}
SAFE = {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish", "x-dead-letter-exchange": ""}


def differing(channel: BlockingChannel, messages: int = 0) -> None:
    """The work queue as another program declared it."""
    channel.queue_declare("payments.charge", durable=True, arguments={"x-queue-type": "classic", "x-max-priority": 5})
    for _ in range(messages):
        channel.basic_publish("", "payments.charge", b"{}")


@pytest.fixture
def seen(vhost: Vhost, project: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The project knows the management API."""
    monkeypatch.setattr(inspection, "LAG_SECONDS", 1.0)
    project.RMQ_RETRY = {"URL": vhost.url, "OPERATORS": {"MANAGEMENT_URL": vhost.management.url}}


@pytest.mark.on_both
def test_all_queues_and_exchanges_of_a_project_are_declared(vhost: Vhost) -> None:
    ran = run("rmq_declare")

    assert ran.code == Exit.DONE
    assert ran.lines[0][0].startswith("Broker amqp://guest@127.0.0.1:")
    assert ran.lines[1] == ["  +", "exchange", "payments", "topic durable"]
    assert ran.lines[-1] == ["7 created."]
    assert {name: row["arguments"] for name, row in vhost.queues().items()} == {
        "payments.charge": {**QUORUM, **SAFE, "x-dead-letter-routing-key": "payments.charge.parked"},
        "payments.charge.retry.10s": {
            **QUORUM,
            "x-message-ttl": 10_000,
            **SAFE,
            "x-dead-letter-routing-key": "payments.charge",
        },
        "payments.charge.retry.30s": {
            **QUORUM,
            "x-message-ttl": 30_000,
            **SAFE,
            "x-dead-letter-routing-key": "payments.charge",
        },
        "payments.charge.quarantine": {**QUORUM, **SAFE, "x-dead-letter-routing-key": "payments.charge.parked"},
        "payments.charge.parked": QUORUM,
    }


@pytest.mark.on_both
@pytest.mark.parametrize(("option", "code"), [("--plan", Exit.DONE), ("--check", Exit.DRIFT)])
def test_a_plan_and_a_check_write_nothing(option: str, code: Exit, vhost: Vhost) -> None:
    ran = run("rmq_declare", option)

    assert (ran.code, ran.lines[-1]) == (code, ["7 to create."])
    assert vhost.queues() == {}


@pytest.mark.on_both
def test_a_check_after_a_declaration_finds_no_difference() -> None:
    run("rmq_declare")

    ran = run("rmq_declare", "--check")

    assert (ran.code, ran.lines[-1]) == (Exit.DONE, ["6 unchanged, 1 not visible."])
    assert "management API" in ran.err


@pytest.mark.on_both
def test_a_difference_is_reported_argument_by_argument(amqp: BlockingChannel) -> None:
    differing(amqp)

    ran = run("rmq_declare")

    row = next(line for line in ran.lines if line[1:3] == ["queue", "payments.charge"])
    assert ran.code == Exit.DRIFT
    assert row[0] == "  !"
    assert "x-queue-type: here quorum, broker classic" in row[3]
    assert "manage.py rmq_declare --recreate payments.charge" in ran.err


@pytest.mark.on_both
def test_the_number_of_differing_queues_is_in_the_right_plural(amqp: BlockingChannel) -> None:
    differing(amqp)
    one = run("rmq_declare", "--check")
    amqp.queue_declare("payments.charge.parked", durable=True)
    two = run("rmq_declare", "--check")

    assert one.lines[-1][0].endswith(", 1 differs.")
    assert two.lines[-1][0].endswith(", 2 differ.")


@pytest.mark.on_both
def test_the_json_output_is_one_document_on_stdout(amqp: BlockingChannel) -> None:
    differing(amqp)

    ran = run("rmq_declare", "--json")

    item = next(item for item in ran.data["items"] if item["name"] == "payments.charge")
    assert ran.data["schema"] == "rmq_retry.declare/1"
    assert (ran.code, ran.err, ran.data["written"]) == (Exit.DRIFT, "", True)
    assert item["state"] == "differs"
    assert {"argument": "x-queue-type", "here": "quorum", "broker": "classic"} in item["differences"]


@pytest.mark.on_both
def test_a_queue_is_recreated_with_its_messages(amqp: BlockingChannel, vhost: Vhost) -> None:
    differing(amqp, messages=3)
    wait_until(lambda: amqp.queue_declare("payments.charge", passive=True).method.message_count == 3)

    ran = run("rmq_declare", "--recreate", "payments.charge", "--yes", "--publishers-stopped")

    assert (ran.code, ran.err) == (
        Exit.DONE,
        'Bindings are visible only through the management API: RMQ_RETRY["OPERATORS"]["MANAGEMENT_URL"].\n',
    )
    assert ran.lines[-1] == ["Queue 'payments.charge' was recreated, and 3 messages were moved."]
    assert vhost.queues()["payments.charge"]["type"] == "quorum"
    assert amqp.queue_declare("payments.charge", passive=True).method.message_count == 3


@pytest.mark.on_both
def test_a_waiting_queue_without_a_delivery_limit_is_named_and_recreated_with_its_retries(
    amqp: BlockingChannel, vhost: Vhost
) -> None:
    name = "payments.charge.retry.30s"
    back = {**SAFE, "x-dead-letter-routing-key": "payments.charge"}
    amqp.queue_declare(name, durable=True, arguments={"x-queue-type": "quorum", "x-message-ttl": 30_000, **back})
    amqp.basic_publish("", name, b"{}")
    wait_until(lambda: amqp.queue_declare(name, passive=True).method.message_count == 1)
    found = run("rmq_declare")
    ran = run("rmq_declare", "--recreate", name, "--yes", "--publishers-stopped")

    [row] = [line for line in found.lines if line[2:3] == [name]]
    assert (found.code, row[0], row[3]) == (Exit.DRIFT, "  !", "x-delivery-limit: here 1000000, broker none")
    assert f"manage.py rmq_declare --recreate {name}" in found.err
    assert (ran.code, ran.lines[-1]) == (Exit.DONE, [f"Queue {name!r} was recreated, and 1 message was moved."])
    assert vhost.queues()[name]["arguments"]["x-delivery-limit"] == 1_000_000
    assert amqp.queue_declare(name, passive=True).method.message_count == 1


@pytest.mark.on_both
def test_nothing_is_recreated_without_confirmation(amqp: BlockingChannel, vhost: Vhost) -> None:
    differing(amqp)

    ran = run("rmq_declare", "--recreate", "payments.charge")

    assert ran.code == Exit.UNCONFIRMED
    assert "Are all consumers of the queue stopped? No terminal to confirm on. Pass --yes." in ran.err
    assert vhost.queues()["payments.charge"]["type"] == "classic"


def test_recreating_a_queue_beside_a_publisher_loses_no_confirmed_message(
    amqp: BlockingChannel, broker_url: str
) -> None:
    differing(amqp)

    with publishing(broker_url, "payments.charge") as confirmed:
        for _ in range(10):
            before = len(confirmed)
            ran = run("rmq_declare", "--recreate", "payments.charge", "--yes")
            assert ran.code == Exit.UNCONFIRMED
            assert (
                "Are all publishers by its name stopped? No terminal to confirm on. Pass --publishers-stopped"
                in ran.err
            )
            wait_until(lambda: len(confirmed) > before)  # noqa: B023  # called at once
    ran = run("rmq_declare", "--recreate", "payments.charge", "--yes", "--publishers-stopped")

    assert ran.code == Exit.DONE
    assert set(bodies(amqp, "payments.charge")) == set(confirmed)


@pytest.mark.on_both
def test_publishers_stopped_is_accepted_only_with_recreate() -> None:
    ran = run("rmq_declare", "--publishers-stopped")

    assert (ran.code, ran.err) == (Exit.USAGE, "--publishers-stopped requires --recreate.")


@pytest.mark.on_both
def test_a_queue_with_a_consumer_is_not_recreated(amqp: BlockingChannel) -> None:
    differing(amqp)
    amqp.basic_consume("payments.charge", lambda *_: None)

    ran = run("rmq_declare", "--recreate", "payments.charge", "--yes")

    assert ran.code == Exit.DRIFT
    assert "it has 1 consumer. Stop them first." in ran.err


@pytest.mark.on_both
def test_an_unknown_queue_gets_the_nearest_name_suggested() -> None:
    ran = run("rmq_declare", "--recreate", "payment.charge")

    assert ran.code == Exit.USAGE
    assert ran.err == "There is no queue 'payment.charge'. Did you mean payments.charge?"


def test_pruning_needs_the_database_or_the_management_api(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(connection.introspection), "table_names", lambda *_: [])
    ran = run("rmq_declare", "--prune", "--yes")

    assert ran.code == Exit.DRIFT
    assert "Neither the database nor the management API lists the abandoned queues. Run `manage.py migrate`" in ran.err


@pytest.mark.usefixtures("seen")
def test_pruning_deletes_waiting_queues_without_a_handler(amqp: BlockingChannel, vhost: Vhost) -> None:
    for name in ("payments.charge.retry.7s", "payments.charge.retry.8s", "invoices.retry.7s", "payments.charge.other"):
        amqp.queue_declare(name, durable=True)
    amqp.basic_publish("", "payments.charge.retry.8s", b"waits")
    wait_until(lambda: amqp.queue_declare("payments.charge.retry.8s", passive=True).method.message_count == 1)

    ran = run("rmq_declare", "--prune", "--yes")

    assert ran.code == Exit.PARTLY
    assert ["Queue 'payments.charge.retry.7s' was deleted."] in ran.lines
    assert ran.lines[-1][0].startswith("Queue 'payments.charge.retry.8s' was kept: it holds 1 message.")
    assert {"invoices.retry.7s", "payments.charge.other", "payments.charge.retry.8s"} < set(vhost.queues())


@pytest.mark.usefixtures("seen")
def test_pruning_without_confirmation_deletes_nothing(amqp: BlockingChannel, vhost: Vhost) -> None:
    amqp.queue_declare("payments.charge.retry.7s", durable=True)

    ran = run("rmq_declare", "--prune")

    assert ran.code == Exit.UNCONFIRMED
    assert "Are all publishers by its name stopped?" in ran.err
    assert "payments.charge.retry.7s" in vhost.queues()


@pytest.fixture
def lossy(project: Any) -> Any:
    """A project one of whose queues would lose messages."""
    cash = Queue("cash", arguments={"x-delivery-limit": 2})

    @handler(cash, policy=RetryThenPark(via=DeadLetter(exchange="again", queue="cash.again", after=30)))
    def charge(message: Delivery) -> None:
        """Nothing."""

    return project


@pytest.mark.on_both
@pytest.mark.usefixtures("lossy")
def test_a_project_with_a_check_error_is_not_declared(vhost: Vhost) -> None:
    ran = run("rmq_declare")

    assert (ran.code, ran.out) == (Exit.ERROR, "")
    assert ran.err == (
        "Queue 'cash' has x-delivery-limit=2, and a dead-letter loop: messages that RabbitMQ removes for that "
        "circulate "
        "without an attempt, and are dropped or stay where no consumer can reach them. Omit it, so that the layout "
        "sets it "
        "(x-delivery-limit=1000000, no TTL, x-overflow='reject-publish'), or use via=Ladder(). (rmq_retry.E005)\n"
        "Nothing was declared."
    )
    assert vhost.queues() == {}


@pytest.mark.on_both
@pytest.mark.usefixtures("lossy")
def test_a_plan_with_a_check_error_is_shown_with_the_error() -> None:
    ran = run("rmq_declare", "--plan")

    assert (ran.code, ran.lines[-1]) == (Exit.DONE, ["12 to create."])
    assert "(rmq_retry.E005)" in ran.err


@pytest.mark.on_both
def test_a_silenced_check_error_does_not_prevent_the_declaration(lossy: Any, vhost: Vhost) -> None:
    lossy.SILENCED_SYSTEM_CHECKS = ["rmq_retry.E005"]

    assert run("rmq_declare").code == Exit.DONE
    assert vhost.queues()["cash"]["arguments"]["x-delivery-limit"] == 2


@pytest.mark.on_both
def test_an_unavailable_broker_exits_with_3(project: Any) -> None:
    project.RMQ_RETRY = {"URL": "amqp://app:secret@127.0.0.1:1/pay"}

    ran = run("rmq_declare")

    assert ran.code == Exit.UNREACHABLE
    assert "amqp://app@127.0.0.1:1/pay cannot be reached" in ran.err
    assert "secret" not in ran.err

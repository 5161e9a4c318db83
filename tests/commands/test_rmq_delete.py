"""rmq_delete: only what is ours, only what is empty, only with a yes."""

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.commands.running import Exit, run
from tests.tooling.vhosts import Vhost
from tests.tooling.waiting import wait_until

pytestmark = [pytest.mark.contract, pytest.mark.usefixtures("project", "declared")]


def put(channel: BlockingChannel, queue: str) -> None:
    channel.basic_publish("", queue, b"{}")
    wait_until(lambda: channel.queue_declare(queue, passive=True).method.message_count == 1)


@pytest.mark.on_both
def test_an_empty_queue_is_deleted(vhost: Vhost) -> None:
    ran = run("rmq_delete", "payments.charge.retry.10s", "--yes")

    assert (ran.code, ran.out) == (Exit.DONE, "Queue 'payments.charge.retry.10s' was deleted.\n")
    assert "payments.charge.retry.10s" not in vhost.queues()


@pytest.mark.on_both
def test_a_queue_with_messages_is_kept(amqp: BlockingChannel, vhost: Vhost) -> None:
    put(amqp, "payments.charge.parked")

    ran = run("rmq_delete", "payments.charge.parked", "--yes")

    assert ran.code == Exit.DRIFT
    assert "was kept: it holds 1 message." in ran.out
    assert "payments.charge.parked" in vhost.queues()


@pytest.mark.on_both
def test_force_deletes_a_queue_with_its_messages(amqp: BlockingChannel, vhost: Vhost) -> None:
    put(amqp, "payments.charge.parked")

    assert run("rmq_delete", "payments.charge.parked", "--force", "--yes").code == Exit.DONE
    assert "payments.charge.parked" not in vhost.queues()


@pytest.mark.on_both
@pytest.mark.parametrize("more", [[], ["--force"]])
def test_nothing_is_deleted_without_confirmation(more: list[str], vhost: Vhost) -> None:
    ran = run("rmq_delete", "payments.charge", *more)

    assert ran.code == Exit.UNCONFIRMED
    assert ("Are all publishers by its name stopped?" in ran.err) is not bool(more)
    assert "payments.charge" in vhost.queues()


@pytest.mark.on_both
def test_the_question_says_who_reads_the_queue_now(amqp: BlockingChannel) -> None:
    """ "Are all consumers stopped?" was asked while those of the other queues had to run."""
    unread = run("rmq_delete", "payments.charge")
    amqp.basic_consume("payments.charge", lambda *_: None)
    read = run("rmq_delete", "payments.charge")

    assert "No consumer reads them now; consumers of other queues may run. No terminal" in unread.err
    assert "Their consumers now: payments.charge 1. No terminal" in read.err


@pytest.mark.on_both
def test_deleting_all_deletes_every_queue_and_exchange_of_the_project(amqp: BlockingChannel, vhost: Vhost) -> None:
    amqp.queue_declare("foreign", durable=True)

    ran = run("rmq_delete", "--all", "--yes", "--json")

    assert ran.code == Exit.DONE
    assert ran.data["exchanges"] == ["payments"]
    assert (set(vhost.queues()), vhost.exchanges()) == ({"foreign"}, {})


@pytest.mark.on_both
def test_deleting_all_deletes_nothing_while_a_consumer_reads_a_queue(amqp: BlockingChannel, vhost: Vhost) -> None:
    """A loop had taken its work queue back, and lost its retry queue and its parking queue to ``--all``."""
    before = set(vhost.queues())
    amqp.basic_consume("payments.charge", lambda *_: None)

    ran = run("rmq_delete", "--all", "--yes")

    assert ran.code == Exit.DRIFT
    assert "Nothing was deleted, because these queues have consumers: payments.charge 1. Stop them; or, if" in ran.err
    assert (set(vhost.queues()), set(vhost.exchanges())) == (before, {"payments"})
    assert run("rmq_delete", "--all", "--force", "--yes").code == Exit.DONE


@pytest.mark.on_both
def test_an_exchange_in_use_is_kept(amqp: BlockingChannel, vhost: Vhost) -> None:
    amqp.queue_declare("foreign", durable=True)
    amqp.queue_bind("foreign", "payments", "refund.#")

    ran = run("rmq_delete", "--all", "--yes")

    assert ran.code == Exit.PARTLY
    assert "Exchange 'payments' was kept: The broker refuses it: exchange 'payments'" in ran.out
    assert "payments" in vhost.exchanges()


@pytest.mark.on_both
def test_a_queue_of_another_project_is_refused(amqp: BlockingChannel, vhost: Vhost) -> None:
    amqp.queue_declare("invoices", durable=True)

    ran = run("rmq_delete", "invoices", "--force", "--yes")

    assert ran.code == Exit.USAGE
    assert ran.err == (
        "There is no queue of this project 'invoices'. Known: payments.charge, payments.charge.retry.10s, "
        "payments.charge.retry.30s, payments.charge.quarantine, payments.charge.parked."
    )
    assert "invoices" in vhost.queues()


def test_a_mistyped_queue_gets_the_nearest_declared_name_suggested() -> None:
    ran = run("rmq_delete", "payments.charges.moving", "--yes")

    assert (ran.code, ran.err) == (
        Exit.USAGE,
        "There is no queue of this project 'payments.charges.moving'. Did you mean payments.charge?",
    )


@pytest.mark.on_both
def test_a_waiting_queue_of_a_former_back_off_can_be_deleted(amqp: BlockingChannel) -> None:
    amqp.queue_declare("payments.charge.retry.7s", durable=True)

    assert run("rmq_delete", "payments.charge.retry.7s", "--yes").code == Exit.DONE
    assert run("rmq_delete", "payments.charge.retry.7s", "--yes").code == Exit.NOTHING


@pytest.mark.on_both
@pytest.mark.parametrize("words", [[], ["payments.charge", "--all"]])
def test_either_queue_names_or_all_must_be_given(words: list[str]) -> None:
    assert run("rmq_delete", *words).code == Exit.USAGE

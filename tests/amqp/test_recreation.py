"""A recreated queue keeps its messages, whatever happens meanwhile; nothing is deleted that may still be needed."""

from collections.abc import Iterator

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry import Queue
from django_rmq_retry.amqp import Secret
from django_rmq_retry.amqp.declarer import Declarer
from django_rmq_retry.amqp.deletion import delete_queues
from django_rmq_retry.amqp.inspection import WouldLose
from django_rmq_retry.amqp.management_api import Inspector
from django_rmq_retry.amqp.recreation import Recreated, Recreation
from django_rmq_retry.amqp.session import Session
from django_rmq_retry.topology.declarations import NO_LIMIT
from tests.amqp.declared import declare, ready, session_on
from tests.amqp.recreated import NEW, OLD, SHOP, bodies, fill, publishing, recreate, yes
from tests.amqp.slow_motion import SlowConsumer
from tests.handlers.factories import topology_of
from tests.tooling.vhosts import Vhost
from tests.tooling.waiting import wait_until

pytestmark = pytest.mark.contract


@pytest.fixture
def session(broker_url: str) -> Iterator[Session]:
    with session_on(broker_url) as session:
        yield session


@pytest.fixture
def inspector(vhost: Vhost) -> Inspector:
    return Inspector(url=Secret(vhost.management.url), vhost=vhost.name)


def test_recreation_keeps_messages_in_order_and_leaves_no_other_queue(
    vhost: Vhost, session: Session, amqp: BlockingChannel
) -> None:
    declare(vhost, OLD)
    fill(amqp, 250)

    assert recreate(session) == Recreated(queue="orders", done=True, moved=250)

    assert set(vhost.queues()) == {"orders"}
    assert vhost.queues()["orders"]["arguments"]["x-message-ttl"] == 900_000
    assert vhost.bindings() == {("shop", "orders", "")}
    assert bodies(amqp) == [b"%d" % number for number in range(250)]


def test_a_queue_that_is_as_written_is_left_alone(vhost: Vhost, session: Session) -> None:
    declare(vhost, NEW)

    assert not recreate(session).done


def test_every_property_is_kept_byte_for_byte(vhost: Vhost, session: Session, amqp: BlockingChannel) -> None:
    declare(vhost, OLD)
    properties = pika.BasicProperties(
        message_id="m-1", expiration="300000", priority=4, headers={"amount": 7, "nested": {"list": [1, "two", None]}}
    )
    amqp.basic_publish("shop", "k", b"body", properties)
    before = b"".join(properties.encode())

    recreate(session)

    _, kept, _ = amqp.basic_get("orders")
    assert kept is not None
    # RabbitMQ 3 shows how often a quorum queue had to deliver; that is not the message's.
    kept.headers = {name: value for name, value in (kept.headers or {}).items() if name != "x-delivery-count"}
    assert b"".join(kept.encode()) == before


def test_a_senders_ttl_header_neither_stops_a_move_nor_expires_a_message(
    vhost: Vhost, session: Session, amqp: BlockingChannel
) -> None:
    declare(vhost, OLD)
    amqp.queue_declare(
        "orders.moving", durable=True, arguments={"x-queue-type": "quorum", "x-delivery-limit": NO_LIMIT}
    )
    sent: list[tuple[str, str | int]] = [
        ("orders", "soon"),
        ("orders", "0"),
        ("orders", 7),
        ("orders.moving", "soon"),
        ("orders.moving", 7),
    ]
    for queue, forged in sent:
        properties = pika.BasicProperties(headers={"rmq-retry-expiration": forged})
        amqp.basic_publish("", queue, queue.encode(), properties)
    wait_until(lambda: (ready(amqp, "orders"), ready(amqp, "orders.moving")) == (3, 2))

    recreate(session)

    assert sorted(bodies(amqp)) == [b"orders"] * 3 + [b"orders.moving"] * 2


def test_rejections_counted_by_the_broker_become_attempts_in_the_header(
    vhost: Vhost, session: Session, amqp: BlockingChannel
) -> None:
    back = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "orders"}
    declare(vhost, topology_of(extra=[SHOP, Queue("orders", arguments=back)]))
    amqp.basic_publish("", "orders", b"")
    line = SlowConsumer(channel=amqp, subscription=None)  # type: ignore[arg-type]  # only its hands are needed
    for _ in range(2):
        amqp.basic_nack(line.take("orders")[0], requeue=False)
    wait_until(lambda: ready(amqp, "orders") == 1)

    recreate(session)

    _, delivery, _ = line.take("orders")
    assert delivery.headers["rmq-retry-attempts"] == 2
    assert "x-death" not in delivery.headers


def test_a_message_unacked_is_seen_through_the_management_api(
    vhost: Vhost, session: Session, amqp: BlockingChannel, inspector: Inspector
) -> None:
    # Quorum queues count a consumer for as long as it has a message; classic ones only until it is cancelled.
    declare(vhost, topology_of(extra=[Queue("orders", type="classic", bindings=[SHOP.bind()])]))
    fill(amqp, 1)
    tag = amqp.basic_consume("orders", lambda *_: amqp.stop_consuming(tag))
    amqp.start_consuming()
    declarer = Declarer(session, inspector)

    with pytest.raises(WouldLose, match="1 message of it are in a consumer's hand"):
        Recreation(declarer, NEW, "orders").run(yes)
    assert "1 message of it are in a consumer's hand" in delete_queues(declarer, ["orders"]).refused["orders"]


@pytest.mark.parametrize("rounds", [1, pytest.param(4, marks=pytest.mark.nightly)])
def test_recreation_loses_no_message_while_publishers_continue(
    vhost: Vhost, session: Session, amqp: BlockingChannel, rounds: int
) -> None:
    declare(vhost, OLD)

    with publishing(vhost.url, "k", exchange="shop") as confirmed:
        for topology in [NEW, OLD] * rounds:
            assert Recreation(Declarer(session), topology, "orders").run(yes).done
            before = len(confirmed)
            wait_until(lambda: len(confirmed) > before)  # noqa: B023  # called at once

    assert set(bodies(amqp)) == set(confirmed)


def test_recreation_is_refused_while_retries_would_miss_the_queue(
    vhost: Vhost, session: Session, amqp: BlockingChannel
) -> None:
    back = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "orders"}
    waiting = Queue("orders.retry.60s", type="classic", message_ttl=60, arguments=back)
    declare(vhost, OLD + topology_of(extra=[waiting]))
    amqp.basic_publish("", "orders.retry.60s", b"")
    topology = NEW + topology_of(extra=[waiting])

    with pytest.raises(WouldLose, match=r"1 message in 'orders\.retry\.60s' comes back to it by at-most-once"):
        Recreation(Declarer(session), topology, "orders").run(yes)


def test_recreation_with_invalid_arguments_changes_nothing(
    vhost: Vhost, session: Session, amqp: BlockingChannel
) -> None:
    declare(vhost, OLD)
    fill(amqp)
    wrong = topology_of(extra=[Queue("orders", arguments={"x-max-length": "many"})])

    with pytest.raises(Exception, match="x-max-length"):
        Recreation(Declarer(session), wrong, "orders").run(yes)

    assert set(vhost.queues()) == {"orders"}
    assert ready(amqp, "orders") == 3


def test_a_target_that_refuses_stops_the_move_and_nothing_is_lost(
    vhost: Vhost, session: Session, amqp: BlockingChannel
) -> None:
    declare(vhost, OLD + topology_of(extra=[Queue("archive", type="classic", max_length=1)]))
    fill(amqp)

    with pytest.raises(Exception, match="Moving 'orders' to 'archive' stopped: the queue there refuses a copy"):
        recreate(session, move_to="archive")

    wait_until(lambda: ready(amqp, "orders") >= 2)
    assert {*bodies(amqp, "archive"), *bodies(amqp)} == {b"0", b"1", b"2"}

"""Drainers as processes on a real broker and a real database: killed, doubled, cut off, and given what is hostile."""

import signal
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
from pika import BasicProperties
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry import Message
from django_rmq_retry.messages import Headers, Properties
from django_rmq_retry.models import ErrorGroup, ParkedMessage
from tests.amqp.slow_motion import SlowConsumer
from tests.handlers.factories import delivery
from tests.messages.parked_copies import parked_copy
from tests.operators.invariants import check_counters
from tests.parked.arrivals import BANK_DOWN, DAWN
from tests.parked.conftest import PARKED, Park
from tests.parked.dying import steps
from tests.shop.running import Shop
from tests.tooling import databases, processes
from tests.tooling.filled import Own
from tests.tooling.marks import NIGHTLY_ON_SQLITE, nightly_but
from tests.tooling.owned import routed
from tests.tooling.proxy import Proxy
from tests.tooling.waiting import wait_until

pytestmark = [pytest.mark.database, *NIGHTLY_ON_SQLITE]
ORDERS = "shop.orders"


def rows() -> list[ParkedMessage]:
    return list(ParkedMessage.objects.using("own").order_by("pk"))


def ids() -> Counter[str]:
    return Counter(row.message_id for row in rows())


def left(amqp: BlockingChannel, queue: str = PARKED) -> int:
    return int(amqp.queue_declare(queue, passive=True).method.message_count)


def readers(amqp: BlockingChannel) -> int:
    return int(amqp.queue_declare(PARKED, passive=True).method.consumer_count)


def copy(number: int, *, named: bool = True) -> Message:
    """A message as our consumer parks it."""
    failed = delivery(queue=ORDERS, message_id=f"m-{number}" if named else None, body=b"%d" % number)
    return parked_copy(BANK_DOWN, failed, park=PARKED, handler="shop.order", now=DAWN)


@pytest.fixture
def put(amqp: BlockingChannel) -> Any:
    """Put such copies into the parked queue."""
    at_hand = SlowConsumer(channel=amqp, subscription=None)  # type: ignore[arg-type]  # it only publishes

    def put(*copies: Message) -> None:
        amqp.confirm_delivery()
        for one in copies:
            at_hand.publish(one)

    return put


def drained(shop: Shop, *options: str) -> None:
    """Until the parked queues are empty."""
    ran = shop.run("rmq_consume", "--park-only", "--burst", *options)
    assert ran.returncode == 0, (ran.stdout, ran.stderr)


@pytest.mark.parametrize("nth", [1, pytest.param(2, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("step", nightly_but(["before the commit", "between commit and ack"], steps()))
def test_a_killed_drainer_loses_and_doubles_nothing(shop: Shop, put: Any, settings: Any, step: str, nth: int) -> None:
    put(*(copy(number) for number in range(25)), *(copy(number, named=False) for number in range(25, 30)))
    command = [sys.executable, "-m", "tests.parked.dying", step, str(nth)]
    killed = processes.run(command, env=shop.environment())
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    drained(shop)

    bodies = Counter(int(bytes(row.body)) for row in rows())
    assert bodies == Counter(range(30))
    routed(settings)
    check_counters()
    assert ErrorGroup.objects.get().parked == 30


def test_two_drainers_at_once_record_each_message_once(
    shop: Shop, put: Any, amqp: BlockingChannel, settings: Any
) -> None:
    put(*(copy(number) for number in range(300)), *(copy(number) for number in range(300)))
    with shop.running("rmq_consume", "--park-only") as one, shop.running("rmq_consume", "--park-only") as two:
        wait_until(lambda: readers(amqp) == 2, timeout=60)
        put(*(copy(number) for number in range(600)))
        wait_until(lambda: left(amqp) == 0 and len(rows()) == 600, timeout=60)
        for process in (one, two):
            process.signal(signal.SIGTERM)
        codes = [one.code(), two.code()]

    assert (codes, ids(), left(amqp)) == ([0, 0], Counter(f"m-{number}" for number in range(600)), 0)
    assert "Traceback" not in one.text + two.text + one.errors + two.errors
    routed(settings)
    check_counters()


def test_two_processes_of_one_supervisor_record_each_message_once(shop: Shop, put: Any, amqp: BlockingChannel) -> None:
    put(*(copy(number) for number in range(200)), *(copy(number) for number in range(200)))
    with shop.running("rmq_consume", "--processes", "2") as consumer:
        wait_until(lambda: left(amqp) == 0 and len(rows()) == 200, timeout=60)
        consumer.signal(signal.SIGTERM)

        assert consumer.code() == 0

    assert ids() == Counter(f"m-{number}" for number in range(200))


class TestDatabaseAway:
    @contextmanager
    def between(self, own: Own) -> Iterator[tuple[Proxy, dict[str, str]]]:
        """A proxy before the database, and the environment of a process that uses it."""
        kind = databases.KINDS[databases.chosen()]
        parts = urlsplit(kind.url)
        server = (parts.hostname or "127.0.0.1", parts.port or databases.PORTS[kind.engine])
        proxy = Proxy(server[1], server[0])
        try:
            through = {**own.settings, "HOST": "127.0.0.1", "PORT": str(proxy.port)}
            yield proxy, Own(settings=through).environment
        finally:
            proxy.close()

    @pytest.mark.skipif(databases.chosen() == databases.SQLITE, reason="nobody is between a process and its file")
    def test_a_drainer_without_its_database_keeps_messages_unacked_and_resumes(
        self, shop: Shop, put: Any, own_database: Own, amqp: BlockingChannel
    ) -> None:
        with self.between(own_database) as (proxy, told), shop.running("rmq_consume", "--park-only", **told) as drainer:
            put(copy(1))
            wait_until(lambda: len(rows()) == 1, timeout=60)
            proxy.refuse()
            put(*(copy(number) for number in range(2, 40)))
            drainer.says("parked messages stay unacked")
            proxy.accept()
            wait_until(lambda: len(rows()) == 39, timeout=60)
            wait_until(lambda: left(amqp) == 0)
            drainer.signal(signal.SIGTERM)

            assert drainer.code() == 0

        assert (ids(), left(amqp)) == (Counter(f"m-{number}" for number in range(1, 40)), 0)

    @pytest.mark.skipif(databases.chosen() == databases.SQLITE, reason="nobody is between a process and its file")
    def test_a_drainer_started_without_its_database_records_all_once_it_is_back(
        self, shop: Shop, put: Any, own_database: Own, amqp: BlockingChannel
    ) -> None:
        put(*(copy(number) for number in range(1, 20)))
        with self.between(own_database) as (proxy, told):
            proxy.refuse()
            with shop.running("rmq_consume", **told) as consumer:
                consumer.says("Parked messages stay in their queues: The database 'default' does not answer")
                assert left(amqp) == 19
                proxy.accept()
                wait_until(lambda: len(rows()) == 19, timeout=60)
                wait_until(lambda: left(amqp) == 0)
                consumer.signal(signal.SIGTERM)

                assert consumer.code() == 0

        assert (ids(), left(amqp)) == (Counter(f"m-{number}" for number in range(1, 20)), 0)

    def test_missing_tables_leave_messages_queued_and_the_log_names_migrate(
        self, shop: Shop, put: Any, amqp: BlockingChannel
    ) -> None:
        put(copy(1))
        empty = Own(settings=databases.settings(databases.SQLITE, name=str(shop.notes.parent / "empty.sqlite3")))
        with shop.running("rmq_consume", "--park-only", **empty.environment) as drainer:
            drainer.says(
                "Parked messages stay in their queues: The database 'default' is not ready for parked messages: "
            )
            drainer.says("run `manage.py migrate`")
            assert left(amqp) == 1
            migrated = shop.run("migrate", **empty.environment)
            assert migrated.returncode == 0
            wait_until(lambda: left(amqp) == 0, timeout=60)
            drainer.signal(signal.SIGTERM)

            assert drainer.code() == 0

    def test_a_burst_does_not_wait_for_missing_tables(self, shop: Shop, put: Any, amqp: BlockingChannel) -> None:
        put(copy(1))
        empty = Own(settings=databases.settings(databases.SQLITE, name=str(shop.notes.parent / "empty.sqlite3")))
        ran = shop.run("rmq_consume", "--burst", **empty.environment)

        assert (ran.returncode, left(amqp)) == (0, 1)
        assert "run `manage.py migrate`" in ran.stdout


class TestWhoeverParkedIt:
    def test_a_message_parked_by_the_delivery_limit_is_recorded(self, shop: Shop, amqp: BlockingChannel) -> None:
        dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": PARKED}
        amqp.queue_declare("limited", durable=True, arguments={"x-queue-type": "quorum", "x-delivery-limit": 1, **dead})
        amqp.basic_publish("", "limited", b"poison", BasicProperties(message_id="m-1", delivery_mode=2))
        wait_until(lambda: self.returned(amqp) or left(amqp) == 1)
        wait_until(lambda: left(amqp) == 1)
        drained(shop)

        (row,) = rows()
        assert (row.by, row.reason, row.queue, bytes(row.body)) == ("broker", "delivery_limit", "limited", b"poison")

    def returned(self, amqp: BlockingChannel) -> bool:
        method, _, _ = amqp.basic_get("limited")
        if method is not None:
            amqp.basic_nack(method.delivery_tag or 0, requeue=True)
        return False

    @pytest.mark.parametrize(
        ("arguments", "reason"),
        [({"x-message-ttl": 1}, "expired"), ({"x-max-length": 1, "x-overflow": "drop-head"}, "queue_overflow")],
    )
    def test_a_message_dead_lettered_by_the_broker_is_recorded(
        self, shop: Shop, amqp: BlockingChannel, arguments: dict[str, Any], reason: str
    ) -> None:
        dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": PARKED}
        amqp.queue_declare("work", durable=True, arguments={**arguments, **dead})
        amqp.exchange_declare("shop.in", durable=True)
        amqp.queue_bind("work", "shop.in", "order")
        for number in (1, 2):
            amqp.basic_publish("shop.in", "order", b"%d" % number, BasicProperties(message_id=f"m-{number}"))
        wait_until(lambda: left(amqp) >= 1)
        drained(shop)

        row = rows()[0]
        told = (row.by, row.reason, row.queue, row.exchange, row.routing_key, row.message_id)
        assert told == ("broker", reason, "work", "shop.in", "order", "m-1")

    def test_a_message_parked_by_another_language_is_recorded(
        self, shop: Shop, park: Park, amqp: BlockingChannel
    ) -> None:
        amqp.queue_declare("java.failed", durable=True)
        park(b"\x00\xff", queue="java.failed", id="j-1", exception="NullPointerException", attempts=7)
        park(b"\x00\xff", queue="java.failed", id="j-1", exception="NullPointerException", attempts=7)
        drained_with = shop.run("rmq_consume", "--park-only", "--burst", SHOP_PARKED_QUEUES="java.failed")
        assert drained_with.returncode == 0, drained_with.stdout

        (row,) = rows()
        told = (row.by, row.reason, row.parked_in, row.queue, bytes(row.body), row.copies)
        assert told == ("other", "foreign", "java.failed", "", b"\x00\xff", 1)


def test_hostile_bodies_and_headers_are_recorded_byte_for_byte(shop: Shop, put: Any, amqp: BlockingChannel) -> None:
    absurd = Headers(b"\x04when" + b"T" + b"\xff" * 8 + b"\x03nan" + b"x\x00\x00\x00\x01\x00")
    bodies = [b"", b"\0", b'{"n": NaN}', b'{"n": 12345678901234567890}', b'"\\ud800"', b"\xff\xfe", b"x" * 5_000_000]
    strange = Properties(headers=absurd, message_id="\udcff\x00", type="<script>", timestamp=2**63)
    put(*(Message(body=body, routing_key=PARKED, properties=strange) for body in bodies))
    drained(shop)

    assert sorted(bytes(row.body) for row in rows()) == sorted(bodies)
    assert {absurd.raw in bytes(row.properties) for row in rows()} == {True}
    assert left(amqp) == 0


class TestQueues:
    def test_a_missing_parked_queue_delays_no_other_queue(self, shop: Shop, put: Any, amqp: BlockingChannel) -> None:
        put(copy(1))
        ran = shop.run("rmq_consume", "--park-only", "--burst", SHOP_PARKED_QUEUES="java.failed")

        assert (ran.returncode, len(rows())) == (0, 1)
        assert "Queue 'java.failed' cannot be consumed: it does not exist." in ran.stdout
        assert "Looking again every 30 s." in ran.stdout

    def test_a_message_that_cannot_be_recorded_moves_to_the_unrecorded_queue(
        self, shop: Shop, put: Any, park: Park, amqp: BlockingChannel, own_database: Own
    ) -> None:
        park(b"poison", id="bad", tenant="acme")
        put(copy(1))
        ran = shop.run("rmq_consume", "--park-only", "--burst", SHOP_APPS="tests.shop tests.parked.poison")
        assert ran.returncode == 0, (ran.stdout, ran.stderr)

        assert (ids(), left(amqp), left(amqp, f"{PARKED}.unrecorded")) == (Counter({"m-1": 1}), 0, 1)
        _, properties, body = amqp.basic_get(f"{PARKED}.unrecorded")
        assert properties is not None
        headers = {name: value for name, value in (properties.headers or {}).items() if name != "x-delivery-count"}
        told = (body, properties.message_id, headers, properties.delivery_mode)
        said = {"tenant": "acme", "rmq-retry-unrecorded": "ValueError: poison"}
        assert told == (b"poison", "bad", said, 2)


class TestOptions:
    def test_the_option_no_park_leaves_parked_messages_in_their_queue(
        self, shop: Shop, put: Any, amqp: BlockingChannel
    ) -> None:
        put(copy(1))
        ran = shop.run("rmq_consume", "--burst", "--no-park")

        assert (ran.returncode, left(amqp), rows()) == (0, 1, [])

    def test_the_option_park_only_runs_no_handlers(self, shop: Shop, put: Any, amqp: BlockingChannel) -> None:
        put(copy(1))
        amqp.basic_publish("", ORDERS, b'{"do": "ok"}')
        drained(shop)

        assert (left(amqp, ORDERS), shop.noted(), len(rows())) == (1, [], 1)

    @pytest.mark.parametrize(
        ("words", "changed", "code", "said"),
        [
            (["shop.orders"], {}, 2, "--park-only runs no handlers. Omit the queues."),
            (["--no-park"], {}, 2, "not allowed with argument"),
            (
                [],
                {"SHOP_APPS": "django.contrib.sessions"},
                6,
                "There is no parked queue to record: no handler or setting",
            ),
            ([], {"SHOP_RECORDS": "no"}, 6, "There is no parked queue to record: RMQ_RETRY['RECORDS'] is False."),
        ],
    )
    def test_contradictory_options_are_refused(
        self, shop: Shop, words: list[str], changed: dict[str, str], code: int, said: str
    ) -> None:
        ran = shop.run("rmq_consume", "--park-only", *words, **changed)

        assert (ran.returncode, said in ran.stderr) == (code, True), ran.stderr

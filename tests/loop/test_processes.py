"""Consumers whose handlers share an event loop, as processes on a real broker."""

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.shop.running import Shop
from tests.tooling.filled import Own
from tests.tooling.vhosts import Vhost
from tests.tooling.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.database]
Send = Callable[..., None]


class Looping(Shop):
    """The shop's commands in the project of async handlers."""

    def environment(self, **changed: str) -> dict[str, str]:
        own = {"SHOP_APPS": "tests.loop", "DJANGO_SETTINGS_MODULE": "tests.loop.settings"}
        return super().environment(**{**own, **changed})


@pytest.fixture
def looping(broker_url: str, tmp_path: Path, own_database: Own) -> Looping:
    return Looping(url=broker_url, notes=tmp_path / "notes", records=own_database.environment).declared()


@pytest.fixture
def send(amqp: BlockingChannel) -> Send:
    return sending(amqp)


def sending(amqp: BlockingChannel) -> Send:
    amqp.confirm_delivery()

    def send(queue: str, **data: object) -> None:
        amqp.basic_publish("", f"loop.{queue}", json.dumps(data).encode(), mandatory=True)

    return send


def test_async_handlers_of_a_process_work_side_by_side(looping: Looping, send: Send) -> None:
    """None of fifty returns before all are there, with one thread and a prefetch of ten."""
    for number in range(50):
        send("together", n=number, of=50)
    told = looping.run("rmq_consume", "loop.together", "--burst", "--async", "50", "--threads", "1")

    assert told.returncode == 0, told.stdout
    assert sorted(looping.noted("met")) == sorted(f"met {number}" for number in range(50))
    assert len(set(looping.pids())) == 1


def test_more_messages_in_flight_than_a_heartbeat_lists_are_counted(looping: Looping, send: Send) -> None:
    """Of 101 messages it listed, and counted, 100."""
    for number in range(101):
        send("together", n=number, of=102)

    def processes() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(looping.run("rmq_status", "--consumers", "--json").stdout)["items"]
        return [one for one in found if one["busy"] == 101]

    with looping.running("rmq_consume", "loop.together", "--async", "200"):
        wait_until(lambda: len(looping.noted("came")) == 101)
        [process] = wait_until(processes, 60)
        send("together", n=101, of=102)
        wait_until(lambda: len(looping.noted("met")) == 102)

    assert (len(process["in_flight"]), process["threads"]) == (100, 200)


def test_no_more_than_the_asked_number_work_at_once(looping: Looping, send: Send) -> None:
    for number in range(30):
        send("counted", n=number)
    told = looping.run("rmq_consume", "loop.counted", "--burst", "--async", "3")

    counts = [int(line.split()[1]) for line in looping.noted("here")]
    assert (told.returncode, len(counts), max(counts)) == (0, 30, 3)


def test_a_process_opens_its_lifespan_before_its_messages_and_closes_it_after_them(
    looping: Looping, send: Send
) -> None:
    for number in range(20):
        send("state", n=number)
    told = looping.run("rmq_consume", "loop.state", "--burst", LOOP_LIFESPAN="tests.loop.handlers.lifespan")

    noted = looping.noted()
    assert told.returncode == 0, told.stdout
    assert (noted[0], noted[-1], noted.count("opened"), noted.count("closed")) == ("opened", "closed", 1, 1)
    assert sorted(noted[1:-1]) == sorted(f"handled {number} True" for number in range(20))


def test_each_process_has_a_lifespan_of_its_own(looping: Looping) -> None:
    lifespan = {"LOOP_LIFESPAN": "tests.loop.handlers.lifespan"}
    with looping.running("rmq_consume", "loop.state", "--processes", "2", **lifespan) as consumer:
        consumer.says("Connected", times=2)
        consumer.signal()
        assert consumer.code() == 0

    assert (looping.noted("opened"), looping.noted("closed")) == (["opened"] * 2, ["closed"] * 2)
    assert len(set(looping.pids())) == 2


def test_a_process_whose_lifespan_fails_ends_with_its_reason(
    looping: Looping, send: Send, amqp: BlockingChannel
) -> None:
    send("state", n=1)
    told = looping.run("rmq_consume", "loop.state", LOOP_LIFESPAN="tests.loop.handlers.failing")

    assert told.returncode == 1
    assert "RMQ_RETRY['LIFESPAN'] failed before the first message: ConnectionError: the bank is away" in told.stdout
    assert "Traceback" not in told.stdout + told.stderr
    assert looping.noted() == []
    assert amqp.queue_declare("loop.state", passive=True).method.message_count == 1


def test_a_process_whose_lifespan_ends_before_it_ends_with_its_reason(looping: Looping) -> None:
    """It went on, and every handler had a client that was closed."""
    told = looping.run("rmq_consume", "loop.state", LOOP_LIFESPAN="tests.loop.handlers.crashing")

    assert told.returncode == 1
    assert "RMQ_RETRY['LIFESPAN'] was ended by ExceptionGroup: " in told.stdout
    assert "ConnectionError: the bank is away" in told.stdout


def test_a_handler_that_blocks_the_loop_is_shown_by_rmq_status(looping: Looping, send: Send, tmp_path: Path) -> None:
    go = tmp_path / "go"
    send("blocking", **{"for": str(go)})
    with looping.running("rmq_consume", "loop.blocking") as consumer:
        consumer.says("has blocked the event loop for")
        shown = wait_until(
            lambda: [
                line
                for line in looping.run("rmq_status", "--consumers").stdout.splitlines()
                if "blocks the event loop" in line
            ]
        )
        go.touch()
        wait_until(lambda: looping.noted("end"))
        consumer.signal()
        assert consumer.code() == 0

    assert "tests.loop.handlers.blocking" in shown[0]
    [line] = [line for line in consumer.text.splitlines() if "has blocked" in line]
    assert "handlers.py:" in line
    assert "(blocking)" in line
    assert "event=blocked_loop" in line


def test_a_blocking_handler_beyond_its_timeout_ends_its_process_and_is_named(looping: Looping, send: Send) -> None:
    """Its neighbour, which only waits, is late as well: nothing could cancel it."""
    send("late", n=1, blocks=False)
    with looping.running("rmq_consume", "loop.late") as consumer:
        wait_until(lambda: looping.noted("late 1"))
        send("late", n=2, blocks=True)
        assert consumer.code() == 1

    lines = consumer.text.splitlines()
    [line] = [line for line in lines if "level=critical" in line]
    # Whichever of the two is found first, while the log names the one that blocks.
    assert "Handler tests.loop.handlers.late did not end within twice its timeout of 2 s" in line
    assert "(wait)" in line
    assert any("event=blocked_loop" in line and "threading.py:" in line for line in lines)
    assert looping.noted("cancelled") == []


def test_a_killed_process_loses_none_of_the_messages_that_waited(looping: Looping, send: Send) -> None:
    for number in range(20):
        send("together", n=number, of=21)
    with looping.running("rmq_consume", "loop.together") as consumer:
        consumer.says("Connected")
        consumer.signal(signal.SIGKILL)
        consumer.code()
    send("together", n=20, of=21)
    told = looping.run("rmq_consume", "loop.together", "--burst")

    assert told.returncode == 0, told.stdout
    assert sorted(looping.noted("met")) == sorted(f"met {number}" for number in range(21))


def test_a_lost_broker_loses_none_of_the_messages_that_wait_side_by_side(looping: Looping, vhost: Vhost) -> None:
    with pika.BlockingConnection(pika.URLParameters(vhost.url)) as connection:
        send = sending(connection.channel())
        for number in range(20):
            send("together", n=number, of=21)
    # Each message of a lost connection comes once more, while its handler goes on: room for four connections.
    with looping.running("rmq_consume", "loop.together", "--async", "100") as consumer:
        wait_until(lambda: len(looping.noted("came")) == 20)
        # Closed until it is lost and no more: the management API may list the connection late, and its successor soon.
        wait_until(lambda: "event=disconnected" in consumer.text or vhost.close_connections() < 0, what="lost")
        consumer.says("event=connected", times=2)
        with pika.BlockingConnection(pika.URLParameters(vhost.url)) as connection:
            channel = connection.channel()
            sending(channel)("together", n=20, of=21)
            wait_until(lambda: len(set(looping.noted("met"))) == 21)
            consumer.signal()
            assert consumer.code() == 0
            left = channel.queue_declare("loop.together", passive=True).method.message_count

    assert set(looping.noted("met")) == {f"met {number}" for number in range(21)}
    assert left == 0


def test_messages_of_a_key_keep_their_order_while_keys_work_side_by_side(looping: Looping, send: Send) -> None:
    keys = "abcd"
    for number in range(5):
        for key in keys:
            send("line", key=key, n=number)
    with looping.running("rmq_consume", "loop.line") as consumer:
        wait_until(lambda: len(looping.noted("line")) == 20, 30)
        consumer.signal()
        assert consumer.code() == 0

    for key in keys:
        assert looping.noted(f"line {key}") == [f"line {key} {number}" for number in range(5)]

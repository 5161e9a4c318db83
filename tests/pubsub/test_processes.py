"""Publish and subscribe with processes on a real broker: each gets every message while it runs."""

import json
from pathlib import Path

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.shop.running import Shop
from tests.tooling.vhosts import Vhost
from tests.tooling.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.contract]


class News(Shop):
    """The shop's commands in the project of subscribers."""

    def environment(self, **changed: str) -> dict[str, str]:
        return super().environment(**{"SHOP_APPS": "tests.pubsub", **changed})


@pytest.fixture
def news(vhost: Vhost, tmp_path: Path) -> News:
    return News(url=vhost.url, notes=tmp_path / "notes").declared()


def consumers(vhost: Vhost) -> int:
    """Those of the queues that belong to processes."""
    return sum(row.get("consumers", 0) for name, row in vhost.queues().items() if name.startswith("amq.gen"))


def tell(amqp: BlockingChannel, data: str, *, mandatory: bool = True) -> None:
    amqp.basic_publish("news", "eur.usd", json.dumps(data).encode(), mandatory=mandatory)


def test_each_process_handles_every_message_and_parks_its_failures(
    news: News, vhost: Vhost, amqp: BlockingChannel
) -> None:
    amqp.confirm_delivery()
    tell(amqp, "before", mandatory=False)
    with news.running("rmq_consume", "--processes", "2", "--threads", "2") as consumer:
        consumer.says("Queue 'news.cache' of this connection", times=2)
        wait_until(lambda: len(vhost.queues()) == 5)
        wait_until(lambda: consumers(vhost) == 2)
        for data in ("one", "two", "fail"):
            tell(amqp, data)
        wait_until(lambda: len(news.noted()) == 8)
        wait_until(lambda: amqp.queue_declare("news.cache.parked", passive=True).method.message_count == 2)
        status = news.run("rmq_status")
        consumer.signal()
        assert consumer.code() == 0

    assert sorted(news.noted()) == ["fail 1"] * 2 + ["fail 2"] * 2 + ["one 1"] * 2 + ["two 1"] * 2
    assert len(set(news.pids())) == 2
    assert [line.split() for line in status.stdout.splitlines() if line.split()[:1] == ["news.cache"]] == [
        ["news.cache", "work", "-", "-", "-"]
    ]
    wait_until(lambda: sorted(vhost.queues()) == ["news.cache.parked", "news.seen", "news.seen.parked"])


def test_declare_and_delete_leave_out_the_queues_of_processes(news: News, vhost: Vhost) -> None:
    checked = news.run("rmq_declare", "--check")
    drawn = news.run("rmq_topology")
    definitions = json.loads(news.run("rmq_topology", "--format", "definitions").stdout)
    deleted = news.run("rmq_delete", "--all", "--yes")

    assert (checked.returncode, deleted.returncode) == (0, 0), checked.stdout + deleted.stdout
    assert "news.cache" in drawn.stdout
    assert "news.cache" not in {queue["name"] for queue in definitions["queues"]}
    assert definitions["bindings"] == []
    assert sorted(vhost.queues()) == []


def test_a_burst_ends_when_its_own_queue_is_empty(news: News) -> None:
    told = news.run("rmq_consume", "--burst")

    assert told.returncode == 0, told.stdout


def test_an_auto_acked_message_is_neither_retried_nor_parked(news: News, amqp: BlockingChannel) -> None:
    amqp.confirm_delivery()
    for body in (b'"fail"', b"no json", b'"one"'):
        amqp.basic_publish("", "news.seen", body, mandatory=True)
    told = news.run("rmq_consume", "news.seen", "--burst", "--threads", "1")

    assert told.returncode == 0, told.stdout
    assert news.noted() == ["see fail", "see one"]
    assert told.stdout.count("event=discard queue=news.seen") == 2, told.stdout
    assert "It is lost, because its handler has ack='auto'" in told.stdout
    depths = [amqp.queue_declare(name, passive=True).method.message_count for name in ("news.seen", "news.seen.parked")]
    assert depths == [0, 0]


def test_a_stop_counts_the_messages_that_were_not_begun(news: News, amqp: BlockingChannel) -> None:
    amqp.confirm_delivery()
    for _ in range(20):
        amqp.basic_publish("", "news.seen", b'"wait"', mandatory=True)
    with news.running("rmq_consume", "news.seen", "--threads", "1") as consumer:
        wait_until(lambda: amqp.queue_declare("news.seen", passive=True).method.message_count == 0)
        wait_until(news.noted)
        consumer.signal()
        assert consumer.code() == 0

    begun = len(news.noted())
    assert 1 <= begun < 20
    assert f"{20 - begun} messages that had arrived and were not begun are lost" in consumer.text

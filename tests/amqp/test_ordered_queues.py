"""A project may move messages out of a queue under StopTheLine, which loses the order of the queue."""

from dataclasses import dataclass, field

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.spec import Basic

from django_rmq_retry import Queue, StopTheLine
from django_rmq_retry.handlers import Subscription
from tests.amqp.declared import declare, has
from tests.handlers.factories import topology_of
from tests.tooling.vhosts import Vhost
from tests.tooling.waiting import wait_until

pytestmark = [pytest.mark.contract, pytest.mark.on_both]


def lined_up(vhost: Vhost, channel: BlockingChannel, **arguments: object) -> None:
    """A line of two messages."""
    queue = Queue("line", arguments={name.replace("_", "-"): value for name, value in arguments.items()})
    found = Subscription(name="test", run=lambda _: None, queue=queue, policy=StopTheLine(), park="parked")
    declare(vhost, topology_of(found))
    channel.confirm_delivery()
    for body in (b"1", b"2"):
        channel.basic_publish("", "line", body, mandatory=True)


@dataclass(frozen=True, slots=True)
class Taker:
    """A consumer with one unacked message, which it holds until the test returns it."""

    channel: BlockingChannel
    queue: str = "line"
    got: list[tuple[int, bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.channel.basic_qos(prefetch_count=1)
        self.channel.basic_consume(self.queue, self._take)

    def _take(self, _: BlockingChannel, method: Basic.Deliver, __: pika.BasicProperties, body: bytes) -> None:
        assert method.delivery_tag is not None
        self.got.append((method.delivery_tag, body))

    def next(self) -> bytes:
        """The unacked message; waited for."""
        wait_until(self._looks, what="an unacked message")
        return self.got[-1][1]

    def give_back(self) -> None:
        tag, _ = self.got.pop()
        self.channel.basic_reject(tag, requeue=True)

    def _looks(self) -> bool:
        self.channel.connection.process_data_events()
        return bool(self.got)


def taker(amqp: BlockingChannel) -> Taker:
    return Taker(amqp.connection.channel())


def returned(line: Taker, *, times: int) -> None:
    """The message in front, given back again and again."""
    for _ in range(times):
        assert line.next() == b"1"
        line.give_back()


def test_a_message_over_its_delivery_limit_is_parked_and_the_next_passes(vhost: Vhost, amqp: BlockingChannel) -> None:
    lined_up(vhost, amqp, x_delivery_limit=2)

    line = taker(amqp)
    returned(line, times=3)

    assert line.next() == b"2"
    has(amqp, "parked", 1)


def test_each_closed_connection_counts_towards_the_delivery_limit(vhost: Vhost, amqp: BlockingChannel) -> None:
    lined_up(vhost, amqp, x_delivery_limit=2)
    for _ in range(3):
        worker = pika.BlockingConnection(pika.URLParameters(vhost.url))
        assert Taker(worker.channel()).next() == b"1"
        worker.close()

    assert taker(amqp).next() == b"2"
    has(amqp, "parked", 1)


def test_with_the_layouts_delivery_limit_a_message_keeps_its_place(vhost: Vhost, amqp: BlockingChannel) -> None:
    lined_up(vhost, amqp)

    line = taker(amqp)
    returned(line, times=25)

    assert line.next() == b"1"

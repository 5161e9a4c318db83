"""Order beyond the broker's consumer timeout: on each version of RabbitMQ."""

from contextlib import ExitStack

import pika
import pytest

from django_rmq_retry.amqp import Line
from django_rmq_retry.messages import DONE
from tests.amqp.live import Seen, consuming
from tests.amqp.one_queue import fill, queue
from tests.tooling.node import Node
from tests.tooling.vhosts import Vhost
from tests.tooling.waiting import wait_until

pytestmark = pytest.mark.contract

KEYED = Line(queue="q", prefetch=4, keyed=True, untimed=True)
COUNT = 12


def taken(seen: Seen) -> bool:
    return not seen.arrivals.empty()


@pytest.mark.nightly
def test_messages_of_a_queue_in_order_pass_to_the_next_consumer_in_order(
    impatient: Node, private_broker: Vhost
) -> None:
    with ExitStack() as stack:
        connection = stack.enter_context(pika.BlockingConnection(pika.URLParameters(private_broker.url)))
        amqp = connection.channel()
        queue(amqp, ordered=True)
        fill(amqp, *(b"%02d" % number for number in range(COUNT)))
        slow, slows = stack.enter_context(consuming(private_broker.url, KEYED))
        held = [slows.next() for _ in range(KEYED.prefetch)]
        standby, standbys = stack.enter_context(consuming(private_broker.url, KEYED))
        # A queue beside it, consumed without the request, shows that the broker has lost its patience.
        queue(amqp, "beside")
        fill(amqp, b"x", name="beside")
        _, others = stack.enter_context(consuming(private_broker.url, Line(queue="beside", prefetch=1)))
        others.next()
        again = others.next(30)
        # Only 4.3 lets a consumer ask for more time. Older versions close its channel, and the whole order moves on.
        passed_on = not impatient.version.startswith("4.3")
        wait_until(lambda: taken(standbys) is passed_on)
        for one in held:
            slow.settle(one, DONE)
        handled = [] if passed_on else [one.body for one in held]
        while len(handled) < COUNT:
            source, seen = (standby, standbys) if passed_on else (slow, slows)
            arrival = seen.next()
            source.settle(arrival, DONE)
            handled.append(arrival.body)

    assert again.redelivered
    assert handled == [b"%02d" % number for number in range(COUNT)]


def test_a_classic_queue_that_is_taken_for_a_quorum_queue_is_consumed_in_order(vhost: Vhost) -> None:
    with ExitStack() as stack:
        connection = stack.enter_context(pika.BlockingConnection(pika.URLParameters(vhost.url)))
        amqp = connection.channel()
        queue(amqp, kind="classic", ordered=True)
        fill(amqp, b"1", b"2")
        _, seen = stack.enter_context(consuming(vhost.url, KEYED))

        assert seen.bodies(2) == [b"1", b"2"]
        assert seen.failures == []

"""The same test on the embedded broker, in this process and over its socket, and on a real one."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry import (
    AckFirst,
    DeadLetter,
    Delivery,
    Exchange,
    Exponential,
    Fixed,
    Ladder,
    NackRequeue,
    OneShot,
    Queue,
    Republish,
    RetryThenPark,
    StopTheLine,
    WaitQueue,
    handler,
    publish,
)
from django_rmq_retry.errors import BrokerUnfit, MessageNacked, MessageReturned, PublishUnknown
from django_rmq_retry.handlers import registry
from django_rmq_retry.policies import Carrier
from django_rmq_retry.testing import NeverQuiet, RmqTest
from django_rmq_retry.testing.brokers import Live
from tests.embedded.served import served
from tests.messages.exceptions import BankDown
from tests.tooling.brokers import is_replaced
from tests.tooling.vhosts import Vhost

pytestmark = pytest.mark.usefixtures("no_handlers")


@pytest.fixture(params=["direct", "wire", "real"])
def rmq(request: pytest.FixtureRequest) -> Iterator[RmqTest]:
    with ExitStack() as stack:
        urls: dict[str, Callable[[], str | None]] = {
            "direct": lambda: None,
            "wire": lambda: stack.enter_context(served()).url,
            "real": lambda: str(request.getfixturevalue("broker_url")),
        }
        yield stack.enter_context(RmqTest(url=urls[request.param](), patience=20))


@pytest.mark.parametrize(
    "via",
    [
        Ladder(),
        WaitQueue("wait", "charge.wait"),
        DeadLetter(exchange="again", queue="charge.again", after=0.2),
        Republish(),
        AckFirst(),
        NackRequeue(),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_carrier_returns_a_message_until_it_is_parked(rmq: RmqTest, via: Carrier) -> None:
    backoff = None if via.pace else Fixed(0.2)
    attempts = 2 if isinstance(via, NackRequeue) else 3

    @handler("payments.charge", policy=RetryThenPark(attempts=attempts, backoff=backoff, via=via), name="charge")
    def charge(_message: Delivery) -> None:
        raise BankDown("timeout")

    charge.publish({"payment": 7})
    rmq.drain()

    assert [one.number for one in rmq.attempts(charge)] == [1, 2, 3][:attempts]
    assert [round(wait, 1) >= 0.2 for wait in rmq.waits] == [True, True][: attempts - 1]
    assert rmq.parked(charge).data == {"payment": 7}


def test_an_ordered_queue_keeps_its_order_and_a_crash_runs_the_handler_twice(rmq: RmqTest) -> None:
    done: list[Any] = []

    @handler("ledger.post", policy=StopTheLine(backoff=Exponential(0.1)), name="post")
    def post(message: Delivery) -> None:
        done.append(message.data)

    rmq.fail_next(post, BankDown, times=2)
    rmq.fail_next(post, "crash before ack")
    for number in (1, 2, 3):
        post.publish(number)
    rmq.drain()

    assert done == [1, 1, 2, 3]


@pytest.mark.parametrize("exclusive", [False, True])
def test_a_call_is_answered(rmq: RmqTest, exclusive: bool) -> None:
    quote = handler("rates.quote", policy=OneShot(), name="quote")(lambda message: message.data + 1)

    assert quote.call(1, timeout=10, exclusive=exclusive) == 2
    assert len(rmq.attempts(quote)) == 1


def test_a_full_queue_nacks_the_publish(rmq: RmqTest) -> None:
    @handler(Queue("payments.charge", type="classic", max_length=1, overflow="reject-publish"), name="charge")
    def charge(_message: Delivery) -> None: ...

    charge.publish(1)
    with pytest.raises(MessageNacked):
        charge.publish(2)

    assert rmq.drain() == 1


def test_an_unroutable_message_is_returned(rmq: RmqTest) -> None:
    with pytest.raises(MessageReturned):
        publish(1, routing_key="nowhere")

    assert rmq.drain() == 0


def test_a_lost_confirm_is_unknown_and_the_message_is_handled(rmq: RmqTest) -> None:
    charge = handler("payments.charge", name="charge")(lambda _message: None)
    rmq.fail_next("publish", "confirm lost")

    with pytest.raises(PublishUnknown):
        charge.publish(1)
    assert rmq.drain() == 1


def test_advancing_takes_at_least_the_given_time(rmq: RmqTest) -> None:
    charge = handler("payments.charge", name="charge")(lambda _message: None)
    charge.publish(1)

    assert rmq.advance(1) == 1
    assert rmq.now >= 1


def test_queues_and_bindings_on_a_real_broker_are_deleted_afterwards(vhost: Vhost) -> None:
    main = Exchange("main", "topic")
    queue = Queue("payments.charge", bindings=[main.bind("charge.#")])
    charge = handler(queue, name="charge")(lambda _message: None)
    with RmqTest(url=vhost.url) as kit:
        charge.publish(1, exchange="main", routing_key="charge.card")
        kit.drain()
        another = handler("another", name="another")(lambda _message: None)
        another.publish(1)

        assert len(kit.published(charge)) == 1
        assert kit.drain() == 1
    assert (vhost.queues(), vhost.bindings()) == ({}, set())


def test_a_queue_with_messages_of_another_project_is_not_touched(vhost: Vhost, amqp: BlockingChannel) -> None:
    handler("mine", name="mine")(lambda _message: None)
    declared = registry.topology().queues["mine.parked"]
    amqp.queue_declare("mine.parked", durable=True, arguments=dict(declared.arguments))
    amqp.basic_publish("", "mine.parked", b"precious")
    kit = RmqTest(url=vhost.url)

    with pytest.raises(BrokerUnfit, match=r"'mine.parked' on .* holds messages. Use a separate virtual host"), kit:
        raise AssertionError("it is not to be entered")
    assert amqp.queue_declare("mine.parked", passive=True).method.message_count == 1
    assert vhost.queues().keys() == {"mine.parked"}
    assert not is_replaced()


def test_a_retry_between_two_queues_is_waited_for(broker_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Where the broker moves a message it is in no queue for a moment; here, as long as the message waits.
    monkeypatch.setattr(Live, "_depth", lambda *_: 0)
    with RmqTest(url=broker_url, patience=20) as rmq:

        @handler("payments.charge", policy=RetryThenPark(attempts=3, backoff=Fixed(0.5)), name="charge")
        def charge(_message: Delivery) -> None:
            raise BankDown("timeout")

        charge.publish({"payment": 7})

        assert rmq.drain() == 3


def test_a_test_that_does_not_become_quiet_in_time_raises_an_error(broker_url: str) -> None:
    post = handler("ledger.post", policy=StopTheLine(backoff=Exponential(30)), name="post")(lambda _message: None)
    with RmqTest(url=broker_url, patience=0.3) as kit:
        kit.fail_next(post, BankDown)
        post.publish(1)

        with pytest.raises(NeverQuiet, match=r"After 0.3 s messages are still waiting"):
            kit.drain()
        with pytest.raises(ValueError, match="needs the embedded broker"):
            kit.fail_next(post, "duplicate delivery")

"""The direct face: publisher, source and caller over the engine, without threads and on its own clock."""

from collections.abc import Callable
from typing import Any

import pytest

from django_rmq_retry import Delivery, Message
from django_rmq_retry.amqp import Line
from django_rmq_retry.embedded.direct_broker import DirectBroker, DirectCaller, DirectPublisher, DirectSource
from django_rmq_retry.errors import CallUnanswered, MessageReturned, MessageUnsent
from django_rmq_retry.messages import DONE, Instruction, Properties, Settlement
from django_rmq_retry.topology import QueueDeclaration, Role, Server, Topology

WORK = Line(queue="work", prefetch=2)
LEDGER = Line(queue="work", prefetch=1, ordered=True)


class Hands:
    """A receiver that keeps its calls."""

    def __init__(self) -> None:
        self.found: list[Delivery] = []
        self.told: list[str] = []

    def arrived(self, delivery: Delivery) -> None:
        self.found.append(delivery)

    def connected(self, server: Server) -> None:
        self.told.append(f"connected to {server}")

    def lost(self, reason: str, retry_in: float) -> None:
        self.told.append(f"lost: {reason}")

    def failed(self, error: BaseException) -> None:
        self.told.append(f"failed: {error}")

    def drained(self) -> None:
        self.told.append("drained")

    @property
    def bodies(self) -> list[bytes]:
        return [delivery.body for delivery in self.found]


@pytest.fixture
def broker() -> DirectBroker:
    made = DirectBroker(epoch=1_700_000_000.0)
    kind = {"x-queue-type": "quorum"}
    made.declare(
        Topology(
            queues={
                "work": QueueDeclaration(name="work", role=Role.WORK, arguments=kind),
                "later": QueueDeclaration(
                    name="later",
                    role=Role.WAITING,
                    arguments={
                        **kind,
                        "x-message-ttl": 10_000,
                        "x-dead-letter-exchange": "",
                        "x-dead-letter-routing-key": "work",
                    },
                ),
            }
        )
    )
    return made


@pytest.fixture
def publisher(broker: DirectBroker) -> DirectPublisher:
    return DirectPublisher(broker)


@pytest.fixture
def hands() -> Hands:
    return Hands()


Consume = Callable[..., DirectSource]


@pytest.fixture
def consume(broker: DirectBroker, publisher: DirectPublisher, hands: Hands) -> Consume:
    def consume(line: Line = WORK) -> DirectSource:
        source = DirectSource(broker, publisher)
        source.start([line], hands)
        source.poll()
        return source

    return consume


def to(key: str, body: bytes = b"{}", *, exchange: str = "", name: str | None = None) -> Message:
    return Message(body=body, exchange=exchange, routing_key=key, properties=Properties(correlation_id=name))


def bodies(broker: DirectBroker, queue: str) -> list[bytes]:
    return [delivery.body for delivery in broker.messages_in(queue)]


def test_a_publish_is_in_its_queue_when_the_call_returns(broker: DirectBroker, publisher: DirectPublisher) -> None:
    assert publisher.publish_many([to("work", b"1"), to("work", b"2")]) == 2
    assert bodies(broker, "work") == [b"1", b"2"]


@pytest.mark.parametrize("message", [to("nowhere"), to("work", exchange="missing")])
def test_an_unroutable_message_is_returned(publisher: DirectPublisher, message: Message) -> None:
    with pytest.raises(MessageReturned):
        publisher.publish(message)

    publisher.publish(to("work"))


def test_a_name_that_is_too_long_is_not_sent(publisher: DirectPublisher) -> None:
    with pytest.raises(MessageUnsent, match="takes 300 bytes"):
        publisher.publish(to("x" * 300))


def test_no_more_messages_are_unacked_than_the_prefetch(
    publisher: DirectPublisher, consume: Consume, hands: Hands
) -> None:
    publisher.publish_many([to("work", b"%d" % number) for number in range(3)])
    source = consume()
    before = hands.bodies[:]
    source.settle(hands.found[0], DONE)
    source.poll()

    assert before == [b"0", b"1"]
    assert hands.bodies == [b"0", b"1", b"2"]


def test_a_copy_waits_until_the_clock_passes_its_ttl(
    broker: DirectBroker, publisher: DirectPublisher, consume: Consume, hands: Hands
) -> None:
    publisher.publish(to("work"))
    source = consume()
    source.settle(hands.found.pop(), Settlement(instruction=Instruction.ACK, copy=to("later", b"again")))
    broker.advance(9.9)
    source.poll()
    early = hands.bodies
    broker.advance(10.0)
    source.poll()
    deaths: Any = hands.found[0].headers["x-death"]

    assert early == []
    assert hands.bodies == [b"again"]
    assert deaths[0]["time"].timestamp() == 1_700_000_010


def test_a_message_kept_unacked_is_delivered_again_after_its_wait(
    broker: DirectBroker, publisher: DirectPublisher, consume: Consume, hands: Hands
) -> None:
    publisher.publish_many([to("work", b"1"), to("work", b"2")])
    source = consume(LEDGER)
    source.settle(hands.found[0], Settlement(instruction=Instruction.KEEP, hold=3600))
    broker.advance(3600)
    source.poll()

    first, again = hands.found
    assert (first.body, again) == (b"1", first)


def test_a_lost_connection_requeues_unacked_messages_and_reconnects(
    broker: DirectBroker, publisher: DirectPublisher, consume: Consume, hands: Hands
) -> None:
    publisher.publish(to("work"))
    source = consume()
    source.lose("cut")
    source.settle(hands.found[0], DONE)
    broker.advance(1)
    source.poll()

    assert hands.told == ["connected to RabbitMQ 4.0.5", "lost: cut", "connected to RabbitMQ 4.0.5"]
    assert [one.redelivered for one in hands.found] == [False, True]
    assert hands.found[1].headers["x-delivery-count"] == 1


def test_an_ordered_line_gets_its_message_again_after_a_lost_connection(
    broker: DirectBroker, publisher: DirectPublisher, consume: Consume, hands: Hands
) -> None:
    publisher.publish(to("work"))
    source = consume(LEDGER)
    source.settle(hands.found[0], Settlement(instruction=Instruction.KEEP, hold=60))
    source.lose("cut")
    broker.advance(60)
    source.poll()

    assert [one.redelivered for one in hands.found] == [False, True]


def test_a_stop_requeues_unacked_messages(
    broker: DirectBroker, publisher: DirectPublisher, consume: Consume, hands: Hands
) -> None:
    publisher.publish(to("work"))
    source = consume()
    source.stop()
    empty: list[bool] = []
    source.empty(empty.append)

    assert hands.told[-1] == "drained"
    assert bodies(broker, "work") == [b"{}"]
    assert empty == [False]


@pytest.mark.parametrize("exclusive", [False, True])
def test_a_call_is_answered_while_it_waits(broker: DirectBroker, publisher: DirectPublisher, exclusive: bool) -> None:
    def answer(done: Callable[[], bool], timeout: float) -> None:
        (question,) = broker.messages_in("work")
        assert question.reply_to
        publisher.publish(
            Message(body=b"yes", routing_key=question.reply_to, properties=question.properties, mandatory=exclusive)
        )
        assert done()
        assert timeout == 1

    questions: list[Message] = []
    caller = DirectCaller(broker, answer, questions.append, exclusive=exclusive)

    assert caller.call(to("work", b"?", name="c-1"), timeout=1).body == b"yes"
    assert [question.body for question in questions] == [b"?"]


def test_an_unanswered_call_reports_that_it_was_sent(broker: DirectBroker) -> None:
    caller = DirectCaller(broker, lambda _done, _timeout: None, lambda _question: None)

    with pytest.raises(CallUnanswered) as raised:
        caller.call(to("work", name="c-1"), timeout=2)

    assert (raised.value.timeout, raised.value.sent) == (2, True)
    with pytest.raises(MessageReturned):
        caller.call(to("nowhere", name="c-2"), timeout=2)
    with pytest.raises(CallUnanswered, match="no exchange 'missing'"):
        caller.call(to("work", exchange="missing", name="c-3"), timeout=2)

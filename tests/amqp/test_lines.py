"""One line on a connection without a socket: what it says is read back from the bytes."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
from pika import frame, spec
from pika.exceptions import ChannelClosedByBroker

from django_rmq_retry import Delivery
from django_rmq_retry.amqp import Line
from django_rmq_retry.amqp.auto_ack_line import AutoAckLine
from django_rmq_retry.amqp.open_line import OpenLine
from django_rmq_retry.messages import Instruction
from tests.amqp.offline import Wire, delivery, method, wire


class Owned:
    """A line on channel 2 and the calls to its owner."""

    def __init__(self, at: Wire, *, ordered: bool = False, kind: type[OpenLine] = OpenLine) -> None:
        self.at = at
        self.arrivals: list[Delivery] = []
        self.subscriptions = 0
        self.interruptions: list[BaseException | str] = []
        auto_ack = kind is AutoAckLine
        self.line = kind(at.connection, Line(queue="q", prefetch=5, ordered=ordered, auto_ack=auto_ack), self)

    def catch_up(self) -> None: ...

    def arrived(self, arrival: Delivery) -> None:
        self.arrivals.append(arrival)

    def opened(self, line: OpenLine) -> None:
        raise AssertionError("only a quarantine queue waits for its turn")

    def subscribed(self, line: OpenLine) -> None:
        self.subscriptions += 1

    def message_lost(self, queue: str) -> None: ...

    def ended(self, line: OpenLine, *, in_good_order: bool) -> None: ...

    def interrupted(self, line: OpenLine, reason: BaseException | str) -> None:
        self.interruptions.append(reason)

    def hear(self, *methods: Any) -> "Owned":
        for one in methods:
            self.at.feed(method(one, channel=2))
        return self

    def subscribe(self) -> "Owned":
        self.hear(spec.Channel.OpenOk(), spec.Basic.QosOk())
        self.confirm()
        return self

    def confirm(self) -> None:
        """Answer the consume that the line has sent last."""
        [tag] = [one.consumer_tag for one in self.methods() if isinstance(one, spec.Basic.Consume)]
        self.hear(spec.Basic.ConsumeOk(tag))

    def deliver(self, number: int) -> None:
        self.at.feed(delivery(tag=self.line._tag, delivery_tag=number, channel=2))

    def said(self) -> list[tuple[str, object]]:
        """The methods sent since the last question, each with its delivery tag, if it has one."""
        return [(str(one.NAME), getattr(one, "delivery_tag", None)) for one in self.methods()]

    def methods(self) -> list[Any]:
        data, found = b"".join(self.at.sent), []
        self.at.sent.clear()
        while data:
            size, one = frame.decode_frame(data)
            data = data[size:]
            assert isinstance(one, frame.Method)
            found.append(one.method)
        return found


@pytest.fixture
def owned() -> Iterator[Owned]:
    with wire() as at:
        yield Owned(at)


@pytest.fixture
def ordered() -> Iterator[Owned]:
    with wire() as at:
        yield Owned(at, ordered=True)


def test_a_line_sets_its_prefetch_before_it_subscribes(owned: Owned) -> None:
    assert owned.said() == [("Channel.Open", None)]
    assert owned.hear(spec.Channel.OpenOk()).said() == [("Basic.Qos", None)]
    assert owned.hear(spec.Basic.QosOk()).said() == [("Basic.Consume", None)]
    assert owned.subscriptions == 0


def test_a_line_is_ready_once_the_broker_has_confirmed_its_subscription(owned: Owned) -> None:
    owned.hear(spec.Channel.OpenOk(), spec.Basic.QosOk())
    before = owned.line.open, owned.line.ready
    owned.confirm()

    assert (before, owned.line.ready) == ((True, False), True)


def test_the_prefetch_is_set_per_consumer_and_never_per_channel(owned: Owned) -> None:
    owned.hear(spec.Channel.OpenOk())
    asked = owned.methods()
    owned.hear(spec.Basic.QosOk())
    owned.confirm()
    owned.line.when_processed(lambda _so: None)
    asked = [one for one in (*asked, *owned.methods()) if isinstance(one, spec.Basic.Qos)]

    assert [(one.prefetch_count, one.global_qos) for one in asked] == [(5, False)] * 2


def test_of_a_lost_line_the_last_acks_are_unsure_that_were_sent_lately_or_never(owned: Owned) -> None:
    owned.subscribe()
    now, line = time.monotonic(), owned.line
    for number, ago in enumerate((3600, 3600, 3600, 60, 50, 0), 1):
        owned.deliver(number)
        line.last_acks.append((now - ago, owned.arrivals[-1]))
    line.ack([owned.arrivals[place] for place in (0, 1, 3, 4, 5)])
    owned.at.connection.params.heartbeat = 15

    # With a heartbeat of 15 s, 40 may pass until pika closes a silent connection. The third one was never sent.
    assert [one[1].token[1] for one in line.unsure()] == [3, 5, 6]


def test_a_quiesced_line_never_subscribes(owned: Owned) -> None:
    owned.hear(spec.Channel.OpenOk())
    owned.line.quiesce()
    owned.said()

    assert owned.hear(spec.Basic.QosOk()).said() == []


def test_one_answer_of_the_channel_confirms_all_pending_instructions(owned: Owned) -> None:
    heard: list[tuple[str, bool]] = []
    owned.subscribe()
    for name in "abc":
        owned.line.when_processed(lambda so, name=name: heard.append((name, so)))  # type: ignore[misc]  # bound early
    assert owned.said() == [("Basic.Qos", None)]
    assert heard == []

    assert owned.hear(spec.Basic.QosOk()).said() == [("Basic.Qos", None)]
    assert heard == [("a", True)]
    assert owned.hear(spec.Basic.QosOk()).said() == []
    assert heard == [("a", True), ("b", True), ("c", True)]


def test_a_closed_channel_confirms_no_instruction(owned: Owned) -> None:
    heard: list[bool] = []
    owned.subscribe()
    for _ in range(2):
        owned.line.when_processed(heard.append)
    owned.hear(spec.Channel.Close(406, "PRECONDITION_FAILED - timed out", 0, 0))
    owned.line.when_processed(heard.append)

    assert heard == [False] * 3


def test_no_instruction_is_sent_on_a_closed_channel(owned: Owned) -> None:
    owned.subscribe().deliver(1)
    owned.hear(spec.Channel.Close(406, "PRECONDITION_FAILED - timed out", 0, 0)).said()
    owned.line.instruct(owned.arrivals[0], Instruction.ACK)

    assert owned.said() == []
    assert [type(reason) for reason in owned.interruptions] == [ChannelClosedByBroker]


def test_a_cancel_by_the_broker_interrupts_the_line_and_closes_its_channel(owned: Owned) -> None:
    owned.subscribe()
    owned.hear(spec.Basic.Cancel(owned.line._tag))

    assert owned.interruptions == ["the broker cancelled the subscription"]
    assert ("Channel.Close", None) in owned.said()
    assert not owned.line.open


def test_quiescing_cancels_and_closing_does_not(owned: Owned) -> None:
    owned.subscribe()
    owned.line.quiesce()
    assert owned.said() == [("Basic.Cancel", None)]
    owned.hear(spec.Basic.CancelOk(owned.line._tag))
    owned.line.close()

    assert owned.said() == [("Channel.Close", None)]
    assert owned.interruptions == []


def test_a_subscription_is_never_cancelled_before_the_broker_has_confirmed_it(owned: Owned) -> None:
    owned.hear(spec.Channel.OpenOk()).said()
    owned.hear(spec.Basic.QosOk())
    owned.line.quiesce()
    [consume] = owned.methods()
    owned.hear(spec.Basic.ConsumeOk(consume.consumer_tag))

    assert owned.said() == [("Basic.Cancel", None)]


def test_an_ordered_line_is_never_cancelled_and_requeues_nothing(ordered: Owned) -> None:
    ordered.subscribe().deliver(1)
    ordered.line.quiesce()
    ordered.deliver(2)
    assert ordered.said() == []
    ordered.line.close()

    assert ordered.said() == [("Channel.Close", None)]
    assert [arrival.token for arrival in ordered.arrivals] == [(ordered.line, 1)]


def test_a_line_closes_once(owned: Owned) -> None:
    owned.subscribe()
    for _ in range(2):
        owned.line.close()

    assert owned.said() == [("Channel.Close", None)]


def test_a_line_given_up_counts_what_was_unsettled_when_the_broker_had_all_settlements(owned: Owned) -> None:
    """What is sent to the broker and not received there comes again if the process is killed."""
    owned.subscribe()
    line, counts = owned.line, list[int | None]()

    def look(*heard: Any) -> None:
        owned.hear(*heard)
        counts.append(line.unsettled)

    for number in (1, 2, 3):
        owned.deliver(number)
    line.retire()
    owned.hear(spec.Basic.CancelOk("ct"))
    line.ack(owned.arrivals[:1])
    line.count_unsettled()
    look()
    line.ack(owned.arrivals[1:2])
    look(spec.Basic.QosOk())
    owned.deliver(4)
    line.count_unsettled()
    look()
    look(spec.Basic.QosOk())
    owned.said()
    line.count_unsettled()

    assert counts == [None, 2, 2, 1]
    assert owned.said() == []


def test_a_line_counts_nothing_while_it_accepts_what_the_broker_may_still_send() -> None:
    with wire() as at:
        owned = Owned(at, kind=AutoAckLine).subscribe()
        owned.deliver(1)
        owned.line.retire()
        owned.said()
        owned.line.count_unsettled()
        owned.deliver(2)
        early = owned.said()
        owned.hear(spec.Basic.CancelOk(owned.line._tag))
        owned.line.count_unsettled()
        owned.hear(spec.Basic.QosOk())

    assert (early, owned.said(), owned.line.unsettled) == ([], [("Basic.Qos", None)], 2)


def test_a_line_that_is_lost_counts_nothing(owned: Owned) -> None:
    owned.subscribe().deliver(1)
    owned.line.retire()
    owned.line.count_unsettled()
    owned.hear(spec.Channel.Close(406, "PRECONDITION_FAILED - timed out", 0, 0))

    assert owned.line.unsettled is None

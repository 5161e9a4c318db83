"""Acks parsed in one step and frame by frame are the same, wherever the bytes are cut."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pika import spec

from django_rmq_retry.amqp import PublishEnd
from django_rmq_retry.amqp.confirm_channel import ConfirmChannel, PendingPublish
from django_rmq_retry.amqp.protocol import BasicProtocol
from tests.amqp.live import to
from tests.amqp.offline import HEARTBEAT, OneByOne, Wire, delivery, method, wire

Told = list[tuple[int, bool]]


@pytest.fixture
def at() -> Iterator[Wire]:
    with wire() as one:
        yield one


def publish(at: Wire, ends: list[PublishEnd]) -> ConfirmChannel:
    """A confirm channel with number 2 and one publish on its way."""
    channel = ConfirmChannel(at.connection, closed=lambda _: None)
    at.feed(method(spec.Channel.OpenOk(), channel=2) + method(spec.Confirm.SelectOk(), channel=2))
    channel.send(PendingPublish(to("q"), b"\0\0", deadline=1e9, done=lambda result: ends.append(result.kind)))
    return channel


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(1, 2**63), st.booleans()), max_size=6), st.integers(1, 50))
def test_acks_are_reported_once_and_in_order_however_the_bytes_are_cut(answers: Told, size: int) -> None:
    data = b"".join(method(spec.Basic.Ack(*answer)) + delivery(delivery_tag=answer[0]) for answer in answers)
    with wire() as at:
        told: Told = []
        at.connection.confirms[1] = lambda tag, multiple: told.append((tag, multiple))
        for start in range(0, len(data), size):
            at.feed(data[start : start + size])

        assert told == answers
        assert [received[1] for received in at.received] == [tag for tag, _ in answers]
        assert at.connection.bytes_received == len(data)
        assert at.connection.frames_received == 4 * len(answers)


def test_the_ack_of_another_channel_goes_to_its_callback(at: Wire) -> None:
    seen: list[Any] = []
    at.channel.add_callback(lambda frame: seen.append(frame.method.delivery_tag), [spec.Basic.Ack])
    at.connection.confirms[2] = lambda *_: pytest.fail("it is not of this channel")
    at.feed(method(spec.Basic.Ack(7)) + HEARTBEAT)

    assert seen == [7]


def test_an_error_in_a_confirm_callback_loses_no_other_ack(at: Wire) -> None:
    told: Told = []

    def fail_first(tag: int, multiple: bool) -> None:
        told.append((tag, multiple))
        if len(told) == 1:
            raise ValueError("of the first")

    at.connection.confirms[1] = fail_first
    with pytest.raises(ValueError, match="of the first"):
        at.feed(method(spec.Basic.Ack(1)) + method(spec.Basic.Ack(2)))
    at.feed(HEARTBEAT)

    assert told == [(1, False), (2, False)]


@pytest.mark.parametrize("kind", [BasicProtocol, OneByOne])
def test_both_parsers_end_a_publish_the_same(kind: type[BasicProtocol]) -> None:
    ends: list[PublishEnd] = []
    with wire(kind) as at:
        publish(at, ends)
        at.feed(method(spec.Basic.Ack(1), channel=2))

    assert ends == [PublishEnd.CONFIRMED]


def test_a_closed_channel_gets_no_more_confirms(at: Wire) -> None:
    ends: list[PublishEnd] = []
    publish(at, ends)
    at.feed(method(spec.Channel.Close(404, "NOT_FOUND - no exchange 'x' in vhost '/'", 60, 40), channel=2))

    assert at.connection.confirms == {}
    assert ends == [PublishEnd.UNKNOWN]

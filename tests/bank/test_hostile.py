"""Headers at which a consumer with plain pika loses its connection: the message is parked, the next one handled."""

import struct

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import StreamLostError

from tests.bank.bank import Bank
from tests.bank.looking import depth
from tests.tooling.tables import entry, nested
from tests.tooling.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.on_both, pytest.mark.nightly]


HOSTILE = {
    "a timestamp in milliseconds": entry(b"at", b"T", struct.pack(">Q", 1_790_000_000_000)),
    "a timestamp of 2 to the 63rd": entry(b"at", b"T", struct.pack(">Q", 2**63)),
    "tables nested 5000 deep": nested(5000),
    "a name that is not UTF-8": entry(b"\xff\xfe", b"S", struct.pack(">I", 1) + b"x"),
}


def test_hostile_headers_are_parked_and_the_consumer_keeps_running(bank: Bank, amqp: BlockingChannel) -> None:
    bank.play("account", number="DE-1")
    for raw in HOSTILE.values():
        bank.play("publish_with_headers", raw=raw.hex())
    with bank.consuming():
        payment = bank.play("pay", number="DE-1", kind="card", amount=30)
        # By the depth, because the parked message keeps its headers, over which pika in this process would fail.
        wait_until(lambda: depth(amqp, "payments.charge.parked") == len(HOSTILE), 30, what="all are parked")
        wait_until(lambda: bank.play("state", payment=payment) == "posted", 30, what="the next payment is posted")

    reasons = [line["reason"] for line in bank.attempts("park", "-")]
    assert reasons == ["undecodable_headers"] * len(HOSTILE)


@pytest.mark.parametrize(
    ("header", "error"),
    [
        ("a timestamp in milliseconds", "ValueError"),
        ("a timestamp of 2 to the 63rd", "OverflowError"),
        ("tables nested 5000 deep", "RecursionError"),
    ],
)
def test_plain_pika_loses_its_connection_at_each_attempt(bank: Bank, broker_url: str, header: str, error: str) -> None:
    bank.play("publish_with_headers", raw=HOSTILE[header].hex())
    received: list[bytes] = []

    for _ in range(2):
        with pytest.raises(StreamLostError, match=error):
            consume(broker_url, received)

    assert received == []


def test_plain_pika_receives_a_message_name_that_is_not_utf_8(bank: Bank, amqp: BlockingChannel) -> None:
    bank.play("publish_with_headers", raw=HOSTILE["a name that is not UTF-8"].hex())

    wait_until(lambda: amqp.basic_get("payments.charge")[0], 30, what="it is received")


def consume(broker_url: str, received: list[bytes]) -> None:
    """Consume as the examples of pika do."""
    channel = pika.BlockingConnection(pika.URLParameters(broker_url)).channel()
    channel.basic_consume("payments.charge", lambda *parts: received.append(parts[-1]))
    channel.start_consuming()

"""Headers that crash or stall other consumers: each such message is parked, and the next one is handled."""

import struct

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.bank.bank import Bank
from tests.bank.looking import depth
from tests.tooling.tables import entry, nested
from tests.tooling.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.on_both]


HOSTILE = {
    "a timestamp in milliseconds": entry(b"at", b"T", struct.pack(">Q", 1_790_000_000_000)),
    "a timestamp of 2 to the 63rd": entry(b"at", b"T", struct.pack(">Q", 2**63)),
    "tables nested 5000 deep": nested(5000),
    "a name that is not UTF-8": entry(b"\xff\xfe", b"S", struct.pack(">I", 1) + b"x"),
}


def test_hostile_headers_are_parked_and_the_consumer_lives(bank: Bank, amqp: BlockingChannel) -> None:
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

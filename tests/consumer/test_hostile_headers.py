"""Every header that means something, made up: a message that bears it is retried and parked as any other."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from django_rmq_retry import (
    AckFirst,
    DeadLetter,
    Delivery,
    Exchange,
    Fixed,
    Ladder,
    Message,
    NackRequeue,
    Native,
    OneShot,
    Queue,
    Republish,
    RetryThenPark,
    StopTheLine,
    WaitQueue,
)
from django_rmq_retry.amqp.frames import check_writable
from django_rmq_retry.messages import Headers, Instruction, Properties, decode_properties, encode_properties
from django_rmq_retry.messages.parked_copy import ROOM_BYTES, set_aside
from django_rmq_retry.policies import Policy
from tests.consumer.attempts import Book, pipeline_of
from tests.handlers.factories import subscription
from tests.messages.hostile_headers import NAMES, headers
from tests.messages.parked_copies import read_back, requeued_copy
from tests.tooling.marks import nightly_but

BODY = b'{"id": 7}'
MOST = 12
LONG = {"rmq-retry-wait: 31 bits", "rmq-retry-wait: 63 bits"}
"""A sender may have its own message wait for years, from queue to queue."""
QUEUE = Queue("payments", bindings=[Exchange("events", "topic").bind("#")])
POLICIES: dict[str, Policy] = {
    "ladder": RetryThenPark(attempts=3, backoff=Fixed(30), via=Ladder()),
    "dead letter": RetryThenPark(attempts=3, via=DeadLetter(exchange="again", queue="later", after=30)),
    "wait queue": RetryThenPark(attempts=3, backoff=Fixed(30), via=WaitQueue(Exchange("wait", "fanout"), "waiting")),
    "requeue": RetryThenPark(attempts=2, backoff=Fixed(1), via=NackRequeue()),
    "republish": RetryThenPark(attempts=3, backoff=Fixed(1), via=Republish()),
    "ack first": RetryThenPark(attempts=3, backoff=Fixed(1), via=AckFirst()),
    "native": RetryThenPark(attempts=3, via=Native(1)),
    "one shot": OneShot(park=True),
    "line": StopTheLine(attempts=3),
}


class Broken(Exception):
    """The error that the handler always raises."""


def failing(_: Delivery) -> None:
    raise Broken("again")


def delivered(body: bytes, raw: bytes, *, redelivered: bool) -> Delivery:
    return Delivery(queue="payments", body=body, raw=raw, exchange="", routing_key="payments", redelivered=redelivered)


def given_back(delivery: Delivery, instruction: Instruction, times: int) -> Delivery:
    """As the broker delivers it once more, with its own count."""
    counts: dict[str, object] = {"x-delivery-count": times}
    if instruction is Instruction.REJECT:
        counts = {"x-death": [{"queue": "payments", "reason": "rejected", "count": times}]}
    known = decode_properties(delivery.raw)
    headers = known.headers.replacing(drop=frozenset(counts), put=counts)
    raw = encode_properties(replace(known, headers=headers))
    return delivered(delivery.body, raw, redelivered=instruction is not Instruction.REJECT)


def parked_in_the_end(policy: Policy, raw: bytes, *, redelivered: bool) -> Message:
    """The parked copy of a message whose handler fails each time; as the broker would, each copy is delivered."""
    book = Book(notes_acks=False)
    one = subscription(policy, queue=QUEUE)
    object.__setattr__(one, "run", failing)
    pipeline = pipeline_of(one, journals=(book,), chance=lambda: 0.5, check=check_writable)
    delivery = delivered(BODY, raw, redelivered=redelivered)
    for number in range(1, MOST + 1):
        settlement = pipeline.attempt(delivery)
        reasons = [note.verdict.reason for note in book.notes]
        assert "unsettled" not in reasons, book.notes[-1].verdict.detail
        copy = settlement.copy
        if copy is None:
            assert settlement.instruction is not Instruction.ACK
            if settlement.instruction is not Instruction.KEEP:
                delivery = given_back(delivery, settlement.instruction, number)
            continue
        encode_properties(copy.properties)
        if copy.routing_key == "payments.parked":
            assert reasons.count(None) == len(reasons) - 1
            return copy
        delivery = delivered(copy.body, encode_properties(copy.properties), redelivered=False)
    raise AssertionError(f"after {MOST} deliveries it is not parked")


def check(policy: Policy, table: bytes, *, redelivered: bool = False) -> None:
    """Through retries, the parked queue, its record's reading, a requeue, and the queue beside the parked one."""
    raw = encode_properties(Properties(message_id="m-1", headers=Headers(table)))
    copy = parked_in_the_end(policy, raw, redelivered=redelivered)
    arrival = delivered(copy.body, encode_properties(copy.properties), redelivered=False)
    arrival = replace(arrival, queue="payments.parked")
    found = read_back(arrival)

    assert (found.body, found.queue, found.parked_in) == (BODY, "payments", "payments.parked")
    assert found.reason in {"retries_exhausted", "undecodable_headers", "permanent", "worker_stopped"}
    again = requeued_copy(
        body=found.body, raw=found.raw, exchange=found.exchange, routing_key=found.routing_key, message_id="m-1"
    )
    check_writable(again)
    check_writable(set_aside(arrival, "no database", queue="unrecorded"))


@pytest.mark.parametrize("redelivered", [False, pytest.param(True, marks=pytest.mark.nightly)])
@pytest.mark.parametrize(
    "policy", nightly_but([POLICIES["ladder"], POLICIES["requeue"]], POLICIES.values()), ids=POLICIES
)
def test_no_hostile_header_prevents_parking(policy: Policy, redelivered: bool) -> None:
    for name in NAMES:
        for told, table in headers(name):
            if told in LONG:
                continue
            try:
                check(policy, table, redelivered=redelivered)
            except BaseException as error:
                error.add_note(told)
                raise


ALL = [table for name in NAMES for told, table in headers(name) if told not in LONG]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(ALL), min_size=2, max_size=6), st.sampled_from(sorted(POLICIES)), st.booleans())
def test_no_combination_of_hostile_headers_prevents_parking(
    tables: list[bytes], policy: str, redelivered: bool
) -> None:
    table = b"".join(tables)

    # The broker takes no more in a frame.
    check(POLICIES[policy], table if len(table) < ROOM_BYTES else tables[0], redelivered=redelivered)

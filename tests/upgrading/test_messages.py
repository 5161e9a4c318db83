"""Messages in flight while old and new consumers run side by side: each understands what the other wrote."""

from dataclasses import replace

import pytest

from django_rmq_retry import Delivery, Ladder, Message
from django_rmq_retry.amqp.move import EXPIRATION
from django_rmq_retry.handlers.settlement import put_back
from django_rmq_retry.messages import Instruction, encode_properties
from django_rmq_retry.messages.header_names import ANSWER, TICKET
from django_rmq_retry.messages.stamp import ADDED, OURS, stamp_of
from django_rmq_retry.policies import Policy, retry
from tests.handlers.factories import delivery, sent_on, settled, subscription
from tests.messages.parked_copies import read_back
from tests.upgrading import scenes
from tests.upgrading.old_reader import KNOWN, Read, read
from tests.upgrading.recorded_messages import FLIGHTS, landed, properties

CAME_BY = ("main", "pay.cash")
FAILED = ("retries_exhausted", "BankDown", "timeout")
NEWER: dict[str, str] = {
    "rmq-retry-traceparent": "Carried on as any header; the attempt after it links to no earlier one.",
    "rmq-retry-x-death": "Carried on as any header; the record of version 1 shows it as one of the message's.",
    "rmq-retry-reply-to": "Carried on as any header; the record of version 1 shows it instead of the property.",
    "rmq-retry-unacked": "Carried on as any header; version 1 requeues the message like any other.",
}
"""Headers of ours that version 1 does not know, and why it does no harm there to carry them on."""


def known(
    attempts: int = 0,
    *,
    wait: int = 0,
    lines: int | None = None,
    why: tuple[str, str, str] = ("", "", ""),
    ticket: str = "",
    told_in: str = "payments",
    named: bool = True,
) -> Read:
    """The message that version 1 has to read; each attempt is a line of the summary."""
    return Read(
        attempts=attempts, wait=wait, came_by=CAME_BY, told_in=told_in, lines=attempts if lines is None else lines,
        why=why, ticket=ticket, message_id="m-1" if named else None, foreign={"tenant": "acme"} if named else {},
        unknown=frozenset(),
    )  # fmt: skip


EXPECTED = {
    "first_retry": known(1),
    "second_retry": known(2),
    "long_wait": known(1, wait=110_000),
    "republished": known(1),
    "in_a_wait_queue": known(1),
    "suspect": known(1),
    "parked": known(3, why=FAILED),
    "parked_without_an_id": known(3, lines=1, why=FAILED, named=False),
    "requeue": known(ticket=scenes.TICKET),
    "requeue_that_failed": known(1, ticket=scenes.TICKET),
    "requeue_parked_again": known(3, lines=1, why=FAILED, ticket=scenes.TICKET),
    "parked_unhandled": known(why=("no_handler", "", "")),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_version_1_reads_the_messages_written_now(name: str) -> None:
    told = read(encode_properties(scenes.SCENES[name]().properties))

    assert told == EXPECTED[name]


def test_every_kind_of_message_is_in_the_recorded_set() -> None:
    assert set(FLIGHTS) == set(scenes.SCENES) == {*EXPECTED, "parked_unreadable"}


def test_no_unknown_header_is_written_that_version_1_would_copy() -> None:
    written = {name: read(encode_properties(scene().properties)).unknown for name, scene in scenes.SCENES.items()}

    assert {name: new - NEWER.keys() for name, new in written.items() if new - NEWER.keys()} == {}


def test_every_new_header_documents_its_effect_on_version_1() -> None:
    known_now = OURS | ADDED | {TICKET, ANSWER, EXPIRATION}

    assert known_now - KNOWN == NEWER.keys()
    assert known_now == KNOWN | NEWER.keys()


def test_a_message_requeued_by_a_pause_is_unchanged_for_version_1() -> None:
    back = put_back(landed("first_retry", "payments"), subscription(scenes.LADDER), in_place=False).copy

    assert back is not None
    assert (back.exchange, back.routing_key) == ("", "payments")
    assert read(encode_properties(back.properties)) == EXPECTED["first_retry"]


@pytest.mark.parametrize(
    ("name", "policy", "attempt"),
    [
        ("first_retry", scenes.LADDER, 2),
        ("second_retry", scenes.LADDER, 3),
        ("republished", scenes.REPUBLISH, 2),
        ("in_a_wait_queue", scenes.WAIT_QUEUE, 2),
        ("requeue", scenes.LADDER, 1),
        ("requeue_that_failed", scenes.LADDER, 2),
    ],
)
def test_attempts_counted_by_version_1_continue(name: str, policy: Policy, attempt: int) -> None:
    arrival = landed(name, "payments")
    own = subscription(policy)
    arrival = replace(arrival, attempt=policy.via.attempt(own.route, arrival))
    copy = settled(retry(5, scenes.DOWN), arrival, own).copy

    assert arrival.attempt == attempt
    assert (stamp_of(arrival).exchange, stamp_of(arrival).routing_key) == CAME_BY
    assert copy is not None
    assert read(encode_properties(copy.properties)).attempts == attempt
    assert read(encode_properties(copy.properties)).ticket == read(properties(name)).ticket


def test_a_wait_begun_by_version_1_continues() -> None:
    own = subscription(scenes.LADDER)
    rest: list[tuple[int, str]] = []
    arrival: Delivery | None = landed("long_wait", "payments")
    while arrival is not None:
        hop = sent_on(arrival, own)
        arrival = None if hop is None else returned(hop.copy)
        rest += [] if hop is None or hop.copy is None else [(stamp_of(returned(hop.copy)).wait, hop.copy.routing_key)]

    assert isinstance(own.policy.via, Ladder)
    assert rest == [(20_000, "payments.retry.90s"), (10_000, "payments.retry.10s"), (0, "payments.retry.10s")]


def returned(copy: Message | None) -> Delivery:
    assert copy is not None
    return delivery(body=copy.body, raw=encode_properties(copy.properties))


def test_a_message_quarantined_by_version_1_keeps_its_history() -> None:
    arrival = replace(landed("suspect", "payments.quarantine"), queue="payments")
    own = subscription(scenes.LADDER)
    arrival = replace(arrival, attempt=own.policy.via.attempt(own.route, arrival))
    settlement = settled(retry(90, scenes.DOWN), arrival, own)

    assert arrival.attempt == 2
    assert settlement.instruction is Instruction.ACK
    assert settlement.copy is not None
    assert settlement.copy.routing_key == "payments.retry.90s"


@pytest.mark.parametrize(
    ("name", "reason", "attempts", "message_id"),
    [
        ("parked", "retries_exhausted", 3, "m-1"),
        ("parked_without_an_id", "retries_exhausted", 3, None),
        ("parked_unhandled", "no_handler", 0, "m-1"),
        ("requeue_parked_again", "retries_exhausted", 3, "m-1"),
    ],
)
def test_a_message_parked_by_version_1_is_read_unchanged(
    name: str, reason: str, attempts: int, message_id: str | None
) -> None:
    found = read_back(landed(name, "payments.parked"))

    assert (found.reason, found.stamp.attempts, found.properties.message_id) == (reason, attempts, message_id)
    assert (found.queue, found.exchange, found.routing_key, found.body) == ("payments", *CAME_BY, scenes.BODY)
    assert [header for header in found.properties.headers if header.startswith("rmq-retry-")] == []
    assert found.ticket == read(properties(name)).ticket


def test_properties_kept_as_bytes_by_version_1_are_restored_unchanged() -> None:
    found = read_back(landed("parked_unreadable", "payments.parked"))

    assert found.raw == scenes.UNREADABLE
    assert found.body == scenes.BODY


def test_a_message_has_the_same_identity_in_both_versions() -> None:
    old = read_back(landed("parked", "payments.parked"))
    new = read_back(
        delivery(queue="payments.parked", body=scenes.BODY, raw=encode_properties(scenes.parked().properties))
    )

    assert old.identity == new.identity
    assert old.identity == "message:102b2ebaba4f5c7abe24749cfd614b2577ca979e8d1f04c72fa3ae8fe17f3e6b"

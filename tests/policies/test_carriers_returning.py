"""Carriers that keep a message unacked while it waits, and then return it or a copy of it."""

from dataclasses import replace
from typing import Any

import pytest

from django_rmq_retry import (
    AckFirst,
    DeadLetter,
    Exchange,
    Exponential,
    Fixed,
    InPlace,
    Ladder,
    Message,
    NackRequeue,
    Native,
    Queue,
    Republish,
    RetryThenPark,
    Schedule,
    Steps,
    StopTheLine,
    WaitQueue,
)
from django_rmq_retry.errors import ConfigurationError
from django_rmq_retry.messages import Headers, Instruction, Properties, Settlement, encode_properties
from django_rmq_retry.policies import Backoff, Carrier, retry
from tests.handlers.factories import NOW, arrived, delivery, hop, route, sent_on, settled, subscription

COPYING: list[Carrier] = [
    Ladder([30]),
    Republish(),
    AckFirst(),
    WaitQueue(exchange="wait", queue="payments.wait"),
    DeadLetter(exchange="retry", queue="payments.wait", after=30),
]
NOT_COPYING: list[Carrier] = [NackRequeue(), Native(5), InPlace()]
BOUND = Queue("payments", bindings=[Exchange("main", "direct").bind("pay")])


def named(value: object) -> str:
    return type(value).__name__


def copy_by(via: Carrier, **arrival: Any) -> Message:
    """The copy of a delivery that came by a key which no binding takes, so that every carrier of these must copy."""
    charge = subscription(RetryThenPark(attempts=4, via=via), queue=BOUND)
    copy = settled(retry(30), delivery(**arrival), charge).copy
    assert copy is not None
    return copy


def test_nack_requeue_counts_only_first_and_later_deliveries() -> None:
    path = route(attempts=2)

    assert NackRequeue().attempt(path, delivery()) == 1
    assert NackRequeue().attempt(path, delivery(redelivered=True)) == 2
    assert NackRequeue().attempt(path, delivery(redelivered=True, headers={"x-delivery-count": 9})) == 2
    assert NackRequeue().attempt(path, delivery(headers={"x-delivery-count": 9, "rmq-retry-attempts": 3})) == 1


@pytest.mark.parametrize("attempts", [1, 2, None])
def test_nack_requeue_accepts_the_limits_it_can_count(attempts: int | None) -> None:
    assert NackRequeue().refusal(route(attempts=attempts)) is None


def test_nack_requeue_refuses_limits_it_cannot_count() -> None:
    with pytest.raises(ConfigurationError) as caught:
        subscription(RetryThenPark(attempts=3, via=NackRequeue()))

    assert str(caught.value) == (
        "Handler payments.handlers.charge: NackRequeue reads only the flag 'redelivered', so it cannot count to "
        "attempts=3. "
        "Use attempts=1, 2 or None (no limit), or another carrier, such as via=Ladder()."
    )


def test_nack_requeue_requeues_the_message_after_its_wait() -> None:
    carried = NackRequeue().carry(route(attempts=2), delivery(), hop(5))

    assert carried == Settlement(instruction=Instruction.REQUEUE, hold=5)


def test_republish_confirms_a_copy_before_the_ack() -> None:
    carried = Republish().carry(route(), delivery(routing_key="pay", exchange="main"), hop(5, attempts=1))

    assert (carried.instruction, carried.hold, carried.ack_first) == (Instruction.ACK, 5, False)
    assert carried.copy is not None
    assert (carried.copy.exchange, carried.copy.routing_key, carried.copy.mandatory) == ("", "payments", True)


def test_ack_first_acks_the_original_before_its_copy_is_confirmed() -> None:
    carried = AckFirst().carry(route(), delivery(), hop(5, attempts=1))

    assert (carried.instruction, carried.hold, carried.ack_first) == (Instruction.ACK, 5, True)
    assert carried.copy is not None
    assert carried.copy.routing_key == "payments"


@pytest.mark.parametrize("via", COPYING, ids=named)
def test_only_ack_first_acks_first(via: Carrier) -> None:
    charge = subscription(RetryThenPark(attempts=4, via=via), queue=BOUND)

    assert settled(retry(30), delivery(), charge).ack_first is isinstance(via, AckFirst)


@pytest.mark.parametrize("via", COPYING, ids=named)
def test_each_copy_counts_one_attempt_more(via: Carrier) -> None:
    backoff = None if via.pace else Fixed(30)
    charge = subscription(RetryThenPark(attempts=9, backoff=backoff, via=via), queue=BOUND)
    counted, one = [], delivery()
    for _ in range(5):
        one = replace(one, attempt=via.attempt(charge.route, one))
        counted.append(one.attempt)
        copy = settled(retry(30), one, charge).copy
        assert copy is not None
        one = arrived(copy, queue="payments")

    assert counted == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("via", COPYING, ids=named)
def test_no_copy_has_broker_headers_or_routing_properties(via: Carrier) -> None:
    copy = copy_by(
        via,
        user_id="another-user",
        expiration="5",
        delivery_mode=1,
        headers={
            "x-death": [{"queue": "payments.wait", "reason": "expired", "count": 1}],
            "x-first-death-queue": "payments.wait",
            "x-first-death-reason": "expired",
            "x-first-death-exchange": "",
            "x-last-death-queue": "payments.wait",
            "x-last-death-reason": "expired",
            "x-last-death-exchange": "",
            "x-delivery-count": 3,
            "x-acquired-count": 4,
            "x-stream-offset": 5,
            "x-delay": 60_000,
            "CC": ["audit"],
            "BCC": ["spy"],
            "cc": "kept",
            "x-own": "kept",
        },
    )

    assert {name for name in copy.headers if not name.startswith("rmq-retry-")} == {"cc", "x-own"}
    assert copy.properties.user_id is None
    assert copy.properties.delivery_mode == 2
    assert copy.properties.expiration in {None, "30000"}


@pytest.mark.parametrize("via", COPYING, ids=named)
def test_foreign_headers_keep_every_byte_in_every_copy(via: Carrier) -> None:
    foreign = (
        b"\x06double" + b"d\x40\x0e\0\0\0\0\0\0"
        b"\x05float" + b"f\x40\x70\0\0"
        b"\x05milli" + b"T\0\0\x01\x8b\xcf\xe5\x68\0"
        b"\x03\xff\xfe\xfd" + b"S\0\0\0\x02\xc3\x28"
        b"\x04deep" + b"F\0\0\0\x07\x01aF\0\0\0\0"
        b"\x04twin" + b"t\1" + b"\x04twin" + b"t\0"
    )
    own = Headers.of({"rmq-retry-attempts": 1, "rmq-retry-queue": "payments", "rmq-retry-since": NOW})
    copy = copy_by(via, headers=Headers(foreign + own.raw), body=b"\0\xff")

    assert copy.headers.raw.startswith(foreign)
    assert copy.body == b"\0\xff"
    assert list(copy.headers).count("rmq-retry-attempts") == 1


@pytest.mark.parametrize("via", COPYING, ids=named)
def test_all_other_properties_survive_every_copy(via: Carrier) -> None:
    properties = Properties(
        content_type="application/json",
        content_encoding="utf-8",
        delivery_mode=2,
        priority=9,
        correlation_id="\udcff",
        reply_to="answers",
        message_id="m-1",
        timestamp=2**64 - 1,
        type="charge",
        app_id="shop",
        cluster_id="c",
    )
    copy = copy_by(via, raw=encode_properties(properties))
    expected = replace(properties, headers=copy.headers, expiration=copy.properties.expiration)

    assert copy.properties == expected


@pytest.mark.parametrize("via", NOT_COPYING, ids=named)
def test_carriers_without_copies_send_neither_copy_nor_answer(via: Carrier) -> None:
    carried = via.carry(route(attempts=2), delivery(), hop(5))

    assert carried.copy is None
    assert carried.answer is None


@pytest.mark.parametrize("via", [NackRequeue(), Republish(), AckFirst(), Native(5)], ids=named)
def test_a_returning_carrier_dead_letters_to_the_parked_queue(via: Carrier) -> None:
    added = via.additions(route(attempts=2))

    assert not added.topology.queues
    assert added.arguments["x-dead-letter-exchange"] == ""
    assert added.arguments["x-dead-letter-routing-key"] == "payments.parked"
    assert added.arguments["x-dead-letter-strategy"] == "at-least-once"


@pytest.mark.parametrize(
    "via", [NackRequeue(), Native(5), DeadLetter(exchange="retry", queue="wait", after=5)], ids=named
)
def test_a_budget_needs_a_carrier_that_writes_retry_history(via: Carrier) -> None:
    with pytest.raises(ConfigurationError, match="writes no retry history into a message, so the age and number"):
        RetryThenPark(attempts=2, via=via, budget=60)


def test_an_error_schedule_needs_a_carrier_that_writes_retry_history() -> None:
    with pytest.raises(ConfigurationError, match="NackRequeue writes no retry history into a message"):
        RetryThenPark(attempts=2, via=NackRequeue(), schedules={OSError: Schedule(attempts=9, backoff=Fixed(5))})


@pytest.mark.parametrize("via", [*NOT_COPYING, COPYING[-1]], ids=named)
def test_a_wait_header_of_another_carrier_is_ignored(via: Carrier) -> None:
    policy = StopTheLine() if isinstance(via, InPlace) else RetryThenPark(attempts=2, via=via)
    charge = subscription(policy, queue=BOUND)

    assert sent_on(delivery(headers={"rmq-retry-wait": 60_000}), charge) is None


def test_in_place_leaves_counting_attempts_to_the_consumer() -> None:
    held = delivery(headers={"rmq-retry-attempts": 9})

    assert InPlace().attempt(route(), held) == 1
    assert InPlace().carry(route(), held, hop(5)) == Settlement(instruction=Instruction.KEEP, hold=5)


@pytest.mark.parametrize("via", [Republish(), AckFirst()], ids=named)
def test_a_forged_remaining_wait_does_not_delay_an_attempt(via: Carrier) -> None:
    forged = delivery(headers={"rmq-retry-attempts": 1, "rmq-retry-wait": 86_400_000})

    assert sent_on(forged, subscription(RetryThenPark(attempts=4, via=via))) is None


@pytest.mark.parametrize("via", [Republish(), AckFirst()], ids=named)
def test_an_unacked_retry_waits_at_most_15_minutes(via: Carrier) -> None:
    settlement = settled(retry(2000), delivery(), subscription(RetryThenPark(attempts=4, via=via)))

    assert settlement.hold == 900
    assert settlement.copy is not None
    assert "rmq-retry-wait" not in settlement.copy.headers


@pytest.mark.parametrize("via", [Republish(), AckFirst()], ids=named)
@pytest.mark.parametrize(
    ("backoff", "longest"), [(Fixed(1000), 1000), (Fixed(800, jitter=0.25), 1000), (Steps([10, 1000]), 1000)]
)
def test_an_unacked_back_off_above_15_minutes_is_refused(via: Carrier, backoff: Backoff, longest: int) -> None:
    with pytest.raises(ConfigurationError) as refused:
        subscription(RetryThenPark(attempts=4, backoff=backoff, via=via))

    assert (
        f"{named(via)} keeps a waiting message unacked, for at most 900 s, and the back-off waits up to {longest} s"
        in str(refused.value)
    )


SHORT = RetryThenPark(attempts=None, backoff=Fixed(1), schedules={OSError: Schedule(2, Exponential(10))})
LONG = RetryThenPark(attempts=3, backoff=Fixed(1), schedules={OSError: Schedule(20, Exponential(10))})


@pytest.mark.parametrize("via", [Republish(), AckFirst()], ids=named)
def test_an_unacked_back_off_is_checked_up_to_its_own_attempts(via: Carrier) -> None:
    with pytest.raises(ConfigurationError, match=r"for at most 900 s, and the back-off waits up to 2621440 s"):
        subscription(replace(LONG, via=via))

    assert subscription(replace(SHORT, via=via)).policy.via == via


@pytest.mark.parametrize("via", [Republish(), AckFirst()], ids=named)
@pytest.mark.parametrize(
    ("attempts", "backoff"), [(None, Steps([*range(1, 71), 3600])), (100, Exponential(1, factor=1.1))]
)
def test_a_long_unacked_wait_after_many_short_ones_is_refused(
    via: Carrier, attempts: int | None, backoff: Backoff
) -> None:
    with pytest.raises(ConfigurationError, match="keeps a waiting message unacked, for at most 900 s"):
        subscription(RetryThenPark(attempts=attempts, backoff=backoff, via=via))


@pytest.mark.parametrize("via", [Republish(), AckFirst(), InPlace()], ids=named)
@pytest.mark.parametrize("attempts", [6, 100, None])
def test_the_default_back_off_stays_within_15_minutes_unacked(via: Carrier, attempts: int | None) -> None:
    policy = subscription(RetryThenPark(attempts=attempts, via=via)).policy
    waits = [wait.nominal(attempt) for wait in policy.backoffs for attempt in (1, 2, 3, 4, 5, 99)]

    assert waits == [10, 30, 90, 270, 750, 750]
    assert [wait.delay(99, chance=1.0) for wait in policy.backoffs] == [900]
    assert replace(RetryThenPark(attempts=attempts), via=via) == policy


@pytest.mark.parametrize(("attempts", "backoff"), [(2, Exponential(600, factor=3)), (1, Fixed(3600))])
def test_nack_requeue_accepts_long_waits_that_it_never_reaches(attempts: int, backoff: Backoff) -> None:
    policy = RetryThenPark(attempts=attempts, backoff=backoff, via=NackRequeue())

    assert subscription(policy).policy == policy


def test_nack_requeue_keeps_a_message_unacked_at_most_15_minutes() -> None:
    said = NackRequeue().refusal(route(attempts=2, backoffs=(Fixed(1000),)))

    assert said == (
        "NackRequeue keeps a waiting message unacked, for at most 900 s, and the back-off waits up to 1000 s. "
        "Use shorter waits, or via=Ladder()."
    )
    assert NackRequeue().carry(route(attempts=2), delivery(), hop(5000)).hold == 900

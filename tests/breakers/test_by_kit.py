"""Breakers and rates by the test kit: everything on a virtual clock."""

from itertools import count, pairwise
from typing import Any

import pytest

from django_rmq_retry import (
    Breaker,
    Delivery,
    Fixed,
    Handler,
    Ladder,
    Republish,
    Retry,
    RetryThenPark,
    StopTheLine,
    WaitQueue,
    handler,
    signals,
)
from django_rmq_retry.policies import Carrier, Policy
from django_rmq_retry.testing import NeverQuiet, RmqTest, isolated_handlers
from tests.messages.exceptions import BankDown

pytestmark = pytest.mark.usefixtures("no_handlers")


def made(
    seen: list[Any], policy: Policy | None = None, *, name: str = "charge", queue: str = "payments", **options: Any
) -> Handler[Any]:
    def charge(message: Delivery) -> None:
        seen.append(message.data)

    return handler(queue, policy=policy or RetryThenPark(attempts=3, backoff=Fixed(10)), name=name, **options)(charge)


def test_an_outage_error_pauses_the_queue_and_a_probe_resumes_it(rmq: RmqTest) -> None:
    seen: list[Any] = []
    charge = made(seen, breaker=Breaker(on=BankDown, probe_after=30))
    rmq.fail_next(charge, BankDown("timeout"), times=3)
    for number in range(5):
        charge.publish(number)
    rmq.drain()

    assert sorted(seen) == [0, 1, 2, 3, 4]
    # 30 s, then 60 s, then 120 s: the probe that succeeds opens the queue at once.
    assert rmq.now == 210
    assert [one.number for one in rmq.attempts(charge)] == [1, 1, 1, 1, 1]
    assert rmq.all_parked(charge) == []
    assert rmq.waits == []


def test_an_outage_of_any_length_uses_no_attempt(rmq: RmqTest) -> None:
    seen: list[Any] = []
    charge = made(seen, breaker=Breaker(on=BankDown, probe_after=30, longest=60))
    rmq.fail_next(charge, BankDown("timeout"), times=60)
    charge.publish("a")
    rmq.advance(3500)
    before = list(seen), rmq.attempts(charge)
    rmq.drain()

    assert before == ([], [])
    assert (seen, rmq.all_parked(charge)) == (["a"], [])


def test_other_failures_use_attempts(rmq: RmqTest) -> None:
    charge = made([], breaker=Breaker(on=BankDown))
    rmq.fail_next(charge, ValueError("no"), times=3)
    charge.publish("a")
    rmq.drain()

    assert rmq.parked(charge).reason == "Gave up after 3 attempts: ValueError: no"
    assert rmq.waits == [10, 10]


def test_attempts_before_the_outage_are_kept(rmq: RmqTest) -> None:
    charge = made([], breaker=Breaker(on=BankDown, probe_after=30))
    for error in (ValueError("no"), BankDown("timeout"), ValueError("no"), ValueError("no")):
        rmq.fail_next(charge, error)
    charge.publish("a")
    rmq.drain()

    assert rmq.parked(charge).attempts == 3
    assert [one.number for one in rmq.attempts(charge)] == [1, 2, 3]


def test_an_outage_at_the_last_attempt_parks_nothing(rmq: RmqTest) -> None:
    seen: list[Any] = []
    charge = made(seen, breaker=Breaker(on=BankDown, probe_after=30))
    for error in (ValueError("no"), ValueError("no"), BankDown("timeout")):
        rmq.fail_next(charge, error)
    charge.publish("a")
    rmq.drain()

    assert (seen, rmq.all_parked(charge)) == (["a"], [])


def test_the_breaker_opens_although_nothing_ever_succeeded(rmq: RmqTest) -> None:
    seen: list[Any] = []
    charge = made(seen, breaker=Breaker(share=0.5, of=10, probe_after=30))
    rmq.fail_next(charge, ValueError("no"), times=6)
    for number in range(10):
        charge.publish(number)
    rmq.drain()

    assert sorted(seen) == list(range(10))
    # The fifth opens it and is not counted; of the sixth, the probe, the same is true.
    assert len([one for one in rmq.attempts(charge) if one.error]) == 4
    assert rmq.all_parked(charge) == []


def test_an_error_caused_by_an_outage_error_counts_too(rmq: RmqTest) -> None:
    seen: list[Any] = []
    down = [True]

    def charge(message: Delivery) -> None:
        if down.pop() if down else False:
            raise Retry(after=5) from BankDown("timeout")
        seen.append(message.data)

    made_of = handler("payments", name="charge", breaker=Breaker(on=BankDown, probe_after=30))(charge)
    made_of.publish("a")
    rmq.drain()

    assert (seen, rmq.now) == (["a"], 30)


def test_other_queues_keep_flowing(rmq: RmqTest) -> None:
    seen: list[Any] = []
    charge = made([], breaker=Breaker(on=BankDown))
    post = made(seen, name="post", queue="ledger")
    rmq.fail_next(charge, BankDown("timeout"), times=100)
    charge.publish("a")
    rmq.advance(1)
    post.publish("b")
    rmq.advance(1)

    assert seen == ["b"]


@pytest.mark.parametrize(
    "via", [Ladder(), Republish(), WaitQueue("wait", "payments.wait")], ids=lambda via: type(via).__name__
)
def test_no_carrier_counts_an_attempt_during_an_outage(rmq: RmqTest, via: Carrier) -> None:
    seen: list[Any] = []
    charge = made(seen, RetryThenPark(attempts=2, via=via), breaker=Breaker(on=BankDown, probe_after=30))
    rmq.fail_next(charge, BankDown("timeout"), times=30)
    for number in range(25):
        charge.publish(number)
    rmq.drain()

    assert sorted(seen) == list(range(25))
    assert {one.number for one in rmq.attempts(charge)} == {1}


def test_an_ordered_queue_keeps_its_order_and_its_attempts(rmq: RmqTest) -> None:
    seen: list[Any] = []
    post = made(seen, StopTheLine(backoff=Fixed(1), attempts=3), breaker=Breaker(on=BankDown, probe_after=30))
    rmq.fail_next(post, ValueError("no"))
    rmq.fail_next(post, BankDown("timeout"), times=5)
    rmq.fail_next(post, ValueError("no"))
    for number in range(4):
        post.publish(number)
    rmq.drain(limit=20)

    assert seen == [0, 1, 2, 3]
    assert [one.number for one in rmq.attempts(post)] == [1, 2, 3, 1, 1, 1]
    assert rmq.all_parked(post) == []


def test_handlers_of_one_queue_wait_together_and_the_right_one_is_probed(rmq: RmqTest) -> None:
    seen: list[Any] = []
    charge = made(seen, breaker=Breaker(on=BankDown, probe_after=30), type="charge")
    other = made(seen, name="other", type="other")
    rmq.fail_next(charge, BankDown("timeout"))
    charge.publish("a", type="charge")
    rmq.advance(0)
    other.publish("b", type="other")
    rmq.advance(29)
    assert seen == []
    rmq.drain()

    assert sorted(seen) == ["a", "b"]


def test_the_test_kit_reports_an_endless_outage(rmq: RmqTest) -> None:
    charge = made([], breaker=Breaker(on=BankDown))
    rmq.fail_next(charge, BankDown("timeout"), times=1000)
    charge.publish("a")

    with pytest.raises(NeverQuiet):
        rmq.drain()


def test_a_crash_while_the_breaker_is_open_changes_nothing(rmq: RmqTest) -> None:
    seen: list[Any] = []
    charge = made(seen, breaker=Breaker(on=BankDown, probe_after=30))
    rmq.fail_next(charge, BankDown("timeout"))
    rmq.fail_next(charge, "crash before ack")
    charge.publish("a")
    rmq.drain()

    assert seen == ["a", "a"]
    assert rmq.now == 30


def test_opening_and_closing_each_send_one_signal(rmq: RmqTest) -> None:
    told: list[tuple[str, str, str]] = []

    def opened(**said: Any) -> None:
        told.append(("opened", said["handler"], said["cause"]))

    def closed(**said: Any) -> None:
        told.append(("closed", said["handler"], said["cause"]))

    charge = made([], breaker=Breaker(on=BankDown))
    signals.breaker_opened.connect(opened)
    signals.breaker_closed.connect(closed)
    try:
        rmq.fail_next(charge, BankDown("timeout"), times=4)
        charge.publish("a")
        rmq.drain()
    finally:
        signals.breaker_opened.disconnect(opened)
        signals.breaker_closed.disconnect(closed)

    assert told == [("opened", "charge", "BankDown: timeout"), ("closed", "charge", "BankDown: timeout")]


def test_the_jitter_of_probes_comes_from_the_seed() -> None:
    ends = []
    for _ in range(2):
        with isolated_handlers(), RmqTest(seed=7) as rmq:
            charge = made([], breaker=Breaker(on=BankDown, probe_after=30))
            rmq.fail_next(charge, BankDown("timeout"))
            charge.publish("a")
            rmq.drain()
            ends.append(rmq.now)

    assert ends[0] == ends[1]
    assert 30 < ends[0] < 36


def test_a_rate_spreads_attempts_over_time(rmq: RmqTest) -> None:
    charge = made([], rate=2)
    for number in range(21):
        charge.publish(number)
    rmq.drain()
    at = [one.at for one in rmq.attempts(charge)]

    assert rmq.now == pytest.approx(10, abs=0.01)
    assert all(later - earlier == pytest.approx(0.5, abs=0.01) for earlier, later in pairwise(at))
    assert {one.number for one in rmq.attempts(charge)} == {1}


def test_a_rate_below_one_per_minute_keeps_no_message_unacked_for_long(rmq: RmqTest) -> None:
    seen: list[Any] = []
    charge = made(seen, rate="4/h")
    for number in range(5):
        charge.publish(number)
    rmq.drain()

    assert sorted(seen) == [0, 1, 2, 3, 4]
    assert rmq.now == pytest.approx(3600, rel=0.01)
    assert rmq.all_parked(charge) == []


def test_a_retry_also_uses_a_rate_slot(rmq: RmqTest) -> None:
    charge = made([], RetryThenPark(attempts=3, backoff=Fixed(1)), rate="6/m")
    rmq.fail_next(charge, ValueError("no"), times=2)
    charge.publish("a")
    rmq.drain()

    assert [round(one.at, 1) for one in rmq.attempts(charge)] == [0, 10, 20]
    assert [one.number for one in rmq.attempts(charge)] == [1, 2, 3]


def test_a_breaker_that_keeps_opening_quarantines_no_message(rmq: RmqTest) -> None:
    """RabbitMQ 4.0 counts every message that comes back."""
    seen: list[Any] = []
    returns: list[object] = []
    runs = count()

    def charge(message: Delivery) -> None:
        returns.append(message.headers.get("x-delivery-count", 0))
        if next(runs) % 2:
            raise BankDown("timeout")
        seen.append(message.data)

    made_of = handler("payments", name="charge", breaker=Breaker(on=BankDown, probe_after=30))(charge)
    for number in range(60):
        made_of.publish(number)
    rmq.drain()

    assert sorted(seen) == list(range(60))
    assert set(returns) == {0}
    assert {one.number for one in rmq.attempts(made_of)} == {1}
    # It has opened fifty-nine times.
    assert rmq.now == 59 * 30

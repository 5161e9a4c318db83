"""Where there is no more room, or no database: messages stay in hand, in their order, and nothing runs twice for it."""

from collections.abc import Callable
from typing import Any

import pytest
from django.db import OperationalError

from django_rmq_retry import wiring
from django_rmq_retry.core.headers import Headers
from django_rmq_retry.core.message import Delivery, Message
from django_rmq_retry.core.properties import Properties
from django_rmq_retry.core.settlement import Settlement, Tell
from django_rmq_retry.models import BlockedKey
from django_rmq_retry.ordering import gating
from django_rmq_retry.ordering.releasing import release
from django_rmq_retry.testing import RmqTest
from tests.ordering.bank import QUEUE, Bank, blocked, held

pytestmark = [pytest.mark.database, pytest.mark.django_db(transaction=True)]


@pytest.mark.parametrize("limit", ["HELD_PER_KEY", "HELD_IN_ALL"])
def test_above_the_limit_later_ones_are_slowed_down_and_keep_their_order(
    bank: Bank, settings: Any, caplog: pytest.LogCaptureFixture, limit: str
) -> None:
    settings.RMQ_RETRY = {"URL": "embedded://", limit: 2}
    with RmqTest() as rmq:
        bank.closed.add(1)
        bank.publish(1, 2, 3, 4, 5)
        bank.publish(6, account="B")
        rmq.advance(0.5)
        at_first = (list(bank.posted), held())
        rmq.advance(1)
        then = held()
        rmq.advance(30)

        assert (at_first, then) == (([6], ["m2", "m3"]), ["m2", "m3", "m4"])
        assert (held(), bank.posted) == (["m2", "m3", "m4", "m5"], [6])
        assert [record.levelname for record in caplog.records if "Too many" in record.getMessage()] == ["CRITICAL"]

        release(BlockedKey.objects.get())
        rmq.drain()

        assert (bank.posted, blocked(), held()) == ([6, 2, 3, 4, 5], {}, [])
        assert {one.number for one in rmq.attempts()} == {1}


class Away:
    """A step that the database does not allow so many times."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, times: int) -> None:
        self.times = times
        self.step: Callable[..., Any] = getattr(gating, name)
        monkeypatch.setattr(gating, name, self)

    def __call__(self, *args: Any, **options: Any) -> Any:
        if self.times:
            self.times -= 1
            raise OperationalError("the server closed the connection unexpectedly")
        return self.step(*args, **options)


class Patient:
    """Does what a consumer does where an attempt itself fails: the message stays in hand."""

    def __init__(self, rmq: RmqTest) -> None:
        self.rmq = rmq

    def drain(self) -> None:
        attempts = self.rmq._driver._attempts
        assert attempts is not None
        settlement = attempts.settlement

        def settled(delivery: Delivery, begin: Any = None) -> Any:
            try:
                return settlement(delivery, begin)
            except OperationalError:
                delivery.attempt -= 1
                return Settlement(tell=Tell.AGAIN, hold=5.0)

        attempts.settlement = settled  # type: ignore[method-assign]
        self.rmq.drain()


def test_what_could_not_go_back_to_its_queue_is_parked_at_once(bank: Bank, rmq: RmqTest) -> None:
    bank.closed.add(1)
    bank.publish(1)
    much = Properties(message_id="m2", headers=Headers.of({"much": "x" * 131_000}))
    wiring.publisher().publish(Message(body=b'{"account": "A", "number": 2}', properties=much, routing_key=QUEUE))
    bank.publish(3)
    rmq.drain()

    assert held() == ["m3"]
    assert [one.reason[:37] for one in rmq.all_parked(bank.post)][1:] == ["It cannot wait behind a message of it"]


@pytest.mark.parametrize(("step", "down"), [("block", 1), ("pass_on", 1), ("hold", 1)])
def test_without_a_database_what_has_run_stays_in_hand_and_does_not_run_again(
    bank: Bank, rmq: RmqTest, monkeypatch: pytest.MonkeyPatch, step: str, down: int
) -> None:
    bank.down[1] = down
    Away(monkeypatch, step, times=3)
    bank.publish(1, 2, 3)
    bank.publish(4, account="B")
    Patient(rmq).drain()

    assert bank.posted == [4, 1, 2, 3] if step != "block" else bank.posted[-3:] == [1, 2, 3]
    assert sorted(bank.began) == [1, 1, 2, 3, 4]
    assert [one.number for one in rmq.attempts() if one.message.id == "m1"] == [1, 2]
    assert (blocked(), held()) == ({}, [])
